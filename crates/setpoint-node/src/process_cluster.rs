//! A cluster with process nodes, put together in the one order that works.

use std::io;
use std::net::{SocketAddr, TcpListener};

use setpoint_apiserver::{OpenError, Serving};
use setpoint_cluster::Cluster;

use crate::join::{JoinError, JoinOptions, ProcessNodes};
use crate::machine::{Machine, MachineError, MachineOptions};
use crate::sandbox::Sandbox;

/// A cluster inside a [`Sandbox`]: its API server on the sandbox's listeners, its nodes with real processes. Dropping
/// the parts ends them.
pub struct ProcessCluster {
    /// API server and controllers.
    pub cluster: Cluster,
    /// What the nodes share, with its faults.
    pub machine: Machine,
    /// The nodes and their network.
    pub nodes: ProcessNodes,
    /// The API server on each listener of the sandbox, those that are reachable from outside first.
    pub serving: Vec<Serving>,
}

/// Why a cluster with process nodes does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The API server does not do what the cluster needs of it.
    #[error("the API server: {0}")]
    Api(#[from] Box<kube::Error>),
    /// The data folder cannot be used to keep objects.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The API server cannot be served on a listener.
    #[error("serving the API server: {0}")]
    Serve(#[from] io::Error),
    /// The machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The nodes.
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl StartError {
    fn of_cluster(error: kube::Error) -> Self {
        let error = match error {
            kube::Error::Service(source) => match source.downcast::<OpenError>() {
                Ok(store) => return Self::Store(*store),
                Err(source) => kube::Error::Service(source),
            },
            other => other,
        };
        Self::Api(Box::new(error))
    }
}

impl ProcessCluster {
    /// Starts everything. Volumes and the rest of what pods leave on disk are in the machine's data folder. Pods reach
    /// the API server on the sandbox's first listener, unless `join` names another port. Call it inside a tokio runtime.
    pub async fn start(
        mut sandbox: Sandbox,
        machine: &MachineOptions,
        join: &JoinOptions,
    ) -> Result<Self, StartError> {
        let listeners: Vec<TcpListener> = sandbox.outside.drain(..).chain(sandbox.inside.drain(..)).collect();
        let cluster = Cluster::builder()
            .hollow_nodes(0)
            .data_dir(&machine.data_dir)
            .keep_objects(machine.keep_objects)
            .start()
            .await
            .map_err(StartError::of_cluster)?;
        let serving = listeners
            .into_iter()
            .map(|listener| cluster.api().serve(listener))
            .collect::<io::Result<Vec<_>>>()?;
        let port = serving.first().map(|serving| serving.address().port());
        let machine = Machine::new(sandbox, machine, *cluster.clock())?;
        let join = JoinOptions { api_port: join.api_port.or(port), ..join.clone() };
        let nodes = machine.join(&cluster, &join).await?;
        Ok(Self { cluster, machine, nodes, serving })
    }

    /// Where the API server listens for clients outside; none without a listener.
    pub fn address(&self) -> Option<SocketAddr> {
        self.serving.first().map(Serving::address)
    }
}
