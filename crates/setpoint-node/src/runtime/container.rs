//! A container: from the kubelet's order to a running process, and to its end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use setpoint_cluster::kubelet::{ContainerId, ContainerSpec, Exit, RuntimeError, Signal};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::attach::Input;
use super::log::{self, Log, Stream};
use super::terminal::{self, Terminal};
use super::volumes::{LOGS, MESSAGES, ROOTS};
use super::{Pod, files, pod, volumes};
use crate::image::Provided;
use crate::machine::Shared;
use crate::pod::capabilities;
use crate::protocol::{CommandSetup, MountSetup, RootSetup, RootSource};
use crate::spawner::Process;

/// Upstream's limit of a termination message.
const MESSAGE_LIMIT: usize = 4096;

/// Lines of the log that become a message (upstream: 80 lines or 2 KiB).
const MESSAGE_LOG_LIMIT: usize = 2048;

/// How long an exit waits for the rest of the log: pipes end with the processes that hold them.
const LOG_DRAIN: Duration = Duration::from_millis(500);

/// What a container finds in `PATH` unless its image or specification says something else.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A started container.
pub(super) struct Container {
    pub(super) pod: Arc<Pod>,
    pub(super) process: Process,
    pub(super) log: Arc<Log>,
    /// What it runs, for commands that join it.
    pub(super) command: CommandSetup,
    pub(super) input: Input,
    pub(super) exit: watch::Receiver<Option<Exit>>,
    root: PathBuf,
    message: PathBuf,
}

impl Container {
    pub(super) async fn start(
        shared: &Shared,
        pod: Arc<Pod>,
        spec: &ContainerSpec,
        id: &ContainerId,
    ) -> Result<Self, RuntimeError> {
        let provided = shared.images.get(&spec.image.name).ok_or_else(|| {
            RuntimeError::Unsupported(format!("image {:?} is not on this node", spec.image.name))
        })?;
        let command = command(shared, &pod, spec, provided)?;
        let file_name = id.0.rsplit('/').next().unwrap_or(&id.0);
        let root = pod.directory.join(ROOTS).join(file_name);
        let message = pod.directory.join(MESSAGES).join(file_name);
        let failed = |path: &Path| {
            let what = path.display().to_string();
            move |source| RuntimeError::Io { what, source }
        };
        fs::create_dir_all(&root).map_err(failed(&root))?;
        fs::write(&message, "").map_err(failed(&message))?;
        fs::set_permissions(&message, fs::Permissions::from_mode(0o666)).map_err(failed(&message))?;
        let log_path = pod.directory.join(LOGS).join(format!("{file_name}.log"));
        let log = Arc::new(Log::create(log_path.clone(), shared.clock).map_err(failed(&log_path))?);
        let setup = root_setup(&pod, spec, provided, &command, &root, &message)?;

        let streams = |source| RuntimeError::Io { what: "standard streams".to_owned(), source };
        let mut readers = JoinSet::new();
        let mut input = Input::Nothing;
        let process = if spec.tty {
            let (socket, theirs) = terminal::offer().map_err(streams)?;
            let process = pod.process.start(setup, command.clone(), &[theirs.as_fd()]).await?;
            drop(theirs);
            let terminal = Terminal::accept(&socket).map_err(streams)?;
            input = Input::Terminal { terminal: terminal.clone(), read: spec.stdin };
            readers.spawn(log::copy(terminal, Arc::clone(&log), Stream::Stdout));
            process
        } else {
            let stdin: OwnedFd = if spec.stdin {
                let (theirs, ours) = io::pipe().map_err(streams)?;
                input = Input::pipe(ours, spec.stdin_once);
                theirs.into()
            } else {
                fs::File::open("/dev/null").map_err(streams)?.into()
            };
            let (stdout, their_stdout) = io::pipe().map_err(streams)?;
            let (stderr, their_stderr) = io::pipe().map_err(streams)?;
            let theirs = [stdin.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
            let process = pod.process.start(setup, command.clone(), &theirs).await?;
            for (reader, stream) in [(stdout, Stream::Stdout), (stderr, Stream::Stderr)] {
                let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader)).map_err(streams)?;
                readers.spawn(log::copy(reader, Arc::clone(&log), stream));
            }
            process
        };
        pod.newest.lock().insert(spec.name.clone(), process.clone());
        let (sender, exit) = watch::channel(None);
        let ending = Ending {
            process: process.clone(),
            readers,
            log: Arc::clone(&log),
            message: message.clone(),
            from_log: spec.termination_message_from_log,
            clock: shared.clock,
        };
        tokio::spawn(async move { sender.send_replace(Some(ending.wait().await)) });
        Ok(Self { pod, process, log, command, input, exit, root, message })
    }

    /// How it ended; none only when the machine shuts down.
    pub(super) async fn wait(&self) -> Option<Exit> {
        let mut exit = self.exit.clone();
        exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone())
    }

    pub(super) async fn signal(&self, signal: Signal) -> Result<(), RuntimeError> {
        pod::send(&self.process, signal).await
    }

    /// Removes what it left on disk.
    pub(super) fn remove(&self) {
        self.log.remove();
        let _ = fs::remove_dir(&self.root);
        let _ = fs::remove_file(&self.message);
    }
}

/// What is needed to report an exit.
struct Ending {
    process: Process,
    readers: JoinSet<()>,
    log: Arc<Log>,
    message: PathBuf,
    from_log: bool,
    clock: setpoint_clock::Clock,
}

impl Ending {
    async fn wait(mut self) -> Exit {
        let ended = self.process.wait().await;
        let finished_at = self.clock.now();
        let drained = async { while self.readers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LOG_DRAIN, drained).await;
        self.log.close();
        let mut message = fs::read(&self.message).unwrap_or_default();
        message.truncate(MESSAGE_LIMIT);
        if message.is_empty() && self.from_log && ended.code != 0 {
            message = self.log.end(MESSAGE_LOG_LIMIT);
        }
        Exit {
            code: ended.code,
            signal: ended.signal,
            out_of_memory: false,
            message: (!message.is_empty()).then(|| String::from_utf8_lossy(&message).into_owned()),
            finished_at,
        }
    }
}

/// Works out what is run, and as whom.
fn command(
    shared: &Shared,
    pod: &Pod,
    spec: &ContainerSpec,
    provided: &Provided,
) -> Result<CommandSetup, RuntimeError> {
    let config = &provided.config;
    let mut arguments = spec.command.clone();
    if arguments.is_empty() {
        arguments.clone_from(&config.entrypoint);
        arguments.extend(if spec.args.is_empty() { config.cmd.clone() } else { spec.args.clone() });
    } else {
        arguments.extend(spec.args.iter().cloned());
    }
    let set =
        capabilities(&spec.drop_capabilities, &spec.add_capabilities).map_err(RuntimeError::Unsupported)?;
    let number = |what: &str, id: i64| {
        u32::try_from(id).map_err(|_| RuntimeError::Unsupported(format!("{what} {id} is not a valid id")))
    };
    let (mut user, mut group, mut groups) = (0, 0, None);
    if shared.all_users {
        user = spec.user.map_or(Ok(config.user), |id| number("runAsUser", id))?;
        group = match spec.group {
            Some(id) => number("runAsGroup", id)?,
            None if provided.source == RootSource::Host => files::primary_group(user),
            None => 0,
        };
        groups = Some(spec.groups.iter().map(|id| number("group", *id)).collect::<Result<_, _>>()?);
    }
    Ok(CommandSetup {
        arguments,
        environment: environment(pod, spec, provided),
        directory: spec
            .working_dir
            .as_ref()
            .map(PathBuf::from)
            .or_else(|| config.working_dir.clone())
            .unwrap_or_else(|| PathBuf::from("/")),
        user,
        group,
        groups,
        capabilities: set,
        no_new_privileges: !spec.allow_privilege_escalation,
        terminal: spec.tty,
    })
}

/// Nothing of this process's own environment; later entries win.
fn environment(pod: &Pod, spec: &ContainerSpec, provided: &Provided) -> Vec<(String, String)> {
    let mut environment =
        vec![("PATH".to_owned(), PATH.to_owned()), ("HOSTNAME".to_owned(), pod.hostname.clone())];
    if provided.source == RootSource::Host {
        environment.push(("LC_ALL".to_owned(), "C".to_owned()));
    }
    if spec.tty {
        environment.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let image = provided.config.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    for (name, value) in image.chain(spec.env.iter().cloned()) {
        environment.retain(|(existing, _)| *existing != name);
        environment.push((name, value));
    }
    environment
}

fn root_setup(
    pod: &Pod,
    spec: &ContainerSpec,
    provided: &Provided,
    command: &CommandSetup,
    root: &Path,
    message: &Path,
) -> Result<RootSetup, RuntimeError> {
    let mut files = pod.files.clone();
    if provided.source == RootSource::Host {
        files.extend(files::users(command.user, command.group));
    }
    let mut mounts = Vec::new();
    for mount in &spec.mounts {
        let volume = pod.volume(&mount.volume)?;
        let source = match mount.sub_path.as_deref().filter(|path| !path.is_empty()) {
            Some(sub_path) => volumes::below(&volume, sub_path)?,
            None => volume,
        };
        mounts.push(MountSetup { source, target: PathBuf::from(&mount.path), read_only: mount.read_only });
    }
    if !spec.termination_message_path.is_empty() {
        let target = PathBuf::from(&spec.termination_message_path);
        mounts.push(MountSetup { source: message.to_owned(), target, read_only: false });
    }
    Ok(RootSetup {
        at: root.to_owned(),
        source: provided.source.clone(),
        read_only: spec.read_only_root,
        files,
        mounts,
    })
}
