//! A node: its Node object, the pods that are bound to it, and the way in for logs and exec.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{
    ContainerImage, Node as NodeObject, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo,
    Pod, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use parking_lot::Mutex;
use setpoint_clock::Clock;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::container::seconds;
use super::orders::ClusterDns;
use super::pod::Event;
use super::runtime::{ContainerId, NodeInfo, Runtime};
use super::worker::{ContainerView, NodeContext, PodView, Worker, by_kubelet};
use crate::recorder::{Recorder, Reporter};

/// What a node is called and how its pods see the cluster.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the Node.
    pub name: String,
    /// Labels beside `kubernetes.io/hostname`, `os` and `arch`.
    pub labels: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Name resolution of pods.
    pub dns: ClusterDns,
    /// How often ConfigMap, Secret, downward API and projected volumes are brought up to date. Upstream takes up
    /// to a minute or two.
    pub volume_refresh: Duration,
}

impl NodeConfig {
    /// A node without further labels and taints, whose pods use the machine's name resolution.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            dns: ClusterDns { servers: Vec::new(), domain: "cluster.local".into() },
            volume_refresh: Duration::from_secs(60),
        }
    }
}

/// Why a container cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum NotThere {
    /// No such pod on this node.
    #[error("pods {pod:?} not found on this node")]
    Pod {
        /// Namespace and name.
        pod: String,
    },
    /// The pod has no such container.
    #[error("container {container} is not valid for pod {pod}")]
    Container {
        /// The name that was asked for.
        container: String,
        /// The pod.
        pod: String,
    },
    /// It has not started.
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start: {reason}")]
    Waiting {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
        /// Its waiting reason.
        reason: String,
    },
    /// There was no run before.
    #[error("previous terminated container \"{container}\" in pod \"{pod}\" not found")]
    NoPrevious {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// It has ended, so that nothing can run in it.
    #[error("container \"{container}\" in pod \"{pod}\" is not running")]
    NotRunning {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
}

type Views = Arc<Mutex<BTreeMap<(String, String), watch::Receiver<PodView>>>>;

/// A running kubelet. Dropping it stops it where it is: containers go on until the runtime itself is dropped.
pub struct Node<R> {
    name: String,
    context: Arc<NodeContext<R>>,
    views: Views,
    connected: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl<R: Runtime> Node<R> {
    /// Registers the node and starts to run the pods that are bound to it.
    pub async fn start(config: NodeConfig, runtime: R, client: Client, clock: Clock) -> kube::Result<Self> {
        let info = runtime.node_info();
        register(&config, &info, runtime.images(), &client, &clock).await?;
        let (recorder, recording) = Recorder::new(client.clone(), clock);
        let reporter = Reporter { component: "kubelet".into(), host: config.name.clone() };
        let (connected, connection) = watch::channel(true);
        let context = Arc::new(NodeContext {
            runtime,
            client,
            clock,
            recorder,
            reporter,
            connected: connection,
            dns: config.dns,
            volume_refresh: config.volume_refresh,
            host_ip: info.addresses.first().map(ToString::to_string),
            cpu_millis: info.cpu_millis,
            memory_bytes: info.memory_bytes,
        });
        let views = Views::default();
        let pods = Pods {
            context: context.clone(),
            node: config.name.clone(),
            views: views.clone(),
            workers: BTreeMap::new(),
            tasks: JoinSet::new(),
        };
        let tasks = vec![tokio::spawn(recording), tokio::spawn(pods.run())];
        Ok(Self { name: config.name, context, views, connected, tasks })
    }

    /// Name of the Node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster's time.
    pub fn clock(&self) -> &Clock {
        &self.context.clock
    }

    /// The machine below.
    pub fn runtime(&self) -> &R {
        &self.context.runtime
    }

    /// Cuts the kubelet off, or lets it come back: meanwhile its containers go on, but nothing about them is
    /// decided or published.
    pub fn connect(&self, connected: bool) {
        self.connected.send_replace(connected);
    }

    /// The run of a container whose log is wanted.
    pub fn container_for_logs(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        previous: bool,
    ) -> Result<ContainerId, NotThere> {
        let view = self.view(namespace, pod, container)?;
        let (container, pod) = (container.to_owned(), pod.to_owned());
        if previous {
            let run = if view.running.is_some() { view.previous } else { view.previous.or(view.newest) };
            return run.ok_or(NotThere::NoPrevious { container, pod });
        }
        view.running.or(view.newest).ok_or_else(|| NotThere::Waiting {
            container,
            pod,
            reason: view.waiting.unwrap_or_else(|| "ContainerCreating".into()),
        })
    }

    /// The run of a container in which a command is to run.
    pub fn container_for_exec(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<ContainerId, NotThere> {
        let view = self.view(namespace, pod, container)?;
        view.running.ok_or_else(|| NotThere::NotRunning { container: container.into(), pod: pod.into() })
    }

    fn view(&self, namespace: &str, pod: &str, container: &str) -> Result<ContainerView, NotThere> {
        let views = self.views.lock();
        let view = views
            .get(&(namespace.to_owned(), pod.to_owned()))
            .ok_or_else(|| NotThere::Pod { pod: format!("{namespace}/{pod}") })?;
        let view = view.borrow();
        view.get(container)
            .cloned()
            .ok_or_else(|| NotThere::Container { container: container.into(), pod: pod.into() })
    }
}

impl<R> Drop for Node<R> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Creates the Node object, or takes over the one that is there.
async fn register(
    config: &NodeConfig,
    info: &NodeInfo,
    images: Vec<String>,
    client: &Client,
    clock: &Clock,
) -> kube::Result<()> {
    let mut labels = config.labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", config.name.as_str()),
        ("kubernetes.io/os", std::env::consts::OS),
        ("kubernetes.io/arch", architecture()),
    ] {
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let node = NodeObject {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(config.taints.clone()).filter(|taints| !taints.is_empty()),
            ..NodeSpec::default()
        }),
        ..NodeObject::default()
    };
    let nodes = Api::<NodeObject>::all(client.clone());
    match nodes
        .create(&PostParams { field_manager: Some("kubelet".into()), ..PostParams::default() }, &node)
        .await
    {
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {}
        other => drop(other?),
    }
    let status = serde_json::json!({"status": status(config, info, images, clock)});
    let node = nodes.patch_status(&config.name, &by_kubelet(), &Patch::Merge(&status)).await?;
    // It is ready now. Upstream's controller of the nodes' life cycle then takes away the taint that every new node gets.
    let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    if taints.iter().any(|taint| taint.key == NOT_READY) {
        taints.retain(|taint| taint.key != NOT_READY);
        let patch = serde_json::json!({"spec": {"taints": taints}});
        nodes.patch(&config.name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    }
    Ok(())
}

fn status(config: &NodeConfig, info: &NodeInfo, images: Vec<String>, clock: &Clock) -> NodeStatus {
    let now = seconds(clock.now());
    let condition = |type_: &str, status: &str, reason: &str, message: &str| NodeCondition {
        type_: type_.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    };
    let capacity: BTreeMap<String, Quantity> = [
        ("cpu".to_owned(), Quantity(format!("{}m", info.cpu_millis))),
        ("memory".to_owned(), Quantity(format!("{}Ki", info.memory_bytes / 1024))),
        ("pods".to_owned(), Quantity(info.pods.to_string())),
    ]
    .into();
    let addresses = info.addresses.iter().map(|ip| ("InternalIP", ip.to_string()));
    let addresses = addresses.chain([("Hostname", config.name.clone())]);
    NodeStatus {
        capacity: Some(capacity.clone()),
        allocatable: Some(capacity),
        conditions: Some(vec![
            condition(
                "MemoryPressure",
                "False",
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
            ),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition(
                "PIDPressure",
                "False",
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
            ),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]),
        addresses: Some(
            addresses.map(|(type_, address)| NodeAddress { type_: type_.into(), address }).collect(),
        ),
        images: Some(
            images
                .into_iter()
                .map(|name| ContainerImage { names: Some(vec![name]), size_bytes: None })
                .collect(),
        ),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().into(),
            operating_system: std::env::consts::OS.into(),
            kernel_version: info.kernel_version.clone(),
            os_image: info.os_image.clone(),
            container_runtime_version: info.runtime_version.clone(),
            kubelet_version: KUBELET_VERSION.into(),
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    }
}

/// Every new node has this taint until somebody has seen that it is ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The Kubernetes version whose behaviour this follows.
const KUBELET_VERSION: &str = "v1.37.0";

/// The machine's architecture in Go's words.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Wait before the pods are listed again after the watch failed.
const RELIST: Duration = Duration::from_millis(200);

/// The pods of a node and their workers.
struct Pods<R> {
    context: Arc<NodeContext<R>>,
    node: String,
    views: Views,
    /// By UID.
    workers: BTreeMap<String, mpsc::UnboundedSender<Event>>,
    tasks: JoinSet<()>,
}

impl<R: Runtime> Pods<R> {
    async fn run(mut self) {
        loop {
            if let Err(error) = self.list_and_watch().await {
                tracing::warn!(node = self.node, %error, "pods of the node are listed again");
            }
            tokio::time::sleep(RELIST).await;
        }
    }

    async fn list_and_watch(&mut self) -> kube::Result<()> {
        let pods = Api::<Pod>::all(self.context.client.clone());
        let selector = format!("spec.nodeName={}", self.node);
        let list = pods.list(&ListParams::default().fields(&selector)).await?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let seen: Vec<_> = list.items.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        for (uid, worker) in &self.workers {
            if !seen.contains(uid) {
                let _ = worker.send(Event::Gone);
            }
        }
        for pod in list.items {
            self.seen(pod);
        }
        let params = WatchParams::default().fields(&selector);
        loop {
            let mut events = pin!(pods.watch(&params, &version).await?);
            let mut silent = true;
            while let Some(event) = events.next().await {
                silent = false;
                match event? {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                        version = pod.metadata.resource_version.clone().unwrap_or(version);
                        self.seen(pod);
                    }
                    WatchEvent::Deleted(pod) => {
                        version = pod.metadata.resource_version.clone().unwrap_or(version);
                        let uid = pod.metadata.uid.clone().unwrap_or_default();
                        if let Some(worker) = self.workers.get(&uid) {
                            let _ = worker.send(Event::Seen(Arc::new(pod)));
                            let _ = worker.send(Event::Gone);
                        }
                    }
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                }
            }
            if silent {
                // A server that ends watches at once must not be asked again at once.
                tokio::time::sleep(RELIST).await;
            }
        }
    }

    fn seen(&mut self, pod: Pod) {
        while self.tasks.try_join_next().is_some() {}
        self.workers.retain(|_, worker| !worker.is_closed());
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let key = (
            pod.metadata.namespace.clone().unwrap_or_default(),
            pod.metadata.name.clone().unwrap_or_default(),
        );
        let pod = Arc::new(pod);
        if let Some(worker) = self.workers.get(&uid) {
            let _ = worker.send(Event::Seen(pod));
            return;
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) && pod.metadata.deletion_timestamp.is_none() {
            // It ended under an earlier kubelet, and does not run again.
            return;
        }
        let (worker, sender, view) = Worker::new(self.context.clone(), pod);
        self.workers.insert(uid, sender);
        self.views.lock().insert(key.clone(), view.clone());
        let views = self.views.clone();
        self.tasks.spawn(async move {
            worker.run().await;
            let mut views = views.lock();
            // A new pod of the same name may already have taken the place.
            if views.get(&key).is_some_and(|current| current.same_channel(&view)) {
                views.remove(&key);
            }
        });
    }
}
