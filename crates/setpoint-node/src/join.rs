//! Process nodes as members of a cluster.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use setpoint_cluster::Cluster;
use setpoint_cluster::kubelet::{ClusterDns, NodeConfig};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::error;

use crate::machine::{Machine, MachineError};
use crate::network::{DNS_ADDRESS, GATEWAY};

/// The owner of the fields of the `kubernetes` Service's endpoints; on other clusters the API server writes them.
const FIELD_MANAGER: &str = "kube-apiserver";

/// How long to wait for Service addresses and names to be served. It takes milliseconds.
const NETWORK_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// What joins a cluster.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// How many nodes, named `node-1` and so on.
    pub nodes: u8,
    /// Port on which the API server is served inside the sandbox: pods reach it as `kubernetes.default`. None = they
    /// cannot reach it.
    pub api_port: Option<u16>,
    /// How often files of ConfigMap, Secret, downward API and projected volumes are brought up to date; none = the
    /// kubelet's own value (60 s).
    pub volume_refresh: Option<std::time::Duration>,
}

impl Default for JoinOptions {
    /// One node, no API server for pods.
    fn default() -> Self {
        Self { nodes: 1, api_port: None, volume_refresh: None }
    }
}

/// Why process nodes cannot join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The cluster's API server.
    #[error("{what}: {source}")]
    Api {
        /// What was written.
        what: String,
        /// The server's answer.
        source: Box<kube::Error>,
    },
}

/// Process nodes that joined a cluster, and their network. Dropping this stops the network's updates and DNS; the
/// kubelets belong to the cluster.
#[derive(Debug)]
pub struct ProcessNodes {
    names: Vec<String>,
    network: JoinHandle<()>,
}

impl ProcessNodes {
    /// Names of the Node objects.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

impl Drop for ProcessNodes {
    fn drop(&mut self) {
        self.network.abort();
    }
}

impl Machine {
    /// Adds process nodes to a cluster of the same process, and serves Service addresses and DNS for their pods.
    pub async fn join(&self, cluster: &Cluster, options: &JoinOptions) -> Result<ProcessNodes, JoinError> {
        if let Some(port) = options.api_port {
            publish_api_server(cluster, port).await?;
        }
        let (machine, client) = (self.clone(), cluster.client());
        let (ready, is_ready) = oneshot::channel();
        let network = tokio::spawn(async move {
            if let Err(error) = machine.serve_network(client, ready).await {
                error!(%error, "pods have no name resolution");
            }
        });
        let mut joined = ProcessNodes { names: Vec::new(), network };
        for number in 1..=options.nodes {
            let name = format!("node-{number}");
            let mut config = NodeConfig::new(name.clone());
            config.dns =
                ClusterDns { servers: vec![DNS_ADDRESS.to_string()], domain: "cluster.local".to_owned() };
            config.volume_refresh = options.volume_refresh.unwrap_or(config.volume_refresh);
            let runtime = self.add_node().await?;
            let failed = |source| JoinError::Api {
                what: format!("registering node {name}"),
                source: Box::new(source),
            };
            cluster.add_node(config, runtime).await.map_err(failed)?;
            joined.names.push(name);
        }
        // What is started next may ask for a name at once. A network that is not there has said why.
        let _ = timeout(NETWORK_LIMIT, is_ready).await;
        Ok(joined)
    }
}

/// Makes the Service `kubernetes` lead to the API server.
async fn publish_api_server(cluster: &Cluster, port: u16) -> Result<(), JoinError> {
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.client(), "default");
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [GATEWAY.to_string()], "conditions": {"ready": true}}],
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    slices.patch("kubernetes", &params, &Patch::Apply(&slice)).await.map(drop).map_err(|source| {
        JoinError::Api {
            what: "writing the endpoints of the Service default/kubernetes".to_owned(),
            source: Box::new(source),
        }
    })
}
