//! The main process's side of pods: asks the sandbox's first process for a pod, and the pod's first process
//! for what happens in it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use setpoint_cluster::kubelet::RuntimeError;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use crate::channel::{self, Channel};
use crate::protocol::{
    CommandSetup, PodEvent, PodRequest, PodSetup, RootSetup, SpawnerReply, SpawnerRequest,
};

/// Asks the sandbox's first process.
pub(crate) struct Spawner(tokio::sync::Mutex<Channel>);

impl Spawner {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(tokio::sync::Mutex::new(Channel::new(socket)?)))
    }

    /// Makes a pod's namespaces and its first process.
    pub(crate) async fn create_pod(&self, host_network: bool) -> Result<PodProcess, RuntimeError> {
        let failed = |source| RuntimeError::Io { what: "making the pod's namespaces".to_owned(), source };
        let (ours, theirs) = channel::pair().map_err(failed)?;
        let channel = self.0.lock().await;
        channel.send(&SpawnerRequest::CreatePod { host_network }, &[theirs.as_fd()]).await.map_err(failed)?;
        let reply = channel.receive().await.map_err(failed)?;
        match reply {
            Some((SpawnerReply::Created { pid }, _)) => PodProcess::new(pid, ours).map_err(failed),
            Some((SpawnerReply::Failed { message }, _)) => Err(failed(io::Error::other(message))),
            None => Err(failed(io::Error::other("the sandbox's first process is gone"))),
        }
    }
}

/// How a process ended: exit code as a shell gives it, and the signal that killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
}

/// What is known of one process of a pod.
struct Entry {
    started: Option<oneshot::Sender<Result<(), RuntimeError>>>,
    ended: watch::Sender<Option<Ended>>,
}

#[derive(Default)]
struct Events {
    set_up: Option<oneshot::Sender<Result<(), String>>>,
    processes: BTreeMap<u64, Entry>,
    gone: bool,
}

/// A pod's first process, and with it the whole pod: dropping this kills everything in it.
pub(crate) struct PodProcess {
    /// As this process numbers processes.
    pub(crate) pid: i32,
    handle: OwnedFd,
    channel: Arc<Channel>,
    events: Arc<Mutex<Events>>,
    /// True once the first process is gone.
    gone: watch::Receiver<bool>,
    reader: JoinHandle<()>,
    next: AtomicU64,
}

impl Drop for PodProcess {
    fn drop(&mut self) {
        self.kill();
        self.reader.abort();
    }
}

impl PodProcess {
    fn new(pid: i32, socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: a system call that makes a new descriptor, which gets its one owner below. The process is
        // alive: it ends only when the other end of `socket` closes.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, libc::O_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: see above.
        let handle = unsafe { OwnedFd::from_raw_fd(raw as RawFd) };
        let channel = Arc::new(Channel::new(socket)?);
        let events = Arc::new(Mutex::new(Events::default()));
        let (sender, gone) = watch::channel(false);
        let reader = tokio::spawn(read_events(Arc::clone(&channel), Arc::clone(&events), sender));
        Ok(Self { pid, handle, channel, events, gone, reader, next: AtomicU64::new(1) })
    }

    /// Whether the first process is gone, and everything in the pod with it.
    pub(crate) fn has_ended(&self) -> bool {
        *self.gone.borrow()
    }

    /// Waits until the first process is gone.
    pub(crate) async fn ended(&self) {
        let mut gone = self.gone.clone();
        // The sender is dropped only after it has said so, or together with this.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    fn kill(&self) {
        // SAFETY: a system call without pointers (no signal information is given).
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.handle.as_raw_fd(),
                libc::SIGKILL,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
    }

    /// Kills everything in the pod and waits until the kernel has removed it.
    pub(crate) async fn end(&self) -> io::Result<()> {
        self.kill();
        // SAFETY: `self` keeps the descriptor open for longer than this function waits for it.
        let handle = unsafe { AsyncFd::register_with_interest(self.handle.as_fd(), Interest::READABLE) }?;
        let _ = handle.readable().await?;
        Ok(())
    }

    /// Sets host name and network.
    pub(crate) async fn set_up(&self, setup: PodSetup) -> Result<(), RuntimeError> {
        let failed = |source| RuntimeError::Io { what: "setting up the pod".to_owned(), source };
        let (sender, receiver) = oneshot::channel();
        self.events.lock().set_up = Some(sender);
        self.channel.send(&PodRequest::SetUp(setup), &[]).await.map_err(failed)?;
        match receiver.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(message)) => Err(failed(io::Error::other(message))),
            Err(_) => Err(failed(io::Error::other("the pod's first process is gone"))),
        }
    }

    /// Starts a container.
    pub(crate) async fn start(
        &self,
        root: RootSetup,
        command: CommandSetup,
        streams: &[BorrowedFd<'_>],
    ) -> Result<Process, RuntimeError> {
        let (root, command) = (Box::new(root), Box::new(command));
        self.launch(|process| PodRequest::Start { process, root, command }, streams).await
    }

    /// Starts a command in a container.
    pub(crate) async fn exec(
        &self,
        container: u64,
        command: CommandSetup,
        streams: &[BorrowedFd<'_>],
    ) -> Result<Process, RuntimeError> {
        let command = Box::new(command);
        self.launch(|process| PodRequest::Exec { process, container, command }, streams).await
    }

    async fn launch(
        &self,
        request: impl FnOnce(u64) -> PodRequest,
        streams: &[BorrowedFd<'_>],
    ) -> Result<Process, RuntimeError> {
        let failed = |source| RuntimeError::Io { what: "asking the pod's first process".to_owned(), source };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (started, has_started) = oneshot::channel();
        let (ended, has_ended) = watch::channel(None);
        {
            let mut events = self.events.lock();
            if events.gone {
                return Err(failed(io::Error::other("it is gone")));
            }
            events.processes.insert(id, Entry { started: Some(started), ended });
        }
        let process = Process { id, ended: has_ended, channel: Arc::clone(&self.channel) };
        if let Err(error) = self.channel.send(&request(id), streams).await {
            self.events.lock().processes.remove(&id);
            return Err(failed(error));
        }
        match has_started.await {
            Ok(Ok(())) => Ok(process),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(failed(io::Error::other("it is gone"))),
        }
    }
}

/// A process of a pod: a container's first one, or a command in a container.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) id: u64,
    ended: watch::Receiver<Option<Ended>>,
    channel: Arc<Channel>,
}

impl Process {
    /// How it ended, once it has.
    pub(crate) async fn wait(&self) -> Ended {
        let mut ended = self.ended.clone();
        // The sender is dropped only together with the whole pod, which the kernel kills.
        let killed = Ended { code: 128 + libc::SIGKILL, signal: Some(libc::SIGKILL) };
        ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended).unwrap_or(killed)
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some() || self.ended.has_changed().is_err()
    }

    /// Sends it a signal, or to all processes of its container. No error if it has ended.
    pub(crate) async fn signal(&self, signal: i32, all: bool) -> io::Result<()> {
        if self.has_ended() {
            return Ok(());
        }
        self.channel.send(&PodRequest::Signal { process: self.id, signal, all }, &[]).await
    }
}

async fn read_events(channel: Arc<Channel>, events: Arc<Mutex<Events>>, gone: watch::Sender<bool>) {
    loop {
        match channel.receive::<PodEvent>().await {
            Ok(Some((event, _))) => handle(&mut events.lock(), event),
            Ok(None) => break,
            Err(error) => {
                warn!(%error, "a pod's first process cannot be understood; giving it up");
                break;
            }
        }
    }
    // Before the processes' ends are told: they are to be seen as ends of the whole pod.
    gone.send_replace(true);
    let mut events = events.lock();
    events.gone = true;
    events.set_up = None;
    events.processes.clear();
}

fn handle(events: &mut Events, event: PodEvent) {
    match event {
        PodEvent::SetUp => tell(events.set_up.take(), Ok(())),
        PodEvent::SetupFailed { message } => tell(events.set_up.take(), Err(message)),
        PodEvent::Started { process } => {
            tell(events.processes.get_mut(&process).and_then(|entry| entry.started.take()), Ok(()));
        }
        PodEvent::StartFailed { process, code, message } => {
            let entry = events.processes.remove(&process);
            tell(entry.and_then(|entry| entry.started), Err(RuntimeError::CannotStart { message, code }));
        }
        PodEvent::Exited { process, code, signal } => {
            if let Some(entry) = events.processes.remove(&process) {
                let _ = entry.ended.send(Some(Ended { code, signal }));
            }
        }
    }
}

/// Nobody waits any more when a caller's future was dropped.
fn tell<T>(sender: Option<oneshot::Sender<T>>, value: T) {
    if let Some(sender) = sender {
        let _ = sender.send(value);
    }
}
