//! What is wrong outside an operator: it says what to do, and the rest of it goes on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::ObjectMeta;
use kube::{CustomResource, CustomResourceExt, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use setpoint::{
    Action, Certificates, Context, Controller, Health, Object, Operator, Reconciler, Result, Review, Webhook,
};
use setpoint_test::{Running, TestEnv, eventually};

const BOUND: Duration = Duration::from_secs(60);

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Page", namespaced)]
struct PageSpec {
    text: String,
}

/// Copies the name of each object into a ConfigMap.
struct Names<K>(std::marker::PhantomData<fn() -> K>);

impl<K: Object> Reconciler for Names<K> {
    type Object = K;

    async fn reconcile(&self, object: Arc<K>, cx: &Context<K>) -> Result<Action> {
        cx.apply(ConfigMap {
            metadata: ObjectMeta { name: Some(object.name_any()), ..ObjectMeta::default() },
            ..ConfigMap::default()
        })
        .await?;
        Ok(Action::await_change())
    }
}

fn names<K: Object<DynamicType = ()>>() -> Controller<Names<K>> {
    Controller::new(Names(std::marker::PhantomData)).owns::<ConfigMap>()
}

/// An operator of Services and of Pages. Its CRD is none of its declarations: somebody else installs that.
fn operator() -> Operator {
    Operator::new("names").controller(names::<Service>()).controller(names::<Page>())
}

struct World {
    env: TestEnv,
    health: Health,
}

impl World {
    async fn new(operator: Operator) -> (Self, Running) {
        let env = TestEnv::without_controllers().await.unwrap();
        env.allow_refusals();
        let health = operator.health().clone();
        let running = env.run(operator).await.unwrap();
        (Self { env, health }, running)
    }

    async fn service_is_reconciled(&self, name: &str) {
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        let services: Api<Service> = self.env.api("default");
        services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
        self.has(name).await;
    }

    async fn page_is_reconciled(&self, name: &str) {
        let page = Page::new(name, PageSpec { text: String::new() });
        let pages: Api<Page> = self.env.api("default");
        eventually("a page to be taken", BOUND, async || {
            pages.create(&PostParams::default(), &page).await.map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        self.has(name).await;
    }

    async fn has(&self, name: &str) {
        self.env.wait_for("default", name, "a ConfigMap", |_: &ConfigMap| Ok(())).await.unwrap();
    }

    /// Waits until the caches' readiness says all of `words`.
    async fn unready(&self, words: &[&str]) {
        eventually(format!("readiness to say {words:?}"), BOUND, async || {
            match self.health.ready("caches") {
                Err(says) if words.iter().all(|word| says.contains(word)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    }

    async fn ready(&self) {
        eventually("readiness", BOUND, async || self.health.ready("caches")).await.unwrap();
    }
}

const NOT_SERVED: [&str; 1] = ["the cluster does not serve Page.example.com in version v1: install its CRD"];

#[tokio::test(start_paused = true)]
async fn a_crd_that_is_not_installed_keeps_only_its_own_controller_waiting() {
    let (world, running) = World::new(operator()).await;
    world.service_is_reconciled("one").await;
    world.unready(&NOT_SERVED).await;
    world.env.install_crd::<Page>().await.unwrap();
    world.page_is_reconciled("two").await;
    world.ready().await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_disappears_takes_only_its_own_controller_with_it() {
    let (world, running) = World::new(operator()).await;
    world.env.install_crd::<Page>().await.unwrap();
    world.page_is_reconciled("one").await;
    world.ready().await;
    let crds: Api<CustomResourceDefinition> = Api::all(world.env.client());
    crds.delete(&Page::crd().name_any(), &DeleteParams::default()).await.unwrap();
    world.unready(&NOT_SERVED).await;
    world.service_is_reconciled("two").await;
    eventually("the definition to be gone", BOUND, async || {
        match crds.get_opt(&Page::crd().name_any()).await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(crd) => Err(format!("{:?}", crd.metadata)),
        }
    })
    .await
    .unwrap();
    world.env.install_crd::<Page>().await.unwrap();
    world.page_is_reconciled("three").await;
    world.ready().await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_missing_are_named_and_can_be_granted_while_it_runs() {
    let (world, running) = World::new(operator()).await;
    world.env.install_crd::<Page>().await.unwrap();
    world.page_is_reconciled("one").await;
    running.stop().await.unwrap();

    // What another release's manifests grant: nothing about pages.
    let smaller = Operator::new("names").controller(names::<Service>());
    let operator = operator();
    let identity = setpoint_apiserver::Identity::service_account("operators", "names", "uid");
    let access = smaller.manifests("operators").access().unwrap();
    for object in access {
        world.env.apply(object).await.unwrap();
    }
    let health = operator.health().clone();
    let (stop, stopped) = futures::channel::oneshot::channel::<()>();
    let client = world.env.client_as(identity).unwrap();
    let running = tokio::spawn(operator.client(client).namespace("operators").run_until(async {
        let _ = stopped.await;
    }));
    let world = World { env: world.env, health };
    world.service_is_reconciled("two").await;
    world.unready(&["resource \"pages\"", "grant what the operator's command `manifests` writes"]).await;
    for object in self::operator().manifests("operators").access().unwrap() {
        world.env.apply(object).await.unwrap();
    }
    world.page_is_reconciled("three").await;
    world.ready().await;
    drop(stop);
    running.await.unwrap().unwrap();
}

/// The folder where somebody wants to mount one is empty: real time, since files are read.
#[tokio::test]
async fn webhooks_without_a_certificate_say_where_it_has_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let operator = Operator::new("names")
        .controller(names::<Service>())
        .webhook(Webhook::validate(|_: &Service, _: &mut Review| {}))
        .certificates(Certificates::files(folder.path()));
    let env = TestEnv::without_controllers().await.unwrap();
    let account = env.install_operator(&operator, "operators").await.unwrap();
    // Nobody could create a Service while nobody answers.
    let configurations: Api<k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration> =
        Api::all(env.client());
    if configurations.get_opt("names").await.unwrap().is_some() {
        configurations.delete("names", &DeleteParams::default()).await.unwrap();
    }
    let identity =
        setpoint_apiserver::Identity::service_account("operators", "names", &account.uid().unwrap());
    let health = operator.health().clone();
    let (stop, stopped) = futures::channel::oneshot::channel::<()>();
    let operator = operator.client(env.client_as(identity).unwrap()).webhook_address("127.0.0.1:0");
    let running = tokio::spawn(operator.run_until(async {
        let _ = stopped.await;
    }));
    let world = World { env, health };
    world.service_is_reconciled("one").await;
    let says = eventually("a clear message", BOUND, async || match world.health.ready("webhooks") {
        Err(says) if says.contains("tls.crt") => Ok(says),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    assert!(says.ends_with("is the Secret with tls.crt and tls.key mounted there?"), "{says}");
    drop(stop);
    running.await.unwrap().unwrap();
}
