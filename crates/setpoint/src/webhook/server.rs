use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
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

/// A client that has not shaken hands, or not sent a header or a body by then, is cut off.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time. The API servers keep a few each.
const CONNECTIONS: usize = 1024;
/// How long requests that are under way may go on after the stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves the webhooks over TLS until `stop`; then what is under way ends.
pub(crate) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    webhooks: Webhooks,
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
        let (acceptor, webhooks, watcher) = (acceptor.clone(), webhooks.clone(), graceful.watcher());
        connections.spawn(async move {
            let stream = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake of a webhook failed"),
                Err(_) => return,
            };
            let service = service_fn(move |request| {
                let webhooks = webhooks.clone();
                async move { Ok::<_, Infallible>(respond(request, &webhooks).await) }
            });
            let mut builder = auto::Builder::new(TokioExecutor::new());
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
