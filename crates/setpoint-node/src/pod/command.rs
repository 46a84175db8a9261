//! From a forked process in the right namespaces to the container's program.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::sys::stat::Mode;
use nix::unistd::{execve, setsid};

use super::privileges;
use crate::channel;
use crate::protocol::CommandSetup;
use crate::spawn::StartFailure;

/// Where a command is looked for when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Executes the command in this process; returns only on failure.
pub(super) fn execute(command: &CommandSetup, descriptors: Vec<OwnedFd>) -> Result<Infallible, StartFailure> {
    let _ = setsid();
    if command.terminal {
        take_terminal(descriptors)?;
    } else {
        take_streams(&descriptors)?;
    }
    restore_signals()?;
    enter_directory(&command.directory)?;
    let environment = environment(command);
    let program = find_program(&command.arguments, &environment, &command.directory)?;
    privileges::take(command)?;
    close_others_on_exec();
    let arguments = c_strings(command.arguments.iter().cloned())?;
    let variables = c_strings(environment.iter().map(|(name, value)| format!("{name}={value}")))?;
    let path = c_string(program.as_os_str().as_bytes())?;
    let Err(error) = execve(&path, &arguments, &variables);
    Err(cannot_execute(&command.arguments, error))
}

fn take_streams(descriptors: &[OwnedFd]) -> Result<(), StartFailure> {
    for (target, descriptor) in (0..3).zip(descriptors) {
        duplicate(descriptor.as_raw_fd(), target)?;
    }
    Ok(())
}

fn duplicate(from: RawFd, to: RawFd) -> Result<(), StartFailure> {
    // SAFETY: replaces a standard stream of this process, which executes a program or ends after this.
    if unsafe { libc::dup2(from, to) } < 0 {
        return Err(StartFailure::before("connecting standard streams", Errno::last()));
    }
    Ok(())
}

/// Opens a new terminal of the container's own, sends its controlling side away, and makes the other side
/// the controlling terminal and the standard streams.
fn take_terminal(mut descriptors: Vec<OwnedFd>) -> Result<(), StartFailure> {
    let failed = |error: Errno| StartFailure::before("opening a terminal", error);
    let Some(socket) = descriptors.pop() else { return Err(failed(Errno::EBADF)) };
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).map_err(failed)?;
    grantpt(&master).map_err(failed)?;
    unlockpt(&master).map_err(failed)?;
    let name = ptsname_r(&master).map_err(failed)?;
    let slave = open(Path::new(&name), OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(failed)?;
    // SAFETY: the descriptor comes out of its former owner.
    let master = unsafe { OwnedFd::from_raw_fd(master.into_raw_fd()) };
    channel::send(socket.as_fd(), &"terminal", &[master.as_fd()])
        .map_err(|error| StartFailure::before("handing over the terminal", error))?;
    // SAFETY: the ioctl takes a number and touches no memory.
    if unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, 0) } < 0 {
        return Err(failed(Errno::last()));
    }
    (0..3).try_for_each(|target| duplicate(slave.as_raw_fd(), target))
}

/// Gives back what this program changed for itself: the Rust runtime ignores SIGPIPE, and the signals that
/// the first processes wait for are blocked.
fn restore_signals() -> Result<(), StartFailure> {
    // SAFETY: sets a default action, no handler of ours runs.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }
        .and_then(|_| sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None))
        .map_err(|error| StartFailure::before("restoring signals", error))
}

fn enter_directory(directory: &Path) -> Result<(), StartFailure> {
    // As container runtimes do; on a read-only root the error below tells.
    let _ = fs::create_dir_all(directory);
    std::env::set_current_dir(directory)
        .map_err(|error| StartFailure::before(format!("working directory {}", directory.display()), error))
}

/// The command's environment with `HOME`.
fn environment(command: &CommandSetup) -> Vec<(String, String)> {
    let mut environment = command.environment.clone();
    if !environment.iter().any(|(name, _)| name == "HOME") {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        environment.push(("HOME".to_owned(), home(&users, command.user)));
    }
    environment
}

/// The home directory of a numeric user, `/` for an unknown one.
fn home(users: &str, user: u32) -> String {
    users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(user))
        .and_then(|fields| fields.get(5).filter(|home| !home.is_empty()).map(|home| (*home).to_owned()))
        .unwrap_or_else(|| "/".to_owned())
}

fn find_program(
    arguments: &[String],
    environment: &[(String, String)],
    directory: &Path,
) -> Result<PathBuf, StartFailure> {
    let Some(name) = arguments.first().filter(|name| !name.is_empty()) else {
        return Err(StartFailure { message: "no command specified".to_owned(), code: 127 });
    };
    if name.contains('/') {
        return Ok(directory.join(name));
    }
    let path = environment
        .iter()
        .rev()
        .find(|(variable, _)| variable == "PATH")
        .map_or(DEFAULT_PATH, |(_, path)| path);
    path.split(':')
        .map(|folder| directory.join(folder).join(name))
        .find(|file| is_executable(file))
        .ok_or_else(|| StartFailure {
            message: format!("exec: {name:?}: executable file not found in $PATH"),
            code: 127,
        })
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn cannot_execute(arguments: &[String], error: Errno) -> StartFailure {
    let name = arguments.first().map(String::as_str).unwrap_or_default();
    let (reason, code) = match error {
        Errno::ENOENT => ("no such file or directory".to_owned(), 127),
        Errno::EACCES => ("permission denied".to_owned(), 126),
        Errno::ENOEXEC => ("exec format error".to_owned(), 126),
        other => (other.desc().to_owned(), 126),
    };
    StartFailure { message: format!("exec: {name:?}: {reason}"), code }
}

fn close_others_on_exec() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    // SAFETY: only marks descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, CLOSE_RANGE_CLOEXEC) };
}

fn c_strings(texts: impl Iterator<Item = String>) -> Result<Vec<CString>, StartFailure> {
    texts.map(|text| c_string(text.as_bytes())).collect()
}

fn c_string(bytes: &[u8]) -> Result<CString, StartFailure> {
    CString::new(bytes)
        .map_err(|error| StartFailure::before("a zero byte in the command or its environment", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_comes_from_the_containers_users() {
        let users = "root:x:0:0:root:/root:/bin/sh\nredis:x:999:999::/var/lib/redis:/bin/false\nodd:x:5:5\n";
        assert_eq!(home(users, 0), "/root");
        assert_eq!(home(users, 999), "/var/lib/redis");
        assert_eq!(home(users, 5), "/");
        assert_eq!(home(users, 1234), "/");
    }

    #[test]
    fn programs_are_found_as_a_shell_does() {
        let path = [("PATH".to_owned(), "/nowhere:/bin".to_owned())];
        let find = |name: &str| find_program(&[name.to_owned()], &path, Path::new("/tmp"));
        assert_eq!(find("sh").unwrap(), Path::new("/bin/sh"));
        assert_eq!(find("./tool").unwrap(), Path::new("/tmp/./tool"));
        let failure = find("no-such-program").unwrap_err();
        assert_eq!((failure.code, failure.message.contains("$PATH")), (127, true));
        assert_eq!(find_program(&[], &path, Path::new("/")).unwrap_err().code, 127);
    }
}
