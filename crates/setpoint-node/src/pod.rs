//! A pod's first process: it holds the pod's namespaces, starts containers and commands in them on request,
//! reaps them, and reports how they ended. It sleeps in between.
//!
//! When it is killed, the kernel kills every process of the pod.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, sethostname};

use crate::protocol::{CommandSetup, PodEvent, PodRequest, PodSetup, RootSetup};
use crate::spawn::{Namespaces, StartFailure, exit_now, keep_only, spawn_in};
use crate::{channel, tool};

mod command;
mod privileges;
mod root;

pub(crate) use privileges::capabilities;

/// A process that this one started.
struct Running {
    pid: Pid,
    /// The process whose namespaces it shares: itself for a container's first process.
    container: u64,
}

/// Serves the main process until that closes the channel.
pub(crate) fn serve(socket: OwnedFd) -> Result<Infallible, StartFailure> {
    let socket = keep_only(socket).map_err(|error| StartFailure::before("closing descriptors", error))?;
    // Not before: a pod must never see a mount that is made later outside.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|error| StartFailure::before("making mounts private", error))?;
    // As container runtimes have it, whatever the user's is: other users of a container must get into its directories.
    umask(Mode::from_bits_truncate(0o022));
    let children: SigSet = [Signal::SIGCHLD].into_iter().collect();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&children), None)
        .map_err(|error| StartFailure::before("blocking signals", error))?;
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|error| StartFailure::before("waiting for signals", error))?;
    let mut pod = PodProcess { socket, running: BTreeMap::new() };
    loop {
        let mut ready = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(pod.socket.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut ready, PollTimeout::NONE).is_err() {
            continue;
        }
        let request = ready[1].any().unwrap_or(false);
        while let Ok(Some(_)) = signals.read_signal() {}
        pod.reap();
        if request {
            pod.handle();
        }
    }
}

struct PodProcess {
    socket: OwnedFd,
    running: BTreeMap<u64, Running>,
}

impl PodProcess {
    fn handle(&mut self) {
        let Ok(Some((request, descriptors))) = channel::receive(self.socket.as_fd()) else { exit_now(0) };
        match request {
            PodRequest::SetUp(setup) => {
                let event = match set_up(&setup) {
                    Ok(()) => PodEvent::SetUp,
                    Err(message) => PodEvent::SetupFailed { message },
                };
                self.tell(&event);
            }
            PodRequest::Start { process, root, command } => {
                let started = start(&root, &command, descriptors);
                self.started(process, process, started);
            }
            PodRequest::Exec { process, container, command } => {
                let started = self.exec(container, &command, descriptors);
                self.started(process, container, started);
            }
            PodRequest::Signal { process, signal, all } => self.signal(process, signal, all),
        }
    }

    fn tell(&self, event: &PodEvent) {
        if channel::send(self.socket.as_fd(), event, &[]).is_err() {
            exit_now(0)
        }
    }

    fn started(&mut self, process: u64, container: u64, started: Result<Pid, StartFailure>) {
        let event = match started {
            Ok(pid) => {
                self.running.insert(process, Running { pid, container });
                PodEvent::Started { process }
            }
            Err(StartFailure { message, code }) => PodEvent::StartFailed { process, code, message },
        };
        self.tell(&event);
    }

    fn exec(
        &self,
        container: u64,
        command: &CommandSetup,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Pid, StartFailure> {
        let namespaces =
            Namespaces::Of(self.handle_of(container)?, CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID);
        spawn_in(namespaces, |_| command::execute(command, descriptors))
    }

    /// A pidfd of a container's first process. It is not reaped yet, so that its number is still its own.
    fn handle_of(&self, container: u64) -> Result<OwnedFd, StartFailure> {
        let Some(running) = self.running.get(&container) else {
            return Err(StartFailure { message: "the container is not running".to_owned(), code: 128 });
        };
        // SAFETY: a system call that makes a new descriptor, which gets its one owner below.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, running.pid.as_raw(), 0) };
        if raw < 0 {
            return Err(StartFailure::before("finding the container", std::io::Error::last_os_error()));
        }
        // SAFETY: see above.
        Ok(unsafe { OwnedFd::from_raw_fd(raw as RawFd) })
    }

    fn signal(&self, process: u64, number: i32, all: bool) {
        let Some(running) = self.running.get(&process) else { return };
        let Ok(signal) = Signal::try_from(number) else { return };
        // SIGKILL of a container's first process ends all others by itself.
        let first = running.container == process;
        if all
            && first
            && signal != Signal::SIGKILL
            && let Ok(handle) = self.handle_of(process)
        {
            let _ = spawn_in(Namespaces::Of(handle, CloneFlags::CLONE_NEWPID), |report| {
                // Everything in that namespace but its first process and this one.
                let _ = kill(Pid::from_raw(-1), signal);
                report.started();
                exit_now(0)
            });
        }
        let _ = kill(running.pid, signal);
    }

    fn reap(&mut self) {
        loop {
            let (pid, code, signal) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code, None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            let ended: Vec<u64> =
                self.running.iter().filter(|(_, running)| running.pid == pid).map(|(id, _)| *id).collect();
            for process in ended {
                self.running.remove(&process);
                self.tell(&PodEvent::Exited { process, code, signal });
            }
        }
    }
}

fn set_up(setup: &PodSetup) -> Result<(), String> {
    sethostname(&setup.hostname)
        .map_err(|error| format!("setting the host name {:?}: {error}", setup.hostname))?;
    let Some(network) = &setup.network else { return Ok(()) };
    // Databases ping and listen as an ordinary user; both are harmless in a network of one's own.
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    tool::run(&setup.ip, &["-batch", "-"], network)
        .map_err(|error| format!("configuring the pod's network: {error}"))
}

fn start(root: &RootSetup, command: &CommandSetup, descriptors: Vec<OwnedFd>) -> Result<Pid, StartFailure> {
    let flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    spawn_in(Namespaces::New(flags), |_| {
        root::enter(root)?;
        command::execute(command, descriptors)
    })
}
