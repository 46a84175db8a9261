//! The kubelet: everything about pods on a node that does not depend on how a container is run.

mod agent;
mod backoff;
mod container;
mod environment;
mod hook;
mod node;
mod orders;
mod pod;
mod pod_status;
mod probe;
mod prober;
mod runtime;
mod sources;
#[cfg(unix)]
mod volume_store;
mod volumes;
mod worker;

pub(crate) use agent::Agent;
pub(crate) use container::seconds;
pub use node::{Node, NodeConfig, NotThere};
pub use orders::ClusterDns;
pub use probe::{ProbeAction, ProbeOutcome, command_output, run as run_probe};
pub use prober::ProbeKind;
pub use runtime::{
    Connection, ContainerId, ContainerSpec, DnsConfig, Duplex, ExecRequest, ExecSession, Exit, Image,
    ImageError, LogOptions, LogStream, Mount, NodeInfo, PodRef, Runtime, RuntimeError, Sandbox,
    SandboxConfig, Signal, TerminalSize, Volume, VolumeFile, VolumeFiles, VolumeSource,
};
#[cfg(unix)]
pub use volume_store::VolumeStore;
