//! One POST over TLS, on a connection that was kept or a new one.

use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::response::Parts;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use super::pool::{Pool, Purpose, Sender};
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

/// Sends it on a connection that was kept, or on a new one, and reads the answer whole.
pub(super) async fn post(
    pool: &Pool,
    target: &Target,
    address: &(String, u16),
    path: &str,
    body: Bytes,
    limit: usize,
) -> Result<(Parts, Bytes), Failure> {
    let purpose = Purpose::of(target, address);
    let mut request = request(target, path, body)?.map(Full::new);
    if let Some(mut kept) = pool.take(&purpose) {
        match kept.try_send_request(request).await {
            Ok(response) => return read(pool, purpose, kept, response, limit).await,
            Err(mut error) => match error.take_message() {
                // The webhook has closed it, and nothing was sent: it may be sent again.
                Some(unsent) => request = unsent,
                None => return Err(Failure::Call(broken_words(&error.into_error()))),
            },
        }
    }
    let config = pool.configuration(target.ca.as_ref())?;
    let stream = connect(&address.0, address.1).await.map_err(Failure::Call)?;
    let name =
        ServerName::try_from(target.host.clone()).map_err(|error| Failure::Call(format!("tls: {error}")))?;
    let stream = TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map_err(|error| Failure::Call(handshake_words(&error, &target.host)))?;
    let broken = |error: hyper::Error| Failure::Call(broken_words(&error));
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It ends when its sender is dropped, or the webhook closes it.
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(broken)?;
    read(pool, purpose, sender, response, limit).await
}

/// Reads an answer whole, and keeps its connection then.
async fn read(
    pool: &Pool,
    purpose: Purpose,
    sender: Sender,
    response: Response<Incoming>,
    limit: usize,
) -> Result<(Parts, Bytes), Failure> {
    let (parts, mut body) = response.into_parts();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(|error| cut_off(&error))?.into_data().unwrap_or_default();
        if bytes.len() + data.len() > limit {
            return Err(Failure::Call(format!("the answer has more than {limit} bytes")));
        }
        bytes.extend_from_slice(&data);
    }
    pool.keep(purpose, sender).await;
    Ok((parts, bytes.freeze()))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// A webhook that answers `answers` requests on each connection, and counts connections.
    async fn webhook(answers: usize) -> (Target, (String, u16), Arc<AtomicUsize>) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, acceptor) = (Arc::new(AtomicUsize::new(0)), TlsAcceptor::from(Arc::new(config)));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await.unwrap();
                    let (mut seen, mut part) = (Vec::new(), [0; 4096]);
                    for _ in 0..answers {
                        while !seen.ends_with(b"{}") {
                            match stream.read(&mut part).await {
                                Ok(0) | Err(_) => return,
                                Ok(length) => seen.extend_from_slice(&part[..length]),
                            }
                        }
                        seen.clear();
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                        stream.flush().await.unwrap();
                    }
                    let _ = stream.shutdown().await;
                });
            }
        });
        let target = Target {
            authority: format!("127.0.0.1:{port}"),
            host: "127.0.0.1".to_owned(),
            port,
            path: "/".to_owned(),
            service: None,
            ca: Some(cert.pem().into_bytes()),
        };
        (target, ("127.0.0.1".to_owned(), port), connections)
    }

    #[tokio::test]
    async fn one_connection_takes_all_calls() {
        let ((target, address, connections), pool) = (webhook(100).await, Pool::default());
        for _ in 0..20 {
            let (_, answer) =
                post(&pool, &target, &address, "/", Bytes::from_static(b"{}"), 1000).await.unwrap();
            assert_eq!(answer, "ok");
        }
        assert_eq!(connections.load(Ordering::SeqCst), 1);
        // Whoever trusts others checks anew.
        let other = Target { ca: Some(b"x".to_vec()), ..target };
        let refused = post(&pool, &other, &address, "/", Bytes::from_static(b"{}"), 1000).await;
        assert!(matches!(refused, Err(Failure::Client(_))), "{refused:?}");
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_is_replaced() {
        let ((target, address, connections), pool) = (webhook(2).await, Pool::default());
        for _ in 0..10 {
            let (_, answer) =
                post(&pool, &target, &address, "/", Bytes::from_static(b"{}"), 1000).await.unwrap();
            assert_eq!(answer, "ok");
            // The end of a connection is news that the runtime must get around to.
            tokio::task::yield_now().await;
        }
        let count = connections.load(Ordering::SeqCst);
        assert!((5..=10).contains(&count), "{count} connections");
    }
}
