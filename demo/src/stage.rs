//! What the walk happens on: the cluster, its process node and the operator in it.

use std::process::Command;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use setpoint_apiserver::{ApiServer, Serving};
use setpoint_cluster::kubelet::Signal;
use setpoint_node::{
    JoinOptions, Machine, MachineOptions, ProcessCluster, ProcessNodes, Sandbox, TemporaryFolder,
};
use setpoint_test::TestEnv;
use tokio::task::JoinHandle;

use crate::failure::Failure;

const OPERATOR_NAMESPACE: &str = "redis-operator-system";
/// The container of the operator's pods that is killed.
const CONTAINER: &str = "redis";

/// The version of the installed redis-server, as an image's tag: `7.0`.
pub(crate) fn redis_version() -> Result<String, Failure> {
    let missing = || {
        Failure::Machine(
            "no redis-server is installed: run `make demo`, or install the package redis-server".to_owned(),
        )
    };
    let output = Command::new("redis-server").arg("--version").output().map_err(|_| missing())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).ok_or_else(missing)?;
    let mut parts = version.split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => Ok(format!("{major}.{minor}")),
        _ => Err(Failure::Machine(format!("redis-server tells an unknown version: {version}"))),
    }
}

/// Where everything runs and leaves its files.
pub(crate) struct Place {
    sandbox: Sandbox,
    folder: TemporaryFolder,
}

/// Enters the private namespaces in which everything runs. Call it before any thread exists: the rest runs in a copy of
/// this process.
pub(crate) fn enter() -> Result<Place, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Machine(error.to_string());
    let folder = TemporaryFolder::create("setpoint-demo").map_err(|error| {
        let below = std::env::temp_dir();
        failed(&format!("cannot use {}: {error}; name another folder with TMPDIR", below.display()))
    })?;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = setpoint_node::listen(address).map_err(|error| failed(&error))?;
    let sandbox = setpoint_node::enter(vec![listener]).map_err(|error| failed(&error))?;
    Ok(Place { sandbox, folder })
}

/// The running cluster.
pub(crate) struct Stage {
    env: TestEnv,
    api: ApiServer,
    machine: Machine,
    url: String,
    _serving: Vec<Serving>,
    _nodes: ProcessNodes,
    operator: Option<JoinHandle<()>>,
    _folder: TemporaryFolder,
}

impl Stage {
    /// Starts the API server, the controllers and one process node.
    pub(crate) async fn start(Place { sandbox, folder }: Place) -> Result<(Self, String), Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Cluster(error.to_string());
        let options = MachineOptions::new(folder.path());
        let running = ProcessCluster::start(sandbox, &options, &JoinOptions::default()).await;
        let running = running.map_err(|error| failed(&error))?;
        let address = running.address().ok_or_else(|| failed(&"the API server has no address"))?;
        let ProcessCluster { cluster, machine, nodes, serving } = running;
        let url = format!("https://{address}");
        let outcome = format!("API server at {url}, its controllers and {}", nodes.names().join(", "));
        let stage = Self {
            api: cluster.api().clone(),
            env: TestEnv::around(cluster),
            machine,
            url,
            _serving: serving,
            _nodes: nodes,
            operator: None,
            _folder: folder,
        };
        Ok((stage, outcome))
    }

    /// An administrator's client.
    pub(crate) fn client(&self) -> Client {
        self.env.client()
    }

    /// The revision of the newest write.
    pub(crate) fn revision(&self) -> u64 {
        self.api.revision()
    }

    /// Kills the server of a pod with SIGKILL.
    pub(crate) async fn kill(&self, namespace: &str, pod: &str) -> Result<(), Failure> {
        let killed = self.machine.signal(namespace, pod, CONTAINER, Signal::Kill).await;
        killed.map_err(|error| Failure::Cluster(error.to_string()))
    }

    /// Installs what the operator's manifests say and runs it as its own ServiceAccount, over HTTPS with a token.
    pub(crate) async fn install_operator(&mut self) -> Result<((), String), Failure> {
        let operator = redis_operator::operator();
        let name = operator.name().to_owned();
        self.env.install_operator(&operator, OPERATOR_NAMESPACE).await?;
        let accounts: Api<ServiceAccount> = self.env.api(OPERATOR_NAMESPACE);
        let answer =
            accounts.create_token_request(&name, &PostParams::default(), &TokenRequest::default()).await?;
        let token = answer.status.and_then(|status| status.token).unwrap_or_default();
        let operator = operator.client(self.client_with(token).await?);
        self.operator = Some(tokio::spawn(async move {
            if let Err(error) = operator.run_until(std::future::pending()).await {
                eprintln!("the operator has ended: {error}");
            }
        }));
        Ok(((), format!("CRD and derived RBAC; it runs as ServiceAccount {OPERATOR_NAMESPACE}/{name}")))
    }

    /// A client over HTTPS that has nothing but this token.
    async fn client_with(&self, token: String) -> Result<Client, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Cluster(error.to_string());
        let text = self.api.kubeconfig(&self.url).map_err(|error| failed(&error))?;
        let mut document: serde_json::Value = serde_json::from_str(&text)?;
        document["users"][0]["user"]["token"] = token.into();
        let kubeconfig: Kubeconfig = serde_json::from_value(document)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        Ok(Client::try_from(config.map_err(|error| failed(&error))?)?)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(operator) = &self.operator {
            operator.abort();
        }
    }
}
