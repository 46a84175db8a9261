use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::{Health, Key, Metrics, Reports};

/// A client that has not sent its header by then is cut off.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What answers a GET: path and query to status, content type and text.
pub(super) type Answer = Arc<dyn Fn(&str, &str) -> (StatusCode, &'static str, String) + Send + Sync>;

/// Listens on an address as Go programs write it: with an empty host, on all interfaces.
pub(super) async fn listen(address: &str) -> io::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':') else {
        return TcpListener::bind(address).await;
    };
    let port: u16 = port
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "write it as host:port or :port"))?;
    // Both families on one socket where the kernel has IPv6.
    match TcpListener::bind(SocketAddr::from(([0_u16; 8], port))).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::from(([0_u8; 4], port))).await
        }
        result => result,
    }
}

/// `/metrics` in the Prometheus text format, and `/debug/objects`: what the last reconciles did.
pub(super) fn metrics(metrics: Metrics, reports: Reports) -> Answer {
    Arc::new(move |path, _| match path.trim_end_matches('/') {
        path if path.starts_with("/debug/objects") => debug(&reports, path),
        "/metrics" => {
            (StatusCode::OK, prometheus_client::encoding::prometheus_text::CONTENT_TYPE, metrics.encode())
        }
        _ => (StatusCode::NOT_FOUND, TEXT, "404: /metrics and /debug/objects are served here\n".to_owned()),
    })
}

/// `/debug/objects[/CONTROLLER[/[NAMESPACE/]NAME]]`: the kept reconciles, the oldest first, as a list.
fn debug(reports: &Reports, path: &str) -> (StatusCode, &'static str, String) {
    let wanted = path.trim_start_matches("/debug/objects").trim_start_matches('/');
    let (controller, key) = wanted.split_once('/').map_or((wanted, None), |(a, b)| (a, Some(Key::from(b))));
    let found: Vec<Value> = reports
        .all()
        .iter()
        .filter(|report| controller.is_empty() || report.controller == controller)
        .filter(|report| key.as_ref().is_none_or(|key| report.object.key == *key))
        .map(|report| report.to_json())
        .collect();
    if found.is_empty() && !wanted.is_empty() {
        let text = format!("404: nothing is kept of {wanted}: /debug/objects/CONTROLLER/NAMESPACE/NAME\n");
        return (StatusCode::NOT_FOUND, TEXT, text);
    }
    (StatusCode::OK, "application/json", format!("{:#}\n", Value::from(found)))
}

/// `/healthz` and `/readyz`.
pub(super) fn health(health: Health) -> Answer {
    Arc::new(move |path, query| {
        let (status, text) = health.answer(path, query);
        (status, TEXT, text)
    })
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Serves until dropped.
pub(super) async fn serve(listener: TcpListener, answer: Answer) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: other connections must end first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let response = respond(&request, &answer);
                async move { Ok::<_, Infallible>(response) }
            });
            // A broken connection concerns only who opened it.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// The answer to one request.
pub(super) fn respond(request: &Request<Incoming>, answer: &Answer) -> Response<Full<Bytes>> {
    let (status, content_type, text) = if matches!(*request.method(), Method::GET | Method::HEAD) {
        answer(request.uri().path(), request.uri().query().unwrap_or_default())
    } else {
        (StatusCode::METHOD_NOT_ALLOWED, TEXT, "405: only GET\n".to_owned())
    };
    response(status, content_type, text)
}

/// An answer for people.
pub(super) fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    response(status, TEXT, text)
}

fn response(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
