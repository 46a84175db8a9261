use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta, TypeMeta};
use kube::{Client, CustomResourceExt, ResourceExt, discovery};
use serde::de::DeserializeOwned;
use setpoint::{Failures, Operator};
use setpoint_apiserver::{WebhookAnswer, WebhookServer};
use setpoint_cluster::{Cluster, ClusterBuilder, Identity};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::wait::{Seen, WaitError, eventually};

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
/// The embedded one runs in the test's process, without sockets, and starts in milliseconds. Under
/// `#[tokio::test(start_paused = true)]` its time is simulated: waiting for an hour takes no time.
pub struct TestEnv {
    cluster: Cluster,
    /// Of the operators that were run.
    failures: Mutex<Vec<Failures>>,
}

impl TestEnv {
    /// An embedded cluster with two hollow nodes.
    pub async fn embedded() -> Result<Self, EnvError> {
        Self::of(Cluster::builder().hollow_nodes(2)).await
    }

    /// An embedded cluster as `builder` describes it: other nodes, a seed, a clock.
    pub async fn of(builder: ClusterBuilder) -> Result<Self, EnvError> {
        Ok(Self::around(builder.start().await?))
    }

    /// A cluster that runs already, such as one on process nodes.
    pub fn around(cluster: Cluster) -> Self {
        Self { cluster, failures: Mutex::default() }
    }

    /// The cluster itself: its API server, its nodes and their faults.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// A client with the rights of `identity`, which RBAC decides about.
    pub fn client_as(&self, identity: Identity) -> Client {
        self.cluster.client_as(identity)
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
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        namespaces.patch(name, &PatchParams::apply(MANAGER), &Patch::Apply(&namespace)).await?;
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
    /// RBAC, webhooks (which the API server asks in this process, without sockets). Gives the ServiceAccount, whose rights are those that the operator has in production.
    pub async fn install_operator(
        &self,
        operator: &Operator,
        namespace: &str,
    ) -> Result<ServiceAccount, EnvError> {
        let install = operator.install(namespace);
        let wrong = |error: setpoint_manifests::ManifestError| EnvError::Manifests(error.to_string());
        for crd in install.definitions().map_err(wrong)? {
            self.install(&serde_json::from_value(crd).map_err(kube::Error::SerdeError)?).await?;
        }
        self.namespace(namespace).await?;
        for object in install.access().map_err(wrong)? {
            self.apply(object).await?;
        }
        let host = format!("{}.{namespace}.svc", install.webhook_service_name());
        self.cluster.api().set_webhook_server(host, Arc::new(InProcess(operator.webhooks())));
        for configuration in install.webhook_configurations() {
            self.apply(configuration).await?;
        }
        Ok(self.api::<ServiceAccount>(namespace).get(operator.name()).await?)
    }

    /// Installs `operator` in the namespace [`OPERATOR_NAMESPACE`] and runs it as its ServiceAccount: a right
    /// that it did not declare is refused here as in production.
    pub async fn run(&self, operator: Operator) -> Result<Running, EnvError> {
        let account = self.install_operator(&operator, OPERATOR_NAMESPACE).await?;
        let uid = account.uid().unwrap_or_default();
        let account = Identity::service_account(OPERATOR_NAMESPACE, operator.name(), &uid);
        let operator = operator
            .client(self.client_as(account))
            .clock(*self.cluster.clock())
            .entropy(self.cluster.entropy().clone());
        self.lock().push(operator.failures().clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(operator.run_until(async move {
            // A dropped sender stops the operator, too.
            drop(stopped.await);
        }));
        Ok(Running { stop: Some(stop), task })
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
        Ok(api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await?)
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
            for failure in self.lock().iter().flat_map(Failures::all) {
                error.last = format!("{}; failing: {failure}", error.last);
            }
            error.into()
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Failures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The webhooks of an operator, asked without sockets.
struct InProcess(setpoint::Webhooks);

impl WebhookServer for InProcess {
    fn answer(&self, request: http::Request<bytes::Bytes>) -> WebhookAnswer {
        self.0.answer(request)
    }
}

/// A running operator. Dropping it stops it at once.
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), setpoint::OperatorError>>,
}

impl Running {
    /// Stops the operator as a signal would, and gives how it ended.
    pub async fn stop(mut self) -> Result<(), String> {
        drop(self.stop.take());
        match (&mut self.task).await {
            Ok(ended) => ended.map_err(|error| error.to_string()),
            Err(error) => Err(format!("the operator's task: {error}")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
