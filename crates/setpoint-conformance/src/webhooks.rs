//! The webhook server of a case: answers what the case says, and keeps what it was sent.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The path by which the runner sees that an API server has noticed a change of its webhooks: it refuses everything.
pub(crate) const PROBE: &str = "/.probe";

/// Why a case has no webhook server.
#[derive(Debug, Error)]
pub(crate) enum WebhookError {
    /// There is no socket.
    #[error("the webhook server cannot listen: {0}")]
    Listen(#[from] io::Error),
    /// There is no certificate.
    #[error("the webhook server's certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The certificate cannot be used.
    #[error("the webhook server's TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The answers are not of the form.
    #[error("webhooks: {0}")]
    Answers(#[from] serde_json::Error),
}

/// What is answered at one path: always the same, or a list whose last one repeats.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Script {
    Each(Vec<Reply>),
    Same(Box<Reply>),
}

/// One answer. `conformance/README.md` describes the keys.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Reply {
    response: Option<Value>,
    review: Option<Value>,
    convert: Option<BTreeMap<String, BTreeMap<String, String>>>,
    raw: Option<String>,
    code: Option<u16>,
    #[serde(rename = "type")]
    media: Option<String>,
    delay: Option<f64>,
    #[serde(default)]
    close: bool,
}

/// A server that runs until it is dropped.
pub(crate) struct Webhooks {
    pub(crate) address: SocketAddr,
    /// PEM.
    pub(crate) ca: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    scripts: BTreeMap<String, Script>,
    received: Mutex<Vec<Received>>,
    calls: Mutex<BTreeMap<String, usize>>,
}

struct Received {
    path: String,
    request: Value,
}

impl Drop for Webhooks {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Webhooks {
    /// Serves `answers` (path → answer) on a port of its own. Its certificate is good for this machine and for the Services of `namespace`.
    pub(crate) async fn start(answers: Value, namespace: &str) -> Result<Self, WebhookError> {
        let scripts = serde_json::from_value(answers)?;
        let (config, ca) = certificates(namespace)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { scripts, received: Mutex::default(), calls: Mutex::default() });
        let accepting = tokio::spawn(accept(listener, TlsAcceptor::from(config), Arc::clone(&shared)));
        Ok(Self { address, ca, shared, accepting })
    }

    /// Takes what was sent to `path` (to all, when empty) since it was last taken, in order of arrival.
    pub(crate) fn take(&self, path: &str) -> Vec<Value> {
        let mut received = self.shared.received.lock();
        let (taken, rest): (Vec<_>, Vec<_>) =
            received.drain(..).partition(|one| path.is_empty() || one.path == path);
        *received = rest;
        taken.into_iter().map(|one| one.request).collect()
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(move |request| answer(Arc::clone(&shared), request));
            // An error here is a client that went away, or an answer that is to break off.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, io::Error> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let review = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let path = parts.uri.path().to_owned();
    if path == PROBE {
        return Ok(json_response(200, &refusal(&review)));
    }
    let header = |name: &str| {
        let value = parts.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.map_or(Value::Null, |text| text.into_owned().into())
    };
    let target = parts.uri.path_and_query().map_or_else(|| path.clone(), ToString::to_string);
    shared.received.lock().push(Received {
        path: path.clone(),
        request: json!({
            "request": format!("{} {target}", parts.method), "accept": header("accept"),
            "content-type": header("content-type"), "body": review,
        }),
    });
    let count = {
        let mut calls = shared.calls.lock();
        let count = calls.entry(path.clone()).or_default();
        *count += 1;
        *count - 1
    };
    let reply = match shared.scripts.get(&path) {
        Some(Script::Same(reply)) => reply,
        Some(Script::Each(replies)) => match replies.get(count).or(replies.last()) {
            Some(reply) => reply,
            None => return Ok(text_response(500, "the case has no answer here")),
        },
        None => return Ok(text_response(404, "404 page not found")),
    };
    if let Some(seconds) = reply.delay {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    }
    if reply.close {
        return Err(io::Error::other("the case says so"));
    }
    let code = reply.code.unwrap_or(200);
    if let Some(raw) = &reply.raw {
        let mut response = text_response(code, raw);
        if let Some(value) = reply.media.as_deref().and_then(|media| media.parse().ok()) {
            response.headers_mut().insert("content-type", value);
        }
        return Ok(response);
    }
    Ok(json_response(code, &reply.review(&review)))
}

impl Reply {
    /// The review that answers `asked`.
    fn review(&self, asked: &Value) -> Value {
        let mut response = match &self.convert {
            Some(moves) => convert(asked, moves),
            None => json!({}),
        };
        for (key, value) in self.response.iter().filter_map(Value::as_object).flatten() {
            let patch = key == "patch" && value.is_array();
            response[key] = if patch { STANDARD.encode(value.to_string()).into() } else { value.clone() };
            if patch && self.response.as_ref().is_some_and(|given| given["patchType"].is_null()) {
                response["patchType"] = "JSONPatch".into();
            }
        }
        if response["uid"].is_null() {
            response["uid"] = asked["request"]["uid"].clone();
        }
        let mut review =
            json!({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": response});
        for (key, value) in self.review.iter().filter_map(Value::as_object).flatten() {
            review[key] = value.clone();
        }
        review
    }
}

/// Converts by moving fields: version → pointer → pointer.
fn convert(asked: &Value, moves: &BTreeMap<String, BTreeMap<String, String>>) -> Value {
    let desired = asked["request"]["desiredAPIVersion"].as_str().unwrap_or_default();
    let moves = moves.get(desired.rsplit('/').next().unwrap_or_default());
    let objects = asked["request"]["objects"].as_array().into_iter().flatten().map(|object| {
        let mut object = object.clone();
        object["apiVersion"] = desired.into();
        for (from, to) in moves.into_iter().flatten() {
            if let Some(value) = cut(&mut object, from) {
                put(&mut object, to, value);
            }
        }
        object
    });
    json!({"convertedObjects": objects.collect::<Vec<_>>(), "result": {"status": "Success"}})
}

fn cut(object: &mut Value, pointer: &str) -> Option<Value> {
    let (parent, key) = pointer.rsplit_once('/')?;
    object.pointer_mut(parent)?.as_object_mut()?.remove(key)
}

fn put(object: &mut Value, pointer: &str, value: Value) {
    let place = pointer.split('/').skip(1).fold(object, |place, key| &mut place[key]);
    *place = value;
}

fn refusal(review: &Value) -> Value {
    json!({
        "apiVersion": review["apiVersion"], "kind": review["kind"],
        "response": {"uid": review["request"]["uid"], "allowed": false, "status": {"code": 418, "message": "seen"}},
    })
}

fn json_response(code: u16, body: &Value) -> Response<Full<Bytes>> {
    let mut response = text_response(code, &body.to_string());
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

fn text_response(code: u16, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// A server's configuration and the authority that signed for it.
fn certificates(namespace: &str) -> Result<(Arc<ServerConfig>, String), WebhookError> {
    let authority_key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "conformance-webhooks");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority = params.self_signed(&authority_key)?;
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate()?;
    let names = ["127.0.0.1", &format!("*.{namespace}.svc")].map(str::to_owned);
    let mut params = CertificateParams::new(names)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = params.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)?;
    // One request at a time: how a connection breaks off would otherwise tell how many there were before.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((Arc::new(config), authority.pem()))
}
