//! Bodies of requests.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use setpoint_apiserver::{ApiServer, Identity};
use tower::ServiceExt;

/// The body of a request that says how many of its bytes the server still holds.
struct Counted {
    held: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    left: usize,
}

/// A piece of it.
struct Piece(Arc<AtomicUsize>);

const PIECE: &[u8] = &[b' '; 16 << 10];

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        PIECE
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.fetch_sub(PIECE.len(), Ordering::Relaxed);
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        let held = self.held.fetch_add(PIECE.len(), Ordering::Relaxed) + PIECE.len();
        self.most.fetch_max(held, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(Piece(Arc::clone(&self.held)))))))
    }
}

/// Bodies were read before it was known who sends them: strangers could make the server hold 3 MiB for each of their streams.
#[tokio::test]
async fn nothing_is_kept_of_what_strangers_send() {
    let api = ApiServer::builder().build();
    for (user, code, kept) in [
        (Identity::new("system:anonymous", ["system:unauthenticated"]), 403, PIECE.len()),
        (Identity::new("jane", ["dev"]), 403, PIECE.len()),
        (Identity::admin(), 400, 100 * PIECE.len()),
    ] {
        let most = Arc::new(AtomicUsize::new(0));
        let body = Counted { held: Arc::default(), most: Arc::clone(&most), left: 100 };
        let request = Request::post("/api/v1/namespaces/default/configmaps")
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        let response = api.service(user).oneshot(request).await.unwrap();
        assert_eq!((response.status().as_u16(), most.load(Ordering::Relaxed)), (code, kept));
    }
}
