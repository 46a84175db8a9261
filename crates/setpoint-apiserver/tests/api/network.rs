//! Over a real socket: TLS, tokens, impersonation.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use setpoint_apiserver::{ApiServer, Identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection that trusts the server's own authority.
pub async fn connect(api: &ApiServer, address: SocketAddr, alpn: &str) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(api.ca_pem().unwrap().as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(address.ip().to_string()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

async fn fetch(api: &ApiServer, address: SocketAddr, alpn: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    exchange(api, address, alpn, headers, Method::GET, Bytes::new()).await
}

async fn exchange(
    api: &ApiServer,
    address: SocketAddr,
    alpn: &str,
    headers: &[(&str, &str)],
    method: Method,
    body: Bytes,
) -> (u16, Value) {
    let stream = connect(api, address, alpn).await;
    let path = "/api/v1/namespaces/default/pods";
    let uri = format!("https://{address}{path}");
    let mut request = Request::builder().method(method).uri(uri).header("host", address.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body)).unwrap();
    let response = if alpn == "h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn both_protocols_serve_whom_they_know() {
    let api = ApiServer::builder().build();
    let serving = api.serve(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let address = serving.address();
    let config: Value = serde_json::from_str(&api.kubeconfig("https://x").unwrap()).unwrap();
    let admin = format!("Bearer {}", config["users"][0]["user"]["token"].as_str().unwrap());
    for alpn in ["h2", "http/1.1"] {
        let (code, list) = fetch(&api, address, alpn, &[("authorization", &admin)]).await;
        assert_eq!((code, &list["kind"]), (200, &json!("PodList")));
    }
    let (code, status) = fetch(&api, address, "http/1.1", &[("authorization", "Bearer wrong")]).await;
    assert_eq!((code, &status["reason"]), (401, &json!("Unauthorized")));
    let (code, status) = fetch(&api, address, "http/1.1", &[]).await;
    assert_eq!(code, 403);
    assert!(status["message"].as_str().unwrap().contains("system:anonymous"), "{status:#}");
    let (code, status) =
        fetch(&api, address, "h2", &[("authorization", &admin), ("impersonate-user", "jane")]).await;
    assert_eq!(code, 403);
    assert!(status["message"].as_str().unwrap().contains("User \"jane\" cannot list"), "{status:#}");
    let jane = format!("Bearer {}", api.issue_token(Identity::new("jane", ["dev"])).unwrap());
    let (code, _) =
        fetch(&api, address, "h2", &[("authorization", &jane), ("impersonate-user", "joe")]).await;
    assert_eq!(code, 403);
    drop(serving);
}

#[tokio::test]
async fn a_body_over_the_limit_gets_an_answer() {
    let api = ApiServer::builder().build();
    let serving = api.serve(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let admin = format!("Bearer {}", api.issue_token(Identity::admin()).unwrap());
    for alpn in ["h2", "http/1.1"] {
        let body = Bytes::from(vec![b' '; 20 << 20]);
        let headers = [("authorization", admin.as_str())];
        let (code, status) = exchange(&api, serving.address(), alpn, &headers, Method::POST, body).await;
        assert_eq!((code, &status["reason"]), (413, &json!("RequestEntityTooLarge")), "{alpn}");
    }
}

#[tokio::test]
async fn long_headers_are_read() {
    let api = ApiServer::builder().build();
    let serving = api.serve(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let admin = format!("Bearer {}", api.issue_token(Identity::admin()).unwrap());
    let long = "x".repeat(100_000);
    for alpn in ["h2", "http/1.1"] {
        let headers = [("authorization", admin.as_str()), ("x-long", &long)];
        let (code, _) = fetch(&api, serving.address(), alpn, &headers).await;
        assert_eq!(code, 200, "{alpn}");
    }
}

/// Clients of pooled connections take a connection that was cut for a request that failed.
#[tokio::test]
async fn a_connection_ends_with_a_goodbye() {
    let api = ApiServer::builder().build();
    let serving = api.serve(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    for alpn in ["h2", "http/1.1"] {
        let mut stream = connect(&api, serving.address(), alpn).await;
        // The server has accepted it when it answers.
        stream.write_all(b"nonsense\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("a close_notify");
    }
    let mut idle = connect(&api, serving.address(), "http/1.1").await;
    idle.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    idle.read_exact(&mut [0; 12]).await.unwrap();
    drop(serving);
    idle.read_to_end(&mut Vec::new()).await.expect("a close_notify");
}

/// They were taken for absent: an administrator who acts as somebody then acted as himself.
#[tokio::test]
async fn headers_need_not_be_ascii() {
    let api = ApiServer::builder().build();
    let serving = api.serve(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let admin = format!("Bearer {}", api.issue_token(Identity::admin()).unwrap());
    let asked = |headers: Vec<(&'static str, String)>| {
        let headers: Vec<_> = [("authorization", admin.clone())].into_iter().chain(headers).collect();
        let (api, address) = (api.clone(), serving.address());
        async move {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            fetch(&api, address, "http/1.1", &headers).await
        }
    };
    let (code, status) = asked(vec![("impersonate-user", "é".to_owned())]).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 403 && message.contains("User \"é\" cannot list"), "{code} {message}");
    let (code, status) = asked(vec![("impersonate-group", "é".to_owned())]).await;
    let message = status["message"].as_str().unwrap();
    assert!(code == 400 && message.contains("without impersonating a user"), "{code} {message}");
    let wrong = [("authorization", "Bearer é")];
    let (code, _) = fetch(&api, serving.address(), "http/1.1", &wrong).await;
    assert_eq!(code, 401);
}
