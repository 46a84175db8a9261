//! The whole operator on an embedded cluster with hollow nodes, model servers and simulated time, under its
//! generated rights.

mod crashes;
mod fields;
mod hands;
mod sizes;
mod upgrade;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams, PropagationPolicy,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use setpoint::OperatorError;
use setpoint_clock::{Clock, Entropy};
use setpoint_cluster::kubelet::{ProbeKind, ProbeOutcome};
use setpoint_cluster::{Cluster, Identity, Run};
use setpoint_test::eventually;
use tokio::task::JoinHandle;

use crate::api::{FINALIZER, Phase, RedisCluster};
use crate::controller::operator_of;
use crate::model::SharedWorld;
use crate::render::{ROLE, Revisions, SEALED};

const NAMESPACE: &str = "shop";
const BOUND: Duration = Duration::from_secs(120);

struct Rig {
    cluster: Cluster,
    world: SharedWorld,
    revisions: Revisions,
    metrics: setpoint::Metrics,
    stop: Option<oneshot::Sender<()>>,
    operator: Option<JoinHandle<Result<(), OperatorError>>>,
}

impl Rig {
    async fn new() -> Self {
        let cluster =
            Cluster::builder().hollow_nodes(3).clock(Clock::system()).seed(7).start().await.unwrap();
        let world = SharedWorld::default();
        tokio::spawn(world.clone().run());
        for node in cluster.nodes().values() {
            // Model servers live and die with the containers of the hollow nodes.
            let (mut runs, world) = (node.watch_runs(), world.clone());
            let of_pods = world.clone();
            node.probes(move |pod, _, kind, _| {
                let ready = of_pods.with(|world, now| world.ready(&pod.name, now));
                match (kind, ready) {
                    (ProbeKind::Readiness, false) => ProbeOutcome::Failure("not in sync".into()),
                    _ => ProbeOutcome::Success,
                }
            });
            tokio::spawn(async move {
                let mut addresses = BTreeMap::new();
                while let Some(run) = runs.recv().await {
                    match run {
                        Run::Started { pod, address, .. } => {
                            addresses.insert(pod.uid.clone(), address.to_string());
                            world.with(|world, now| world.start(&address.to_string(), &pod.name, true, now));
                        }
                        Run::Ended { pod, .. } => {
                            if let Some(address) = addresses.get(&pod.uid) {
                                world.with(|world, _| world.kill(address));
                            }
                        }
                    }
                }
            });
        }
        let mut rig = Self {
            cluster,
            world,
            revisions: Revisions::default(),
            metrics: setpoint::Metrics::new(),
            stop: None,
            operator: None,
        };
        rig.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).await;
        rig.start_operator().await;
        rig
    }

    async fn apply(&self, object: &Value) {
        let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(self.cluster.client(), &namespace, &resource),
            None => Api::all_with(self.cluster.client(), &resource),
        };
        let name = object.name_any();
        let applied = api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&object)).await;
        applied.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.kind));
    }

    /// Starts the operator as the ServiceAccount that its manifests make.
    async fn start_operator(&mut self) {
        let operator = operator_of(Arc::new(self.world.clone()), self.revisions.clone());
        let namespace = "redis-operator-system";
        self.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await;
        let manifests = operator.manifests(namespace);
        for object in manifests.definitions().unwrap().into_iter().chain(manifests.access().unwrap()) {
            self.apply(&object).await;
        }
        // No webhook is reached here: the operator works with what is stored, and carries out what it can of it.
        let identity = Identity::service_account(namespace, operator.name(), "some-uid");
        let client: Client = self.cluster.client_as(identity);
        let (stop, stopped) = oneshot::channel::<()>();
        self.metrics = operator.metrics().clone();
        let operator = operator.client(client).clock(*self.cluster.clock()).entropy(Entropy::seeded(8));
        self.operator = Some(tokio::spawn(operator.run_until(async {
            let _ = stopped.await;
        })));
        self.stop = Some(stop);
    }

    async fn stop_operator(&mut self) {
        drop(self.stop.take());
        self.operator.take().unwrap().await.unwrap().unwrap();
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.client(), NAMESPACE)
    }

    async fn create(&self, name: &str, spec: Value) {
        let object = json!({"apiVersion": "cache.example.com/v1", "kind": "RedisCluster", "metadata": {"name": name}, "spec": spec});
        self.api::<RedisCluster>()
            .create(&PostParams::default(), &serde_json::from_value(object).unwrap())
            .await
            .unwrap();
    }

    async fn patch(&self, name: &str, spec: Value) -> kube::Result<RedisCluster> {
        self.api::<RedisCluster>()
            .patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec})))
            .await
    }

    /// Waits until `name` has `size` servers of which all are in sync, and gives its primary.
    async fn ready(&self, name: &str, size: i32) -> String {
        let clusters = self.api::<RedisCluster>();
        let waited = eventually(format!("{name} with {size} servers is ready"), BOUND, async || {
            let cluster = clusters.get(name).await.map_err(|error| error.to_string())?;
            let Some(status) = cluster.status else { return Err("no status".to_owned()) };
            let ready = status
                .conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let done = ready && status.ready_replicas == size && status.phase == Some(Phase::Running);
            if done { Ok(status.current_primary.unwrap()) } else { Err(format!("{status:#?}")) }
        });
        match waited.await {
            Ok(primary) => primary,
            Err(error) => panic!("{error}\n{}", self.story(name).await),
        }
    }

    /// What happened, for messages.
    async fn story(&self, name: &str) -> String {
        let mut story = String::new();
        let pods = self.api::<Pod>().list(&ListParams::default()).await.unwrap();
        for pod in pods {
            let status = pod.status.clone().unwrap_or_default();
            let _ = writeln!(
                story,
                "{} {:?} {:?} {:?}",
                pod.name_any(),
                pod.labels().get(ROLE),
                status.pod_ip,
                status.container_statuses
            );
        }
        let events =
            self.api::<k8s_openapi::api::events::v1::Event>().list(&ListParams::default()).await.unwrap();
        for event in events
            .items
            .iter()
            .filter(|event| event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name))
        {
            let _ = writeln!(story, "{:?} {:?}", event.reason, event.note);
        }
        self.world.with(|world, _| {
            let _ = write!(story, "{:#?}", world.servers);
        });
        story
    }

    /// Address of the one ready endpoint of the Service.
    async fn service(&self, name: &str) -> Option<String> {
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
        let slices = self.api::<EndpointSlice>().list(&of_service).await.unwrap();
        let ready =
            slices.items.into_iter().filter_map(|slice| slice.endpoints).flatten().filter(|endpoint| {
                endpoint.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(true))
            });
        let addresses: Vec<String> = ready.flat_map(|endpoint| endpoint.addresses).collect();
        assert!(addresses.len() <= 1, "the Service never leads to two: {addresses:?}");
        addresses.into_iter().next()
    }

    /// Writes through the Service once.
    async fn write(&self, name: &str) -> bool {
        match self.service(name).await {
            Some(ip) => self.world.with(|world, now| world.write(&ip, now)),
            None => false,
        }
    }

    async fn lost(&self, name: &str) -> usize {
        let ip = self.service(name).await.unwrap();
        self.world.with(|world, _| {
            let log: std::collections::BTreeSet<u64> = world.servers[&ip].log.iter().copied().collect();
            world.acknowledged.difference(&log).count()
        })
    }

    fn kill(&self, pod: &str) {
        let killed = self.cluster.nodes().values().any(|node| node.kill(NAMESPACE, pod, "redis"));
        assert!(killed, "{pod} runs somewhere");
    }

    fn forbidden(&self) -> Vec<String> {
        self.metrics
            .encode()
            .lines()
            .filter(|line| line.contains("code=\"403\""))
            .map(str::to_owned)
            .collect()
    }
}

fn spec(size: i32) -> Value {
    json!({"size": size, "image": "redis", "version": "7.0", "storage": {"size": "1Gi"}})
}

#[tokio::test(start_paused = true)]
async fn from_creation_over_fail_over_to_deletion() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    for _ in 0..100 {
        assert!(rig.write("orders").await);
    }

    rig.patch("orders", json!({"size": 5})).await.unwrap();
    assert_eq!(rig.ready("orders", 5).await, primary, "more servers need no other primary");

    rig.patch("orders", json!({"config": {"maxmemory": "100mb", "maxmemoryPolicy": "allkeys-lru"}}))
        .await
        .unwrap();
    eventually("every server has the settings", BOUND, async || {
        rig.world.with(|world, _| {
            let other = world
                .servers
                .iter()
                .find(|(_, server)| server.maxmemory != 100 << 20 || server.policy != "allkeys-lru");
            other.map_or(Ok(()), |(ip, server)| Err(format!("{ip}: {} {}", server.maxmemory, server.policy)))
        })
    })
    .await
    .unwrap();
    let config = rig.api::<ConfigMap>().get("orders-config").await.unwrap();
    assert!(config.data.unwrap()["redis.conf"].contains("maxmemory 104857600"), "a restart keeps it");
    for pod in rig.api::<Pod>().list(&ListParams::default()).await.unwrap() {
        let restarts: i32 = pod
            .status
            .unwrap()
            .container_statuses
            .unwrap()
            .iter()
            .map(|container| container.restart_count)
            .sum();
        assert_eq!(restarts, 0, "no server restarted");
    }

    rig.kill(&primary);
    let died = tokio::time::Instant::now();
    eventually("a write after the death", BOUND, async || {
        if rig.write("orders").await { Ok(()) } else { Err("refused".to_owned()) }
    })
    .await
    .unwrap();
    assert!(died.elapsed() < Duration::from_secs(3), "{:?}", died.elapsed());
    assert_ne!(rig.ready("orders", 5).await, primary, "a replica took over");
    assert_eq!(rig.lost("orders").await, 0);
    let old = rig.api::<Pod>().get(&primary).await.unwrap();
    assert_eq!(
        old.labels().get(ROLE).map(String::as_str),
        Some("replica"),
        "the old primary comes back as a replica"
    );

    // Shrinking is refused by the CustomResourceDefinition unless the object allows it.
    let refused = rig.patch("orders", json!({"size": 3})).await.unwrap_err();
    assert!(refused.to_string().contains("size can be lowered only where scaleDown is Allow"), "{refused}");

    assert_eq!(rig.forbidden(), Vec::<String>::new(), "every right was derived");
    let cluster = rig.api::<RedisCluster>().get("orders").await.unwrap();
    assert_eq!(cluster.finalizers(), [FINALIZER]);
    rig.api::<RedisCluster>().delete("orders", &DeleteParams::default()).await.unwrap();
    eventually("the finalizer is released", BOUND, async || {
        match rig.api::<RedisCluster>().get_opt("orders").await.unwrap() {
            None => Ok(()),
            Some(cluster) => Err(format!("{:?}", cluster.metadata)),
        }
    })
    .await
    .unwrap();
    let open = rig.world.with(|world, _| {
        let open = world.servers.keys().filter(|ip| world.quorum(ip) != SEALED);
        open.cloned().collect::<Vec<_>>()
    });
    assert!(open.is_empty(), "{open:?} were not prepared for their end");
}

#[tokio::test(start_paused = true)]
async fn orphaned_servers_go_on() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.ready("orders", 3).await;
    let orphan =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    rig.api::<RedisCluster>().delete("orders", &orphan).await.unwrap();
    eventually("the finalizers are released", BOUND, async || {
        match rig.api::<RedisCluster>().get_opt("orders").await.unwrap() {
            None => Ok(()),
            Some(cluster) => Err(format!("{:?}", cluster.metadata)),
        }
    })
    .await
    .unwrap();
    let set = rig.api::<StatefulSet>().get("orders").await.unwrap();
    assert!(set.owner_references().is_empty(), "{:?}", set.metadata);
    assert!(rig.write("orders").await, "the servers serve without their owner");
}

#[tokio::test(start_paused = true)]
async fn at_rest_nothing_is_written_and_a_restarted_operator_changes_nothing() {
    let mut rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let version = async |rig: &Rig| {
        let mut versions = vec![rig.api::<RedisCluster>().get("orders").await.unwrap().resource_version()];
        versions.push(rig.api::<StatefulSet>().get("orders").await.unwrap().resource_version());
        versions.push(rig.api::<Secret>().get("orders-system").await.unwrap().resource_version());
        versions.extend(
            rig.api::<Pod>()
                .list(&ListParams::default())
                .await
                .unwrap()
                .iter()
                .map(ResourceExt::resource_version),
        );
        versions
    };
    let before = version(&rig).await;
    let seen = rig.api::<RedisCluster>().get("orders").await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(version(&rig).await, before, "no resourceVersion moves at rest");
    rig.stop_operator().await;
    rig.start_operator().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let cluster = rig.api::<RedisCluster>().get("orders").await.unwrap();
    assert_eq!(cluster, seen, "a restart changes nothing");
    assert_eq!(version(&rig).await, before, "a restart changes nothing");
    assert_eq!(rig.ready("orders", 3).await, primary);

    // The operator was away when the primary died.
    rig.stop_operator().await;
    rig.kill(&primary);
    tokio::time::sleep(Duration::from_secs(30)).await;
    rig.start_operator().await;
    eventually("a write after the operator's return", BOUND, async || {
        if rig.write("orders").await { Ok(()) } else { Err(rig.story("orders").await) }
    })
    .await
    .unwrap();
    rig.ready("orders", 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_spec_is_told_and_stops_neither_repair_nor_others() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.create("carts", spec(1)).await;
    let primary = rig.ready("orders", 3).await;
    rig.ready("carts", 1).await;
    rig.patch("orders", json!({"config": {"maxmemory": "64gb"}})).await.unwrap();
    eventually("the condition names the field", BOUND, async || {
        let cluster = rig.api::<RedisCluster>().get("orders").await.unwrap();
        let conditions = cluster.status.unwrap().conditions;
        let config = conditions.iter().find(|condition| condition.type_ == "ConfigApplied").unwrap();
        if config.status == "False" && config.message.contains("spec.config.maxmemory") {
            Ok(())
        } else {
            Err(format!("{config:?}"))
        }
    })
    .await
    .unwrap();
    eventually("the event names the field", BOUND, async || {
        let events =
            rig.api::<k8s_openapi::api::events::v1::Event>().list(&ListParams::default()).await.unwrap();
        let named = events
            .iter()
            .any(|event| event.note.as_deref().unwrap_or_default().contains("spec.config.maxmemory"));
        if named {
            Ok(())
        } else {
            Err(format!("{:?}", events.iter().map(|event| &event.note).collect::<Vec<_>>()))
        }
    })
    .await
    .unwrap();
    rig.kill(&primary);
    eventually("a write after the death", BOUND, async || {
        if rig.write("orders").await { Ok(()) } else { Err("refused".to_owned()) }
    })
    .await
    .unwrap();
    assert!(rig.write("carts").await);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_comes_back_and_syncs_and_deleted_children_are_put_back() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    assert!(rig.write("orders").await);
    let passwords = rig.api::<Secret>().get("orders-system").await.unwrap().data;
    rig.api::<Secret>().delete("orders-system", &DeleteParams::default()).await.unwrap();
    eventually("the Secret is put back as it was", BOUND, async || {
        let secret = rig.api::<Secret>().get_opt("orders-system").await.unwrap();
        if secret.as_ref().is_some_and(|secret| secret.data == passwords) {
            Ok(())
        } else {
            Err(format!("{:?}", secret.map(|secret| secret.metadata)))
        }
    })
    .await
    .unwrap();
    let replica = ["orders-0", "orders-1", "orders-2"].into_iter().find(|pod| *pod != primary).unwrap();
    let uid = rig.api::<Pod>().get(replica).await.unwrap().uid();
    rig.api::<Pod>().delete(replica, &DeleteParams::default()).await.unwrap();
    eventually("another pod", BOUND, async || {
        let pod = rig.api::<Pod>().get_opt(replica).await.unwrap();
        if pod.as_ref().is_some_and(|pod| pod.uid() != uid) {
            Ok(())
        } else {
            Err(format!("{:?}", pod.map(|pod| pod.metadata)))
        }
    })
    .await
    .unwrap();
    assert_eq!(rig.ready("orders", 3).await, primary);
    assert_eq!(rig.lost("orders").await, 0);
    let sealed = rig.world.with(|world, now| {
        let servers = world.servers.keys().filter_map(|ip| world.server(ip, now));
        servers.filter(|server| server.quorum >= SEALED).count()
    });
    assert_eq!(sealed, 2, "replicas stay sealed");
}

#[tokio::test(start_paused = true)]
async fn a_missing_storage_class_is_named() {
    let rig = Rig::new().await;
    let mut wanted = spec(1);
    wanted["storage"] = json!({"size": "1Gi", "storageClass": "gold"});
    rig.create("orders", wanted).await;
    eventually("the condition names the field", BOUND, async || {
        let cluster = rig.api::<RedisCluster>().get("orders").await.unwrap();
        let conditions = cluster.status.map(|status| status.conditions).unwrap_or_default();
        let named = conditions.iter().any(|condition| {
            condition.message.contains("spec.storage.storageClass") && condition.message.contains("gold")
        });
        let claims = rig.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
        if named { Ok(()) } else { Err(format!("{conditions:?}\n{:?}", claims.items)) }
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_is_deleted_hands_over_and_its_volume_may_go_too() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    for _ in 0..10 {
        assert!(rig.write("orders").await);
    }
    let claim = format!("data-{primary}");
    rig.api::<PersistentVolumeClaim>().delete(&claim, &DeleteParams::default()).await.unwrap();
    rig.api::<Pod>().delete(&primary, &DeleteParams::default()).await.unwrap();
    let deleted = tokio::time::Instant::now();
    eventually("a write after the deletion", BOUND, async || {
        if rig.write("orders").await { Ok(()) } else { Err("refused".to_owned()) }
    })
    .await
    .unwrap();
    assert!(deleted.elapsed() < Duration::from_secs(5), "{:?}", deleted.elapsed());
    eventually("another primary", BOUND, async || {
        let status = rig.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap();
        if status.current_primary.as_ref() == Some(&primary) { Err(format!("{status:?}")) } else { Ok(()) }
    })
    .await
    .unwrap();
    rig.ready("orders", 3).await;
    assert_eq!(rig.lost("orders").await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_no_node_has_is_told_and_a_fixed_spec_heals() {
    let rig = Rig::new().await;
    for node in rig.cluster.nodes().values() {
        node.remove_image("redis:9.9");
    }
    let mut wanted = spec(1);
    wanted["version"] = json!("9.9");
    rig.create("orders", wanted).await;
    eventually("the status says which image is missing", BOUND, async || {
        let status = rig.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap_or_default();
        let told = status.conditions.iter().any(|condition| condition.message.contains("redis:9.9"));
        if told && status.phase == Some(Phase::Pending) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
    rig.patch("orders", json!({"version": "7.0"})).await.unwrap();
    rig.ready("orders", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_image_reaches_replicas_first_and_writes_go_on() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    rig.patch("orders", json!({"version": "7.2"})).await.unwrap();
    let (mut order, mut gap, mut longest) = (Vec::new(), 0, 0);
    eventually("every pod runs the new image", Duration::from_secs(300), async || {
        gap = if rig.write("orders").await { 0 } else { gap + 1 };
        longest = longest.max(gap);
        let mut old = Vec::new();
        for pod in rig.api::<Pod>().list(&ListParams::default()).await.unwrap() {
            let name = pod.name_any();
            let image = pod.spec.unwrap().containers[0].image.clone();
            if image.as_deref() == Some("redis:7.2") {
                if !order.contains(&name) {
                    order.push(name);
                }
            } else {
                old.push(name);
            }
        }
        if old.is_empty() && order.len() == 3 {
            Ok(())
        } else {
            Err(format!("{old:?} {}", rig.story("orders").await))
        }
    })
    .await
    .unwrap();
    assert_eq!(order.last(), Some(&primary), "{order:?}");
    let other = rig.ready("orders", 3).await;
    assert_ne!(other, primary, "the role moved before its pod was replaced");
    assert_eq!(rig.lost("orders").await, 0);
    eprintln!("longest time without a write: {longest} polls");
    let metrics = rig.metrics.encode();
    let planned =
        "redis_failover_duration_seconds_count{namespace=\"shop\",name=\"orders\",reason=\"planned\"} 1";
    assert!(metrics.contains(planned), "{metrics}");
    assert!(metrics.contains("redis_replication_lag_bytes{"), "{metrics}");
    assert!(
        metrics.contains("redis_failover_total{namespace=\"shop\",name=\"orders\",reason=\"lost\"} 0"),
        "{metrics}"
    );
    assert_eq!(rig.forbidden(), Vec::<String>::new(), "every right was derived");
}

#[tokio::test(start_paused = true)]
async fn the_primary_leaves_a_cordoned_node() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    let node = rig.api::<Pod>().get(&primary).await.unwrap().spec.unwrap().node_name.unwrap();
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(rig.cluster.client());
    nodes.cordon(&node).await.unwrap();
    eventually("another primary", BOUND, async || {
        let status = rig.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap();
        if status.current_primary.as_ref() == Some(&primary) { Err(format!("{status:?}")) } else { Ok(()) }
    })
    .await
    .unwrap();
    let other = rig.ready("orders", 3).await;
    assert_ne!(other, primary);
    nodes.uncordon(&node).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.ready("orders", 3).await, other, "it does not move back by itself");
}
