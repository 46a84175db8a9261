//! What all process nodes of a sandbox share: the way to new pods, the network, the images, the data folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::Client;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::{Mutex, RwLock};
use setpoint_clock::Clock;
use setpoint_cluster::kubelet::{PodRef, RuntimeError, Signal};
use tokio::sync::oneshot;

use crate::image::Images;
use crate::network::dns::{self, Zone};
use crate::network::{self, Cut, MOST_NODES, Network};
use crate::runtime::{Pod, ProcessRuntime};
use crate::sandbox::Sandbox;
use crate::spawner::Spawner;
use crate::tool;

/// Where a machine keeps things.
#[derive(Clone, Debug)]
pub struct MachineOptions {
    /// Directory for what pods leave on disk: logs, volumes. It is created if missing.
    pub data_dir: PathBuf,
    /// Whether the objects of the cluster are kept there, too, to go on with at the next start.
    pub keep_objects: bool,
    /// Directory with unpacked root file systems as images, each named `NAME_TAG`; none = only what is
    /// installed on the machine.
    pub images_dir: Option<PathBuf>,
    /// How Service addresses are served.
    pub proxy_mode: ProxyMode,
}

impl MachineOptions {
    /// Only what is installed on the machine, and nftables where there is.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            keep_objects: false,
            images_dir: None,
            proxy_mode: ProxyMode::default(),
        }
    }
}

/// How Service addresses are served; the counterpart of kube-proxy's `--proxy-mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// By nftables where the machine has it, otherwise as [`Userspace`](Self::Userspace), with a warning.
    #[default]
    Nftables,
    /// This process takes the connections and passes them on: TCP only, servers see the gateway as client, and
    /// connections between pods cannot be cut.
    Userspace,
}

/// Why the machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The data folder cannot be written.
    #[error("cannot write the data folder {}: {source}", path.display())]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// The machine's answer.
        source: io::Error,
    },
    /// Another machine uses the data folder.
    #[error("the data folder {} is in use by another process", path.display())]
    DataDirInUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder with images cannot be read.
    #[error("cannot read the images folder {}: {source}", path.display())]
    ImagesDir {
        /// The folder.
        path: PathBuf,
        /// The machine's answer.
        source: io::Error,
    },
    /// More nodes than there are address ranges.
    #[error("a sandbox has room for {MOST_NODES} nodes")]
    TooManyNodes,
    /// The machine refused something ordinary.
    #[error("{what}: {source}")]
    Io {
        /// What.
        what: String,
        /// The machine's answer.
        source: io::Error,
    },
}

/// The inside of a [`Sandbox`], ready for nodes. Cheap to clone.
#[derive(Clone)]
pub struct Machine(pub(crate) Arc<Shared>);

/// What nodes share.
pub(crate) struct Shared {
    pub(crate) spawner: Spawner,
    pub(crate) network: Arc<Network>,
    pub(crate) images: Images,
    pub(crate) data_dir: PathBuf,
    pub(crate) all_users: bool,
    pub(crate) ip: PathBuf,
    pub(crate) clock: Clock,
    /// Pods of all nodes by UID.
    pub(crate) pods: Mutex<BTreeMap<String, Arc<Pod>>>,
    nodes: Mutex<u8>,
    /// Held as long as the data folder is used; the kernel drops it with the process.
    _lock: Flock<fs::File>,
}

impl Machine {
    /// Takes over the sandbox; its listeners should have been taken out before. Call it inside a tokio runtime.
    /// What pods of an earlier process left in the data folder is removed, but not persistent volumes.
    pub fn new(sandbox: Sandbox, options: &MachineOptions, clock: Clock) -> Result<Self, MachineError> {
        let data_dir = writable(&options.data_dir)
            .map_err(|source| MachineError::DataDir { path: options.data_dir.clone(), source })?;
        let lock = take(&data_dir)?;
        let pods = data_dir.join("pods");
        if pods.exists() {
            fs::remove_dir_all(&pods).map_err(|source| MachineError::DataDir { path: pods, source })?;
        }
        let nft = match options.proxy_mode {
            ProxyMode::Nftables => tool::find("nft"),
            ProxyMode::Userspace => None,
        };
        let images = Images::find(options.images_dir.as_deref()).map_err(|source| {
            MachineError::ImagesDir { path: options.images_dir.clone().unwrap_or_default(), source }
        })?;
        let spawner = Spawner::new(sandbox.spawner)
            .map_err(|source| MachineError::Io { what: "connecting to the sandbox".to_owned(), source })?;
        Ok(Self(Arc::new(Shared {
            spawner,
            network: Arc::new(Network::new(sandbox.ip.clone(), nft)),
            images,
            data_dir,
            all_users: sandbox.all_users,
            ip: sandbox.ip,
            clock,
            pods: Mutex::default(),
            nodes: Mutex::new(0),
            _lock: lock,
        })))
    }

    /// One more node: its runtime, for a kubelet.
    pub async fn add_node(&self) -> Result<ProcessRuntime, MachineError> {
        let number = {
            let mut nodes = self.0.nodes.lock();
            if *nodes >= MOST_NODES {
                return Err(MachineError::TooManyNodes);
            }
            *nodes += 1;
            *nodes
        };
        let address = self.0.network.add_node(number).await.map_err(|source| MachineError::Io {
            what: format!("giving node {number} an address"),
            source,
        })?;
        Ok(ProcessRuntime::new(Arc::clone(&self.0), number, address))
    }

    /// Serves Service addresses and cluster DNS from what `client` may list and watch (Services and
    /// EndpointSlices). Runs until dropped, and says on `ready` when all that is there is served; an error means that the DNS
    /// server cannot listen.
    pub(crate) async fn serve_network(
        &self,
        client: Client,
        ready: oneshot::Sender<()>,
    ) -> Result<(), MachineError> {
        let failed = |source| MachineError::Io { what: format!("DNS server on {}", dns::address()), source };
        let sockets = dns::Sockets::bind(dns::address()).await.map_err(failed)?;
        let zone = Arc::new(RwLock::new(Arc::new(Zone::default())));
        let (network, ip) = (Arc::clone(&self.0.network), self.0.ip.clone());
        let follow = network::follow_services(client, network, ip, Arc::clone(&zone), ready);
        futures::future::join(sockets.serve(zone), follow).await;
        Ok(())
    }

    /// Sends a signal to a container's processes, as a fault: [`Signal::Kill`], [`Signal::Stop`] and
    /// [`Signal::Continue`] reach all of them.
    pub async fn signal(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        signal: Signal,
    ) -> Result<(), RuntimeError> {
        self.pod(namespace, pod)?.signal(container, signal).await
    }

    /// Cuts the network between two pods, both ways, until [`Fault::heal`].
    pub async fn partition(&self, one: (&str, &str), other: (&str, &str)) -> Result<Fault, RuntimeError> {
        let (one, other) = (self.address(one)?, self.address(other)?);
        self.cut(vec![Cut::Between(one, other), Cut::Between(other, one)]).await
    }

    /// Cuts a pod off from everything, both ways, until [`Fault::heal`].
    pub async fn isolate(&self, namespace: &str, pod: &str) -> Result<Fault, RuntimeError> {
        let address = self.address((namespace, pod))?;
        self.cut(vec![Cut::From(address), Cut::To(address)]).await
    }

    async fn cut(&self, cuts: Vec<Cut>) -> Result<Fault, RuntimeError> {
        let failed = |source| RuntimeError::Io { what: "cutting the network".to_owned(), source };
        self.0.network.rules.cut(&cuts).await.map_err(failed)?;
        Ok(Fault { network: Arc::clone(&self.0.network), cuts })
    }

    fn pod(&self, namespace: &str, name: &str) -> Result<Arc<Pod>, RuntimeError> {
        let pods = self.0.pods.lock();
        let found = pods.values().find(|pod| pod.name.namespace == namespace && pod.name.name == name);
        found.cloned().ok_or_else(|| {
            let pod = PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: String::new() };
            RuntimeError::NoSandbox(pod)
        })
    }

    fn address(&self, (namespace, name): (&str, &str)) -> Result<Ipv4Addr, RuntimeError> {
        let pod = self.pod(namespace, name)?;
        pod.own_address()
            .ok_or_else(|| RuntimeError::Unsupported(format!("pod {} has the node's network", pod.name)))
    }
}

/// A fault that lasts until it is healed, or until the sandbox ends.
#[must_use = "a fault that is not healed lasts as long as the sandbox"]
pub struct Fault {
    network: Arc<Network>,
    cuts: Vec<Cut>,
}

impl Fault {
    /// Ends the fault.
    pub async fn heal(self) -> Result<(), RuntimeError> {
        let failed = |source| RuntimeError::Io { what: "healing the network".to_owned(), source };
        self.network.rules.heal(&self.cuts).await.map_err(failed)
    }
}

/// Takes the data folder for this process.
fn take(data_dir: &Path) -> Result<Flock<fs::File>, MachineError> {
    let path = data_dir.join("lock");
    let file =
        fs::File::create(&path).map_err(|source| MachineError::DataDir { path: path.clone(), source })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| MachineError::DataDirInUse { path: data_dir.to_owned() })
}

/// Creates the directory and proves that it can be written; returns its absolute path.
fn writable(path: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(path)?;
    let probe = path.join(".writable");
    fs::write(&probe, "")?;
    fs::remove_file(&probe)?;
    fs::canonicalize(path)
}
