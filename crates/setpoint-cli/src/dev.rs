//! `setpoint dev`: an embedded cluster with a kubeconfig for every client on this machine.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures::future::{Either, select, select_all};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use setpoint_apiserver::{OpenError, Serving};
use setpoint_cluster::Cluster;
use setpoint_node::{
    JoinOptions, MachineOptions, ProcessCluster, ProcessNodes, ProxyMode, Sandbox, StartError,
    TemporaryFolder,
};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// Where to listen when nothing else is said: the usual port of an API server.
const DEFAULT_LISTEN: &str = "127.0.0.1:6443";
/// Around a command, any free port will do.
const ANY_PORT: &str = "127.0.0.1:0";
/// How long a command may take to end after a signal.
const GRACE: Duration = Duration::from_secs(10);
/// What shells add to a signal's number for the status of a process that it ended.
const SIGNALLED: i32 = 128;

/// Options of `setpoint dev`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Write the kubeconfig to this file [default: kubeconfig in the data folder].
    #[arg(long, value_name = "FILE", env = "SETPOINT_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,

    /// Where the API server listens [default: 127.0.0.1:6443; with a command: any free port].
    #[arg(long, value_name = "ADDR:PORT", env = "SETPOINT_LISTEN", value_parser = listen_address)]
    listen: Option<SocketAddr>,

    /// What runs the pods: process = real Linux processes in namespaces, hollow = nothing, pods only look as if they ran.
    #[arg(long, value_enum, default_value_t = Nodes::Process, env = "SETPOINT_NODES")]
    nodes: Nodes,

    /// How many nodes there are.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    node_count: u8,

    /// Folder for the cluster's objects, volumes, logs and the kubeconfig: the next start goes on with them [default: a new one in the temporary
    /// folder, removed at the end].
    #[arg(long, value_name = "DIR", env = "SETPOINT_DATA_DIR")]
    data_dir: Option<PathBuf>,

    /// Folder with unpacked root file systems as images, each named NAME_TAG; without it pods run what is installed here.
    #[arg(long, value_name = "DIR", env = "SETPOINT_IMAGES_DIR")]
    images_dir: Option<PathBuf>,

    /// How to say where the cluster is: plain lines, or one JSON object on one line.
    #[arg(long, value_enum, default_value_t = Output::Plain)]
    output: Output,

    /// What to log, in the syntax of tracing's filters.
    #[arg(long, value_name = "FILTER", default_value = "warn", env = "SETPOINT_LOG")]
    log: String,

    /// Run this command with KUBECONFIG set and end with its status. With process nodes it runs inside the cluster's
    /// network, with its names; with hollow nodes like any other program.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Nodes {
    Process,
    Hollow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Plain,
    Json,
}

/// Why the cluster does not run. One line each.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevError {
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen, or any free port with --listen 127.0.0.1:0"
    )]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot use {}: {source}; choose another with {option}", path.display())]
    Unusable { path: PathBuf, option: &'static str, source: io::Error },
    #[error("--log {filter}: {problem}")]
    Log { filter: String, problem: String },
    #[error(transparent)]
    Sandbox(#[from] setpoint_node::EnterError),
    #[error("cannot start the cluster: {0}")]
    Cluster(String),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("{0}")]
    StorageFailed(String),
    #[error("cannot run {command}: {source}")]
    Command { command: String, source: io::Error },
    #[error("the machine refused: {0}")]
    Machine(#[from] io::Error),
}

/// Where volumes, logs and the kubeconfig go.
enum DataFolder {
    /// One that the user named.
    Named(PathBuf),
    /// One that goes away with the process.
    Temporary(TemporaryFolder),
}

impl DataFolder {
    fn make(wanted: Option<&Path>) -> Result<Self, DevError> {
        let unusable =
            |path: PathBuf| move |source| DevError::Unusable { path, option: "--data-dir", source };
        let Some(path) = wanted else {
            let made = TemporaryFolder::create("setpoint").map_err(unusable(std::env::temp_dir()))?;
            return Ok(Self::Temporary(made));
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path).and_then(|()| {
            let probe = path.join(".writable");
            fs::write(&probe, b"")?;
            fs::remove_file(probe)
        });
        made.map_err(unusable(path.to_owned()))?;
        // The command, and whoever reads the announcement, may have another working directory.
        Ok(Self::Named(fs::canonicalize(path).map_err(unusable(path.to_owned()))?))
    }

    /// Whether what is in it is there for the next start.
    fn stays(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Named(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

/// Runs the cluster until it is told to stop or the command has ended.
pub(crate) fn run(options: &Options) -> Result<ExitCode, DevError> {
    let filter = tracing_subscriber::EnvFilter::try_new(&options.log)
        .map_err(|problem| DevError::Log { filter: options.log.clone(), problem: problem.to_string() })?;
    // No colours in files and pipes.
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();

    if let Some(path) = &options.images_dir {
        let unusable = |source| DevError::Unusable { path: path.clone(), option: "--images-dir", source };
        fs::read_dir(path).map_err(unusable)?;
    }
    let data = DataFolder::make(options.data_dir.as_deref())?;
    let address = options
        .listen
        .map_or_else(|| if options.command.is_empty() { DEFAULT_LISTEN } else { ANY_PORT }.parse(), Ok);
    let address = address.map_err(|error: std::net::AddrParseError| io::Error::other(error))?;
    let listener = TcpListener::bind(address).map_err(|source| DevError::Listen { address, source })?;
    let address = listener.local_addr()?;
    let nodes = match options.nodes {
        Nodes::Hollow => Machinery::Hollow(listener),
        // Before any thread exists: the rest runs in a copy of this process.
        Nodes::Process => Machinery::Process(setpoint_node::enter(vec![listener])?),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let code = runtime.block_on(serve(options, &data, address, nodes));
    // The process ends with all of its tasks at once. Taken apart one by one, some would complain about others.
    std::mem::forget(runtime);
    code
}

/// What the nodes are made of.
enum Machinery {
    Hollow(TcpListener),
    Process(Sandbox),
}

/// What stays alive as long as the cluster runs.
struct Running {
    cluster: Cluster,
    _serving: Vec<Serving>,
    /// None with hollow nodes.
    processes: Option<ProcessNodes>,
}

async fn serve(
    options: &Options,
    data: &DataFolder,
    address: SocketAddr,
    nodes: Machinery,
) -> Result<ExitCode, DevError> {
    // From here on a signal ends the cluster in order.
    let mut signals = Signals::catch()?;
    let running = ManuallyDrop::new(start(options, data, nodes).await?);
    let api = running.cluster.api().clone();
    let failed = api.storage_failure();
    match select(pin!(attend(options, data, address, &running, &mut signals)), pin!(failed)).await {
        Either::Left((ended, _)) => ended,
        // What it would still answer are errors.
        Either::Right((problem, _)) => Err(DevError::StorageFailed(problem)),
    }
}

/// Says where the cluster is and waits for a signal, or runs the command.
async fn attend(
    options: &Options,
    data: &DataFolder,
    address: SocketAddr,
    running: &Running,
    signals: &mut Signals,
) -> Result<ExitCode, DevError> {
    // The command, and whoever reads the announcement, may have another working directory.
    let kubeconfig = match &options.kubeconfig {
        Some(path) => std::path::absolute(path)?,
        None => data.path().join("kubeconfig"),
    };
    // What runs inside the sandbox reaches the API server there, wherever else it listens.
    let inside = running.processes.is_some() && !options.command.is_empty();
    let url =
        if inside { format!("https://127.0.0.1:{}", address.port()) } else { format!("https://{address}") };
    let text =
        running.cluster.api().kubeconfig(&url).map_err(|error| DevError::Cluster(error.to_string()))?;
    let unusable = |source| DevError::Unusable { path: kubeconfig.clone(), option: "--kubeconfig", source };
    write_kubeconfig(&kubeconfig, &text).map_err(unusable)?;
    // Where the user named a place, nothing is left that leads to a cluster that is gone.
    let _named = options.kubeconfig.as_ref().map(|_| Written { path: kubeconfig.clone(), text });
    if let Some((program, arguments)) = options.command.split_first() {
        let mut command = Command::new(program);
        command.args(arguments).env("KUBECONFIG", &kubeconfig).kill_on_drop(true);
        if inside && let Err(error) = setpoint_node::use_cluster_names(command.as_std_mut(), data.path()) {
            tracing::warn!(%error, "names of Services are not resolved in the command");
        }
        let command =
            command.spawn().map_err(|source| DevError::Command { command: program.clone(), source })?;
        return around(command, signals).await;
    }
    announce(options, &url, &kubeconfig)?;
    signals.next().await;
    Ok(ExitCode::SUCCESS)
}

async fn start(options: &Options, data: &DataFolder, nodes: Machinery) -> Result<Running, DevError> {
    let failed = |error: &dyn std::fmt::Display| DevError::Cluster(error.to_string());
    let (folder, keep) = (data.path(), data.stays());
    match nodes {
        Machinery::Hollow(listener) => {
            let builder = Cluster::builder().hollow_nodes(options.node_count).data_dir(folder);
            let cluster = builder.keep_objects(keep).start().await.map_err(|error| match error {
                kube::Error::Service(source) => match source.downcast::<OpenError>() {
                    Ok(store) => DevError::Store(*store),
                    Err(source) => failed(&source),
                },
                other => failed(&other),
            })?;
            let serving = cluster.api().serve(listener).map_err(|error| failed(&error))?;
            Ok(Running { cluster, _serving: vec![serving], processes: None })
        }
        Machinery::Process(sandbox) => {
            let machine = MachineOptions {
                data_dir: folder.to_owned(),
                keep_objects: keep,
                images_dir: options.images_dir.clone(),
                proxy_mode: ProxyMode::Nftables,
            };
            let join = JoinOptions { nodes: options.node_count, ..JoinOptions::default() };
            let running = ProcessCluster::start(sandbox, &machine, &join).await;
            let ProcessCluster { cluster, nodes, serving, .. } = running.map_err(|error| match error {
                StartError::Store(store) => DevError::Store(store),
                other => failed(&other),
            })?;
            Ok(Running { cluster, _serving: serving, processes: Some(nodes) })
        }
    }
}

/// The signals that end the cluster.
struct Signals([(Signal, tokio::signal::unix::Signal); 3]);

impl Signals {
    fn catch() -> io::Result<Self> {
        Ok(Self([
            (Signal::SIGINT, signal(SignalKind::interrupt())?),
            (Signal::SIGTERM, signal(SignalKind::terminate())?),
            (Signal::SIGHUP, signal(SignalKind::hangup())?),
        ]))
    }

    /// The next one.
    async fn next(&mut self) -> Signal {
        let arrivals = self.0.iter_mut().map(|(number, arrivals)| {
            Box::pin(async move {
                arrivals.recv().await;
                *number
            })
        });
        select_all(arrivals).await.0
    }
}

/// Waits for the command, whose status is this process's. A signal is passed on to it; a second one kills it, and so does
/// the end of its time.
async fn around(mut command: Child, signals: &mut Signals) -> Result<ExitCode, DevError> {
    let pid = command.id().map(|id| Pid::from_raw(id.cast_signed()));
    let asked = match select(pin!(command.wait()), pin!(signals.next())).await {
        Either::Left((status, _)) => return Ok(status_code(status?)),
        Either::Right((signal, _)) => signal,
    };
    // What is typed at a terminal goes to the command, too, without this process.
    if !(asked == Signal::SIGINT && io::stdin().is_terminal())
        && let Some(pid) = pid
    {
        // It may have ended meanwhile.
        let _ = kill(pid, asked);
    }
    match select(pin!(timeout(GRACE, command.wait())), pin!(signals.next())).await {
        Either::Left((Ok(status), _)) => return Ok(status_code(status?)),
        Either::Left((Err(_), _)) | Either::Right(_) => {}
    }
    command.kill().await?;
    Ok(status_code(command.wait().await?))
}

/// As a shell gives it.
fn status_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn announce(options: &Options, url: &str, kubeconfig: &Path) -> Result<(), DevError> {
    let text = match options.output {
        Output::Json => format!("{}\n", json!({"ready": true, "server": url, "kubeconfig": kubeconfig})),
        Output::Plain => format!(
            "The cluster is ready at {url}. In another terminal:\n  export KUBECONFIG={}\n  kubectl get nodes\nCtrl-C ends it.\n",
            quoted(&kubeconfig.display().to_string())
        ),
    };
    let mut out = io::stdout().lock();
    // At once: a reader that has seen "ready" may close its end.
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// An address in the only form that there is.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "it must be ADDR:PORT with an IP address, such as 127.0.0.1:6443".to_owned())
}

/// A file that goes with the cluster, unless somebody wrote to it meanwhile.
struct Written {
    path: PathBuf,
    text: String,
}

impl Drop for Written {
    fn drop(&mut self) {
        let file = fs::metadata(&self.path).is_ok_and(|metadata| metadata.is_file());
        if file && fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes the kubeconfig, in place of nothing but another one of an embedded cluster: other clusters' access may be all that a file holds.
fn write_kubeconfig(path: &Path, text: &str) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        let there = fs::read(path)?;
        let ours = serde_json::from_slice::<serde_json::Value>(&there)
            .is_ok_and(|config| config["current-context"] == setpoint_apiserver::KUBECONFIG_CONTEXT);
        if !there.is_empty() && !ours {
            return Err(io::Error::other("the file holds something else than a kubeconfig of setpoint"));
        }
    }
    write_private(path, text)
}

/// Writes a file that only its owner can read: it has a token of an administrator.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // An existing file keeps its mode otherwise. /dev/stdout and the like are not ours.
    if file.metadata()?.is_file() {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        assert_eq!(quoted("/tmp/setpoint-x3/kubeconfig"), "/tmp/setpoint-x3/kubeconfig");
        assert_eq!(quoted("/tmp/it's mine/k"), r"'/tmp/it'\''s mine/k'");
    }

    #[test]
    fn an_address_needs_its_port() {
        assert!(listen_address("127.0.0.1:0").is_ok() && listen_address("[::1]:6443").is_ok());
        for text in ["6443", "127.0.0.1", "localhost:6443", ":6443"] {
            assert!(listen_address(text).unwrap_err().contains("ADDR:PORT"), "{text}");
        }
    }
}
