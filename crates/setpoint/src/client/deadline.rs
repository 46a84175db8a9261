use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use tower::{BoxError, ServiceExt};

use super::Transport;

/// The API server did not answer an attempt in time. What a write did there is unknown.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path}: no complete answer from the API server within {limit:?}")]
pub struct DeadlineExceeded {
    method: Method,
    path: String,
    limit: Duration,
}

/// Sends `request` and reads the whole answer, in `limit` altogether: an answer that breaks off in its body
/// is then a failure of this attempt and can be retried like any other.
pub(super) async fn within(
    limit: Duration,
    transport: Transport,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let exchange = async {
        let (parts, body) = transport.oneshot(request).await?.into_parts();
        let bytes = body.collect().await?.to_bytes();
        Ok(Response::from_parts(parts, Body::from(bytes)))
    };
    match tokio::time::timeout(limit, exchange).await {
        Ok(result) => result,
        Err(_) => Err(DeadlineExceeded { method, path, limit }.into()),
    }
}
