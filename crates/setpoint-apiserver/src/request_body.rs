//! The body of a request: read whole, within a size and a time, for those who may ask what they ask; of others nothing is kept.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;

use crate::status::{Result, Status};

/// The most bytes of a request's body, and of an object after a patch. Upstream: `MaxRequestBodyBytes`.
pub(crate) const BODY_LIMIT: usize = 3 << 20;
/// How much of a body that is not wanted is read and thrown away: most clients send it whole before they read the answer, and see
/// only a broken connection otherwise.
const DRAIN_LIMIT: usize = 32 << 20;
/// How long a client may take to send a body. Upstream: `--request-timeout`.
const BODY_TIME: Duration = Duration::from_secs(60);

/// All of a body.
pub(crate) async fn read<B>(body: B) -> Result<Bytes>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let chunks = tokio::time::timeout(BODY_TIME, gather(body, BODY_LIMIT));
    let chunks = chunks.await.unwrap_or_else(|_| Err(Status::timeout()))?;
    Ok(<[Bytes; 1]>::try_from(chunks).map_or_else(|chunks| chunks.concat().into(), |[only]| only))
}

/// Lets a client whose request is refused send its body, and keeps none of it.
pub(crate) async fn discard<B>(body: B)
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    if !body.is_end_stream() {
        // It is refused whatever the body is.
        let _ = tokio::time::timeout(BODY_TIME, gather(body, 0)).await;
    }
}

/// The pieces of a body of at most `limit` bytes. What is longer is read on, though not kept.
async fn gather<B>(body: B, limit: usize) -> Result<Vec<Bytes>>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut body = std::pin::pin!(body);
    let too_large = || Status::too_large(format!("Request entity too large: limit is {BODY_LIMIT}"));
    // One that says so beforehand need not be waited for.
    if body.size_hint().lower() > DRAIN_LIMIT as u64 {
        return Err(too_large());
    }
    let mut chunks: Vec<Bytes> = Vec::new();
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Into::into).map_err(|error| {
            Status::bad_request(format!("the body of the request cannot be read: {error}"))
        })?;
        // Trailers say nothing to us.
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(data.len());
        if length <= limit {
            chunks.push(data);
        } else {
            chunks = Vec::new();
        }
        if length > DRAIN_LIMIT {
            break;
        }
    }
    if length > limit { Err(too_large()) } else { Ok(chunks) }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::{StreamExt, stream};
    use http_body::{Frame, SizeHint};
    use http_body_util::StreamBody;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Announces a size and never gives a byte.
    struct Announced(u64);

    impl Body for Announced {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    /// `text` again and again, each time after a pause; `times` times.
    fn drip(
        text: &'static str,
        pause: Duration,
        times: usize,
    ) -> impl Body<Data = Bytes, Error = Infallible> + Send {
        StreamBody::new(stream::iter(0..times).then(move |_| async move {
            sleep(pause).await;
            Ok(Frame::data(Bytes::from_static(text.as_bytes())))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let start = Instant::now();
        let status = read(drip(" ", Duration::from_secs(7), usize::MAX)).await.unwrap_err();
        assert_eq!((status.code, start.elapsed()), (504, BODY_TIME));
        discard(drip(" ", Duration::from_secs(7), usize::MAX)).await;
        assert_eq!(start.elapsed(), 2 * BODY_TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_read() {
        assert_eq!(read(drip("ab", BODY_TIME / 6, 5)).await.unwrap(), "ababababab");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_announced_as_far_too_large_is_not_waited_for() {
        let start = Instant::now();
        assert_eq!(read(Announced(99_999_999_999)).await.unwrap_err().code, 413);
        discard(Announced(99_999_999_999)).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        let small = tokio::time::timeout(Duration::from_secs(1), read(Announced(10)));
        small.await.unwrap_err();
    }
}
