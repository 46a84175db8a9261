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
use crate::headers::text;
use crate::identity::Identity;
use crate::render::{Form, failure};
use crate::request_body::read;
use crate::server::ApiServer;
use crate::status::Status;

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
            if wants_upgrade(request.headers()) {
                return Ok(upgrade(api, identity, request).await);
            }
            Ok(dispatch::answer(api, Ok(identity), request).await)
        })
    }
}

/// Whether a request asks to leave HTTP for another protocol.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    text(headers, CONNECTION).to_ascii_lowercase().contains("upgrade")
}

/// A connection that is to become a stream of bytes has to be one: HTTP over a pipe in memory.
async fn upgrade<B>(api: ApiServer, identity: Identity, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (parts, body) = request.into_parts();
    let mut request = match read(body).await {
        Ok(body) => Request::from_parts(parts, body),
        Err(status) => return failure(&status, &Form::of_errors(&parts.headers, parts.uri.query())),
    };
    let (near, far) = tokio::io::duplex(PIPE);
    let service = service_fn(move |request: Request<Incoming>| {
        let (api, identity) = (api.clone(), identity.clone());
        async move { Ok::<_, Infallible>(dispatch::answer(api, Ok(identity), request).await) }
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
