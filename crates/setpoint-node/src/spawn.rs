//! Starting a process inside new or existing namespaces, from a process with a single thread.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// Why a process did not get as far as its program.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct StartFailure {
    /// What went wrong.
    pub(crate) message: String,
    /// The exit code that a shell would give: 127 not found, 126 not executable, 128 otherwise.
    pub(crate) code: i32,
}

impl StartFailure {
    /// A failure before the program is looked for.
    pub(crate) fn before(what: impl Into<String>, error: impl std::fmt::Display) -> Self {
        Self { message: format!("{}: {error}", what.into()), code: 128 }
    }
}

/// Where a process is to live.
pub(crate) enum Namespaces {
    /// In new ones.
    New(CloneFlags),
    /// In those of a running process, named by a pidfd.
    Of(OwnedFd, CloneFlags),
}

/// Over this a process on its way to its program says that it failed; closing it means success. It closes
/// by itself when a program is executed.
pub(crate) struct Report(Option<File>);

impl Report {
    /// Reports success, for a process that executes no program.
    pub(crate) fn started(&mut self) {
        self.0 = None;
    }

    /// Each line is one write, so that the lines of two processes do not mix.
    fn line(&mut self, line: &str) {
        if let Some(file) = &mut self.0 {
            let _ = file.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
        }
    }

    fn failed(&mut self, failure: &StartFailure) {
        self.line(&format!("E{} {}", failure.code, failure.message));
    }
}

/// Starts `body` in a process of its own inside `namespaces` and returns its process id once it has
/// executed a program or reported that it started; an error of `body` becomes the error here.
///
/// Two forks: a process id namespace holds only children of the one who enters it. The caller must be the
/// first process of its own process id namespace: it becomes the parent when the one in the middle ends.
pub(crate) fn spawn_in(
    namespaces: Namespaces,
    body: impl FnOnce(&mut Report) -> Result<Infallible, StartFailure>,
) -> Result<Pid, StartFailure> {
    let (mut reader, writer) = io::pipe().map_err(|error| StartFailure::before("making a pipe", error))?;
    // SAFETY: the callers have one thread, so that the child finds no lock held by another.
    match unsafe { fork() }.map_err(|error| StartFailure::before("fork", error))? {
        ForkResult::Parent { child } => {
            drop(writer);
            let mut text = String::new();
            let read = reader.read_to_string(&mut text);
            let _ = waitpid(child, None);
            read.map_err(|error| StartFailure::before("reading the report of a new process", error))?;
            parse_report(&text)
        }
        ForkResult::Child => {
            drop(reader);
            let mut report = Report(Some(File::from(OwnedFd::from(writer))));
            let Err(failure) = enter_and_fork(namespaces, &mut report, body);
            report.failed(&failure);
            exit_now(1)
        }
    }
}

/// Both the process in the middle, which enters the namespaces and forks, and the real one run this.
fn enter_and_fork(
    namespaces: Namespaces,
    report: &mut Report,
    body: impl FnOnce(&mut Report) -> Result<Infallible, StartFailure>,
) -> Result<Infallible, StartFailure> {
    match namespaces {
        Namespaces::New(flags) => {
            unshare(flags).map_err(|error| StartFailure::before("making namespaces", error))?;
        }
        Namespaces::Of(process, flags) => {
            setns(process, flags).map_err(|error| StartFailure::before("entering the container", error))?;
        }
    }
    // SAFETY: as above, one thread.
    match unsafe { fork() }.map_err(|error| StartFailure::before("fork", error))? {
        ForkResult::Parent { child } => {
            report.line(&format!("P{child}"));
            exit_now(0)
        }
        ForkResult::Child => body(report),
    }
}

/// Reads what both processes reported.
fn parse_report(text: &str) -> Result<Pid, StartFailure> {
    let failure = text.lines().find_map(|line| line.strip_prefix('E')?.split_once(' '));
    if let Some((code, message)) = failure {
        return Err(StartFailure { message: message.to_owned(), code: code.parse().unwrap_or(128) });
    }
    let pid = text.lines().find_map(|line| line.strip_prefix('P')?.parse().ok());
    pid.map(Pid::from_raw).ok_or_else(|| StartFailure {
        message: "the new process was killed before it started".into(),
        code: 128,
    })
}

/// Where [`keep_only`] puts the descriptor that it keeps.
const KEPT: RawFd = 3;

/// Closes every descriptor of a forked process but `kept` and standard error.
pub(crate) fn keep_only(kept: OwnedFd) -> io::Result<OwnedFd> {
    let null = File::open("/dev/null")?;
    // SAFETY: plain system calls on this process's own descriptor table. Owners of the closed descriptors in
    // the forked copy of the parent's memory are never dropped: this function's callers end with _exit.
    unsafe {
        if libc::dup2(null.as_raw_fd(), 0) < 0
            || libc::dup2(null.as_raw_fd(), 1) < 0
            || (kept.as_raw_fd() != KEPT && libc::dup3(kept.as_raw_fd(), KEPT, libc::O_CLOEXEC) < 0)
        {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_close_range, KEPT + 1, u32::MAX, 0);
    }
    std::mem::forget((null, kept));
    // SAFETY: descriptor 3 is open and has no owner after the `forget`.
    Ok(unsafe { OwnedFd::from_raw_fd(KEPT) })
}

/// Whether this process has one thread, as far as one can see: only then may a forked copy do more than execute a program.
pub(crate) fn single_threaded() -> bool {
    !std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1)
}

/// Ends a forked process without running what its parent registered for its own end.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_in_any_order() {
        assert_eq!(parse_report("P12\n").unwrap().as_raw(), 12);
        let expected = StartFailure { message: "no such program".into(), code: 127 };
        assert_eq!(parse_report("P12\nE127 no such program\n"), Err(expected));
        let expected = StartFailure { message: "making namespaces: EPERM".into(), code: 128 };
        assert_eq!(parse_report("E128 making namespaces: EPERM\nP7\n"), Err(expected));
        assert!(parse_report("").is_err());
    }
}
