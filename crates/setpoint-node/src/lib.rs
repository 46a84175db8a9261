//! Process nodes: pods as Linux processes in namespaces of their own. The one crate with unsafe code.
//!
//! ```text
//! outside │ inside the sandbox: user (unless root), mount, network, process id, IPC and host name namespaces
//!         │
//! enter ──┼─▶ first process ──▶ main process: API server, controllers, kubelets, DNS
//! (waits) │   reaps, makes pods      │ asks for pods          │ nft: Service addresses
//!         │        │                 ▼                        ▼
//!         │        └──▶ pod's first process ── veth ── bridge setpoint0 10.244.0.1/16
//!         │             starts containers and commands: own mount and process id namespaces,
//!         │             root file system, user, capabilities
//! ```
//!
//! [`enter`] comes first in `main`. Inside, [`ProcessCluster::start`] puts a cluster together. Its parts can be had one
//! by one: [`Machine`] owns what the nodes share, [`Machine::join`] adds nodes to a cluster, each with a
//! [`ProcessRuntime`] as its kubelet's [`Runtime`](setpoint_cluster::kubelet::Runtime). When the outer process dies,
//! the kernel removes everything; a [`TemporaryFolder`] goes with it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use setpoint_node::{JoinOptions, MachineOptions, ProcessCluster, TemporaryFolder};
//!
//! let folder = TemporaryFolder::create("example")?;
//! let sandbox = setpoint_node::enter(vec![setpoint_node::listen("127.0.0.1:6443".parse()?)?])?;
//! tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
//!     let options = MachineOptions::new(folder.path());
//!     let running = ProcessCluster::start(sandbox, &options, &JoinOptions::default()).await?;
//!     let client = running.cluster.client();
//!     // Work, and wait.
//!     # drop(client);
//!     Ok(())
//! })
//! # }
//! ```
//!
//! Not there: limits by control groups (a container's memory and CPU limits are not enforced), seccomp profiles, a
//! shared process namespace (refused), device nodes through `hostPath`, host ports, session affinity of Services,
//! pulling of images, a way to other machines. Established connections to an endpoint that is no longer ready go on, as
//! with kube-proxy. Without a mapping of further user ids (an ordinary user's sandbox) every container runs as the
//! one user that there is, with the capabilities that its specification leaves it.
#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    reason = "namespaces, forks and descriptors that change hands: each use says why it is sound"
)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod channel;
mod cluster_names;
mod image;
mod join;
mod machine;
mod network;
mod pod;
mod process_cluster;
mod protocol;
mod runtime;
mod sandbox;
mod spawn;
mod spawner;
mod temporary;
mod tool;

pub use cluster_names::use_cluster_names;
pub use join::{JoinError, JoinOptions, ProcessNodes};
pub use machine::{Fault, Machine, MachineError, MachineOptions, ProxyMode};
pub use network::{DNS_ADDRESS, GATEWAY};
pub use process_cluster::{ProcessCluster, StartError};
pub use runtime::ProcessRuntime;
pub use sandbox::{EnterError, Sandbox, enter, listen};
pub use temporary::TemporaryFolder;
pub use tool::MissingTool;
