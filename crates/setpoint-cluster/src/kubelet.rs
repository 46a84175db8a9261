//! The kubelet: everything about pods on a node that does not depend on how a container is run.

mod probe;
mod runtime;
#[cfg(unix)]
mod volume_store;

pub use probe::{ProbeAction, ProbeOutcome, command_output, run as run_probe};
pub use runtime::{
    Connection, ContainerId, ContainerSpec, DnsConfig, Duplex, ExecRequest, ExecSession, Exit, Image,
    ImageError, LogOptions, LogStream, Mount, NodeInfo, PodRef, Runtime, RuntimeError, Sandbox,
    SandboxConfig, Signal, TerminalSize, Volume, VolumeFile, VolumeFiles, VolumeSource,
};
#[cfg(unix)]
pub use volume_store::VolumeStore;
