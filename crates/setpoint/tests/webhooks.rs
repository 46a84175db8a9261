//! Webhooks over real sockets, in real time: an API server in this process, or the one that `SETPOINT_TEST_SERVER` names, asks an operator by TLS.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::channel::oneshot;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::core::ObjectMeta;
use kube::{Client, CustomResource, ResourceExt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use setpoint::{
    Action, Certificates, Clock, Context, Controller, Operator, OperatorError, Reconciler, Result, Review,
    Spoke, Versions, Webhook,
};
use setpoint_apiserver::Identity;
use setpoint_test::{TestEnv, TestServer, eventually};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

const BOUND: Duration = Duration::from_secs(60);

#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Page", namespaced)]
struct PageSpec {
    text: String,
}

mod v1beta1 {
    use super::*;

    #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1beta1", kind = "Page", namespaced)]
    pub(super) struct PageSpec {
        pub(super) body: String,
    }
}

impl Spoke<Page> for v1beta1::Page {
    fn to_hub(self) -> Result<Page> {
        Ok(Page { metadata: self.metadata, spec: PageSpec { text: self.spec.body } })
    }

    fn from_hub(hub: &Page) -> Result<Self> {
        let spec = v1beta1::PageSpec { body: hub.spec.text.clone() };
        Ok(Self { metadata: hub.metadata.clone(), spec })
    }
}

/// Puts each page's text into a ConfigMap.
struct Pages;

impl Reconciler for Pages {
    type Object = Page;

    async fn reconcile(&self, page: Arc<Page>, cx: &Context<Page>) -> Result<Action> {
        cx.apply(ConfigMap {
            metadata: ObjectMeta { name: page.metadata.name.clone(), ..ObjectMeta::default() },
            data: Some([("text".to_owned(), page.spec.text.clone())].into()),
            ..ConfigMap::default()
        })
        .await?;
        Ok(Action::await_change())
    }
}

#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Nowhere", namespaced)]
struct NowhereSpec {}

/// Reconciles a kind that is not installed.
struct Lost;

impl Reconciler for Lost {
    type Object = Nowhere;

    async fn reconcile(&self, _: Arc<Nowhere>, _: &Context<Nowhere>) -> Result<Action> {
        Ok(Action::await_change())
    }
}

fn operator() -> Operator {
    Operator::new("op")
        .versions(Versions::<Page>::hub().spoke::<v1beta1::Page>())
        .webhook(Webhook::validate(|page: &Page, review: &mut Review| {
            if page.spec.text.is_empty() {
                review.required("spec.text", "");
            }
        }))
        .controller(Controller::new(Pages).owns::<ConfigMap>())
}

struct World {
    env: TestEnv,
    admin: Client,
    port: u16,
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), OperatorError>>,
}

impl Running {
    fn of(operator: Operator) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(operator.run_until(async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap().unwrap();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl World {
    /// An API server with what installs the operator, whose webhooks are reached at a port of this machine.
    async fn new() -> Self {
        let env = TestEnv::without_controllers().await.unwrap();
        env.namespace("ops").await.unwrap();
        let admin = env.client();
        let world = Self { env, admin, port: free_port() };
        let install = operator().webhook_url(world.url()).manifests("ops");
        world
            .env
            .install(&serde_json::from_value(install.definitions().unwrap().remove(0)).unwrap())
            .await
            .unwrap();
        let mut objects = install.access().unwrap();
        objects.extend(install.webhook_configurations());
        for object in objects {
            world.env.apply(object).await.unwrap();
        }
        world
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Runs the operator under its own rights, at that time.
    fn run(&self, now: Timestamp, overlap: Duration) -> Running {
        Running::of(self.operator(now, overlap))
    }

    fn operator(&self, now: Timestamp, overlap: Duration) -> Operator {
        let identity = Identity::service_account("ops", "op", "some-uid");
        let day = Duration::from_secs(24 * 3600);
        operator()
            .client(self.env.client_as(identity).unwrap())
            .namespace("ops")
            .clock(Clock::at(now))
            .webhook_url(self.url())
            .certificates(Certificates::own().lifetimes(day * 365, day * 365, overlap))
            .webhook_address(format!("127.0.0.1:{}", self.port))
    }

    async fn bundle(&self) -> Result<String, String> {
        let kind =
            GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration");
        let api: Api<DynamicObject> = Api::all_with(self.admin.clone(), &ApiResource::from_gvk(&kind));
        let object = api.get("op").await.map_err(|error| error.to_string())?;
        let bundle =
            object.data["webhooks"][0]["clientConfig"]["caBundle"].as_str().ok_or("no caBundle yet")?;
        String::from_utf8(STANDARD.decode(bundle).unwrap()).map_err(|error| error.to_string())
    }

    async fn secret(&self) -> Secret {
        let secrets: Api<Secret> = Api::namespaced(self.admin.clone(), "ops");
        secrets.get("op-webhook-certificates").await.unwrap()
    }

    async fn served(&self) -> String {
        let pages: Api<Page> = Api::namespaced(self.admin.clone(), "default");
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        eventually("the webhooks to answer", BOUND, async || {
            let page = Page::new("probe", PageSpec { text: "hello".to_owned() });
            pages.create(&dry, &page).await.map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        self.bundle().await.unwrap()
    }
}

/// A TLS connection as an API server makes it: what was agreed on.
async fn connect(
    port: u16,
    bundle: &str,
    versions: &[&'static SupportedProtocolVersion],
    alpn: &[u8],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

async fn post(
    stream: tokio_rustls::client::TlsStream<TcpStream>,
    path: &str,
    body: Bytes,
) -> (StatusCode, Version, Value) {
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    let request = Request::post(format!("https://localhost{path}")).header("host", "localhost");
    let request = request.body(Full::new(body)).unwrap();
    let response = if http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.version, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn both_versions_of_tls_and_of_http_are_served_and_bodies_have_a_bound() {
    let world = World::new().await;
    let running = world.run(Clock::system().now(), Duration::from_secs(300));
    let bundle = world.served().await;
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request":
        {"uid": "7", "operation": "CREATE", "object": Page::new("a", PageSpec { text: "hello".to_owned() })}});
    let review = Bytes::from(review.to_string());
    let path = "/validate-example-com-v1-page";
    for tls in [&version::TLS13, &version::TLS12] {
        for (alpn, http) in [(b"h2".as_slice(), Version::HTTP_2), (b"http/1.1", Version::HTTP_11)] {
            let stream = connect(world.port, &bundle, &[tls], alpn).await;
            assert_eq!(stream.get_ref().1.protocol_version(), Some(tls.version));
            let (status, version, answer) = post(stream, path, review.clone()).await;
            assert_eq!((status, version), (StatusCode::OK, http));
            assert_eq!(answer["response"], json!({"uid": "7", "allowed": true}));
        }
    }
    let tls = [&version::TLS13];
    let connected = || connect(world.port, &bundle, &tls, b"h2");
    let (status, ..) = post(connected().await, path, Bytes::from(vec![b' '; (7 << 20) + 1])).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, ..) = post(connected().await, "/elsewhere", Bytes::from(vec![b' '; 1 << 20])).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    running.stop().await;
}

/// Ready is who serves and is trusted. The caches are asked apart: while they wait for a conversion, the pod has to be in its Service.
#[tokio::test]
async fn readiness_is_about_the_webhooks_and_not_about_the_caches() {
    let world = World::new().await;
    let port = free_port();
    let ask = async |path: &str| -> Result<(u16, String), String> {
        let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await;
        let io = TokioIo::new(stream.map_err(|error| error.to_string())?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get(path).header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Ok((parts.status.as_u16(), String::from_utf8(body.to_vec()).unwrap()))
    };
    // A kind that the API server doesn't know: its cache never fills.
    let operator = world.operator(Clock::system().now(), Duration::from_secs(300));
    let operator = operator.controller(Controller::new(Lost)).health_address(format!("127.0.0.1:{port}"));
    let running = Running::of(operator);
    let text = eventually("readiness", BOUND, async || match ask("/readyz?verbose").await? {
        (200, text) => Ok(text),
        (_, text) => Err(text),
    })
    .await
    .unwrap();
    assert_eq!(text, "[+]ping ok\n[+]webhooks ok\nreadyz check passed\n");
    assert!(world.bundle().await.is_ok(), "not before the bundle is published");
    let (status, text) = ask("/readyz/caches").await.unwrap();
    assert_eq!(status, 500, "{text}");
    running.stop().await;
}

/// The operator's own cache can only be filled when the operator converts what is stored in the old version.
#[tokio::test]
async fn a_conversion_webhook_does_not_keep_its_own_operator_from_starting() {
    let world = World::new().await;
    // Stored by an earlier release: the definition stored the old version then.
    let crds: Api<DynamicObject> = Api::all_with(
        world.admin.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    let mut crd = crds.get("pages.example.com").await.unwrap();
    let storage = |crd: &mut DynamicObject, old: bool| {
        for version in crd.data["spec"]["versions"].as_array_mut().unwrap() {
            version["storage"] = json!((version["name"] == "v1beta1") == old);
        }
    };
    storage(&mut crd, true);
    let mut crd = crds.replace("pages.example.com", &PostParams::default(), &crd).await.unwrap();
    let first = world.run(Clock::system().now(), Duration::from_secs(300));
    world.served().await;
    let pages: Api<v1beta1::Page> = Api::namespaced(world.admin.clone(), "default");
    let page = v1beta1::Page::new("a", v1beta1::PageSpec { body: "hello".to_owned() });
    pages.create(&PostParams::default(), &page).await.unwrap();
    first.stop().await;
    crd = crds.get(&crd.name_any()).await.unwrap();
    storage(&mut crd, false);
    crds.replace("pages.example.com", &PostParams::default(), &crd).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(world.admin.clone(), "default");
    maps.delete("a", &kube::api::DeleteParams::default()).await.ok();

    let hub: Api<Page> = Api::namespaced(world.admin.clone(), "default");
    let error = hub.get("a").await.unwrap_err().to_string();
    assert!(error.contains("conversion webhook"), "nobody converts now: {error}");
    let second = world.run(Clock::system().now(), Duration::from_secs(300));
    eventually("the page's ConfigMap", BOUND, async || {
        maps.get("a").await.map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    second.stop().await;
}

/// An authority of 250 days ago is replaced while requests come one after the other: none fails.
#[tokio::test]
async fn no_request_fails_while_the_authority_is_replaced() {
    let world = World::new().await;
    let now = Clock::system().now();
    // Time for the API server to learn of the next authority.
    let embedded = TestServer::from_env().unwrap() == TestServer::Embedded;
    let overlap = if embedded { Duration::from_millis(300) } else { Duration::from_secs(3) };
    let first = world.run(now - SignedDuration::from_hours(250 * 24), overlap);
    let bundle = world.served().await;
    first.stop().await;

    let second = world.run(now, overlap);
    world.served().await;
    let pages: Api<Page> = Api::namespaced(world.admin.clone(), "default");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let mut requests = 0;
    eventually("the old authority to be gone", BOUND, async || {
        let page = Page::new("probe", PageSpec { text: "hello".to_owned() });
        pages.create(&dry, &page).await.unwrap();
        requests += 1;
        let present = world.bundle().await?;
        let data = world.secret().await.data.unwrap();
        if !present.contains(&bundle) && !data.contains_key("old-ca.crt") && !data.contains_key("next-ca.crt")
        {
            Ok(())
        } else {
            Err(format!("{:?}", data.keys()))
        }
    })
    .await
    .unwrap();
    assert!(requests > 3, "{requests}");
    // It is the new leaf that is served.
    let bundle = world.served().await;
    connect(world.port, &bundle, &[&version::TLS13], b"h2").await;
    second.stop().await;
}

/// What asks another installation is left alone, and said: also in the answer to the kubelet.
#[tokio::test]
async fn who_is_not_asked_says_so_and_is_not_ready() {
    let world = World::new().await;
    for configuration in operator().manifests("ops").webhook_configurations() {
        world.env.apply(configuration).await.unwrap();
    }
    world.env.namespace("laptop").await.unwrap();
    let operator = world.operator(Clock::system().now(), Duration::from_secs(300));
    let operator = operator.client(world.admin.clone()).namespace("laptop");
    let health = operator.health().clone();
    let running = Running::of(operator);
    let says = eventually("a clear message", BOUND, async || match health.ready("webhooks") {
        Err(says) if says.contains("asks Service") => Ok(says),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    let expected = format!(
        "ValidatingWebhookConfiguration op asks Service ops/op-webhook, but this operator is reached by {}: run it in the namespace \
         of its installation",
        world.url(),
    );
    assert!(says.starts_with(&expected), "{says}");
    assert!(world.bundle().await.is_err(), "it is not this operator's to trust");
    running.stop().await;
}
