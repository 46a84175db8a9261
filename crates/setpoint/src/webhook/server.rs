use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::Webhooks;
use super::service::{text, too_large};

/// What answers the requests of a server.
pub(crate) type Handler =
    Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Full<Bytes>>> + Send + Sync>;

/// A client that has not shaken hands, or not sent a header or a body by then, is cut off.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time. The API servers keep a few each.
const CONNECTIONS: usize = 1024;
/// How long requests that are under way may go on after the stop.
const GRACE: Duration = Duration::from_secs(5);

/// The webhooks as a handler.
pub(crate) fn reviews(webhooks: Webhooks) -> Handler {
    Arc::new(move |request| {
        let webhooks = webhooks.clone();
        async move { respond(request, &webhooks).await }.boxed()
    })
}

/// Serves `handler` over TLS until `stop`; then what is under way ends. A panic of it is an answer of that request only.
pub(crate) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handler: Handler,
    stop: CancellationToken,
) {
    let graceful = Arc::new(GracefulShutdown::new());
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        let accepted = {
            let stopped = std::pin::pin!(stop.cancelled());
            match select(stopped, std::pin::pin!(listener.accept())).await {
                Either::Left(_) => break,
                Either::Right((accepted, _)) => accepted,
            }
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, most likely: other connections must end first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (acceptor, handler, watcher) = (acceptor.clone(), handler.clone(), graceful.watcher());
        connections.spawn(async move {
            let stream = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => return,
            };
            let service = service_fn(move |request| {
                let handler = handler.clone();
                async move { Ok::<_, Infallible>(isolated(request, &handler).await) }
            });
            let mut builder = auto::Builder::new(TokioExecutor::new());
            // What was agreed on. Nothing else bounds the time of an HTTP/2 connection that nobody uses.
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                builder = builder.http1_only();
            }
            builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(PATIENCE * 3));
            let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
            // A broken connection concerns only who opened it.
            drop(watcher.watch(connection).await);
        });
    }
    drop(listener);
    let Some(graceful) = Arc::into_inner(graceful) else { return };
    drop(tokio::time::timeout(GRACE, graceful.shutdown()).await);
}

async fn isolated(request: Request<Incoming>, handler: &Handler) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let answer = AssertUnwindSafe(async { handler(request).await }).catch_unwind().await;
    answer.unwrap_or_else(|_| {
        tracing::error!(path, "answering a request panicked");
        text(StatusCode::INTERNAL_SERVER_ERROR, "answering panicked\n".to_owned()).map(Full::new)
    })
}

async fn respond(request: Request<Incoming>, webhooks: &Webhooks) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    // What nobody answers is not read either.
    let limit = webhooks.limit(parts.uri.path()).unwrap_or_default();
    let body = match tokio::time::timeout(PATIENCE, Limited::new(body, limit).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() && limit > 0 => {
            return too_large(limit).map(Full::new);
        }
        Ok(Err(_)) if limit == 0 => Bytes::new(),
        Ok(Err(error)) => {
            return text(StatusCode::BAD_REQUEST, format!("the body broke off: {error}\n")).map(Full::new);
        }
        Err(_) => {
            return text(StatusCode::REQUEST_TIMEOUT, "the body did not come in time\n".to_owned())
                .map(Full::new);
        }
    };
    webhooks.answer(Request::from_parts(parts, body)).await.map(Full::new)
}
