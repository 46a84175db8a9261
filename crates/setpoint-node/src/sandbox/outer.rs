//! The process that stays outside: it passes signals on and takes over the exit status.

use std::io::PipeWriter;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::exit_status;

/// The signals that both this process and the sandbox's first one take by waiting for them.
pub(super) fn signals() -> SigSet {
    [
        Signal::SIGCHLD,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ]
    .into_iter()
    .collect()
}

/// Whether the terminal sent it: then the whole process group, with the main process, already has it.
pub(super) fn from_terminal(code: i32) -> bool {
    code == libc::SI_KERNEL
}

/// Waits for the end of the sandbox's first process and ends with its status. Holds `_life` until then.
pub(super) fn pass_on(first: Pid, _life: &PipeWriter) -> ! {
    let signals = signals();
    loop {
        // SAFETY: a siginfo_t of zeros is valid, and the kernel fills it.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for the call.
        let number = unsafe { libc::sigwaitinfo(std::ptr::from_ref(signals.as_ref()), &raw mut info) };
        if number == libc::SIGCHLD {
            if let Ok(Some((_, code))) = waitpid(first, Some(WaitPidFlag::WNOHANG)).map(exit_status) {
                std::process::exit(code);
            }
        } else if let Ok(signal) = Signal::try_from(number)
            && !from_terminal(info.si_code)
        {
            let _ = kill(first, signal);
        }
    }
}
