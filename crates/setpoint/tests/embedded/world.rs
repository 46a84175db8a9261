use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::api::{Api, PostParams};
use kube::client::Body;
use kube::{Client, CustomResource, CustomResourceExt, ResourceExt};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use setpoint::{AnyController, Event, Recorder, Runtime};
use setpoint_apiserver::{ApiServer, Identity};
use setpoint_test::{TestEnv, TestServer};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

/// A page to serve.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Website", namespaced, status = "WebsiteStatus")]
#[serde(rename_all = "camelCase")]
pub struct WebsiteSpec {
    pub text: String,
    pub node: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebsiteStatus {
    pub pages: Option<i32>,
    pub text: Option<String>,
}

/// How late a late answer is: events are faster, also those of a real server.
const LATE: Duration = Duration::from_millis(200);

/// An API server, a client whose requests are written down, and controllers.
///
/// The server is the embedded one in simulated time, or the one that `SETPOINT_TEST_SERVER` names, in real time.
pub struct World {
    server: Server,
    pub client: Client,
    wire: Arc<Wire>,
    pub events: Arc<Events>,
    stop: CancellationToken,
    running: Vec<JoinHandle<()>>,
}

/// Where the requests go.
enum Server {
    Embedded(ApiServer),
    Other(Box<TestEnv>),
}

/// What happens between client and server.
pub struct Wire {
    begun: tokio::time::Instant,
    requests: Mutex<Vec<String>>,
    /// Every request with its time and body.
    transcript: Mutex<Vec<String>>,
    /// The next write reaches the server, but its answer is lost.
    pub lose_next_answer: AtomicBool,
    /// Answers to writes come after their events.
    pub late_answers: AtomicBool,
}

/// Events that were recorded, as `Kind/name Reason: note`.
#[derive(Default)]
pub struct Events(Mutex<Vec<String>>);

impl Recorder for Events {
    fn record(&self, _controller: &str, about: &ObjectReference, event: Event) {
        let (kind, name) = (about.kind.as_deref().unwrap(), about.name.as_deref().unwrap());
        self.0.lock().push(format!("{kind}/{name} {}: {}", event.reason, event.note));
    }
}

impl Events {
    pub fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl World {
    /// A fresh server that knows Websites.
    pub async fn new() -> Self {
        let server = if is_simulated() {
            let api = ApiServer::builder()
                .clock(setpoint_clock::Clock::at(jiff::Timestamp::UNIX_EPOCH))
                .entropy(setpoint_clock::Entropy::seeded(1))
                .build();
            Server::Embedded(api)
        } else {
            Server::Other(Box::new(TestEnv::without_controllers().await.unwrap()))
        };
        let wire = Arc::new(Wire {
            begun: tokio::time::Instant::now(),
            requests: Mutex::default(),
            transcript: Mutex::default(),
            lose_next_answer: AtomicBool::new(false),
            late_answers: AtomicBool::new(false),
        });
        let client = connect(&server, &wire);
        let world = Self {
            server,
            client,
            wire,
            events: Arc::default(),
            stop: CancellationToken::new(),
            running: Vec::new(),
        };
        let mut crd = Website::crd();
        // Wider than the type, so that a test can store what the type cannot hold.
        let schema = crd.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
        let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
        *spec =
            serde_json::from_value(json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }))
                .unwrap();
        // As types with conditions have them: a list of several writers.
        let status = schema.properties.as_mut().unwrap().get_mut("status").unwrap();
        let conditions = json!({ "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": { "type": "object", "required": ["type"], "x-kubernetes-preserve-unknown-fields": true,
                "properties": { "type": { "type": "string" } } } });
        let properties = status.properties.as_mut().unwrap();
        properties.insert("conditions".to_owned(), serde_json::from_value(conditions).unwrap());
        Api::all(world.client.clone()).create(&PostParams::default(), &crd).await.unwrap();
        let sites: Api<Website> = Api::all(world.client.clone());
        eventually("the CRD is served", || async {
            sites.list(&kube::api::ListParams::default()).await.map(drop)
        })
        .await;
        world.wire.requests.lock().clear();
        world
    }

    /// A runtime with caches of its own.
    pub fn runtime(&self) -> Runtime {
        Runtime::builder(connect(&self.server, &self.wire))
            .recorder(Arc::clone(&self.events) as Arc<dyn Recorder>)
            .clock(setpoint_clock::Clock::at(jiff::Timestamp::UNIX_EPOCH))
            .entropy(setpoint_clock::Entropy::seeded(7))
            .build()
    }

    pub fn start(&mut self, controller: impl Into<AnyController>) {
        let (controller, runtime) = (controller.into(), self.runtime());
        let stop = self.stop.clone();
        self.running.push(tokio::spawn(async move { controller.run(runtime, stop).await.unwrap() }));
    }

    /// Stops all controllers and waits for them.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        for running in self.running.drain(..) {
            running.await.unwrap();
        }
        self.stop = CancellationToken::new();
    }

    /// Requests other than watches since the last call, as `METHOD path`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.wire.requests.lock())
    }

    /// The versions of everything in the namespace `default`: the same as long as nothing is written.
    pub async fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        for collection in [
            "/apis/example.com/v1/namespaces/default/websites",
            "/api/v1/namespaces/default/configmaps",
            "/api/v1/namespaces/default/secrets",
            "/apis/apps/v1/namespaces/default/statefulsets",
        ] {
            let request = Request::get(collection).body(Vec::new()).unwrap();
            // Not written down.
            let list: Value = self.server.client().request(request).await.unwrap();
            for object in list["items"].as_array().unwrap() {
                let metadata = &object["metadata"];
                let name = format!("{collection}/{}", metadata["name"].as_str().unwrap());
                versions.insert(name, metadata["resourceVersion"].as_str().unwrap().to_owned());
            }
        }
        versions
    }

    /// Every request since the beginning, with its time.
    pub fn transcript(&self) -> Vec<String> {
        self.wire.transcript.lock().clone()
    }

    pub fn lose_next_answer(&self) {
        self.wire.lose_next_answer.store(true, Ordering::Relaxed);
    }

    pub fn late_answers(&self) {
        self.wire.late_answers.store(true, Ordering::Relaxed);
    }

    pub fn sites(&self) -> Api<Website> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub fn pages(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub async fn create_site(&self, name: &str, text: &str) -> Website {
        let spec = WebsiteSpec { text: text.to_owned(), node: None };
        self.sites().create(&PostParams::default(), &Website::new(name, spec)).await.unwrap()
    }

    /// Creates an object that is a Website to the server, whatever its spec.
    pub async fn create_raw(&self, name: &str, spec: Value) {
        let site = json!({ "apiVersion": "example.com/v1", "kind": "Website",
            "metadata": { "name": name, "namespace": "default" }, "spec": spec });
        let request = Request::post("/apis/example.com/v1/namespaces/default/websites")
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&site).unwrap())
            .unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    /// Waits until the site's page has this text.
    pub async fn page_has(&self, name: &str, text: &str) -> ConfigMap {
        eventually(&format!("page {name} has {text:?}"), || async {
            let page = self.pages().get_opt(name).await.unwrap();
            match page {
                Some(page)
                    if page_text(&page) == Some(text) && page.metadata.deletion_timestamp.is_none() =>
                {
                    Ok(page)
                }
                other => Err(other),
            }
        })
        .await
    }

    /// Waits until the site's status has this text.
    pub async fn status_has(&self, name: &str, text: &str) -> Website {
        eventually(&format!("status of {name} has {text:?}"), || async {
            let site = self.sites().get(name).await.unwrap();
            let seen = site.status.as_ref().and_then(|status| status.text.clone());
            if seen.as_deref() == Some(text) { Ok(site) } else { Err(site) }
        })
        .await
    }
}

pub fn page_text(page: &ConfigMap) -> Option<&str> {
    page.data.as_ref()?.get("index.html").map(String::as_str)
}

/// The page that a site asks for.
pub fn page(site: &Website) -> ConfigMap {
    ConfigMap {
        metadata: kube::core::ObjectMeta { name: Some(site.name_any()), ..Default::default() },
        data: Some([("index.html".to_owned(), site.spec.text.clone())].into()),
        ..ConfigMap::default()
    }
}

/// Whether time is simulated: an hour takes none.
pub fn is_simulated() -> bool {
    TestServer::from_env().unwrap() == TestServer::Embedded
}

/// Time passes until nothing happens any more.
pub async fn settle() {
    pass(Duration::from_secs(30)).await;
}

/// When one [`settle`] is over, and two are not.
pub fn later() -> Duration {
    if is_simulated() { Duration::from_secs(60) } else { Duration::from_secs(3) }
}

/// Time passes; in real time not more than what a server needs for what is under way.
pub async fn pass(time: Duration) {
    let most = if is_simulated() { Duration::MAX } else { Duration::from_secs(2) };
    tokio::time::sleep(time.min(most)).await;
}

/// Waits for a state, up to a minute of simulated time, and says what it saw last.
pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let mut last = None;
    for _ in 0..600 {
        match look().await {
            Ok(seen) => return seen,
            Err(seen) => last = Some(seen),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within a minute: {what}; last seen: {last:#?}")
}

impl Server {
    fn client(&self) -> Client {
        match self {
            Self::Embedded(api) => Client::new(api.service(Identity::admin()), "default"),
            Self::Other(env) => env.client(),
        }
    }
}

fn connect(server: &Server, wire: &Arc<Wire>) -> Client {
    let (client, wire) = (server.client(), Arc::clone(wire));
    let recorded = tower::service_fn(move |request: Request<Body>| {
        let (client, wire) = (client.clone(), Arc::clone(&wire));
        async move {
            let line = format!(
                "{:?} {} {}",
                tokio::time::Instant::now() - wire.begun,
                request.method(),
                request.uri()
            );
            wire.transcript.lock().push(line);
            let write = *request.method() != Method::GET;
            let query = request.uri().query().unwrap_or_default();
            if !query.contains("watch=1") {
                wire.requests.lock().push(format!("{} {}", request.method(), request.uri().path()));
            }
            let answer = client.send(request).await?;
            if write && wire.lose_next_answer.swap(false, Ordering::Relaxed) {
                return Err(BoxError::from("connection reset"));
            }
            if write && wire.late_answers.load(Ordering::Relaxed) {
                tokio::time::sleep(LATE).await;
            }
            Ok::<_, BoxError>(answer)
        }
    });
    Client::new(recorded, "default")
}
