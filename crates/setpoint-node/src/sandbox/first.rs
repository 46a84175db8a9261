//! The sandbox's first process: it reaps orphans, makes pods on request, and when the main process ends it
//! ends too, whereupon the kernel kills all that is left.
//!
//! It is forked before the main process has grown, so that pods' first processes, forked from it, are small.

use std::io::PipeReader;
use std::os::fd::{AsFd, OwnedFd};

use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{exit_status, outer};
use crate::protocol::{SpawnerReply, SpawnerRequest};
use crate::spawn::{Namespaces, exit_now, spawn_in};
use crate::{channel, pod};

/// Makes mounts private and shows the sandbox's own processes in `/proc`.
pub(super) fn mount_proc() -> Result<(), String> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|error| format!("making mounts private: {error}"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>).map_err(|error| {
        format!("mounting /proc in new namespaces (an unmasked /proc is needed outside): {error}")
    })
}

/// Serves the main process until it ends.
pub(super) fn serve(requests: &OwnedFd, life: &PipeReader, main: Pid) -> ! {
    let Ok(signals) = SignalFd::with_flags(&outer::signals(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
    else {
        exit_now(1)
    };
    let mut open = true;
    loop {
        let mut ready = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(life.as_fd(), PollFlags::empty()),
        ];
        if open {
            ready.push(PollFd::new(requests.as_fd(), PollFlags::POLLIN));
        }
        if poll(&mut ready, PollTimeout::NONE).is_err() {
            continue;
        }
        let any = |index: usize| ready.get(index).is_some_and(|fd| fd.any().unwrap_or(false));
        let (parent_gone, request) = (any(1), any(2));
        if parent_gone {
            exit_now(1);
        }
        while let Ok(Some(signal)) = signals.read_signal() {
            if let Ok(number) = Signal::try_from(signal.ssi_signo.cast_signed())
                && number != Signal::SIGCHLD
                && !outer::from_terminal(signal.ssi_code)
            {
                let _ = kill(main, number);
            }
        }
        reap(main);
        if request {
            open = handle(requests);
        }
    }
}

/// Reaps all that ended; ends with the main process.
fn reap(main: Pid) {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(_) => return,
            Ok(status) => {
                if let Some((pid, code)) = exit_status(status)
                    && pid == main
                {
                    exit_now(code);
                }
            }
        }
    }
}

/// Handles one request; returns whether more can come.
fn handle(requests: &OwnedFd) -> bool {
    let Ok(Some((SpawnerRequest::CreatePod { host_network }, mut descriptors))) =
        channel::receive(requests.as_fd())
    else {
        return false;
    };
    let reply = match descriptors.pop() {
        None => SpawnerReply::Failed { message: "the request has no socket".to_owned() },
        Some(pod) => create_pod(pod, host_network),
    };
    channel::send(requests.as_fd(), &reply, &[]).is_ok()
}

fn create_pod(socket: OwnedFd, host_network: bool) -> SpawnerReply {
    let mut flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    if !host_network {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    let spawned = spawn_in(Namespaces::New(flags), |report| {
        report.started();
        pod::serve(socket)
    });
    match spawned {
        Ok(pid) => SpawnerReply::Created { pid: pid.as_raw() },
        Err(failure) => SpawnerReply::Failed { message: failure.message },
    }
}
