//! An operator: controllers with everything around them that a process needs.
//!
//! ```text
//! main: flags ─▶ logs ─▶ connect ─▶ run_until(two signals)        manifests: declarations ─▶ YAML ─▶ install, uninstall
//!       plan: each object reconciled once, writes only tried ─▶ what would change
//! run_until: client stack ─▶ Runtime ─▶ tasks, event sender, /metrics, /healthz
//!     lead:  caches warm ─▶ election won ─▶ controllers, leading tasks ─▶ (lost: all dropped, end or stand by)
//!     stop:  controllers drain ─▶ tasks end ─▶ events are sent ─▶ the lease is given back ─▶ endpoints close
//! ```

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::networking::v1::NetworkPolicyEgressRule;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use setpoint_clock::{Clock, Entropy};
use tokio_util::sync::CancellationToken;

use crate::webhook::AnyVersions;
use crate::{
    AnyController, Certificates, Defaulter, Election, Failures, Health, Install, Metrics, Reports,
    RequestStack, Result, Rights, Runtime, Scope, Validator, Versions, Webhook, Webhooks, rbac,
};

mod arguments;
mod changes;
mod cluster;
mod diagnosis;
mod endpoint;
mod guard;
mod install;
mod lead;
mod lifecycle;
mod manifests;
mod parts;
mod plan;
mod signals;
mod webhooks;

pub use lifecycle::OperatorError;

type Change = Box<dyn FnOnce(RequestStack) -> RequestStack + Send>;

/// An operator, from its declaration to its end.
///
/// ```no_run
/// # use std::{process::ExitCode, sync::Arc};
/// # use setpoint::{Action, Context, Controller, Operator, Reconciler, Result, k8s_openapi::api::core::v1::ConfigMap};
/// # struct Web;
/// # impl Reconciler for Web {
/// #     type Object = ConfigMap;
/// #     async fn reconcile(&self, _: Arc<ConfigMap>, _: &Context<ConfigMap>) -> Result<Action> {
/// #         Ok(Action::await_change())
/// #     }
/// # }
/// fn main() -> ExitCode {
///     Operator::new("web-operator").controller(Controller::new(Web)).main()
/// }
/// ```
#[must_use = "an operator does nothing before main or run_until"]
pub struct Operator {
    name: String,
    version: Option<String>,
    image: Option<String>,
    controllers: Vec<AnyController>,
    tasks: Vec<Task>,
    webhooks: Vec<Webhook>,
    versions: Vec<AnyVersions>,
    /// What is wrong with the declarations.
    faults: Vec<String>,
    election: Option<Election>,
    crds: Vec<CustomResourceDefinition>,
    scope: Option<Scope>,
    client: Option<kube::Client>,
    config: Option<kube::Config>,
    clock: Option<Clock>,
    entropy: Option<Entropy>,
    metrics: Metrics,
    health: Health,
    failures: Failures,
    reports: Reports,
    stack: Option<Change>,
    grace: Duration,
    egress: Vec<NetworkPolicyEgressRule>,
    metrics_secure: bool,
    metrics_address: Option<String>,
    health_address: Option<String>,
    webhook_address: Option<String>,
    webhook_url: Option<String>,
    certificates: Certificates,
    namespace: Option<String>,
}

impl Operator {
    /// An operator without controllers. `name` is a DNS label of at most 55 characters: its Deployment,
    /// ServiceAccount and roles carry it.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: None,
            image: None,
            controllers: Vec::new(),
            tasks: Vec::new(),
            webhooks: Vec::new(),
            versions: Vec::new(),
            faults: Vec::new(),
            election: None,
            crds: Vec::new(),
            scope: None,
            client: None,
            config: None,
            clock: None,
            entropy: None,
            metrics: Metrics::new(),
            health: Health::default(),
            failures: Failures::default(),
            reports: Reports::default(),
            stack: None,
            grace: Duration::from_secs(30),
            egress: Vec::new(),
            metrics_secure: false,
            metrics_address: None,
            health_address: None,
            webhook_address: None,
            webhook_url: None,
            certificates: Certificates::own(),
            namespace: None,
        }
    }

    /// Adds a controller. Names of controllers are unique in an operator.
    pub fn controller(mut self, controller: impl Into<AnyController>) -> Self {
        self.controllers.push(controller.into());
        self
    }

    /// Adds the CustomResourceDefinition of `K` to what `manifests` writes.
    pub fn crd<K: CustomResourceExt>(self) -> Self {
        self.crd_object(K::crd())
    }

    /// Adds a CustomResourceDefinition, for instance a derived one with additions of your own.
    pub fn crd_object(mut self, crd: CustomResourceDefinition) -> Self {
        self.crds.push(crd);
        self
    }

    /// The namespaces to work in. Default: what the flag `--watch-namespaces` or the variable
    /// `WATCH_NAMESPACE` says, and without either all of them.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Elects one of several replicas that does the work: only it runs controllers and leading tasks, and only its
    /// writes leave the process. The others fill their caches and wait. [`main`](Self::main) has a flag to turn it off.
    /// Default: no election, so run one replica.
    pub fn election(mut self, election: Election) -> Self {
        self.election = Some(election);
        self
    }

    /// Validates objects of a kind before they are stored: see [`Validator`]. For a closure, or for options beside it,
    /// [`webhook`](Self::webhook).
    pub fn validator<V: Validator>(self, validator: V) -> Self
    where
        <V::Object as kube::Resource>::DynamicType: Default,
    {
        self.webhook(Webhook::validating(validator))
    }

    /// Sets defaults of a kind before it is validated: see [`Defaulter`].
    pub fn defaulter<D: Defaulter>(self, defaulter: D) -> Self
    where
        <D::Object as kube::Resource>::DynamicType: Default,
    {
        self.webhook(Webhook::defaulting(defaulter))
    }

    /// Adds a webhook. There is one of a sort for each version of a kind.
    pub fn webhook(mut self, webhook: Webhook) -> Self {
        if self.webhooks.iter().any(|known| known.path() == webhook.path()) {
            self.faults.push(format!("there are two webhooks {}: join them in one", webhook.path()));
        }
        self.webhooks.push(webhook);
        self
    }

    /// The versions of a kind: their CustomResourceDefinition is installed as with [`crd`](Self::crd), the operator converts
    /// between them, and the one that leads sees to it that every object is stored in the version to be stored.
    pub fn versions<Hub>(mut self, versions: Versions<Hub>) -> Self {
        match versions.all.crd() {
            Ok(crd) => self.crds.push(crd),
            Err(error) => self.faults.push(error.to_string()),
        }
        self.versions.push(versions.all);
        self
    }

    /// Adds something else that runs beside the controllers.
    pub fn task(mut self, task: Task) -> Self {
        self.tasks.push(task);
        self
    }

    /// The cluster to work on, for [`run_until`](Self::run_until). The operator's request stack is laid over
    /// it, so the client needs no retry of its own. Default: as kubectl finds it, or from inside a pod.
    pub fn client(mut self, client: kube::Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Where the time comes from. Default: the machine's clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Where randomness comes from. Default: the system's.
    pub fn entropy(mut self, entropy: Entropy) -> Self {
        self.entropy = Some(entropy);
        self
    }

    /// Changes the request stack: its deadline, its retries, or a layer of faults in a test.
    pub fn requests(mut self, change: impl FnOnce(RequestStack) -> RequestStack + Send + 'static) -> Self {
        self.stack = Some(Box::new(change));
        self
    }

    /// How long running reconciles may go on after the stop, and after them the tasks. Default: 30 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How many objects each controller reconciles at a time, instead of what the controllers say.
    pub fn concurrency(mut self, workers: usize) -> Self {
        for controller in &mut self.controllers {
            controller.set_concurrency(workers);
        }
        self
    }

    /// The operator's version, for `--version`: usually `env!("CARGO_PKG_VERSION")`.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// The container image that `manifests` names unless told otherwise. Default: `<name>:<version>`, or
    /// `<name>:latest` without a version.
    pub fn image(mut self, image: impl Into<String>) -> Self {
        self.image = Some(image.into());
        self
    }

    /// Serves `/metrics` on `address` in [`run_until`](Self::run_until): `:8080`, `127.0.0.1:9090`; port 0
    /// takes a free one. [`main`](Self::main) has a flag for it. Default: not served.
    pub fn metrics_address(mut self, address: impl Into<String>) -> Self {
        self.metrics_address = Some(address.into());
        self
    }

    /// Serves what [`metrics_address`](Self::metrics_address) is for over TLS, and only to those who bring a token whose user may `get` the
    /// path: the API server is asked by a TokenReview and a SubjectAccessReview. The certificate is that of the webhooks
    /// ([`certificates`](Self::certificates)). [`main`](Self::main) has a flag for it. Default: no.
    pub fn metrics_secure(mut self, secure: bool) -> Self {
        self.metrics_secure = secure;
        self
    }

    /// Where the operator connects to, beside the API server and DNS: for the NetworkPolicy in the manifests, which lets it connect to
    /// nothing else.
    pub fn egress(mut self, rule: NetworkPolicyEgressRule) -> Self {
        self.egress.push(rule);
        self
    }

    /// Serves `/healthz` and `/readyz` on `address`; as for [`metrics_address`](Self::metrics_address).
    pub fn health_address(mut self, address: impl Into<String>) -> Self {
        self.health_address = Some(address.into());
        self
    }

    /// Serves the webhooks over TLS on `address`; as for [`metrics_address`](Self::metrics_address). Default: they are not
    /// served; tests ask [`webhooks`](Self::webhooks) without sockets.
    pub fn webhook_address(mut self, address: impl Into<String>) -> Self {
        self.webhook_address = Some(address.into());
        self
    }

    /// Where the API server reaches the webhooks, if not through their Service: `https://10.0.0.5:9443`, for an operator that runs on
    /// one's own machine. [`install`](Self::install) writes it into the configurations, and the certificate of the operator's own
    /// authority is for that host, too. [`main`](Self::main) has a flag for it. Default: the Service.
    pub fn webhook_url(mut self, url: impl Into<String>) -> Self {
        self.webhook_url = Some(url.into());
        self
    }

    /// Where the webhooks' certificate comes from. Default: an authority of the operator's own, or in [`main`](Self::main) the
    /// files of the flag `--webhook-cert-dir`, if there are any.
    pub fn certificates(mut self, certificates: Certificates) -> Self {
        self.certificates = certificates;
        self
    }

    /// The namespace that the operator itself is in: of the Service of its webhooks, and of their certificates. Default: the
    /// client's, which in a pod is the pod's.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The metrics, to register one's own.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The health checks, to add one's own.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The objects whose last reconcile failed, while the operator runs: clone it first.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// The webhooks as a server without sockets: for tests whose API server is in the same process.
    pub fn webhooks(&self) -> Webhooks {
        Webhooks::new(self.webhooks.clone(), self.converting(), &self.metrics)
    }

    /// The kinds that have several versions.
    fn converting(&self) -> Vec<AnyVersions> {
        self.versions.iter().filter(|versions| versions.several()).cloned().collect()
    }

    /// What is wrong with the declarations, if something is.
    fn fault(&self) -> Option<String> {
        (!self.faults.is_empty()).then(|| self.faults.join("; "))
    }

    /// What the last reconciles did, while the operator runs: clone it first.
    pub fn reports(&self) -> &Reports {
        &self.reports
    }

    /// The operator's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The CustomResourceDefinitions that were declared.
    pub fn crds(&self) -> &[CustomResourceDefinition] {
        &self.crds
    }

    /// What the operator may do, derived from what its controllers declare.
    pub fn rights(&self) -> Rights {
        let mut rights = rbac::rights(&self.controllers);
        let objects = webhooks::objects(&self.name, &self.webhooks, &self.converting());
        rights.extend(&rbac::webhooks(&objects));
        for versions in &self.versions {
            rights.extend(&rbac::migration(versions));
        }
        rights
    }

    /// The manifests that install the operator in `namespace`: change the fields that you want otherwise, then
    /// [`Install::objects`]. Tests use [`Install::access`] to run under the same rights as in production.
    pub fn manifests(&self, namespace: impl Into<String>) -> Install {
        manifests::install(self, namespace.into(), self.metrics_secure)
    }

    /// The whole program: reads flags and environment, runs or writes manifests, and ends at the first
    /// SIGTERM or SIGINT after a graceful stop; the second one ends it at once.
    ///
    /// Exit codes: 0 after a clean stop, 1 after a failure (one line on standard error says which and what to
    /// do), 2 for flags that cannot be read.
    pub fn main(self) -> ExitCode {
        arguments::main(self)
    }

    /// Runs until `shutdown` completes, then stops gracefully. For tests and for programs that host several
    /// operators: reads no flags, sets up no logging, handles no signals. Dropping the future stops at once.
    ///
    /// # Errors
    /// If there is no cluster to connect to, an address cannot be listened on, a controller or task fails, or
    /// leadership is lost (unless it [stands by](Election::stand_by) again).
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), OperatorError> {
        // Large, and held once for each operator.
        Box::pin(lifecycle::run(self, shutdown)).await
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("name", &self.name)
            .field("controllers", &self.controllers)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

type Run = Box<dyn Fn(Runtime, CancellationToken) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Something that runs beside the controllers: a poller, a server of one's own.
#[must_use = "give it to Operator::task"]
pub struct Task {
    name: String,
    leading: bool,
    run: Run,
}

impl Task {
    /// A task that runs from start to stop. It should end soon after the token is cancelled, which happens
    /// when the controllers have stopped; after the grace it is dropped. An error stops the operator. In an
    /// election it runs on every replica; its writes through the runtime's client pass on the leader only.
    pub fn always<F>(
        name: impl Into<String>,
        run: impl FnOnce(Runtime, CancellationToken) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        // It is started once; only leading tasks are started again.
        let run = parking_lot::Mutex::new(Some(run));
        let run = move |runtime, stop| match run.lock().take() {
            Some(run) => run(runtime, stop).boxed(),
            None => futures::future::ready(Ok(())).boxed(),
        };
        Self { name: name.into(), leading: false, run: Box::new(run) }
    }

    /// A task that runs while this replica leads, started anew in each term. It is dropped when the term is lost;
    /// at a stop its token is cancelled with the controllers', and after the grace it is dropped. Without an
    /// election it runs from start to stop.
    pub fn leading<F>(
        name: impl Into<String>,
        run: impl Fn(Runtime, CancellationToken) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let run = move |runtime, stop| run(runtime, stop).boxed();
        Self { name: name.into(), leading: true, run: Box::new(run) }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
