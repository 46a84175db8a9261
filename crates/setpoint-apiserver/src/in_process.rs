//! The API server as a `tower` service, under a client in the same process.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt;
use http::header::{CONNECTION, HOST, HeaderValue};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;

use crate::body::Body;
use crate::dispatch;
use crate::identity::Identity;
use crate::render::{Form, failure};
use crate::server::ApiServer;
use crate::status::Status;

/// The most bytes of a request's body, and of an object after a patch. Upstream: `MaxRequestBodyBytes`.
pub(crate) const BODY_LIMIT: usize = 3 << 20;
/// How much of a body over the limit is read and thrown away: most clients send it whole before they read the answer, and see
/// only a broken connection otherwise.
const DRAIN_LIMIT: usize = 32 << 20;
/// How much may be under way on an upgraded connection.
const PIPE: usize = 64 << 10;

/// A connection to an [`ApiServer`] in this process, authenticated as one identity. See [`ApiServer::service`].
#[derive(Clone)]
pub struct InProcess {
    api: ApiServer,
    identity: Identity,
}

impl InProcess {
    pub(crate) fn new(api: ApiServer, identity: Identity) -> Self {
        Self { api, identity }
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Answering {
        let (api, identity) = (self.api.clone(), self.identity.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            Ok(match read(body).await {
                Ok(body) if wants_upgrade(&parts.headers) => {
                    upgrade(api, identity, Request::from_parts(parts, body)).await
                }
                Ok(body) => dispatch::answer(api, identity, Request::from_parts(parts, body)).await,
                Err(status) => failure(&status, &Form::of_errors(&parts.headers, parts.uri.query())),
            })
        })
    }
}

/// Reads a request's body whole, up to the limit.
pub(crate) async fn read<B>(body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut body = std::pin::pin!(body);
    // One that says so beforehand need not be waited for.
    if body.size_hint().lower() > DRAIN_LIMIT as u64 {
        return Err(body_too_large());
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
        if length <= BODY_LIMIT {
            chunks.push(data);
        } else {
            chunks = Vec::new();
        }
        if length > DRAIN_LIMIT {
            break;
        }
    }
    if length > BODY_LIMIT {
        return Err(body_too_large());
    }
    Ok(<[Bytes; 1]>::try_from(chunks).map_or_else(|chunks| chunks.concat().into(), |[only]| only))
}

fn body_too_large() -> Status {
    Status::too_large(format!("Request entity too large: limit is {BODY_LIMIT}"))
}

/// Whether a request asks to leave HTTP for another protocol.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get(CONNECTION)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.to_ascii_lowercase().contains("upgrade"))
}

/// A connection that is to become a stream of bytes has to be one: HTTP over a pipe in memory.
async fn upgrade(api: ApiServer, identity: Identity, mut request: Request<Bytes>) -> Response<Body> {
    let (near, far) = tokio::io::duplex(PIPE);
    let service = service_fn(move |request: Request<Incoming>| {
        let (api, identity) = (api.clone(), identity.clone());
        async move {
            let (parts, body) = request.into_parts();
            Ok::<_, Infallible>(match read(body).await {
                Ok(body) => dispatch::answer(api, identity, Request::from_parts(parts, body)).await,
                Err(status) => failure(&status, &Form::of_errors(&parts.headers, parts.uri.query())),
            })
        }
    });
    tokio::spawn(
        server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service).with_upgrades(),
    );
    // Over a pipe there is no proxy to name and only one host.
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = path.into();
    }
    request.headers_mut().entry(HOST).or_insert(HeaderValue::from_static("kubernetes.default.svc"));
    let answered = async {
        let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(near)).await?;
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request.map(Full::new)).await
    };
    match answered.await {
        Ok(response) => response.map(|body| {
            Body::stream(body.into_data_stream().filter_map(|chunk| std::future::ready(chunk.ok())))
        }),
        Err(error) => failure(
            &Status::internal(format!("the connection could not be upgraded: {error}")),
            &Form::json(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use http_body::{Frame, SizeHint};

    use super::*;

    /// Announces a size and never gives a byte.
    struct Announced(u64);

    impl http_body::Body for Announced {
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

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_announced_as_far_too_large_is_not_waited_for() {
        assert_eq!(read(Announced(99_999_999_999)).await.unwrap_err().code, 413);
        let small = tokio::time::timeout(std::time::Duration::from_secs(1), read(Announced(10)));
        small.await.unwrap_err();
    }
}
