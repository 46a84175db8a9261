//! The body of a response: one piece, or a stream that ends when the client goes away.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use http_body::{Frame, SizeHint};

/// How much of a body is given before others have a turn. A thread that encrypts and sends a body of megabytes in one go would
/// keep all that wait for it: requests that came in meanwhile are found only when it looks for them.
pub(crate) const TURN: usize = 64 << 10;

/// The body of every response of the API server.
///
/// A watch or log is a stream that is polled by whoever reads it: nothing runs on its behalf, and dropping it
/// ends it.
pub struct Body {
    kind: Kind,
    /// How much was given since the others had a turn.
    given: usize,
    /// Waits until they had it.
    turn: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

enum Kind {
    /// What is left of it.
    Whole(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::new(Kind::Whole(None))
    }

    pub(crate) fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::new(Kind::Stream(Box::pin(stream)))
    }

    fn new(kind: Kind) -> Self {
        Self { kind, given: 0, turn: None }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::new(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(turn) = &mut self.turn {
            ready!(turn.as_mut().poll(cx));
            self.turn = None;
        }
        let piece = match &mut self.kind {
            Kind::Whole(rest) => rest.take().map(|mut bytes| {
                let piece = bytes.split_to(bytes.len().min(TURN));
                *rest = (!bytes.is_empty()).then_some(bytes);
                piece
            }),
            Kind::Stream(stream) => ready!(stream.as_mut().poll_next(cx)),
        };
        let Some(piece) = piece else { return Poll::Ready(None) };
        self.given += piece.len();
        if self.given >= TURN {
            self.given = 0;
            self.turn = Some(Box::pin(tokio::task::yield_now()));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.kind, Kind::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.kind {
            Kind::Whole(_) => "Body::Whole",
            Kind::Stream(_) => "Body::Stream",
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};
    use http_body_util::BodyExt;

    use super::*;

    /// The lengths of the pieces between which others have a turn.
    async fn turns(mut body: Body) -> Vec<usize> {
        let mut turns = vec![0];
        loop {
            match body.frame().now_or_never() {
                Some(Some(frame)) => {
                    let data = frame.unwrap().into_data().unwrap();
                    *turns.last_mut().unwrap() += data.len();
                }
                Some(None) => return turns,
                None => {
                    turns.push(0);
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    #[tokio::test]
    async fn others_have_a_turn_while_a_large_body_is_sent() {
        let large = Bytes::from(vec![b'x'; 2 * TURN + 9]);
        assert_eq!(turns(Body::from(large.clone())).await, [TURN, TURN, 9]);
        let pieces: Vec<Bytes> = large.chunks(1000).map(Bytes::copy_from_slice).collect();
        let turns = turns(Body::stream(stream::iter(pieces))).await;
        assert_eq!(turns, [66_000, 65_081], "each ends with the piece that fills it");
    }

    #[tokio::test]
    async fn a_body_says_what_is_left_of_it() {
        use http_body::Body as _;
        let mut body = Body::from(Bytes::from(vec![0; TURN + 1]));
        assert_eq!(body.size_hint().exact(), Some(TURN as u64 + 1));
        body.frame().await.unwrap().unwrap();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(1), false));
        body.frame().await.unwrap().unwrap();
        assert!(body.is_end_stream());
    }
}
