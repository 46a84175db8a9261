//! A whole cluster: API server, built-in controllers and nodes in one process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::Client;
use parking_lot::Mutex;
use setpoint::Runtime as ControllerRuntime;
use setpoint_apiserver::{ApiServer, Identity};
use setpoint_clock::{Clock, Entropy};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::aggregation::RoleAggregation;
use crate::controllers::Controllers;
use crate::endpoints::{EndpointsMirror, ServiceEndpoints};
use crate::garbage::{GarbageCollector, Graph};
use crate::hollow::HollowRuntime;
use crate::kubelet::{Agent, ClusterDns, Node, NodeConfig, Runtime};
use crate::namespaces::NamespaceLifecycle;
use crate::policies::PolicyStatus;
use crate::quotas::QuotaStatus;
use crate::recorder::Recorder;
use crate::serviceaccounts::NamespaceDefaults;
use crate::volumes::{self, ClaimBinder, VolumeReclaimer};
use crate::{scheduler, statefulset, unreachable};

/// Address of the cluster's name server, as kubeadm and others choose it.
const DNS_ADDRESS: &str = "10.96.0.10";

/// Kinds that real clusters act on and this one does not. A creation is answered with a warning.
const IDLE: [(&str, &str); 14] = [
    ("", "ReplicationController"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("autoscaling", "HorizontalPodAutoscaler"),
    ("batch", "CronJob"),
    ("batch", "Job"),
    ("certificates.k8s.io", "CertificateSigningRequest"),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
    ("networking.k8s.io", "Ingress"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
    ("resource.k8s.io", "ResourceClaim"),
];

/// See [`wait_for_defaults`].
const DEFAULTS_LIMIT: Duration = Duration::from_secs(5);

/// Settings of a [`Cluster`].
#[derive(Debug)]
pub struct ClusterBuilder {
    hollow_nodes: u8,
    clock: Option<Clock>,
    entropy: Option<Entropy>,
    volume_refresh: Duration,
    data_dir: PathBuf,
    keep_objects: bool,
}

/// A cluster that runs in this process until it is dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use setpoint_cluster::Cluster;
///
/// let cluster = Cluster::builder().hollow_nodes(3).start().await?;
/// let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(cluster.client());
/// assert_eq!(nodes.list(&Default::default()).await?.items.len(), 3);
/// # Ok::<(), kube::Error>(())
/// # }).unwrap();
/// ```
pub struct Cluster {
    api: ApiServer,
    client: Client,
    clock: Clock,
    entropy: Entropy,
    hollow: BTreeMap<String, HollowRuntime>,
    nodes: Mutex<BTreeMap<String, Arc<dyn Member>>>,
    /// What is done about nodes that were cut off, by name.
    followers: Mutex<BTreeMap<String, JoinHandle<()>>>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

/// A node of whatever machine.
trait Member: Send + Sync {
    fn connect(&self, connected: bool);
}

impl<R: Runtime> Member for Node<R> {
    fn connect(&self, connected: bool) {
        Node::connect(self, connected);
    }
}

impl ClusterBuilder {
    /// How many hollow nodes there are, called `hollow-0` and so on; 1 by default. At most 250.
    pub fn hollow_nodes(mut self, count: u8) -> Self {
        self.hollow_nodes = count.min(250);
        self
    }

    /// Where time comes from; the machine's clock by default.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Makes UIDs, names and everything random the same in each run.
    pub fn seed(mut self, seed: u64) -> Self {
        self.entropy = Some(Entropy::seeded(seed));
        self
    }

    /// How often file volumes of hollow nodes are brought up to date; 60 s by default.
    pub fn volume_refresh(mut self, refresh: Duration) -> Self {
        self.volume_refresh = refresh;
        self
    }

    /// The folder in which volumes get their directories; `/var/lib/setpoint` by default, which hollow nodes never
    /// touch.
    pub fn data_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data_dir = folder.into();
        self
    }

    /// Whether the objects, keys and tokens of the cluster are kept in the data folder, to go on with at the next start: see
    /// [`setpoint_apiserver::Builder::open`]. Pods that ran are started again then, in new sandboxes. Not for paused clocks. Default: no.
    pub fn keep_objects(mut self, keep: bool) -> Self {
        self.keep_objects = keep;
        self
    }

    /// Starts it. Needs a tokio runtime; a current-thread one with a paused clock will do.
    ///
    /// # Errors
    /// When the API server refuses what the cluster needs; [`kube::Error::Service`] with a [`setpoint_apiserver::OpenError`] when the data folder
    /// cannot be used to keep objects.
    pub async fn start(self) -> kube::Result<Cluster> {
        let clock = self.clock.unwrap_or_else(Clock::system);
        let entropy = self.entropy.unwrap_or_else(Entropy::from_system);
        let builder = ApiServer::builder()
            .clock(clock)
            .entropy(entropy.clone())
            .service_accounts(true)
            .idle_kinds(IDLE);
        let api = if self.keep_objects {
            builder.open(&self.data_dir).map_err(|error| kube::Error::Service(error.into()))?
        } else {
            builder.build()
        };
        let client = Client::new(api.service(Identity::admin()), "default");
        let (recorder, recording) = Recorder::new(client.clone(), clock);
        let runtime = ControllerRuntime::builder(client.clone())
            .clock(clock)
            .entropy(entropy.clone())
            .recorder(Arc::new(recorder))
            .build();
        let stop = CancellationToken::new();
        create_default_class(&client).await?;
        let controllers =
            built_in(&api, &self.data_dir.join("volumes")).run(api.on_first_use(), runtime, stop.clone());
        let tasks = vec![tokio::spawn(recording), tokio::spawn(controllers)];
        wait_for_defaults(&client).await?;
        let mut cluster = Cluster {
            api,
            client,
            clock,
            entropy,
            hollow: BTreeMap::new(),
            nodes: Mutex::default(),
            followers: Mutex::default(),
            stop,
            tasks,
        };
        for index in 0..self.hollow_nodes {
            let runtime = HollowRuntime::new(index, clock);
            let name = format!("hollow-{index}");
            let config = NodeConfig {
                dns: ClusterDns { servers: vec![DNS_ADDRESS.into()], domain: "cluster.local".into() },
                volume_refresh: self.volume_refresh,
                ..NodeConfig::new(name.clone())
            };
            cluster.add_node(config, runtime.clone()).await?;
            cluster.hollow.insert(name, runtime);
        }
        Ok(cluster)
    }
}

fn built_in(api: &ApiServer, volumes: &Path) -> Controllers {
    let graph = Arc::new(Graph::default());
    Controllers::default()
        .when_used("", "pods", scheduler::controller())
        .when_used("apps", "statefulsets", statefulset::controller())
        .when_used("", "services", ServiceEndpoints::controller())
        .when_used("", "endpoints", EndpointsMirror::controller())
        .when_used("", "persistentvolumeclaims", ClaimBinder::controller(volumes.to_owned()))
        .when_used("", "persistentvolumes", VolumeReclaimer::controller(volumes.to_owned()))
        .when_used("", "namespaces", NamespaceLifecycle::controller(api.clone()))
        .when_used("", "resourcequotas", QuotaStatus::controller(api.clone()))
        .when_used("", "namespaces", NamespaceDefaults::controller(api.clone()))
        .when_used("rbac.authorization.k8s.io", "clusterroles", RoleAggregation::controller())
        .when_used(
            "admissionregistration.k8s.io",
            "validatingadmissionpolicies",
            PolicyStatus::controller(api.clone()),
        )
        .for_each_kind(move |used| GarbageCollector::for_kind(used, &graph).map(Into::into))
}

pub(crate) async fn create_default_class(client: &Client) -> kube::Result<()> {
    let classes: kube::Api<k8s_openapi::api::storage::v1::StorageClass> = kube::Api::all(client.clone());
    match classes.create(&kube::api::PostParams::default(), &volumes::default_class()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Waits until the namespace `default` has what pods in it need, so that the first one is not refused. Takes
/// milliseconds; a cluster that does not get there within [`DEFAULTS_LIMIT`] starts without.
async fn wait_for_defaults(client: &Client) -> kube::Result<()> {
    let accounts = kube::Api::<ServiceAccount>::namespaced(client.clone(), "default");
    let maps = kube::Api::<ConfigMap>::namespaced(client.clone(), "default");
    let deadline = tokio::time::Instant::now() + DEFAULTS_LIMIT;
    while tokio::time::Instant::now() < deadline {
        let account = accounts.get_opt("default").await?;
        if account.is_some() && maps.get_opt("kube-root-ca.crt").await?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tracing::warn!("namespace default has no ServiceAccount default yet: pods are refused until it has");
    Ok(())
}

impl Cluster {
    /// Settings with one hollow node and the machine's clock.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            hollow_nodes: 1,
            clock: None,
            entropy: None,
            volume_refresh: Duration::from_secs(60),
            data_dir: PathBuf::from("/var/lib/setpoint"),
            keep_objects: false,
        }
    }

    /// The API server, to serve it on sockets or to make tokens.
    pub fn api(&self) -> &ApiServer {
        &self.api
    }

    /// A client of an administrator, without sockets.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client that is authenticated as `identity`, without sockets.
    pub fn client_as(&self, identity: Identity) -> Client {
        Client::new(self.api.service(identity), "default")
    }

    /// The cluster's time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The cluster's randomness.
    pub fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    /// The machine of a hollow node, to move what runs there. None for other names.
    pub fn node(&self, name: &str) -> Option<&HollowRuntime> {
        self.hollow.get(name)
    }

    /// The hollow machines by the names of their nodes.
    pub fn nodes(&self) -> &BTreeMap<String, HollowRuntime> {
        &self.hollow
    }

    /// Adds a node on a machine of another kind.
    pub async fn add_node<R: Runtime>(&self, config: NodeConfig, runtime: R) -> kube::Result<()> {
        let node = Arc::new(Node::start(config, runtime, self.client(), self.clock).await?);
        self.api.set_kubelet(node.name(), Arc::new(Agent::new(&node)));
        self.nodes.lock().insert(node.name().to_owned(), node);
        Ok(())
    }

    /// Cuts a node's kubelet off from the API server, or lets it come back: its containers go on meanwhile. After
    /// 50 s of silence the node is Unknown and tainted and its pods are not ready; pods are deleted (which waits
    /// for the node) when their tolerations end, by default 5 minutes later. False when there is no such node.
    pub fn connect(&self, node: &str, connected: bool) -> bool {
        let Some(member) = self.nodes.lock().get(node).cloned() else { return false };
        member.connect(connected);
        let (client, clock, name) = (self.client(), self.clock, node.to_owned());
        let follower = if connected {
            tokio::spawn(unreachable::back(client, clock, name))
        } else {
            tokio::spawn(unreachable::follow(client, clock, name))
        };
        if let Some(earlier) = self.followers.lock().insert(node.to_owned(), follower) {
            earlier.abort();
        }
        true
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
        for task in self.tasks.iter().chain(self.followers.lock().values()) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_kinds_are_kinds() {
        for (group, kind) in IDLE {
            let known =
                setpoint_kinds::kinds().iter().any(|known| known.group == group && known.kind == kind);
            assert!(known, "{group}/{kind}");
        }
    }
}
