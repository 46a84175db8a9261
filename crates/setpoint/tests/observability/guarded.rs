//! Metrics over TLS, asked for with tokens of ServiceAccounts, in real time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::channel::oneshot;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::client::Body;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use setpoint::{Certificates, Operator};
use setpoint_apiserver::Identity;
use setpoint_test::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::BoxError;

use super::world::{BOUND, World, operator, with_webhook};

/// An operator whose metrics are guarded, at a port of this machine, under the rights of its manifests.
struct Guarded {
    world: World,
    port: u16,
    /// Whether the API server is away, for the operator.
    away: Arc<AtomicBool>,
    roots: RootCertStore,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), setpoint::OperatorError>>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Guarded {
    async fn run(operator: Operator) -> Self {
        let world = World::new();
        let operator = operator.metrics_secure(true);
        for object in operator.manifests("op-system").objects().unwrap() {
            if object["kind"] != "Deployment" {
                world.apply(&object).await;
            }
        }
        for name in ["reader", "stranger"] {
            let metadata = json!({"name": name, "namespace": "default"});
            world.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await;
        }
        world
            .apply(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "scrape"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "op-metrics-reader"},
                "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
            }))
            .await;
        let identity = Identity::service_account("op-system", "op", "some-uid");
        let api = Client::new(world.api.service(identity), "op-system");
        let away = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&away);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (api, gone) = (api.clone(), gone.load(Ordering::SeqCst));
            async move {
                if gone { Err(BoxError::from("connection refused")) } else { Ok(api.send(request).await?) }
            }
        });
        let port = free_port();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = operator
            .client(Client::new(service, "op-system"))
            .metrics_address(format!("127.0.0.1:{port}"))
            .run_until(async {
                let _ = stopped.await;
            });
        let task = tokio::spawn(running);
        Self { world, port, away, roots: RootCertStore::empty(), stop, task }
    }

    /// With the operator's own authority, once it is there.
    async fn own() -> Self {
        let mut this = Self::run(operator().certificates(Certificates::own().host("localhost"))).await;
        this.trust_own().await;
        this
    }

    async fn trust_own(&mut self) {
        let secrets: Api<Secret> = Api::namespaced(self.world.admin.clone(), "op-system");
        let bundle = eventually("the certificates", BOUND, async || {
            let secret = secrets.get("op-webhook-certificates").await.map_err(|error| error.to_string())?;
            Ok::<_, String>(secret.data.unwrap()["ca.crt"].0.clone())
        })
        .await
        .unwrap();
        for certificate in CertificateDer::pem_slice_iter(&bundle) {
            self.roots.add(certificate.unwrap()).unwrap();
        }
    }

    async fn token(&self, account: &str) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.world.admin.clone(), "default");
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let token = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        token.status.unwrap().token.unwrap()
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(self.roots.clone()).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let stream = eventually("the port", BOUND, async || {
            TcpStream::connect(address).await.map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    async fn get(&self, path: &str, authorization: Option<&str>) -> (StatusCode, String) {
        let io = TokioIo::new(self.connect().await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::get(path).header("host", "localhost");
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get_as(&self, account: &str, path: &str) -> (StatusCode, String) {
        let token = self.token(account).await;
        self.get(path, Some(&format!("Bearer {token}"))).await
    }

    async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn only_who_may_read_them_gets_metrics() {
    let guarded = Guarded::own().await;
    assert_eq!(guarded.connect().await.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));

    let (status, text) = guarded.get_as("reader", "/metrics").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(text.contains("controller_runtime_reconcile_total"), "{text}");

    let (status, text) = guarded.get_as("stranger", "/metrics").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
    for authorization in [None, Some("Bearer not-a-token"), Some("Basic cmVhZGVyOg==")] {
        let (status, text) = guarded.get("/metrics", authorization).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{authorization:?}: {text}");
        assert!(!text.contains("controller_runtime"), "{text}");
    }

    // The right to metrics is none to what reconciles did.
    let (status, _) = guarded.get_as("reader", "/debug/objects").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "op-metrics-reader"},
        "rules": [{"nonResourceURLs": ["/metrics", "/debug/objects"], "verbs": ["get"]}]});
    guarded.world.apply(&role).await;
    let (status, text) =
        eventually("the new right", BOUND, async || match guarded.get_as("reader", "/debug/objects").await {
            (StatusCode::FORBIDDEN, text) => Err(text),
            answer => Ok(answer),
        })
        .await
        .unwrap();
    assert_eq!((status, text.as_str()), (StatusCode::OK, "[]\n"));
    guarded.stop().await;
}

#[tokio::test]
async fn without_the_api_server_nobody_gets_them() {
    let guarded = Guarded::own().await;
    // Neither token has been asked about before.
    let token = guarded.token("reader").await;
    guarded.away.store(true, Ordering::SeqCst);
    let (status, text) = guarded.get("/metrics", Some(&format!("Bearer {token}"))).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
    assert!(!text.contains("controller_runtime"), "{text}");
    assert_eq!(guarded.get("/metrics", None).await.0, StatusCode::UNAUTHORIZED);
    guarded.away.store(false, Ordering::SeqCst);
    let (status, text) = guarded.get("/metrics", Some(&format!("Bearer {token}"))).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    guarded.stop().await;
}

/// Panics at every scrape.
#[derive(Debug)]
struct Broken;

impl Collector for Broken {
    fn encode(&self, _: DescriptorEncoder) -> std::fmt::Result {
        panic!("a collector of the author's own");
    }
}

#[tokio::test]
async fn a_panic_is_an_answer_of_one_request() {
    let operator = operator().certificates(Certificates::own().host("localhost"));
    operator.metrics().register(|registry| registry.register_collector(Box::new(Broken)));
    let mut guarded = Guarded::run(operator).await;
    guarded.trust_own().await;
    for _ in 0..2 {
        let (status, text) = guarded.get_as("reader", "/metrics").await;
        assert_eq!((status, text.as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "answering panicked\n"));
    }
    assert_eq!(guarded.get_as("reader", "/nowhere").await.0, StatusCode::FORBIDDEN);
    guarded.stop().await;
}

/// Who sends nothing, or never a whole header, is cut off, and keeps nobody else from being answered.
#[tokio::test]
async fn slow_clients_are_cut_off() {
    let guarded = Guarded::own().await;
    let address = SocketAddr::from(([127, 0, 0, 1], guarded.port));
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut half = guarded.connect().await;
    half.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    assert_eq!(guarded.get_as("reader", "/metrics").await.0, StatusCode::OK);
    let mut rest = Vec::new();
    for stream in &mut silent {
        let ended = tokio::time::timeout(BOUND, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a connection without a handshake stays open");
    }
    let ended = tokio::time::timeout(BOUND, half.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "a connection without a request stays open");
    assert!(!String::from_utf8_lossy(&rest).contains("controller_runtime"));
    guarded.stop().await;
}

#[tokio::test]
async fn a_mounted_certificate_serves_metrics_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(folder.path().join("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(folder.path().join("tls.key"), key.serialize_pem()).unwrap();
    let operator = with_webhook().certificates(Certificates::files(folder.path()));
    let access = operator.manifests("op-system");
    assert_eq!(access.authority_secret, None);
    assert!(!access.local.contains_key("op-system"), "no Secret to keep: {:?}", access.local);
    let mut guarded = Guarded::run(operator).await;
    guarded.roots.add(certificate.der().clone()).unwrap();
    assert_eq!(guarded.get_as("reader", "/metrics").await.0, StatusCode::OK);
    guarded.stop().await;
}
