//! A whole operator under its generated rights: against the embedded API server in simulated time, or against the one that
//! `SETPOINT_TEST_SERVER` names.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::events::v1::Event as EventObject;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Action, Context, Controller, Event, Operator, Reconciler, Result};
use setpoint_test::{TestEnv, TestServer};

/// Each Service gets a ConfigMap with its type.
#[derive(Default)]
struct Describe {
    pause: Duration,
    finished: Arc<Mutex<usize>>,
}

impl Reconciler for Describe {
    type Object = Service;

    async fn reconcile(&self, service: Arc<Service>, cx: &Context<Service>) -> Result<Action> {
        tokio::time::sleep(self.pause).await;
        let kind = service.spec.as_ref().and_then(|spec| spec.type_.clone()).unwrap_or_default();
        let new = cx.get::<ConfigMap>(service.name_any()).await?.is_none();
        cx.apply(ConfigMap {
            metadata: ObjectMeta { name: Some(service.name_any()), ..ObjectMeta::default() },
            data: Some([("type".to_owned(), kind)].into()),
            ..ConfigMap::default()
        })
        .await?;
        if new {
            cx.event(Event::normal("Described", "its type is in a ConfigMap"));
        }
        *self.finished.lock() += 1;
        Ok(Action::await_change())
    }
}

struct World {
    env: TestEnv,
}

impl World {
    async fn new() -> Self {
        let env = TestEnv::without_controllers().await.unwrap();
        env.namespace("team-a").await.unwrap();
        Self { env }
    }

    /// Runs an operator as the ServiceAccount that its manifests make.
    async fn start(&self, operator: Operator) -> Running {
        let metrics = operator.metrics().clone();
        Running { running: self.env.run(operator).await.unwrap(), metrics }
    }

    async fn service(&self, name: &str) {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "team-a"},
            "spec": {"ports": [{"port": 80}]}});
        let services: Api<Service> = self.env.api("team-a");
        services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    }

    async fn config_map(&self, name: &str) -> ConfigMap {
        let maps: Api<ConfigMap> = self.env.api("team-a");
        until(&format!("ConfigMap {name}"), async || maps.get_opt(name).await.unwrap()).await
    }
}

struct Running {
    running: setpoint_test::Running,
    metrics: setpoint::Metrics,
}

impl Running {
    async fn stop(self) -> Result<(), String> {
        self.running.stop().await
    }

    fn metric(&self, series: &str) -> Option<f64> {
        self.metrics.encode().lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }
}

/// Whether time is simulated: an hour takes none.
fn is_simulated() -> bool {
    TestServer::from_env().unwrap() == TestServer::Embedded
}

/// So many seconds; on a real server a tenth of it.
fn seconds(seconds: u64) -> Duration {
    Duration::from_millis(seconds * if is_simulated() { 1000 } else { 100 })
}

/// Time passes; in real time not more than what is under way needs.
async fn pass(time: Duration) {
    let most = if is_simulated() { Duration::MAX } else { Duration::from_secs(3) };
    tokio::time::sleep(time.min(most)).await;
}

/// Asks until there is an answer, for a minute of simulated time.
async fn until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what} did not appear within a minute");
}

fn operator(describe: Describe) -> Operator {
    Operator::new("describe-operator").controller(Controller::new(describe).owns::<ConfigMap>())
}

#[tokio::test(start_paused = true)]
async fn the_api_server_takes_all_manifests() {
    let world = World::new().await;
    for object in operator(Describe::default()).manifests("describe-system").objects().unwrap() {
        world.env.apply(object).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_works_under_its_generated_rights() {
    let world = World::new().await;
    let running = world.start(operator(Describe::default())).await;
    world.service("web").await;
    let map = world.config_map("web").await;
    assert_eq!(map.data.unwrap()["type"], "ClusterIP");
    assert_eq!(map.metadata.owner_references.unwrap()[0].kind, "Service");

    let events: Api<EventObject> = world.env.api("team-a");
    let event =
        until("the event", async || events.list(&ListParams::default()).await.unwrap().items.pop()).await;
    assert_eq!(event.reason.as_deref(), Some("Described"));
    assert_eq!(event.regarding.unwrap().name.as_deref(), Some("web"));

    let forbidden = running.metrics.encode().lines().filter(|line| line.contains("code=\"403\"")).count();
    assert_eq!(forbidden, 0, "every right was derived");
    let success = "controller_reconcile_total{controller=\"service\",result=\"success\"}";
    assert!(running.metric(success).unwrap() >= 1.0);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_child_comes_back() {
    let world = World::new().await;
    let running = world.start(operator(Describe::default())).await;
    world.service("web").await;
    let first = world.config_map("web").await;
    let maps: Api<ConfigMap> = world.env.api("team-a");
    maps.delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    let second = until("another ConfigMap", async || {
        maps.get_opt("web").await.unwrap().filter(|map| map.metadata.uid != first.metadata.uid)
    })
    .await;
    assert_eq!(second.data, first.data);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_converged_operator_is_silent_also_after_a_restart() {
    let world = World::new().await;
    let running = world.start(operator(Describe::default())).await;
    world.service("web").await;
    world.config_map("web").await;
    pass(Duration::from_secs(1800)).await;
    running.stop().await.unwrap();

    let running = world.start(operator(Describe::default())).await;
    pass(Duration::from_secs(5)).await;
    let maps: Api<ConfigMap> = world.env.api("team-a");
    let version = maps.get("web").await.unwrap().metadata.resource_version;
    pass(Duration::from_secs(1800)).await;
    assert_eq!(maps.get("web").await.unwrap().metadata.resource_version, version);
    let sent = running.metrics.encode();
    assert!(!sent.contains("method=\"PATCH\""), "canonical intents are recognised without asking:\n{sent}");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_stop_waits_for_a_running_reconcile() {
    let world = World::new().await;
    let describe = Describe { pause: seconds(20), ..Describe::default() };
    let finished = describe.finished.clone();
    let running = world.start(operator(describe)).await;
    world.service("web").await;
    // Of the new Service, or of the API server's own.
    until("a running reconcile", async || {
        (running.metric("controller_runtime_active_workers{controller=\"service\"}") >= Some(1.0))
            .then_some(())
    })
    .await;
    running.stop().await.unwrap();
    assert!(*finished.lock() >= 1, "it ended before the operator did");
}

#[tokio::test(start_paused = true)]
async fn the_stop_waits_no_longer_than_the_grace() {
    let world = World::new().await;
    let describe = Describe { pause: seconds(200), ..Describe::default() };
    let finished = describe.finished.clone();
    let running = world.start(operator(describe).grace(seconds(10))).await;
    world.service("web").await;
    // Of the new Service, or of the API server's own.
    until("a running reconcile", async || {
        (running.metric("controller_runtime_active_workers{controller=\"service\"}") >= Some(1.0))
            .then_some(())
    })
    .await;
    let start = tokio::time::Instant::now();
    running.stop().await.unwrap();
    let took = start.elapsed();
    assert!(if is_simulated() { took == seconds(10) } else { took >= seconds(10) }, "{took:?}");
    assert_eq!(*finished.lock(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_workers_can_be_set_from_outside() {
    let world = World::new().await;
    let describe = Describe { pause: seconds(30), ..Describe::default() };
    for name in ["a", "b", "c"] {
        world.service(name).await;
    }
    let running = world.start(operator(describe).concurrency(2)).await;
    let active = "controller_runtime_active_workers{controller=\"service\"}";
    until("two workers", async || (running.metric(active) == Some(2.0)).then_some(())).await;
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(running.metric(active), Some(2.0), "two of four Services at a time");
    running.stop().await.unwrap();
}
