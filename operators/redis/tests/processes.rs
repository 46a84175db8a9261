//! The operator with real redis-server processes as pods of a real process node.
//!
//! Without a test harness, because the sandbox must be entered before the first thread exists. Skipped, saying
//! why, where no redis-server is installed or the kernel refuses namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test, but without the attribute that says so"
)]

#[path = "processes/soak.rs"]
mod soak;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use redis_operator::api::{Phase, RedisCluster, RedisClusterStatus};
use serde_json::{Value, json};
use setpoint_cluster::kubelet::Signal;
use setpoint_cluster::{Cluster, Identity};
use setpoint_node::{JoinOptions, Machine, MachineOptions, ProcessCluster};
use setpoint_test::eventually;
use tokio::time::{Instant, sleep};

const NAMESPACE: &str = "shop";
const BOUND: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join("redis-server").exists()) {
        println!("test processes ... ignored, no redis-server is installed");
        return ExitCode::SUCCESS;
    }
    let sandbox = match setpoint_node::enter(Vec::new()) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            println!("test processes ... ignored, {error}");
            return ExitCode::SUCCESS;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async {
            let options = MachineOptions::new(folder.path());
            let join = JoinOptions { nodes: 2, ..JoinOptions::default() };
            let running = ProcessCluster::start(sandbox, &options, &join).await.unwrap();
            let ProcessCluster { cluster, machine, nodes: _nodes, .. } = running;
            prepare(&cluster).await;
            if let Some(time) = soak::wanted() {
                soak::soak(&cluster, &machine, time).await;
            } else {
                story(&cluster, &machine).await;
                faults(&cluster, &machine).await;
            }
        });
    }));
    println!("test processes ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn apply(cluster: &Cluster, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(cluster.client(), &namespace, &resource),
        None => Api::all_with(cluster.client(), &resource),
    };
    api.patch(&object.name_any(), &PatchParams::apply("test").force(), &Patch::Apply(&object)).await.unwrap();
}

fn api<K>(cluster: &Cluster) -> Api<K>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Api::namespaced(cluster.client(), NAMESPACE)
}

/// What happened, for messages.
async fn explain(cluster: &Cluster) -> String {
    let mut story = String::new();
    for pod in api::<Pod>(cluster).list(&ListParams::default()).await.unwrap() {
        let containers = pod.status.as_ref().map(|status| &status.container_statuses);
        let _ = writeln!(story, "{} {:?} {containers:?}", pod.name_any(), pod.labels());
        let tail = kube::api::LogParams { tail_lines: Some(5), ..Default::default() };
        if let Ok(log) = api::<Pod>(cluster).logs(&pod.name_any(), &tail).await {
            story.push_str(&log);
        }
    }
    for event in api::<Event>(cluster).list(&ListParams::default()).await.unwrap() {
        let about = event.regarding.and_then(|about| about.name);
        let _ = writeln!(story, "{about:?} {:?} {:?}", event.reason, event.note);
    }
    for claim in api::<PersistentVolumeClaim>(cluster).list(&ListParams::default()).await.unwrap() {
        let _ = writeln!(story, "{} {:?}", claim.name_any(), claim.status);
    }
    story
}

async fn status_of(cluster: &Cluster) -> RedisClusterStatus {
    api::<RedisCluster>(cluster).get("orders").await.unwrap().status.unwrap()
}

async fn ready(cluster: &Cluster, size: i32) -> String {
    let clusters = api::<RedisCluster>(cluster);
    let waited = eventually(format!("{size} servers are ready"), BOUND, async || {
        let status =
            clusters.get("orders").await.map_err(|error| error.to_string())?.status.ok_or("no status")?;
        let ready = status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let done = ready && status.ready_replicas == size && status.phase == Some(Phase::Running);
        if done { Ok(status.current_primary.unwrap()) } else { Err(format!("{status:#?}")) }
    });
    match waited.await {
        Ok(primary) => primary,
        Err(error) => panic!("{error}\n{}", explain(cluster).await),
    }
}

/// Writes through the Service's address; a connection for each try, as a client does that lost its own.
async fn write(url: &str, key: &str) -> bool {
    let client = redis::Client::open(url).unwrap();
    let set = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("SET").arg(key).arg("x").exec_async(&mut connection).await
    };
    tokio::time::timeout(Duration::from_millis(500), set).await.is_ok_and(|done| done.is_ok())
}

/// The definition, the operator under its own rights, and a namespace to play in.
async fn prepare(cluster: &Cluster) {
    apply(cluster, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).await;
    apply(cluster, &serde_json::to_value(redis_operator::api::versions().crd().unwrap()).unwrap()).await;
    let operator = redis_operator::operator();
    let home = "redis-operator-system";
    apply(cluster, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home}})).await;
    for object in operator.manifests(home).access().unwrap() {
        apply(cluster, &object).await;
    }
    let client = cluster.client_as(Identity::service_account(home, operator.name(), "some-uid"));
    tokio::spawn(operator.client(client).run_until(std::future::pending()));
}

async fn create(cluster: &Cluster) -> String {
    let object = json!({"apiVersion": "cache.example.com/v1", "kind": "RedisCluster", "metadata": {"name": "orders"},
        "spec": {"size": 3, "image": "redis", "version": "7.0", "storage": {"size": "1Gi"}}});
    api::<RedisCluster>(cluster)
        .create(&PostParams::default(), &serde_json::from_value(object).unwrap())
        .await
        .unwrap();
    ready(cluster, 3).await
}

/// A client that writes through the Service and waits for a replica each time, a connection for each try.
struct Writer {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<(BTreeSet<String>, Duration)>,
}

impl Writer {
    async fn start(cluster: &Cluster) -> Self {
        let service = api::<Service>(cluster).get("orders").await.unwrap();
        let url = format!("redis://{}:6379", service.spec.unwrap().cluster_ip.unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (mut confirmed, mut gap, mut last, mut number) =
                (BTreeSet::new(), Duration::ZERO, Instant::now(), 0);
            while !stopped.load(Ordering::Relaxed) {
                number += 1;
                let key = format!("sure-{number}");
                let client = redis::Client::open(url.as_str()).unwrap();
                let write = async {
                    let mut connection = client.get_multiplexed_async_connection().await?;
                    redis::cmd("SET").arg(&key).arg("x").exec_async(&mut connection).await?;
                    redis::cmd("WAIT").arg(1).arg(300).query_async::<u32>(&mut connection).await
                };
                if let Ok(Ok(1..)) = tokio::time::timeout(Duration::from_millis(800), write).await {
                    confirmed.insert(key);
                    gap = gap.max(last.elapsed());
                    last = Instant::now();
                }
                sleep(Duration::from_millis(5)).await;
            }
            (confirmed, gap)
        });
        Self { stop, task }
    }

    /// Stops, checks that every confirmed write is there, and gives their number and the longest time without one.
    async fn finish(self, cluster: &Cluster, what: &str) -> (usize, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let (confirmed, gap) = self.task.await.unwrap();
        let service = api::<Service>(cluster).get("orders").await.unwrap();
        let url = format!("redis://{}:6379", service.spec.unwrap().cluster_ip.unwrap());
        let mut connection =
            redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("sure-*").query_async(&mut connection).await.unwrap();
        let keys: BTreeSet<String> = keys.into_iter().collect();
        let lost: Vec<&String> = confirmed.difference(&keys).collect();
        assert!(lost.is_empty(), "{what}: confirmed writes are gone: {lost:?}\n{}", explain(cluster).await);
        assert!(!confirmed.is_empty(), "{what}: nothing was confirmed");
        redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
        (confirmed.len(), gap)
    }
}

/// Stops `writer`, tells what it saw, and gives the longest time without a confirmed write.
async fn finish(writer: Writer, cluster: &Cluster, what: &str) -> Duration {
    let (confirmed, gap) = writer.finish(cluster, what).await;
    println!("         {confirmed} confirmed writes are there; longest gap {gap:?}");
    gap
}

async fn other_primary(cluster: &Cluster, old: &str) {
    eventually("another primary", BOUND, async || {
        let status = status_of(cluster).await;
        if status.current_primary.as_deref() == Some(old) { Err(format!("{status:?}")) } else { Ok(()) }
    })
    .await
    .unwrap();
}

/// What happens to real processes beside their death.
async fn faults(cluster: &Cluster, machine: &Machine) {
    let start = Instant::now();
    let step = |what: &str| println!("{:6.2} s  {what}", start.elapsed().as_secs_f32());
    let claims = ListParams::default();
    api::<PersistentVolumeClaim>(cluster).delete_collection(&DeleteParams::default(), &claims).await.unwrap();
    eventually("the old volumes are gone", BOUND, async || {
        let left = api::<PersistentVolumeClaim>(cluster).list(&claims).await.unwrap().items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} claims")) }
    })
    .await
    .unwrap();
    let primary = create(cluster).await;
    step("three servers again");

    let writer = Writer::start(cluster).await;
    sleep(Duration::from_secs(1)).await;
    machine.signal(NAMESPACE, &primary, "redis", Signal::Stop).await.unwrap();
    other_primary(cluster, &primary).await;
    step("the primary hangs, another one serves");
    // Its pod is deleted by then: waking it is too late.
    let _ = machine.signal(NAMESPACE, &primary, "redis", Signal::Continue).await;
    assert_ne!(ready(cluster, 3).await, primary, "a replica took over");
    let gap = finish(writer, cluster, "a hanging primary").await;
    assert!(gap < Duration::from_secs(20), "{gap:?}");

    let primary = ready(cluster, 3).await;
    let writer = Writer::start(cluster).await;
    sleep(Duration::from_secs(1)).await;
    let fault = machine.isolate(NAMESPACE, &primary).await.unwrap();
    other_primary(cluster, &primary).await;
    step("the primary is cut off, another one serves");
    fault.heal().await.unwrap();
    assert_ne!(ready(cluster, 3).await, primary, "a replica took over");
    finish(writer, cluster, "a primary that is cut off").await;

    let primary = ready(cluster, 3).await;
    let replica = ["orders-0", "orders-1", "orders-2"].into_iter().find(|pod| *pod != primary).unwrap();
    let writer = Writer::start(cluster).await;
    let fault = machine.partition((NAMESPACE, &primary), (NAMESPACE, replica)).await.unwrap();
    sleep(Duration::from_secs(6)).await;
    step("a replica does not reach the primary");
    // The other replica has everything now; the one that was cut off must not be chosen.
    machine.signal(NAMESPACE, &primary, "redis", Signal::Kill).await.unwrap();
    other_primary(cluster, &primary).await;
    step("the primary is killed, another one serves");
    fault.heal().await.unwrap();
    ready(cluster, 3).await;
    finish(writer, cluster, "a replica that lags when the primary dies").await;

    let primary = ready(cluster, 3).await;
    let replica = ["orders-0", "orders-1", "orders-2"].into_iter().find(|pod| *pod != primary).unwrap();
    let writer = Writer::start(cluster).await;
    machine.signal(NAMESPACE, replica, "redis", Signal::Stop).await.unwrap();
    sleep(Duration::from_secs(8)).await;
    machine.signal(NAMESPACE, replica, "redis", Signal::Continue).await.unwrap();
    assert_eq!(ready(cluster, 3).await, primary, "a slow replica costs no role");
    step("a replica hung for eight seconds");
    let gap = finish(writer, cluster, "a slow replica").await;
    assert!(gap < Duration::from_secs(8), "{gap:?}");

    let primary = ready(cluster, 3).await;
    let writer = Writer::start(cluster).await;
    let parameters = json!({"hz": "20", "notify-keyspace-events": "Ex", "repl-backlog-size": "128mb"});
    change(cluster, json!({"config": {"parameters": parameters}})).await;
    settings(cluster, "20", "134217728").await;
    step("every server has other settings");
    // What starts anew reads them from the file.
    machine.signal(NAMESPACE, "orders-2", "redis", Signal::Kill).await.unwrap();
    eventually("its process is another one", BOUND, async || {
        let pod = api::<Pod>(cluster).get("orders-2").await.unwrap();
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        if statuses.iter().any(|status| status.restart_count > 0) {
            Ok(())
        } else {
            Err(format!("{statuses:?}"))
        }
    })
    .await
    .unwrap();
    ready(cluster, 3).await;
    settings(cluster, "20", "134217728").await;
    change(cluster, json!({"config": {"parameters": null}})).await;
    settings(cluster, "10", "67108864").await;
    step("every server has the defaults again");
    change(cluster, json!({"size": 2, "scaleDown": "Allow"})).await;
    let left = ready(cluster, 2).await;
    step("two servers are left");
    finish(writer, cluster, "other settings and fewer servers").await;
    assert!(left == "orders-0" || left == "orders-1", "{primary} was the primary, {left} is");
    api::<RedisCluster>(cluster).delete("orders", &DeleteParams::default()).await.unwrap();
    gone(cluster).await;
}

async fn change(cluster: &Cluster, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    api::<RedisCluster>(cluster).patch("orders", &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until every server has these values of `hz` and `repl-backlog-size`.
async fn settings(cluster: &Cluster, hz: &str, backlog: &str) {
    let secret = api::<Secret>(cluster).get("orders-system").await.unwrap();
    let password = String::from_utf8(secret.data.unwrap()["setpoint"].0.clone()).unwrap();
    eventually("every server has the settings", BOUND, async || {
        for pod in api::<Pod>(cluster).list(&ListParams::default()).await.unwrap() {
            let ip = pod.status.and_then(|status| status.pod_ip).ok_or("no address")?;
            let client = redis::Client::open(format!("redis://setpoint:{password}@{ip}:6379")).unwrap();
            let mut connection =
                client.get_multiplexed_async_connection().await.map_err(|error| error.to_string())?;
            let mut get = redis::cmd("CONFIG");
            get.arg("GET").arg("hz").arg("repl-backlog-size");
            let found: std::collections::BTreeMap<String, String> =
                get.query_async(&mut connection).await.map_err(|error| error.to_string())?;
            if found["hz"] != hz || found["repl-backlog-size"] != backlog {
                return Err(format!("{ip}: {found:?}"));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
}

async fn gone(cluster: &Cluster) {
    eventually("everything is gone", BOUND, async || {
        let cluster_gone = api::<RedisCluster>(cluster).get_opt("orders").await.unwrap().is_none();
        let pods = api::<Pod>(cluster).list(&ListParams::default()).await.unwrap().items.len();
        let services = api::<Service>(cluster).list(&ListParams::default()).await.unwrap().items.len();
        if cluster_gone && pods + services == 0 {
            Ok(())
        } else {
            Err(format!("{cluster_gone} {pods} {services}"))
        }
    })
    .await
    .unwrap();
}

#[expect(clippy::too_many_lines, reason = "one story")]
async fn story(cluster: &Cluster, machine: &Machine) {
    let start = Instant::now();
    let step = |what: &str| println!("{:6.2} s  {what}", start.elapsed().as_secs_f32());
    let primary = create(cluster).await;
    step("three servers are ready");

    let service = api::<Service>(cluster).get("orders").await.unwrap();
    let url = format!("redis://{}:6379", service.spec.unwrap().cluster_ip.unwrap());
    let url: &'static str = url.leak();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            let (mut written, mut gap, mut last) = (BTreeSet::new(), Duration::ZERO, Instant::now());
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let key = format!("key-{number}");
                if write(url, &key).await {
                    written.insert(key);
                    gap = gap.max(last.elapsed());
                    last = Instant::now();
                }
                sleep(Duration::from_millis(2)).await;
            }
            (written, gap)
        }
    });

    let patch = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        api::<RedisCluster>(cluster).patch("orders", &PatchParams::default(), &patch).await.unwrap();
    };
    patch(json!({"size": 5})).await;
    ready(cluster, 5).await;
    step("five servers are ready");

    let secret = api::<Secret>(cluster).get("orders-system").await.unwrap().data.unwrap();
    let password = String::from_utf8(secret["setpoint"].0.clone()).unwrap();
    patch(json!({"config": {"maxmemory": "100mb"}})).await;
    eventually("every server has the new maxmemory", BOUND, async || {
        for pod in api::<Pod>(cluster).list(&ListParams::default()).await.unwrap() {
            let ip = pod.status.and_then(|status| status.pod_ip).ok_or("no address")?;
            let client = redis::Client::open(format!("redis://setpoint:{password}@{ip}:6379"))
                .map_err(|error| error.to_string())?;
            let mut connection =
                client.get_multiplexed_async_connection().await.map_err(|error| error.to_string())?;
            let config: Vec<String> = redis::cmd("CONFIG")
                .arg("GET")
                .arg("maxmemory")
                .query_async(&mut connection)
                .await
                .map_err(|error| error.to_string())?;
            if config[1] != "104857600" {
                return Err(format!("{ip}: {config:?}"));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
    step("maxmemory is in force everywhere");

    machine.signal(NAMESPACE, &primary, "redis", Signal::Kill).await.unwrap();
    eventually("another primary", BOUND, async || {
        let status = status_of(cluster).await;
        if status.current_primary.as_ref() == Some(&primary) { Err(format!("{status:?}")) } else { Ok(()) }
    })
    .await
    .unwrap();
    step("primary killed, another one serves");
    assert_ne!(ready(cluster, 5).await, primary, "a replica took over");
    step("the old primary is back as a replica");

    api::<PersistentVolumeClaim>(cluster)
        .delete(&format!("data-{primary}"), &DeleteParams::default())
        .await
        .unwrap();
    let uid = api::<Pod>(cluster).get(&primary).await.unwrap().uid();
    api::<Pod>(cluster).delete(&primary, &DeleteParams::default()).await.unwrap();
    eventually("another pod", BOUND, async || {
        let pod = api::<Pod>(cluster).get_opt(&primary).await.unwrap();
        if pod.is_some_and(|pod| pod.uid() != uid) { Ok(()) } else { Err("still the old one".to_owned()) }
    })
    .await
    .unwrap();
    ready(cluster, 5).await;
    step("a replica without pod and volume is in sync again");

    let primary = status_of(cluster).await.current_primary.unwrap();
    api::<Pod>(cluster).delete(&primary, &DeleteParams::default()).await.unwrap();
    eventually("another primary", BOUND, async || {
        let status = status_of(cluster).await;
        if status.current_primary.as_ref() == Some(&primary) { Err(format!("{status:?}")) } else { Ok(()) }
    })
    .await
    .unwrap();
    step("the primary's pod is deleted, another one serves");
    assert_ne!(ready(cluster, 5).await, primary, "a replica took over");
    let events = api::<Event>(cluster).list(&ListParams::default()).await.unwrap();
    let planned = events.iter().any(|event| event.reason.as_deref() == Some("SwitchedOver"));
    assert!(planned, "the primary handed over before it ended");
    step("it is back as a replica");

    stop.store(true, Ordering::Relaxed);
    let (written, gap) = writer.await.unwrap();
    let mut connection = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("key-*").query_async(&mut connection).await.unwrap();
    let keys: BTreeSet<String> = keys.into_iter().collect();
    let lost: Vec<&String> = written.difference(&keys).collect();
    assert!(lost.is_empty(), "acknowledged writes are gone: {lost:?}");
    step(&format!("{} acknowledged writes are there; longest gap {gap:?}", written.len()));

    api::<RedisCluster>(cluster).delete("orders", &DeleteParams::default()).await.unwrap();
    gone(cluster).await;
    step("deleted, with its children");
}
