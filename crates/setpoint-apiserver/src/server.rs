//! The API server as its users hold it: built once, cheap to clone.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::Stream;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use setpoint_clock::{Clock, Entropy};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::authz;
use crate::catalog::Resource;
use crate::certificates::{Authority, CertificateError};
use crate::client_certificates::Clients;
use crate::https::{self, Serving};
use crate::identity::Identity;
use crate::impersonation::LastModes;
use crate::in_process::InProcess;
use crate::kubelet::{Kubelet, Kubelets};
use crate::object::{Metadata, meta_mut};
use crate::registry::{Admission, Registry};
use crate::store::{Change, Expect, Key, LogLimits, OpenError, Store};
use crate::tokens::Tokens;
use crate::webhooks::WebhookServer;

/// The context of each [kubeconfig](ApiServer::kubeconfig), by which one is told from those of other clusters.
pub const KUBECONFIG_CONTEXT: &str = "setpoint";
/// The namespaces of a fresh cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// The names under which the authority is kept in a data folder.
const AUTHORITY_KEY: &str = "authority-key";
const AUTHORITY: &str = "authority";

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
    pub(crate) tokens: Tokens,
    pub(crate) last_modes: LastModes,
    authority: OnceLock<Authority>,
    /// Held while the authority is made, so that the one that is kept is the one that is used.
    making: Mutex<()>,
    /// The administrator's token, made with the first kubeconfig.
    admin: OnceLock<String>,
    /// The certificates of the authorities of clients, as they were given.
    client_ca: Option<String>,
    /// The same, read when the first connection comes.
    clients: OnceLock<Clients>,
}

/// How to build an [`ApiServer`].
#[derive(Debug, Default)]
pub struct Builder {
    clock: Option<Clock>,
    entropy: Option<Entropy>,
    log: LogLimits,
    service_accounts: bool,
    idle: Vec<(String, String)>,
    client_ca: Option<String>,
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

    /// Whether every new pod is given a service account and its token, as by the admission plugin ServiceAccount of kube-apiserver; a pod is then
    /// refused while its account doesn't exist. Default: no, since a server without controllers has nobody who makes the accounts.
    #[must_use]
    pub fn service_accounts(mut self, admission: bool) -> Self {
        self.service_accounts = admission;
        self
    }

    /// Built-in kinds, by group and kind, on which nothing acts in the cluster that this server is for: their objects are stored, and whoever
    /// creates one is told so with a warning. Default: none.
    #[must_use]
    pub fn idle_kinds<'a>(mut self, kinds: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.idle.extend(kinds.into_iter().map(|(group, kind)| (group.to_owned(), kind.to_owned())));
        self
    }

    /// Trusts these authorities (certificates in PEM) to name users: a client's certificate says in its common name who the user
    /// is and in its organizations the groups, as with `--client-ca-file` of kube-apiserver. Default: none, and clients are asked
    /// for no certificate.
    #[must_use]
    pub fn client_ca(mut self, pem: impl Into<String>) -> Self {
        self.client_ca = Some(pem.into());
        self
    }

    /// Builds the server with what a fresh cluster has: its namespaces, roles and the Service `kubernetes`.
    /// Takes milliseconds; no socket is opened and no task started.
    pub fn build(self) -> ApiServer {
        let store = Store::new(self.log);
        self.with_store(store)
    }

    /// Builds a server that keeps its objects, keys and tokens in `folder`, which is made if it isn't there, and begins with those that an
    /// earlier one left there. A write is answered when it is on disk, and nothing is shown before: after a crash, also by `kill -9`, everything is there that anybody
    /// was told. Watches from before the start are answered with 410, as after compaction.
    ///
    /// The disk is written by a thread of its own, `setpoint-store`, whose time no paused clock knows. Dropping the last clone of the server waits for it.
    ///
    /// # Errors
    /// When the folder cannot be written or read, is in use, or is of another version; see [`OpenError`].
    pub fn open(self, folder: impl AsRef<Path>) -> Result<ApiServer, OpenError> {
        let store = Store::open(self.log, folder.as_ref())?;
        let api = self.with_store(store);
        api.inner.registry.restore_definitions();
        Ok(api)
    }

    fn with_store(self, store: Store) -> ApiServer {
        let clock = self.clock.unwrap_or_else(Clock::system);
        let entropy = self.entropy.unwrap_or_else(Entropy::from_system);
        let admission = Admission { service_accounts: self.service_accounts, idle: self.idle };
        let tokens = Tokens::restore(&store);
        let registry = Arc::new(Registry::new(store, clock, entropy, admission));
        seed(&registry);
        let inner = Inner {
            registry,
            kubelets: RwLock::default(),
            tokens,
            last_modes: LastModes::default(),
            authority: OnceLock::new(),
            making: Mutex::new(()),
            admin: OnceLock::new(),
            client_ca: self.client_ca,
            clients: OnceLock::new(),
        };
        ApiServer { inner: Arc::new(inner) }
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

    /// Serves HTTPS (HTTP/1.1 and HTTP/2) on `listener` until the handle is dropped. Needs a tokio runtime with I/O.
    ///
    /// Certificates come from the server's own authority ([`ApiServer::ca_pem`]); each connection gets one for the
    /// address that it came in on.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub fn serve(&self, listener: std::net::TcpListener) -> io::Result<Serving> {
        https::serve(self.clone(), listener)
    }

    /// The certificate of the server's own authority, in PEM: what clients must trust. Made at the first call.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn ca_pem(&self) -> Result<String, CertificateError> {
        self.authority().map(|authority| authority.pem().to_owned())
    }

    pub(crate) fn authority(&self) -> Result<&Authority, CertificateError> {
        if let Some(authority) = self.inner.authority.get() {
            return Ok(authority);
        }
        let _making = self.inner.making.lock();
        if let Some(authority) = self.inner.authority.get() {
            return Ok(authority);
        }
        let store = &self.inner.registry.store;
        let made = if let (Some(key), Some(pem)) = (store.secret(AUTHORITY_KEY), store.secret(AUTHORITY)) {
            Authority::restore(&key, &String::from_utf8_lossy(&pem))?
        } else {
            let made = Authority::new()?;
            let keep = |name, value: &[u8]| store.keep_secret(name, value);
            keep(AUTHORITY_KEY, &made.key())
                .and_then(|()| keep(AUTHORITY, made.pem().as_bytes()))
                .map_err(|problem| CertificateError::Store(problem.to_string()))?;
            made
        };
        Ok(self.inner.authority.get_or_init(|| made))
    }

    /// The authorities of clients' certificates, if there are any.
    pub(crate) fn clients(&self) -> Result<Option<&Clients>, CertificateError> {
        let Some(pem) = &self.inner.client_ca else { return Ok(None) };
        if let Some(clients) = self.inner.clients.get() {
            return Ok(Some(clients));
        }
        let read = Clients::new(pem)?;
        Ok(Some(self.inner.clients.get_or_init(|| read)))
    }

    /// A kubeconfig for `url` (such as `https://127.0.0.1:6443`) with the authority's certificate and a bearer token
    /// of `system:masters`. It is a secret.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn kubeconfig(&self, url: &str) -> Result<String, CertificateError> {
        let token = if let Some(token) = self.inner.admin.get() {
            token.clone()
        } else {
            let kept = self.inner.tokens.of(&Identity::admin());
            let token = kept.map_or_else(|| self.issue_token(Identity::admin()), Ok)?;
            self.inner.admin.get_or_init(|| token).clone()
        };
        let ca = STANDARD.encode(self.ca_pem()?);
        Ok(json!({
            "apiVersion": "v1", "kind": "Config", "current-context": KUBECONFIG_CONTEXT,
            "clusters": [{"name": "setpoint", "cluster": {"server": url, "certificate-authority-data": ca}}],
            "users": [{"name": "setpoint-admin", "user": {"token": token}}],
            "contexts": [{"name": KUBECONFIG_CONTEXT, "context": {"cluster": "setpoint", "user": "setpoint-admin", "namespace": "default"}}],
        })
        .to_string())
    }

    /// A bearer token of `identity` that is good as long as this server lives, or its data folder. It is a secret.
    ///
    /// # Errors
    /// When the machine has no randomness, or the token cannot be kept.
    pub fn issue_token(&self, identity: Identity) -> Result<String, CertificateError> {
        let store = &self.inner.registry.store;
        self.inner.tokens.issue(identity, store).map_err(|status| match status.message {
            message if message.contains("randomness") => CertificateError::Randomness,
            message => CertificateError::Store(message),
        })
    }

    /// Waits until objects cannot be kept any more, because the disk is full for example, and says why in one line. From then on every request is
    /// answered with an error. Never ends for a server without a folder ([`Builder::open`]).
    pub async fn storage_failure(&self) -> String {
        self.inner.registry.store.failure().await.to_string()
    }

    /// The resources that have objects in a namespace: what has to go before the namespace can.
    pub fn namespace_contents(&self, namespace: &str) -> Vec<ResourceName> {
        let registry = &self.inner.registry;
        let mut seen: Vec<Arc<str>> = Vec::new();
        let mut contents = Vec::new();
        for resource in registry.catalog.all().iter().filter(|resource| resource.namespaced) {
            if seen.contains(&resource.storage) {
                continue;
            }
            seen.push(Arc::clone(&resource.storage));
            if registry.store.snapshot(&resource.storage).range(namespace, None).next().is_some() {
                contents.push(ResourceName::of(resource));
            }
        }
        contents
    }

    /// The `status` that a ResourceQuota should have: as `hard` what its spec allows, as `used` what there is of it in its namespace.
    /// Writing it is the work of a quota controller; `None` if there is no such quota.
    pub fn quota_status(&self, namespace: &str, name: &str) -> Option<Value> {
        self.inner.registry.quota_status(namespace, name).ok()
    }

    /// The `status` that a ValidatingAdmissionPolicy should have: which generation was looked at, and where its expressions do not fit the kinds that
    /// its rules name. Writing it is the work of a controller; `None` if there is no such policy.
    pub fn policy_status(&self, name: &str) -> Option<Value> {
        self.inner.registry.policy_status(name)
    }

    /// Quotas, by namespace and name, whose [`quota_status`](Self::quota_status) may have become another one since something was written or removed in
    /// their namespace: the work of a quota controller, that also has to look at each quota when its spec changes. Never ends.
    pub fn quotas_to_reckon(&self) -> impl Stream<Item = (String, String)> + Send + use<> {
        self.inner.registry.quotas_to_reckon()
    }

    /// Registers the agent of a node: logs and exec of pods on it go there. Replaces an earlier one.
    pub fn set_kubelet(&self, node: impl Into<String>, kubelet: Arc<dyn Kubelet>) {
        self.inner.kubelets.write().insert(node.into(), kubelet);
    }

    /// Registers a server of webhooks in this process: calls to `host` go there, without sockets and TLS. The host is that of a URL (with
    /// its port, where the URL names one), or `NAME.NAMESPACE.svc` of a Service. Replaces an earlier one.
    pub fn set_webhook_server(&self, host: impl Into<String>, server: Arc<dyn WebhookServer>) {
        self.inner.registry.webhook_servers.insert(host.into(), server);
    }

    /// Every resource that objects have been written of, and then each other one at its first object. For controllers
    /// that need no watch before there is something to watch. A resource comes again, in another version, when the
    /// version in which it came is served no longer.
    pub fn on_first_use(&self) -> FirstUses {
        FirstUses {
            receiver: self.inner.registry.store.first_uses(),
            registry: Arc::clone(&self.inner.registry),
            given: BTreeMap::new(),
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

impl ResourceName {
    fn of(resource: &Resource) -> Self {
        Self {
            group: resource.group.clone(),
            version: resource.version.clone(),
            kind: resource.kind.clone(),
            plural: resource.plural.clone(),
            namespaced: resource.namespaced,
        }
    }
}

/// The stream of [`ApiServer::on_first_use`]. It never ends while the server lives.
pub struct FirstUses {
    receiver: UnboundedReceiver<Arc<str>>,
    registry: Arc<Registry>,
    /// The version in which each resource was given.
    given: BTreeMap<Arc<str>, String>,
}

impl Stream for FirstUses {
    type Item = ResourceName;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ResourceName>> {
        loop {
            let Some(storage) = std::task::ready!(self.receiver.poll_recv(cx)) else {
                return Poll::Ready(None);
            };
            let all = self.registry.catalog.all();
            let mut served = all.iter().filter(|resource| resource.storage == storage);
            // A definition that is gone again has nothing to watch.
            let Some(found) = served.clone().next() else { continue };
            let given = self.given.get(&storage);
            if given.is_some_and(|version| served.any(|resource| resource.version == *version)) {
                continue;
            }
            self.given.insert(storage, found.version.clone());
            return Poll::Ready(Some(ResourceName::of(found)));
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
    for entry in meta.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
        entry["time"] = now.as_str().into();
    }
    meta.insert("creationTimestamp".to_owned(), now.into());
    let key = Key::new(object.meta("namespace"), object.meta("name"));
    // What is there already stays as it is.
    let _ = registry.store.write(&storage.into(), &key, Expect::Absent, Change::Put(object));
}
