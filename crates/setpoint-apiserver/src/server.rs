//! The API server as its users hold it: built once, cheap to clone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use parking_lot::RwLock;
use serde_json::{Value, json};
use setpoint_clock::{Clock, Entropy};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::authz;
use crate::identity::Identity;
use crate::in_process::InProcess;
use crate::kubelet::{Kubelet, Kubelets};
use crate::object::{Metadata, meta_mut};
use crate::registry::Registry;
use crate::store::{Change, Expect, Key, LogLimits, Store};

/// The namespaces of a fresh cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// An API server in this process. Clones share everything.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use setpoint_apiserver::{ApiServer, Identity};
///
/// let api = ApiServer::builder().build();
/// // Give it to `kube::Client::new(service, "default")`.
/// let service = api.service(Identity::admin());
/// # let _ = service;
/// # });
/// ```
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) registry: Arc<Registry>,
    pub(crate) kubelets: RwLock<Kubelets>,
}

/// How to build an [`ApiServer`].
#[derive(Debug, Default)]
pub struct Builder {
    clock: Option<Clock>,
    entropy: Option<Entropy>,
    log: LogLimits,
}

impl Builder {
    /// The clock for every timestamp. Default: [`Clock::system`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The source of uids, generated names and addresses. Default: [`Entropy::from_system`].
    #[must_use]
    pub fn entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = Some(entropy);
        self
    }

    /// How many events of each resource are kept for watches that start in the past. Default: 4096 (and at most 8 MiB).
    #[must_use]
    pub fn event_log(mut self, events: usize) -> Self {
        self.log.events = events;
        self
    }

    /// Builds the server with what a fresh cluster has: its namespaces, roles and the Service `kubernetes`.
    /// Takes milliseconds; no socket is opened and no task started.
    pub fn build(self) -> ApiServer {
        let clock = self.clock.unwrap_or_else(Clock::system);
        let entropy = self.entropy.unwrap_or_else(Entropy::from_system);
        let registry = Arc::new(Registry::new(Store::new(self.log), clock, entropy));
        seed(&registry);
        ApiServer { inner: Arc::new(Inner { registry, kubelets: RwLock::default() }) }
    }
}

impl ApiServer {
    /// A builder with defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client-side service that talks to this server as `identity`, without sockets: for `kube::Client::new`.
    pub fn service(&self, identity: Identity) -> InProcess {
        InProcess::new(self.clone(), identity)
    }

    /// Registers the agent of a node: logs and exec of pods on it go there. Replaces an earlier one.
    pub fn set_kubelet(&self, node: impl Into<String>, kubelet: Arc<dyn Kubelet>) {
        self.inner.kubelets.write().insert(node.into(), kubelet);
    }

    /// Every resource that objects have been written of, and then each other one at its first object. For controllers
    /// that need no watch before there is something to watch.
    pub fn on_first_use(&self) -> FirstUses {
        FirstUses {
            receiver: self.inner.registry.store.first_uses(),
            registry: Arc::clone(&self.inner.registry),
        }
    }

    /// The revision of the newest write of all: at rest it stands still.
    pub fn revision(&self) -> u64 {
        self.inner.registry.store.revision()
    }
}

/// A resource that is in use; see [`ApiServer::on_first_use`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceName {
    /// API group, empty for the core group.
    pub group: String,
    /// A version in which it is served.
    pub version: String,
    /// Kind, such as `StatefulSet`.
    pub kind: String,
    /// Name in URLs, such as `statefulsets`.
    pub plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// The stream of [`ApiServer::on_first_use`]. It never ends while the server lives.
pub struct FirstUses {
    receiver: UnboundedReceiver<Arc<str>>,
    registry: Arc<Registry>,
}

impl Stream for FirstUses {
    type Item = ResourceName;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ResourceName>> {
        loop {
            let Some(storage) = std::task::ready!(self.receiver.poll_recv(cx)) else {
                return Poll::Ready(None);
            };
            let all = self.registry.catalog.all();
            // A definition that is gone again has nothing to watch.
            if let Some(found) = all.iter().find(|resource| resource.storage == storage) {
                return Poll::Ready(Some(ResourceName {
                    group: found.group.clone(),
                    version: found.version.clone(),
                    kind: found.kind.clone(),
                    plural: found.plural.clone(),
                    namespaced: found.namespaced,
                }));
            }
        }
    }
}

/// Writes what a fresh cluster has. Straight into the store: it is known to be valid.
fn seed(registry: &Registry) {
    for name in NAMESPACES {
        put(
            registry,
            "namespaces",
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
            }),
        );
    }
    put(
        registry,
        "services",
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "type": "ClusterIP",
                "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
                "sessionAffinity": "None",
            },
            "status": {"loadBalancer": {}},
        }),
    );
    for object in authz::bootstrap::policy() {
        let plural = match object["kind"].as_str().unwrap_or_default() {
            "ClusterRole" => "clusterroles",
            "ClusterRoleBinding" => "clusterrolebindings",
            "Role" => "roles",
            _ => "rolebindings",
        };
        put(registry, &format!("{plural}.rbac.authorization.k8s.io"), object);
    }
}

fn put(registry: &Registry, storage: &str, mut object: Value) {
    let uid = registry.entropy.uuid();
    let now = registry.now();
    let meta = meta_mut(&mut object);
    meta.insert("uid".to_owned(), uid.into());
    meta.insert("creationTimestamp".to_owned(), now.into());
    let key = Key::new(object.meta("namespace"), object.meta("name"));
    // The store is new: nothing is in the way.
    let _ = registry.store.write(&storage.into(), &key, Expect::Absent, Change::Put(object));
}
