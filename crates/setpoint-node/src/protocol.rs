//! What the main process asks of the small processes: of the sandbox's first one to make a pod, of a pod's
//! first one to start, signal and report processes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// To the sandbox's first process. Carries the pod's end of a channel.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpawnerRequest {
    /// Make namespaces for a pod, with a first process that serves the channel.
    CreatePod {
        /// Share the network of the sandbox instead of getting an own one.
        host_network: bool,
    },
}

/// From the sandbox's first process, one for each request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpawnerReply {
    /// The pod's first process, as the main process numbers processes.
    Created { pid: i32 },
    /// The kernel refused.
    Failed { message: String },
}

/// To a pod's first process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum PodRequest {
    /// Set the host name and configure the network. Answered by `SetUp` or `SetupFailed`.
    SetUp(PodSetup),
    /// Start a container's first process. Carries its standard input, output and error; for a terminal one
    /// socket, over which the terminal's other side comes back. Answered by `Started` or `StartFailed`.
    Start { process: u64, root: Box<RootSetup>, command: Box<CommandSetup> },
    /// Start a command inside a running container; otherwise as `Start`.
    Exec { process: u64, container: u64, command: Box<CommandSetup> },
    /// Send a signal to a process, or to all processes of its container.
    Signal { process: u64, signal: i32, all: bool },
}

/// From a pod's first process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum PodEvent {
    /// Answer to `SetUp`.
    SetUp,
    /// Answer to `SetUp`.
    SetupFailed { message: String },
    /// The process's program runs.
    Started { process: u64 },
    /// The program does not run; `code` as a shell gives it.
    StartFailed { process: u64, code: i32, message: String },
    /// The process has ended.
    Exited { process: u64, code: i32, signal: Option<i32> },
}

/// The pod's own name and address.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PodSetup {
    /// Host name.
    pub(crate) hostname: String,
    /// Input for `ip -batch -` inside the pod's network namespace.
    pub(crate) network: Option<String>,
    /// Path of the `ip` program.
    pub(crate) ip: PathBuf,
}

/// A container's root file system.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RootSetup {
    /// An empty directory to mount it on, outside.
    pub(crate) at: PathBuf,
    /// What is in it.
    pub(crate) source: RootSource,
    /// Refuse writes to it (not to volumes).
    pub(crate) read_only: bool,
    /// Files to write into it: path and content.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Volumes and single files to bind into it.
    pub(crate) mounts: Vec<MountSetup>,
}

/// Where a root file system comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RootSource {
    /// The machine's own programs and libraries, without its configuration and data.
    Host,
    /// An unpacked root file system; writes go to memory.
    Directory(PathBuf),
}

/// One bind mount.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MountSetup {
    /// A file or directory outside.
    pub(crate) source: PathBuf,
    /// Where it appears inside.
    pub(crate) target: PathBuf,
    /// Refuse writes.
    pub(crate) read_only: bool,
}

/// A command and the rights with which it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommandSetup {
    /// Program and arguments.
    pub(crate) arguments: Vec<String>,
    /// The whole environment; `HOME` is added from the container's `/etc/passwd` unless set.
    pub(crate) environment: Vec<(String, String)>,
    /// Working directory.
    pub(crate) directory: PathBuf,
    /// User.
    pub(crate) user: u32,
    /// Group.
    pub(crate) group: u32,
    /// Supplementary groups; none where the kernel does not allow to set them.
    pub(crate) groups: Option<Vec<u32>>,
    /// Capabilities that stay, as a bit set.
    pub(crate) capabilities: u64,
    /// Set the no_new_privs bit.
    pub(crate) no_new_privileges: bool,
    /// Run on a new terminal.
    pub(crate) terminal: bool,
}
