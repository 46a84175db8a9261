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
//! [`enter`] comes first in `main`. Inside, [`Machine`] owns what the nodes share, and each
//! [`ProcessRuntime`] is one node's [`Runtime`](setpoint_cluster::kubelet::Runtime) for the kubelet of
//! `setpoint-cluster`. When the outer process dies, the kernel removes everything.
//!
//! Not there: limits by control groups (a container's memory and CPU limits are not enforced), pulling of
//! images, a way to other machines.
#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    reason = "namespaces, forks and descriptors that change hands: each use says why it is sound"
)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod channel;
mod image;
mod machine;
mod network;
mod pod;
mod protocol;
mod runtime;
mod sandbox;
mod spawn;
mod spawner;
mod tool;

pub use machine::{Fault, Machine, MachineError, MachineOptions};
pub use network::{DNS_ADDRESS, GATEWAY};
pub use runtime::ProcessRuntime;
pub use sandbox::{EnterError, Sandbox, enter, listen};
pub use tool::MissingTool;
