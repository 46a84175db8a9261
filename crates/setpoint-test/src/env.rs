use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta, TypeMeta};
use kube::{Client, CustomResourceExt, ResourceExt, discovery};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use setpoint::{AnyController, Failures, Key, Operator, Runtime};
use setpoint_apiserver::{WebhookAnswer, WebhookServer};
use setpoint_clock::{Clock, Entropy};
use setpoint_cluster::{Cluster, ClusterBuilder, HollowRuntime, Identity};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::control_plane::ControlPlaneError;
use crate::pass::Pass;
use crate::rights::{Audit, Demands};
use crate::server::{Server, TestServer};
use crate::suite::SINGLE;
use crate::wait::{Seen, WaitError, eventually};
use crate::witness::Witness;

/// The namespace in which [`TestEnv::run`] installs operators.
pub const OPERATOR_NAMESPACE: &str = "operators";
/// How long the environment's own waits take at most, in tokio's time.
const BOUND: Duration = Duration::from_secs(60);
/// Who applies what a test sets up.
const MANAGER: &str = "setpoint-test";

/// Why an environment cannot do what a test asked for.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// The API server refused, or the cluster did not start.
    #[error("the API server refused: {}", words(.0))]
    Api(#[from] kube::Error),
    /// Something did not become so in time.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The operator's manifests cannot be made.
    #[error("the operator's manifests: {0}")]
    Manifests(String),
    /// The environment variable names no server.
    #[error("SETPOINT_TEST_SERVER is {value:?}: set it to embedded, binaries or existing, or not at all")]
    UnknownServer {
        /// What it says.
        value: String,
    },
    /// There is no real API server.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// There is no existing cluster.
    #[error("SETPOINT_TEST_SERVER is existing, but no kubeconfig names a cluster: {0}")]
    NoCluster(String),
    /// A declaration of the controller cannot work.
    #[error("the controller: {0}")]
    Controller(String),
    /// The machine refused what a test needs.
    #[error("cannot {what}: {source}")]
    Machine {
        /// What.
        what: String,
        /// The machine's answer.
        source: std::io::Error,
    },
    /// No kubeconfig can be made.
    #[error("the kubeconfig: {0}")]
    Kubeconfig(String),
    /// What the suite used of an operator's rights is not known.
    #[error("{0}")]
    Suite(String),
    /// An operator lacks rights, or has some that it does not need.
    #[error("{0}")]
    Rights(String),
}

/// The server's own words, where it has answered.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// A cluster for one test.
///
/// [`start`](Self::start) takes the server that `SETPOINT_TEST_SERVER` names, so that the same test runs on each:
///
/// - `embedded` (the default) runs in the test's process, without sockets, and starts in milliseconds. Under
///   `#[tokio::test(start_paused = true)]` its time is simulated: waiting for an hour takes no time.
/// - `binaries` starts kube-apiserver and etcd from the folder in `KUBEBUILDER_ASSETS`, with the embedded cluster's controllers and
///   hollow nodes. They end with the environment, or with the process. Time is real: a paused clock is made to run.
/// - `existing` connects to the cluster of the kubeconfig, which has controllers of its own. Call [`close`](Self::close) at the end.
///
/// Operators run in it as the ServiceAccount that their manifests make. A request that the API server refuses for want of rights
/// fails the test: see [`Running::stop`].
pub struct TestEnv {
    client: Client,
    server: Server,
    demands: Mutex<Demands>,
    /// Of the operators that were run.
    failures: Mutex<Vec<Failures>>,
    /// What was applied, for [`close`](Self::close).
    applied: Mutex<Vec<(ApiResource, Option<String>, String)>>,
}

impl TestEnv {
    /// The server that `SETPOINT_TEST_SERVER` names: `embedded` with two hollow nodes unless it is set.
    ///
    /// # Errors
    /// When the variable names no server, or that one cannot be started or reached.
    pub async fn start() -> Result<Self, EnvError> {
        Self::on(TestServer::from_env()?).await
    }

    /// The given server.
    ///
    /// # Errors
    /// When it cannot be started or reached.
    pub async fn on(server: TestServer) -> Result<Self, EnvError> {
        let server = Server::start(server, true).await?;
        Ok(Self::with(server.client()?, server))
    }

    /// As [`start`](Self::start), with an API server alone: no built-in controllers and no nodes, so that nothing moves but
    /// what the test moves. An existing cluster has what it has.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub async fn without_controllers() -> Result<Self, EnvError> {
        let server = Server::start(TestServer::from_env()?, false).await?;
        Ok(Self::with(server.client()?, server))
    }

    /// An embedded cluster with two hollow nodes, whatever the environment says.
    pub async fn embedded() -> Result<Self, EnvError> {
        Self::on(TestServer::Embedded).await
    }

    /// An embedded cluster as `builder` describes it: other nodes, a seed, a clock.
    pub async fn of(builder: ClusterBuilder) -> Result<Self, EnvError> {
        Ok(Self::around(builder.start().await?))
    }

    /// A cluster that runs already, such as one on process nodes.
    pub fn around(cluster: Cluster) -> Self {
        Self::with(cluster.client(), Server::around(cluster))
    }

    fn with(client: Client, server: Server) -> Self {
        Self {
            client,
            server,
            demands: Mutex::default(),
            failures: Mutex::default(),
            applied: Mutex::default(),
        }
    }

    /// The embedded cluster: its API server, its nodes and their faults. None on other servers.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.server.cluster()
    }

    /// The machine of a hollow node (`hollow-0`, `hollow-1`), to move what runs there: embedded and on `binaries`.
    pub fn node(&self, name: &str) -> Option<&HollowRuntime> {
        self.server.node(name)
    }

    /// The time of the cluster.
    pub fn clock(&self) -> Clock {
        self.server.clock()
    }

    /// The randomness of the cluster.
    pub fn entropy(&self) -> Entropy {
        self.server.entropy()
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client with the rights of `identity`, which RBAC decides about: on servers in other processes by impersonation.
    ///
    /// # Errors
    /// When no client can be made for the server.
    pub fn client_as(&self, identity: Identity) -> Result<Client, EnvError> {
        self.server.client_as(identity)
    }

    /// Requests that are refused for want of rights do not fail this test: it wants to see them.
    pub fn allow_refusals(&self) {
        self.demands.lock().refusals_allowed = true;
    }

    /// Fails when an operator has rights that it has not used when it stops, other than those on the resources in `except`
    /// (`pods/eviction`, `statefulsets.apps`). For a test that walks through everything an operator does; from now on.
    pub fn require_used_rights(&self, except: &[&str]) {
        let except = except.iter().map(|resource| (*resource).to_owned());
        self.demands.lock().all_used = Some(except.collect::<BTreeSet<_>>());
    }

    /// Deletes what [`apply`](Self::apply) and the installations made, the last first, and does not wait for finalizers. Needed on an
    /// existing cluster only: the others end with this value.
    ///
    /// # Errors
    /// What could not be deleted; the rest is.
    pub async fn close(self) -> Result<(), EnvError> {
        let applied = std::mem::take(&mut *self.applied.lock());
        let mut outcome = Ok(());
        for (resource, namespace, name) in applied.into_iter().rev() {
            let api: Api<DynamicObject> = match namespace {
                Some(namespace) => Api::namespaced_with(self.client(), &namespace, &resource),
                None => Api::all_with(self.client(), &resource),
            };
            match api.delete(&name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => outcome = outcome.and(other.map(drop).map_err(EnvError::from)),
            }
        }
        outcome
    }

    /// The objects of `K` in `namespace`, with all rights.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(), namespace)
    }

    /// Creates a namespace if it isn't there.
    pub async fn namespace(&self, name: &str) -> Result<(), EnvError> {
        let namespaces: Api<Namespace> = Api::all(self.client());
        if namespaces.get_opt(name).await?.is_some() {
            return Ok(());
        }
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        namespaces.patch(name, &PatchParams::apply(MANAGER), &Patch::Apply(&namespace)).await?;
        self.applied.lock().push((ApiResource::erase::<Namespace>(&()), None, name.to_owned()));
        Ok(())
    }

    /// Installs the CustomResourceDefinition of `K` and waits until it is served.
    pub async fn install_crd<K: CustomResourceExt>(&self) -> Result<(), EnvError> {
        self.install(&K::crd()).await
    }

    /// Installs a CustomResourceDefinition and waits until it is served.
    pub async fn install(&self, crd: &CustomResourceDefinition) -> Result<(), EnvError> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client());
        let name = crd.name_any();
        let resource = ApiResource::erase::<CustomResourceDefinition>(&());
        self.applied.lock().push((resource, None, name.clone()));
        crds.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(crd)).await?;
        eventually(format!("CustomResourceDefinition {name} to be established"), BOUND, async || {
            let crd = crds.get(&name).await.map_err(|error| error.to_string())?;
            let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let seen: Vec<_> =
                conditions.map(|condition| format!("{}={}", condition.type_, condition.status)).collect();
            if seen.iter().any(|condition| condition == "Established=True") {
                Ok(())
            } else {
                Err(seen.join(", "))
            }
        })
        .await?;
        Ok(())
    }

    /// Installs what the manifests of `operator` say, without its Deployment: CRDs, ServiceAccount, derived
    /// RBAC, and on an embedded server the webhooks, which it asks in this process, without sockets (on another one they need a running
    /// operator: see [`run`](Self::run)). Gives the
    /// ServiceAccount, whose rights are those that the operator has in production.
    pub async fn install_operator(
        &self,
        operator: &Operator,
        namespace: &str,
    ) -> Result<ServiceAccount, EnvError> {
        self.install_at(operator, namespace, None).await
    }

    /// As [`install_operator`](Self::install_operator), with webhooks that the API server reaches at `url`.
    async fn install_at(
        &self,
        operator: &Operator,
        namespace: &str,
        url: Option<&str>,
    ) -> Result<ServiceAccount, EnvError> {
        let mut install = operator.manifests(namespace);
        install.webhooks.url = url.map(str::to_owned);
        let wrong = |error: setpoint_manifests::ManifestError| EnvError::Manifests(error.to_string());
        for crd in install.definitions().map_err(wrong)? {
            self.install(&serde_json::from_value(crd).map_err(kube::Error::SerdeError)?).await?;
        }
        self.namespace(namespace).await?;
        for object in install.access().map_err(wrong)? {
            self.apply(object).await?;
        }
        // Another process has to reach them by the network.
        if url.is_some() {
            for configuration in install.webhook_configurations() {
                self.apply(configuration).await?;
            }
        }
        if let Some(api) = self.server.api() {
            let host = format!("{}.{namespace}.svc", install.webhook_service_name());
            api.set_webhook_server(host, Arc::new(InProcess(operator.webhooks())));
            for configuration in install.webhook_configurations() {
                self.apply(configuration).await?;
            }
        }
        Ok(self.api::<ServiceAccount>(namespace).get(operator.name()).await?)
    }

    /// Installs `operator` in the namespace [`OPERATOR_NAMESPACE`] and runs it as its ServiceAccount: a right
    /// that it did not declare is refused here as in production, and fails the test.
    ///
    /// Webhooks are asked when this returns: by an embedded server in this process, by another one over TLS with the operator's own certificates, at
    /// an address of this machine.
    pub async fn run(&self, operator: Operator) -> Result<Running, EnvError> {
        let mut operator = operator;
        let mut address = None;
        if !operator.webhooks().is_empty()
            && let Some(ip) = self.server.reached_at()?
        {
            let listening = SocketAddr::new(ip, free_port(ip)?);
            operator =
                operator.webhook_url(format!("https://{listening}")).webhook_address(listening.to_string());
            address = Some(format!("https://{listening}"));
        }
        let (client, witness) = self.account(&operator, address.as_deref()).await?;
        let audit = Audit::of(&operator, witness);
        let operator = operator.client(client).clock(self.clock()).entropy(self.entropy());
        let health = operator.health().clone();
        self.failures.lock().push(operator.failures().clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(operator.run_until(async move {
            // A dropped sender stops the operator, too.
            drop(stopped.await);
        }));
        let demands = self.demands.lock().clone();
        let running = Running { stop: Some(stop), task, audit, demands };
        if address.is_some() {
            eventually("the operator's webhooks to be served and trusted", BOUND, async || {
                if running.has_ended() {
                    return Ok(());
                }
                health.ready("webhooks")
            })
            .await?;
        }
        Ok(running)
    }

    /// A kubeconfig for this cluster with all rights: for a program that runs as a process of its own. An embedded server is served on a port
    /// of this machine from the first call on, in real time.
    ///
    /// # Errors
    /// When the server has none, or cannot listen.
    pub fn kubeconfig(&self) -> Result<String, EnvError> {
        self.server.kubeconfig()
    }

    /// Reconciles one object once, as a worker of an operator would, under the rights that the controller declares, and tells
    /// what came of it. Its caches are filled first; a second call is a second run. The kind has to be installed, and
    /// the object does not have to exist.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use setpoint::{Action, Context, Controller, Reconciler, Result};
    /// # use setpoint::k8s_openapi::api::core::v1::ConfigMap;
    /// # struct Web;
    /// # impl Reconciler for Web {
    /// #     type Object = ConfigMap;
    /// #     async fn reconcile(&self, _: Arc<ConfigMap>, _: &Context<ConfigMap>) -> Result<Action> {
    /// #         Ok(Action::await_change())
    /// #     }
    /// # }
    /// # async fn test(env: setpoint_test::TestEnv) -> Result<()> {
    /// let seen = env.reconcile(Controller::new(Web), "default/site").await?;
    /// assert_eq!(seen.action()?, Action::await_change());
    /// assert_eq!(seen.written(), ["patch configmaps default/page"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the rights cannot be installed, or the API server refused a request for want of rights, unless
    /// [`allow_refusals`](Self::allow_refusals) was called. How the reconcile itself ended is in [`Pass::report`].
    pub async fn reconcile(
        &self,
        controller: impl Into<AnyController>,
        key: impl Into<Key>,
    ) -> Result<Pass, EnvError> {
        let controller = controller.into();
        let operator = Operator::new(SINGLE).controller(controller.clone());
        let (client, witness) = self.account(&operator, None).await?;
        let audit = Audit::of(&operator, witness.clone());
        let runtime = Runtime::builder(client).clock(self.clock()).entropy(self.entropy()).build();
        let reports = controller.once(runtime, Some(vec![key.into()])).await;
        audit.note();
        let refusals_allowed = self.demands.lock().refusals_allowed;
        if let Some(complaint) = audit.complaint(&Demands { refusals_allowed, all_used: None }) {
            return Err(EnvError::Rights(complaint));
        }
        match reports.map_err(|error| EnvError::Controller(error.to_string()))?.pop() {
            Some(report) => Ok(Pass { report, sent: witness.sent() }),
            None => Err(EnvError::Controller("it has reconciled nothing".to_owned())),
        }
    }

    /// Installs `operator`, and gives a client with its rights, whose requests are seen.
    async fn account(
        &self,
        operator: &Operator,
        webhooks: Option<&str>,
    ) -> Result<(Client, Witness), EnvError> {
        let account = self.install_at(operator, OPERATOR_NAMESPACE, webhooks).await?;
        let uid = account.uid().unwrap_or_default();
        let identity = Identity::service_account(OPERATOR_NAMESPACE, operator.name(), &uid);
        let witness = Witness::default();
        // The namespace is what a pod of the operator would take from its ServiceAccount.
        Ok((witness.watch(self.client_as(identity)?, OPERATOR_NAMESPACE), witness))
    }

    /// Applies any object, given as JSON with apiVersion and kind.
    pub async fn apply(&self, object: serde_json::Value) -> Result<DynamicObject, EnvError> {
        let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let types =
            object.types.clone().unwrap_or(TypeMeta { api_version: String::new(), kind: String::new() });
        let (group, version) = types.api_version.rsplit_once('/').unwrap_or(("", &types.api_version));
        let kind = GroupVersionKind::gvk(group, version, &types.kind);
        let (resource, capabilities): (ApiResource, _) =
            discovery::pinned_kind(&self.client(), &kind).await?;
        let namespaced = capabilities.scope == discovery::Scope::Namespaced;
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) if namespaced => Api::namespaced_with(self.client(), &namespace, &resource),
            _ if namespaced => Api::default_namespaced_with(self.client(), &resource),
            _ => Api::all_with(self.client(), &resource),
        };
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await?;
        self.applied.lock().push((resource, applied.namespace(), applied.name_any()));
        Ok(applied)
    }

    /// Waits until the object exists and `check` is content with it. Otherwise says what it saw last, and which
    /// reconciles of the running operators fail.
    pub async fn wait_for<K, T>(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        mut check: impl FnMut(&K) -> Seen<T>,
    ) -> Result<T, EnvError>
    where
        K: kube::Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        let api: Api<K> = self.api(namespace);
        let waited = eventually(what, BOUND, async || match api.get_opt(name).await {
            Ok(Some(object)) => check(&object),
            Ok(None) => Err(format!("there is no {name} in namespace {namespace}")),
            Err(error) => Err(words(&error)),
        });
        self.explained(waited.await)
    }

    /// Waits until the object does not exist.
    pub async fn wait_gone<K>(&self, namespace: &str, name: &str) -> Result<(), EnvError>
    where
        K: kube::Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        let api: Api<K> = self.api(namespace);
        let waited =
            eventually(format!("{name} to be gone"), BOUND, async || match api.get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(object)) => Err(format!("it is there, with finalizers {:?}", object.finalizers())),
                Err(error) => Err(words(&error)),
            });
        self.explained(waited.await)
    }

    /// A wait that ended in vain, with what fails in the operators.
    fn explained<T>(&self, waited: Result<T, WaitError>) -> Result<T, EnvError> {
        waited.map_err(|mut error| {
            for failure in self.failures.lock().iter().flat_map(Failures::all) {
                error.last = format!("{}; failing: {failure}", error.last);
            }
            error.into()
        })
    }
}

fn free_port(ip: IpAddr) -> Result<u16, EnvError> {
    let listener = TcpListener::bind((ip, 0)).and_then(|listener| listener.local_addr());
    listener
        .map(|address| address.port())
        .map_err(|source| EnvError::Machine { what: format!("listen on {ip}"), source })
}

/// The webhooks of an operator, asked without sockets.
struct InProcess(setpoint::Webhooks);

impl WebhookServer for InProcess {
    fn answer(&self, request: http::Request<bytes::Bytes>) -> WebhookAnswer {
        self.0.answer(request)
    }
}

/// A running operator. Dropping it stops it at once, as a crash would.
///
/// A test in which it was refused a request for want of rights fails: [`stop`](Self::stop) says so, or the drop panics.
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), setpoint::OperatorError>>,
    audit: Audit,
    demands: Demands,
}

impl Running {
    /// Stops the operator as a signal would, and gives how it ended.
    ///
    /// # Errors
    /// When it ended with an error; when a request was refused for want of rights, or rights were never used where
    /// [`TestEnv::require_used_rights`] asks for that: in words that name them.
    pub async fn stop(mut self) -> Result<(), String> {
        drop(self.stop.take());
        let ended = match (&mut self.task).await {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(error) => Err(format!("the operator's task: {error}")),
        };
        let complaint = self.audit.complaint(&self.demands);
        // It is said once.
        self.demands.refusals_allowed = true;
        match complaint {
            Some(complaint) => Err(complaint),
            None => ended,
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        self.audit.note();
        // Unused rights are no matter of an operator that was killed.
        let demands = Demands { all_used: None, ..self.demands.clone() };
        if let Some(complaint) = self.audit.complaint(&demands)
            && !std::thread::panicking()
        {
            #[expect(clippy::panic, reason = "so a test fails")]
            {
                panic!("{complaint}");
            }
        }
    }
}
