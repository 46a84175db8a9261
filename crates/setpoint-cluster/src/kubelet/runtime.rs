//! What a kubelet needs of a machine: the seam between the pod logic, which is the same on every node, and
//! the thing that runs containers. `HollowRuntime` follows a script; the process
//! runtime of `setpoint-node` starts Linux processes.
//!
//! The kubelet decides, a runtime acts. A runtime knows nothing of the API server, of restart policies,
//! back-off, probes' thresholds or status: it gets complete orders and reports what happened.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;
use tokio::io::{AsyncRead, AsyncWrite};

use super::probe::{self, ProbeAction, ProbeOutcome};
use super::prober::ProbeKind;

/// A machine that runs pods.
///
/// All calls may come at the same time for different pods. For one pod the kubelet keeps this order:
/// [`create_sandbox`](Self::create_sandbox), [`write_volume`](Self::write_volume) for each volume whose
/// files the kubelet provides, then [`start_container`](Self::start_container) in the order of the pod's
/// specification, and at the end, when no container runs any more, [`remove_sandbox`](Self::remove_sandbox).
/// A future that is dropped before it finished must leave nothing that a later `remove_sandbox` would not
/// clean up.
pub trait Runtime: Send + Sync + 'static {
    /// What the machine is, for the Node object.
    fn node_info(&self) -> NodeInfo;

    /// Names of the images that this node can run, for `status.images` of the Node and for the event that
    /// explains `ErrImagePull`.
    fn images(&self) -> Vec<String>;

    /// Makes sure that `image` can be started here; the kubelet calls it before each start.
    fn resolve_image(&self, image: &str) -> impl Future<Output = Result<Image, ImageError>> + Send;

    /// What a pod asks for that has no effect on this machine: a sentence each that names the field. The kubelet records it as
    /// an event of the pod, which runs nevertheless. The provided implementation is for runtimes that have everything.
    fn without_effect(&self, _pod: &PodSpec) -> Vec<String> {
        Vec::new()
    }

    /// Makes the pod's shared part: namespaces, address, host name, name resolution, and the volumes'
    /// directories (those of [`VolumeSource::Files`] empty for now). Calling it again for a pod whose
    /// sandbox exists gives the same sandbox; for one whose sandbox [has ended](Self::sandbox_ended) a new one, with the
    /// volumes and logs of before.
    fn create_sandbox(
        &self,
        config: &SandboxConfig,
    ) -> impl Future<Output = Result<Sandbox, RuntimeError>> + Send;

    /// Waits until the pod's sandbox has ended by itself, and everything in it with it: its first process was killed.
    /// Known at once when [`wait`](Self::wait) reports a container that this ended. Goes on waiting for
    /// one that is removed in order or not there. The provided implementation is for runtimes whose sandboxes last.
    fn sandbox_ended(&self, _pod: &PodRef) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Kills what still runs in the sandbox and removes it with its containers, their logs and its emptyDir
    /// and file volumes; directories of persistent volumes stay. A sandbox that does not exist is no error.
    fn remove_sandbox(&self, pod: &PodRef) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Gives the files of a [`VolumeSource::Files`] volume: all of them, each time. Readers in containers
    /// must see either all old or all new files (the `..data` link of upstream's AtomicWriter;
    /// [`VolumeStore`](super::VolumeStore) does this).
    fn write_volume(
        &self,
        pod: &PodRef,
        volume: &str,
        files: &VolumeFiles,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Starts a container in the pod's sandbox and returns once its process runs.
    fn start_container(
        &self,
        pod: &PodRef,
        spec: &ContainerSpec,
    ) -> impl Future<Output = Result<ContainerId, RuntimeError>> + Send;

    /// Waits until the container has exited, by itself or by a signal. Returns at once for one that already
    /// has; the exit is remembered until [`remove_container`](Self::remove_container).
    fn wait(&self, container: &ContainerId) -> impl Future<Output = Result<Exit, RuntimeError>> + Send;

    /// Sends a signal to the container's first process; [`Signal::Kill`] ends all of its processes. A
    /// container that has already exited is no error.
    fn signal(
        &self,
        container: &ContainerId,
        signal: Signal,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Forgets an exited container and its log. The kubelet keeps the newest exited one of each name for
    /// `kubectl logs --previous`.
    fn remove_container(
        &self,
        container: &ContainerId,
    ) -> impl Future<Output = Result<(), RuntimeError>> + Send;

    /// Runs a command inside the container (its namespaces, environment, user and working directory).
    /// Dropping the session kills the command.
    fn exec(
        &self,
        container: &ContainerId,
        request: &ExecRequest,
    ) -> impl Future<Output = Result<ExecSession, RuntimeError>> + Send;

    /// Connects to the container: what it writes from now on, byte by byte, and with `stdin` its standard input, if it was
    /// [given one](ContainerSpec::stdin). The session's exit resolves with 0 when the container ends; dropping the session leaves the container alone.
    fn attach(
        &self,
        container: &ContainerId,
        stdin: bool,
    ) -> impl Future<Output = Result<ExecSession, RuntimeError>> + Send;

    /// What the container wrote to its standard output and error, as whole lines (the last may be partial).
    fn logs(
        &self,
        container: &ContainerId,
        options: &LogOptions,
    ) -> impl Future<Output = Result<LogStream, RuntimeError>> + Send;

    /// Opens a TCP connection from the node's side of the pod network, for probes and port-forward.
    fn dial(&self, address: SocketAddr) -> impl Future<Output = io::Result<Connection>> + Send;

    /// Runs one probe; the time limit is the kubelet's. The provided implementation uses
    /// [`exec`](Self::exec) and [`dial`](Self::dial); only runtimes without real processes replace it.
    fn probe(
        &self,
        container: &ContainerId,
        _kind: ProbeKind,
        action: &ProbeAction,
    ) -> impl Future<Output = ProbeOutcome> + Send
    where
        Self: Sized,
    {
        probe::run(self, container, action)
    }
}

/// Names a pod and the one life of it that is meant: a pod of the same name with another UID is another pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// `metadata.uid` of the pod.
    pub uid: String,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Names one run of a container in the form of `containerStatuses[].containerID`: `scheme://id`, where the
/// scheme is the runtime's name. A restart gives a new id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(pub String);

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Facts for the Node object.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeInfo {
    /// Capacity in whole and thousandth CPUs.
    pub cpu_millis: u64,
    /// Capacity of memory in bytes.
    pub memory_bytes: u64,
    /// How many pods may run here; upstream's default is 110.
    pub pods: u64,
    /// The node's own addresses (InternalIP).
    pub addresses: Vec<IpAddr>,
    /// `status.nodeInfo.kernelVersion`, such as `6.1.0`.
    pub kernel_version: String,
    /// `status.nodeInfo.osImage`, such as `Debian GNU/Linux 12 (bookworm)`.
    pub os_image: String,
    /// `status.nodeInfo.containerRuntimeVersion`, in the form `name://version`.
    pub runtime_version: String,
}

/// An image as the runtime found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The name under which this node knows it, for `containerStatuses[].image`.
    pub name: String,
    /// What identifies its content, for `containerStatuses[].imageID`.
    pub id: String,
}

/// Why an image cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    /// The name is not an image reference (waiting reason `InvalidImageName`).
    #[error("couldn't parse image name {image:?}: {message}")]
    Invalid {
        /// The name as given.
        image: String,
        /// What is wrong with it.
        message: String,
    },
    /// Nothing on this node provides it (waiting reason `ErrImagePull`).
    #[error("{message}")]
    NotFound {
        /// The name as given.
        image: String,
        /// Why not, and what would provide it.
        message: String,
    },
}

/// What [`Runtime::create_sandbox`] gets.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxConfig {
    /// The pod.
    pub pod: PodRef,
    /// Host name of the pod: `spec.hostname`, else the pod's name, at most 63 characters.
    pub hostname: String,
    /// Fully qualified host name (`hostname.subdomain.namespace.svc.cluster.local`) when the pod has a
    /// subdomain; it stands before the short name in `/etc/hosts`.
    pub fqdn: Option<String>,
    /// Whether `hostname(1)` gives the FQDN (`spec.setHostnameAsFQDN`).
    pub hostname_is_fqdn: bool,
    /// Content of `/etc/resolv.conf`.
    pub dns: DnsConfig,
    /// Further lines of `/etc/hosts` (`spec.hostAliases`).
    pub hosts: Vec<(String, Vec<String>)>,
    /// Whether the pod uses the node's network (`spec.hostNetwork`).
    pub host_network: bool,
    /// Whether containers see each other's processes.
    pub share_process_namespace: bool,
    /// Group that owns the volumes' files (`securityContext.fsGroup`).
    pub fs_group: Option<i64>,
    /// The pod's volumes in the order of its specification.
    pub volumes: Vec<Volume>,
}

/// Name resolution of a pod, worked out from `dnsPolicy`, `dnsConfig` and the cluster's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of name servers; none together with `host` means the machine's own.
    pub nameservers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options such as `ndots:5`.
    pub options: Vec<String>,
    /// Use the machine's own configuration (`dnsPolicy: Default`) and add the above to it.
    pub host: bool,
}

/// One volume of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// `spec.volumes[].name`.
    pub name: String,
    /// Where its files are.
    pub source: VolumeSource,
}

/// Where a volume's files are.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeSource {
    /// Files that the kubelet gives with [`Runtime::write_volume`]: ConfigMap, Secret, downward API and
    /// projected volumes.
    Files,
    /// An empty directory that lives as long as the pod.
    EmptyDir {
        /// Keep it in memory (`medium: Memory`).
        memory: bool,
        /// Largest size in bytes.
        size_limit: Option<u64>,
    },
    /// The directory of a persistent volume; the runtime creates it if it does not exist.
    Persistent {
        /// Name of the PersistentVolume.
        name: String,
        /// Its directory on this machine.
        path: PathBuf,
        /// Its capacity in bytes.
        capacity: Option<u64>,
        /// Whether writes are refused.
        read_only: bool,
    },
    /// A path of the machine itself.
    HostPath {
        /// The path.
        path: PathBuf,
        /// `hostPath.type`, such as `DirectoryOrCreate`; empty = no check.
        kind: String,
    },
}

/// All files of a [`VolumeSource::Files`] volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFiles {
    /// Path inside the volume (relative, with `/`, without `..`) to file.
    pub files: BTreeMap<String, VolumeFile>,
    /// Group that owns the files (`fsGroup`); owner is the node's own user.
    pub group: Option<i64>,
}

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Content.
    pub data: Bytes,
    /// Permission bits, such as `0o644`.
    pub mode: u32,
    /// Owner (`runAsUser`; only for projected service account tokens), else the node's own user.
    pub user: Option<i64>,
}

impl fmt::Debug for VolumeFile {
    /// Without the content, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeFile({} bytes, mode {:o})", self.data.len(), self.mode)
    }
}

/// What [`Runtime::create_sandbox`] gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Addresses of the pod (`status.podIPs`), the first is `status.podIP`.
    pub addresses: Vec<IpAddr>,
}

/// What [`Runtime::start_container`] gets: everything is worked out, nothing refers to other objects.
#[derive(Clone, PartialEq)]
pub struct ContainerSpec {
    /// Name of the container in its pod.
    pub name: String,
    /// How many runs of this container there were before, starting with 0.
    pub attempt: u32,
    /// Image as resolved.
    pub image: Image,
    /// Replaces the image's entry point unless empty. `$(VAR)` is already expanded.
    pub command: Vec<String>,
    /// Arguments; with an empty `command` they follow the image's entry point.
    pub args: Vec<String>,
    /// Environment, in order, without what the image adds (`PATH`, `HOME`; `HOSTNAME` is included here).
    pub env: Vec<(String, String)>,
    /// Working directory; none = the image's.
    pub working_dir: Option<String>,
    /// Volume mounts in the order of the specification.
    pub mounts: Vec<Mount>,
    /// Numeric user; none = the image's.
    pub user: Option<i64>,
    /// Numeric group; none = the image's.
    pub group: Option<i64>,
    /// Supplementary groups, with `fsGroup`.
    pub groups: Vec<i64>,
    /// Mount the root file system read-only.
    pub read_only_root: bool,
    /// Capabilities to drop (`ALL` for all) and to add, without `CAP_`.
    pub drop_capabilities: Vec<String>,
    /// Capabilities to add after dropping.
    pub add_capabilities: Vec<String>,
    /// Whether a process may gain more rights than its parent (`allowPrivilegeEscalation`).
    pub allow_privilege_escalation: bool,
    /// Largest memory in bytes.
    pub memory_limit: Option<u64>,
    /// CPU limit in thousandths.
    pub cpu_limit_millis: Option<u64>,
    /// Give it a standard input, for who attaches to it; else it reads the end of a file (`stdin: true`).
    pub stdin: bool,
    /// Close its standard input when the first who was attached to it has gone (`stdinOnce: true`).
    pub stdin_once: bool,
    /// Give it a terminal (`tty: true`).
    pub tty: bool,
    /// File inside the container whose content becomes [`Exit::message`]; upstream's default is
    /// `/dev/termination-log`.
    pub termination_message_path: String,
    /// Use the end of the log as message when the file is empty and the exit was an error.
    pub termination_message_from_log: bool,
}

impl fmt::Debug for ContainerSpec {
    /// Without the environment, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSpec")
            .field("name", &self.name)
            .field("attempt", &self.attempt)
            .field("image", &self.image.name)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// One volume mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Name of the pod's volume.
    pub volume: String,
    /// Where in the container.
    pub path: String,
    /// A path below the volume's root to mount instead of the root (`subPath`, expanded); such mounts of
    /// files are not refreshed.
    pub sub_path: Option<String>,
    /// Refuse writes.
    pub read_only: bool,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + signal for one that was killed.
    pub code: i32,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// Whether the kernel killed it for its memory limit.
    pub out_of_memory: bool,
    /// Termination message (at most 4 KiB).
    pub message: Option<String>,
    /// When.
    pub finished_at: Timestamp,
}

/// Signals that a kubelet and tests send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Term,
    /// SIGKILL, to every process of the container.
    Kill,
    /// SIGSTOP, to every process of the container (a fault of tests).
    Stop,
    /// SIGCONT, to every process of the container.
    Continue,
    /// Another signal by number (`lifecycle.stopSignal`).
    Other(i32),
}

/// A command to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// Program and arguments; no shell.
    pub command: Vec<String>,
    /// Give it a terminal: standard error goes to standard output.
    pub tty: bool,
    /// Connect standard input.
    pub stdin: bool,
}

/// A running command or container. All streams end when it does.
pub struct ExecSession {
    /// Standard input, if asked for; dropping it closes it.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// Standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// Standard error; none with a terminal.
    pub stderr: Option<Pin<Box<dyn AsyncRead + Send>>>,
    /// Takes new sizes of the terminal; none without one.
    pub resize: Option<tokio::sync::mpsc::Sender<TerminalSize>>,
    /// Gives the exit code (128 + signal for one that was killed).
    pub exit: BoxFuture<'static, Result<i32, RuntimeError>>,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// Which part of a log, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on until the container has exited.
    pub follow: bool,
    /// Only the last lines.
    pub tail_lines: Option<usize>,
    /// Only lines written at or after this time.
    pub since: Option<Timestamp>,
    /// Put the time (RFC 3339, nanoseconds) and a space before each line.
    pub timestamps: bool,
    /// End after so many bytes.
    pub limit_bytes: Option<u64>,
}

/// Pieces of a log.
pub type LogStream = BoxStream<'static, io::Result<Bytes>>;

/// A byte stream both ways.
pub type Connection = Pin<Box<dyn Duplex>>;

/// What a [`Connection`] can do; implemented for every such stream.
pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// Why a runtime could not do something.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The container was never started or is already removed.
    #[error("container {0} does not exist on this node")]
    NoContainer(ContainerId),
    /// The pod has no sandbox.
    #[error("pod {0} has no sandbox on this node")]
    NoSandbox(PodRef),
    /// The container has exited, so that nothing can run in it.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// The command cannot be started (not found, not executable, unknown user, missing directory). A
    /// container then counts as exited with this code (127 not found, 126 not executable, 128 otherwise).
    #[error("{message}")]
    CannotStart {
        /// Which command, and why.
        message: String,
        /// Exit code that a shell would give.
        code: i32,
    },
    /// This runtime does not have the feature.
    #[error("this node cannot do that: {0}")]
    Unsupported(String),
    /// The machine refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on which path.
        what: String,
        /// The machine's answer.
        source: io::Error,
    },
}
