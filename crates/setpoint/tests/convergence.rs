//! A controller of many kinds of children converges and then moves nothing, and a lease is handed over: on the embedded API server in
//! simulated time, or on the one that `SETPOINT_TEST_SERVER` names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, CustomResource, CustomResourceExt, ResourceExt};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use setpoint::{
    Action, AnyController, Context, Controller, Election, Lock, Operator, Reconciler, Result, Runtime, Task,
};
use setpoint_test::{TestEnv, throughout};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A page to serve.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Website", namespaced, status = "WebsiteStatus")]
struct WebsiteSpec {
    text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
struct WebsiteStatus {
    text: Option<String>,
}

/// Children of several kinds, among them values that the server rewrites and defaults inside lists.
#[derive(Default)]
struct Web(AtomicUsize);

impl Reconciler for Web {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let name = site.name_any();
        cx.apply(child::<ConfigMap>(&name, json!({ "data": { "index.html": site.spec.text } }))).await?;
        cx.apply(child::<Secret>(&name, json!({ "stringData": { "password": "x" } }))).await?;
        cx.apply(child::<Service>(
            &name,
            json!({ "spec": { "selector": { "app": name },
            "ports": [{ "name": "web", "port": 80 }] } }),
        ))
        .await?;
        cx.apply(child::<StatefulSet>(
            &name,
            json!({ "spec": {
            "serviceName": name, "replicas": 2, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": { "containers": [{
                "name": "web", "image": "web", "ports": [{ "containerPort": 80 }],
                "resources": { "requests": { "cpu": "1000m", "memory": "1024Mi" } },
                "volumeMounts": [{ "name": "page", "mountPath": "/page" }],
            }], "volumes": [{ "name": "page", "configMap": { "name": name } }] } },
        } }),
        ))
        .await?;
        cx.status(WebsiteStatus { text: Some(site.spec.text.clone()) }).await?;
        Ok(Action::await_change())
    }
}

fn controller() -> Controller<Web> {
    Controller::new(Web::default())
        .owns::<ConfigMap>()
        .owns_metadata::<Secret>()
        .owns::<Service>()
        .owns::<StatefulSet>()
}

fn child<K: serde::de::DeserializeOwned>(name: &str, mut rest: Value) -> K {
    rest["metadata"] = json!({ "name": name });
    serde_json::from_value(rest).unwrap()
}

/// An API server; what is sent to it other than reads is written down.
struct Server {
    env: TestEnv,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start() -> Self {
        Self { env: TestEnv::without_controllers().await.unwrap(), requests: Arc::default() }
    }

    fn client(&self) -> Client {
        let (client, requests) = (self.env.client(), Arc::clone(&self.requests));
        let recorded = tower::service_fn(move |request: Request<Body>| {
            let (client, requests) = (client.clone(), Arc::clone(&requests));
            async move {
                if *request.method() != Method::GET {
                    requests.lock().push(format!("{} {}", request.method(), request.uri().path()));
                }
                client.send(request).await
            }
        });
        Client::new(recorded, "default")
    }

    /// What was sent since the last call.
    fn writes(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }

    /// Nothing is sent for two seconds.
    async fn settled(&self) {
        eventually("two quiet seconds", async || {
            self.writes();
            throughout("nothing is sent", Duration::from_secs(2), async || self.sent_only(&[])).await
        })
        .await;
    }

    /// `wanted`, each once, is all that is sent until three seconds from now.
    async fn only(&self, wanted: &[&str]) {
        throughout("nothing else is sent", Duration::from_secs(3), async || self.sent_only(wanted))
            .await
            .unwrap();
        let mut sent = self.writes();
        sent.sort();
        assert_eq!(sent, wanted);
    }

    fn sent_only(&self, wanted: &[&str]) -> Result<(), String> {
        let sent = self.requests.lock();
        let other = sent.iter().find(|request| !wanted.contains(&request.as_str()));
        other.map_or(Ok(()), |other| Err(other.clone()))
    }
}

async fn eventually<T, E: std::fmt::Debug>(what: &str, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
    let look = async || look().await.map_err(|seen| format!("{seen:#?}"));
    setpoint_test::eventually(what, Duration::from_secs(60), look)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The versions of everything that the controller makes.
async fn versions(client: &Client) -> BTreeMap<String, String> {
    async fn of<K>(client: &Client, seen: &mut BTreeMap<String, String>)
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let object = Api::<K>::namespaced(client.clone(), "default").get("a").await.unwrap();
        seen.insert(K::kind(&()).into_owned(), object.resource_version().unwrap());
    }
    let mut seen = BTreeMap::new();
    of::<Website>(client, &mut seen).await;
    of::<ConfigMap>(client, &mut seen).await;
    of::<Secret>(client, &mut seen).await;
    of::<Service>(client, &mut seen).await;
    of::<StatefulSet>(client, &mut seen).await;
    seen
}

#[tokio::test(start_paused = true)]
async fn a_controller_converges_and_then_moves_nothing() {
    let server = Server::start().await;
    let client = server.client();
    let crds = Api::all(client.clone());
    crds.create(&PostParams::default(), &Website::crd()).await.unwrap();
    let sites: Api<Website> = Api::namespaced(client.clone(), "default");
    let site = Website::new("a", WebsiteSpec { text: "hello".to_owned() });
    eventually("a site can be made", async || sites.create(&PostParams::default(), &site).await).await;

    let start = || {
        let controller = controller();
        let (web, stop) = (controller.reconciler(), CancellationToken::new());
        let runtime = Runtime::builder(server.client()).build();
        let running = tokio::spawn(AnyController::from(controller).run(runtime.clone(), stop.clone()));
        (web, stop, runtime, running)
    };
    let (web, stop, runtime, running) = start();
    let status_is = async |text: &str| {
        let seen = sites.get("a").await.unwrap();
        let status = seen.status.clone().and_then(|status| status.text);
        if status.as_deref() == Some(text) { Ok(()) } else { Err(seen) }
    };
    eventually("the status is written", async || status_is("hello").await).await;
    assert!(runtime.caches().health().iter().all(|cache| cache.synced), "{:?}", runtime.caches());

    // Converged: nothing is sent and nothing moves.
    server.settled().await;
    let (before, runs) = (versions(&client).await, web_runs(&web));
    server.only(&[]).await;
    let touch = Patch::Merge(json!({ "metadata": { "labels": { "theirs": "yes" } } }));
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.patch("a", &PatchParams::default(), &touch).await.unwrap();
    eventually(
        "a run for the foreign label",
        async || if web_runs(&web) > runs { Ok(()) } else { Err(runs) },
    )
    .await;
    server.only(&["PATCH /api/v1/namespaces/default/configmaps/a"]).await;
    let mut after = versions(&client).await;
    after.insert("ConfigMap".to_owned(), before["ConfigMap"].clone());
    assert_eq!(after, before);

    // Deleted and edited children are put back.
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let edit = Patch::Merge(json!({ "spec": { "selector": { "app": "other" } } }));
    services.patch("a", &PatchParams::default(), &edit).await.unwrap();
    eventually("the page is back", async || maps.get("a").await).await;
    eventually("the selector is back", async || {
        let service = services.get("a").await.unwrap();
        let selector = service.spec.clone().unwrap().selector.unwrap_or_default();
        if selector.get("app").map(String::as_str) == Some("a") { Ok(()) } else { Err(service) }
    })
    .await;
    stop.cancel();
    running.await.unwrap().unwrap();

    // After a restart: at most one apply for each child whose intent is not in canonical form, and no write.
    let before = versions(&client).await;
    server.writes();
    let (web, stop, _runtime, running) = start();
    eventually("a run", async || if web_runs(&web) > 0 { Ok(()) } else { Err(()) }).await;
    // Metadata only is kept of the Secret: its values are not known to be the same. The StatefulSet's quantities come back
    // rewritten.
    server
        .only(&[
            "PATCH /api/v1/namespaces/default/secrets/a",
            "PATCH /apis/apps/v1/namespaces/default/statefulsets/a",
        ])
        .await;
    assert_eq!(versions(&client).await, before);
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_handed_over() {
    let server = Server::start().await;
    let client = server.client();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let start = |name: &str| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let election = Election::new("web.example.com").identity(name);
        let operator = Operator::new("web").election(election).client(client.clone());
        let running = tokio::spawn(operator.run_until(async move {
            let _ = stopped.await;
        }));
        (stop, running)
    };
    let holder_is = async |wanted: Option<&str>| {
        let spec = leases.get("web.example.com").await.map_err(|error| error.to_string())?.spec;
        let holder = spec.and_then(|spec| spec.holder_identity);
        if holder.as_deref() == wanted { Ok(()) } else { Err(format!("{holder:?}")) }
    };
    let first = start("first");
    eventually("the first one leads", async || holder_is(Some("first")).await).await;
    let second = start("second");
    // Renewed at least once.
    let renewed = async || leases.get("web.example.com").await.unwrap().spec.unwrap().renew_time;
    let before = renewed().await;
    eventually("a renewal", async || if renewed().await > before { Ok(()) } else { Err(()) }).await;
    drop(first.0);
    first.1.await.unwrap().unwrap();
    eventually("the second one leads", async || holder_is(Some("second")).await).await;
    drop(second.0);
    second.1.await.unwrap().unwrap();
    holder_is(None).await.unwrap();
    let lease = leases.get("web.example.com").await.unwrap().spec.unwrap();
    assert_eq!((lease.lease_transitions, lease.lease_duration_seconds), (Some(1), Some(1)));
}

/// With each of the three locks: who is gone without a word is followed when its lease is over, and not before; who has lost its
/// lease to another one ends.
#[tokio::test(start_paused = true)]
async fn a_leader_that_vanishes_is_followed_and_one_that_lost_its_lease_ends() {
    let server = Server::start().await;
    let client = server.client();
    let (lease, renew, retry) = (Duration::from_secs(3), Duration::from_secs(2), Duration::from_millis(300));
    for lock in [Lock::Lease, Lock::ConfigMap, Lock::Endpoints] {
        let name = format!("web-{lock:?}").to_lowercase();
        let leads: Arc<Mutex<Vec<(String, Instant)>>> = Arc::default();
        let start = |identity: &'static str| {
            let election =
                Election::new(name.clone()).lock(lock).identity(identity).timings(lease, renew, retry);
            let leads = Arc::clone(&leads);
            let task = Task::leading("lead", move |_, stop| {
                leads.lock().push((identity.to_owned(), Instant::now()));
                async move {
                    stop.cancelled().await;
                    Ok(())
                }
            });
            let operator = Operator::new("web").election(election).task(task).client(client.clone());
            tokio::spawn(operator.run_until(std::future::pending()))
        };
        let led = async |wanted: &[&str]| {
            let seen: Vec<String> = leads.lock().iter().map(|(identity, _)| identity.clone()).collect();
            if seen == wanted { Ok(()) } else { Err(seen) }
        };
        let first = start("first");
        eventually("the first one leads", async || led(&["first"]).await).await;
        let second = start("second");
        throughout("the second one stands by", Duration::from_secs(4), async || {
            led(&["first"]).await.map_err(|seen| format!("{lock:?}: {seen:?}"))
        })
        .await
        .unwrap();
        first.abort();
        let gone = Instant::now();
        eventually("the second one leads", async || led(&["first", "second"]).await).await;
        let waited = leads.lock()[1].1 - gone;
        // What it saw last was renewed before the first one went.
        assert!(waited + retry * 3 >= lease, "{lock:?}: taken over after {waited:?}");

        // Somebody takes the lock away, as who edits it by hand.
        let record = json!({ "holderIdentity": "else", "leaseDurationSeconds": 600, "leaderTransitions": 9,
            "renewTime": "2026-01-01T00:00:00.000000Z", "acquireTime": "2026-01-01T00:00:00.000000Z" });
        let key = "control-plane.alpha.kubernetes.io/leader";
        let annotated = json!({ "metadata": { "annotations": { key: record.to_string() } } });
        let params = PatchParams::default();
        match lock {
            Lock::Lease => {
                let taken = json!({ "spec": { "holderIdentity": "else", "leaseDurationSeconds": 600 } });
                let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
                leases.patch(&name, &params, &Patch::Merge(taken)).await.map(drop)
            }
            Lock::ConfigMap => {
                let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
                maps.patch(&name, &params, &Patch::Merge(annotated)).await.map(drop)
            }
            Lock::Endpoints => {
                let endpoints: Api<Endpoints> = Api::namespaced(client.clone(), "default");
                endpoints.patch(&name, &params, &Patch::Merge(annotated)).await.map(drop)
            }
        }
        .unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(10), second).await.expect("it ends").unwrap();
        let error = ended.unwrap_err().to_string();
        assert!(error.contains("lost"), "{lock:?}: {error}");
    }
}

fn web_runs(web: &Web) -> usize {
    web.0.load(Ordering::Relaxed)
}
