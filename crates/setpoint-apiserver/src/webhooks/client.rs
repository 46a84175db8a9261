//! One POST over TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::response::Parts;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use super::target::Target;
use super::trust;

/// Why there is no answer, in the words of Go's clients.
#[derive(Debug)]
pub(super) enum Failure {
    /// What the configuration says cannot be used.
    Client(String),
    Call(String),
    /// The answer began, but cannot be read whole.
    Unread(String),
}

/// The request for `path`.
pub(super) fn request(target: &Target, path: &str, body: Bytes) -> Result<Request<Bytes>, Failure> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, target.authority.as_str())
        .header(ACCEPT, "application/json, */*")
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, "kube-apiserver-admission")
        .body(body)
        .map_err(|error| Failure::Client(error.to_string()))
}

/// Sends it on a connection of its own and reads the answer whole.
pub(super) async fn post(
    target: &Target,
    address: &(String, u16),
    config: ClientConfig,
    path: &str,
    body: Bytes,
    limit: usize,
) -> Result<(Parts, Bytes), Failure> {
    let request = request(target, path, body)?.map(Full::new);
    let stream = connect(&address.0, address.1).await.map_err(Failure::Call)?;
    let name =
        ServerName::try_from(target.host.clone()).map_err(|error| Failure::Call(format!("tls: {error}")))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| Failure::Call(handshake_words(&error, &target.host)))?;
    let broken = |error: hyper::Error| Failure::Call(broken_words(&error));
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let connection = tokio::spawn(connection);
    let answered = async {
        let (parts, mut body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let data = frame.map_err(|error| cut_off(&error))?.into_data().unwrap_or_default();
            if bytes.len() + data.len() > limit {
                return Err(Failure::Call(format!("the answer has more than {limit} bytes")));
            }
            bytes.extend_from_slice(&data);
        }
        Ok((parts, bytes.freeze()))
    };
    let answer = answered.await;
    connection.abort();
    answer
}

/// A connection to the first address of `host` that takes one.
async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port))
        .await
        .map_err(|_| format!("dial tcp: lookup {host}: no such host"))?
        .collect();
    let mut last = format!("dial tcp: lookup {host}: no such host");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // A review is written at once: waiting for more gains nothing.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = format!("dial tcp {address}: connect: {}", system_words(&error)),
        }
    }
    Err(last)
}

fn system_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        _ => error.to_string(),
    }
}

fn handshake_words(error: &io::Error, name: &str) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        Some(tls) => trust::words(tls, name),
        None => system_words(error),
    }
}

/// An answer that ends before its end.
fn cut_off(error: &hyper::Error) -> Failure {
    let why = match broken_words(error) {
        why if why == "EOF" => "unexpected EOF".to_owned(),
        why => why,
    };
    Failure::Unread(format!(
        "unexpected error when reading response body. Please retry. Original error: {why}"
    ))
}

fn broken_words(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match source {
        Some(io) => system_words(io),
        None if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => "EOF".to_owned(),
        None => error.to_string(),
    }
}
