//! Reflector, apply and convergence against a real kube-apiserver, whose binaries `KUBEBUILDER_ASSETS` names.
//!
//! ```console
//! KUBEBUILDER_ASSETS=/path cargo test -p setpoint --test real_server -- --ignored
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, CustomResource, CustomResourceExt, ResourceExt};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use setpoint::{Action, AnyController, Context, Controller, Reconciler, Result, Runtime};
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "setpoint-test-token";

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

/// A real server with its store, ended with the value.
struct Server {
    processes: Vec<Child>,
    folder: tempfile::TempDir,
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Server {
    fn start(assets: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [client, peer, port] = [(); 3].map(|()| free_port());
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("tokens"), format!("{TOKEN},admin,1,system:masters\n")).unwrap();
        let key = Command::new("openssl").args(["genrsa", "-out", &path("key"), "2048"]).output().unwrap();
        assert!(key.status.success());
        let run = |name: &str, arguments: &[String]| {
            let log = std::fs::File::create(path(&format!("{name}.log"))).unwrap();
            Command::new(PathBuf::from(assets).join(name))
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap()
        };
        let etcd = run(
            "etcd",
            &[
                "--unsafe-no-fsync".to_owned(),
                format!("--data-dir={}", path("etcd")),
                format!("--listen-client-urls=http://127.0.0.1:{client}"),
                format!("--advertise-client-urls=http://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            ],
        );
        let server = run(
            "kube-apiserver",
            &[
                format!("--etcd-servers=http://127.0.0.1:{client}"),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                format!("--cert-dir={}", path("certificates")),
                format!("--service-account-key-file={}", path("key")),
                format!("--service-account-signing-key-file={}", path("key")),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--token-auth-file={}", path("tokens")),
                "--authorization-mode=RBAC".to_owned(),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                "--disable-admission-plugins=ServiceAccount".to_owned(),
            ],
        );
        Self { processes: vec![etcd, server], folder, port, requests: Arc::default() }
    }

    /// A client whose requests other than watches are written down.
    fn client(&self) -> Client {
        let mut config = kube::Config::new(format!("https://127.0.0.1:{}", self.port).parse().unwrap());
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(TOKEN.to_owned().into());
        let (client, requests) = (Client::try_from(config).unwrap(), Arc::clone(&self.requests));
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

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("kube-apiserver.log")).unwrap_or_default()
    }

    fn writes(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn eventually<T, E: std::fmt::Debug>(what: &str, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
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

#[tokio::test]
#[ignore = "needs kube-apiserver and etcd in KUBEBUILDER_ASSETS"]
async fn a_controller_converges_on_a_real_server_and_then_moves_nothing() {
    let assets =
        std::env::var("KUBEBUILDER_ASSETS").expect("KUBEBUILDER_ASSETS names the folder of the binaries");
    let server = Server::start(&assets);
    let client = server.client();
    eventually("the server answers", async || client.apiserver_version().await).await;
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
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (before, runs) = (versions(&client).await, web_runs(&web));
    server.writes();
    let touch = Patch::Merge(json!({ "metadata": { "labels": { "theirs": "yes" } } }));
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.patch("a", &PatchParams::default(), &touch).await.unwrap();
    eventually(
        "a run for the foreign label",
        async || if web_runs(&web) > runs { Ok(()) } else { Err(runs) },
    )
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(server.writes(), ["PATCH /api/v1/namespaces/default/configmaps/a"], "only the label itself");
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
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = versions(&client).await;
    server.writes();
    let (web, stop, _runtime, running) = start();
    eventually("a run", async || if web_runs(&web) > 0 { Ok(()) } else { Err(()) }).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut writes = server.writes();
    writes.sort();
    assert_eq!(
        writes,
        [
            // Metadata only is kept of it: its values are not known to be the same.
            "PATCH /api/v1/namespaces/default/secrets/a",
            // Its quantities come back rewritten.
            "PATCH /apis/apps/v1/namespaces/default/statefulsets/a",
        ]
    );
    assert_eq!(versions(&client).await, before, "{}", server.log());
    stop.cancel();
    running.await.unwrap().unwrap();
}

fn web_runs(web: &Web) -> usize {
    web.0.load(Ordering::Relaxed)
}
