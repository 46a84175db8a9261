//! The private set of namespaces in which everything lives, and the way into it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getegid, geteuid};

use crate::spawn::{exit_now, single_threaded};
use crate::tool::{self, MissingTool};
use crate::{channel, network};

mod first;
mod outer;
mod switches;

use switches::Switches;

/// What all messages about a refused namespace end with.
const WITHOUT: &str = "`setpoint dev --nodes hollow` works without it";

/// Ids up to nobody's, 65534: what container runtimes map.
const ALL_USERS: u64 = 65_535;

/// The inside of the sandbox, as its main process has it.
#[derive(Debug)]
pub struct Sandbox {
    /// The listeners that were given to [`enter`]: they are reachable from the machine, outside.
    pub outside: Vec<TcpListener>,
    /// For each of them one on the same port of all addresses inside, for the main process's own clients
    /// (127.0.0.1) and for pods ([`GATEWAY`](crate::GATEWAY)).
    pub inside: Vec<TcpListener>,
    /// Leads to the first process.
    pub(crate) spawner: OwnedFd,
    /// Whether any user and group may be used inside; otherwise there is only 0, which is the user outside.
    pub(crate) all_users: bool,
    /// The `ip` program.
    pub(crate) ip: PathBuf,
}

/// Why the sandbox cannot be made. Each message is one line and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The machine's answer.
        source: io::Error,
    },
    /// A needed program is not installed.
    #[error(transparent)]
    Tool(#[from] MissingTool),
    /// The kernel refuses namespaces.
    #[error("this machine does not allow {what}: {source}; {hint}; {WITHOUT}")]
    Refused {
        /// What was refused.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// What may help.
        hint: &'static str,
    },
    /// The namespaces are there, but something in them could not be set up.
    #[error("{message}{}; {WITHOUT}", hint.map(|hint| format!("; {hint}")).unwrap_or_default())]
    SetUp {
        /// What, and the machine's answer.
        message: String,
        /// What may help, if a switch of the kernel is known to be the cause.
        hint: Option<&'static str>,
    },
    /// Called too late.
    #[error("the sandbox must be entered before the process starts a thread: call `enter` first in `main`")]
    Threads,
    /// The machine refused something ordinary.
    #[error("{what}: {source}")]
    Io {
        /// What.
        what: &'static str,
        /// The machine's answer.
        source: io::Error,
    },
}

/// Binds a TCP listener for [`enter`], with an error that names the address.
pub fn listen(address: SocketAddr) -> Result<TcpListener, EnterError> {
    TcpListener::bind(address).map_err(|source| EnterError::Listen { address, source })
}

/// Moves the rest of the program into a private set of namespaces: user (unless root), mount, network,
/// process ids, IPC and host name. Call it first in `main`, before any thread exists.
///
/// It returns only inside, in a forked copy of the calling process. The calling process itself stays outside:
/// it passes signals on and ends with the status of the copy. When it dies, however that happens, the kernel
/// kills everything inside, and with the namespaces all mounts and interfaces go.
///
/// Inside are a loop-back interface, the bridge of the pods with the address [`GATEWAY`](crate::GATEWAY), and
/// no way to other machines. `listeners` stay reachable from outside, because a socket belongs to
/// the network namespace in which it was made.
///
/// # Errors
///
/// In the calling process, which may then already be in the new namespaces and should print the error and exit.
pub fn enter(listeners: Vec<TcpListener>) -> Result<Sandbox, EnterError> {
    let ip = tool::require("ip", "iproute2")?;
    if !single_threaded() {
        return Err(EnterError::Threads);
    }
    let io = |what| move |source: io::Error| EnterError::Io { what, source };
    let ports = listeners
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.port()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(io("reading a listener's address"))?;
    let Made { all_users, privileged } = make_namespaces()?;
    let (mut status, status_writer) = io::pipe().map_err(io("making a pipe"))?;
    let (life, life_writer) = io::pipe().map_err(io("making a pipe"))?;
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&outer::signals()), Some(&mut before))
        .map_err(|error| EnterError::Io { what: "blocking signals", source: error.into() })?;

    // SAFETY: this process has one thread (checked above).
    let fork_result =
        unsafe { fork() }.map_err(|error| refused("new processes in a namespace", error, privileged))?;
    if let ForkResult::Parent { child } = fork_result {
        drop((status_writer, life, listeners));
        let mut report = String::new();
        status.read_to_string(&mut report).map_err(io("reading the sandbox's report"))?;
        if report == "ok" {
            outer::pass_on(child, &life_writer)
        }
        let _ = waitpid(child, None);
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        if report.is_empty() {
            report.push_str("the sandbox's first process ended early");
        }
        // Some systems allow user namespaces and then refuse what is done in them.
        let hint = Switches::read().cause(privileged, None);
        return Err(EnterError::SetUp { message: report, hint });
    }

    drop((status, life_writer));
    let mut status_writer = status_writer;
    die_with_parent(&life);
    match set_up_first(&ip, &ports) {
        Err(message) => {
            let _ = status_writer.write_all(message.as_bytes());
            exit_now(1)
        }
        Ok((inside, ours, theirs)) => {
            // SAFETY: still one thread.
            match unsafe { fork() } {
                Ok(ForkResult::Child) => {
                    drop((status_writer, life, theirs));
                    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
                    Ok(Sandbox { outside: listeners, inside, spawner: ours, all_users, ip })
                }
                Ok(ForkResult::Parent { child }) => {
                    drop((listeners, inside, ours));
                    let _ = status_writer.write_all(b"ok");
                    drop(status_writer);
                    first::serve(&theirs, &life, child)
                }
                Err(error) => {
                    let _ = status_writer.write_all(format!("fork: {error}").as_bytes());
                    exit_now(1)
                }
            }
        }
    }
}

/// What namespaces were made.
struct Made {
    /// Whether all users are there.
    all_users: bool,
    /// Whether this took no user namespace.
    privileged: bool,
}

fn make_namespaces() -> Result<Made, EnterError> {
    let flags = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        match unshare(flags) {
            Ok(()) => return Ok(Made { all_users: maps_all_users(), privileged: true }),
            // Root without the right to do so, as in an ordinary container: then like any other user.
            Err(Errno::EPERM) => {}
            Err(error) => return Err(refused("network, mount and process namespaces", error, true)),
        }
    }
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|error| refused("user namespaces", error, false))?;
    let write = |path: &str, text: String| {
        fs::write(path, text).map_err(|source| {
            let errno = Errno::from_raw(source.raw_os_error().unwrap_or_default());
            refused("a user mapping in a user namespace", errno, false)
        })
    };
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("0 {user} 1"))?;
    write("/proc/self/gid_map", format!("0 {group} 1"))?;
    unshare(flags).map_err(|error| {
        refused("network, mount and process namespaces inside a user namespace", error, false)
    })?;
    Ok(Made { all_users: false, privileged: false })
}

/// Whether any user and group can be taken: not for the root of a user namespace that knows only itself.
fn maps_all_users() -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let enough = |map: String| mapped(&map) >= ALL_USERS;
    enough(read("/proc/self/uid_map"))
        && enough(read("/proc/self/gid_map"))
        && read("/proc/self/setgroups").trim() != "deny"
}

/// How many ids a uid_map or gid_map maps.
fn mapped(map: &str) -> u64 {
    map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

fn refused(what: &'static str, error: Errno, privileged: bool) -> EnterError {
    let cause = Switches::read().cause(privileged, Some(error));
    EnterError::Refused { what, source: error.into(), hint: cause.unwrap_or(switches::ELSEWHERE) }
}

/// Asks the kernel to kill this process when its parent ends, and ends now if it already has.
fn die_with_parent(life: &impl AsFd) {
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    let mut parent = [PollFd::new(life.as_fd(), PollFlags::empty())];
    if poll(&mut parent, PollTimeout::ZERO) != Ok(0) {
        exit_now(1);
    }
}

/// What the first process does before there is a main process.
fn set_up_first(ip: &Path, ports: &[u16]) -> Result<(Vec<TcpListener>, OwnedFd, OwnedFd), String> {
    first::mount_proc()?;
    network::set_up_sandbox(ip)?;
    let inside = ports
        .iter()
        .map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)))
        .collect::<io::Result<_>>()
        .map_err(|error| format!("listening inside the sandbox: {error}"))?;
    let (ours, theirs) = channel::pair().map_err(|error| format!("making a socket pair: {error}"))?;
    Ok((inside, ours, theirs))
}

/// The exit status with which `status` is passed on.
fn exit_status(status: nix::sys::wait::WaitStatus) -> Option<(Pid, i32)> {
    use nix::sys::wait::WaitStatus;
    match status {
        WaitStatus::Exited(pid, code) => Some((pid, code)),
        WaitStatus::Signaled(pid, signal, _) => Some((pid, 128 + signal as i32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_ids_are_counted() {
        assert_eq!(mapped("         0          0 4294967295\n"), 4_294_967_295);
        assert_eq!(mapped("0 1000 1\n1 100000 65536\n"), 65_537);
        assert_eq!(mapped(""), 0);
    }

    #[test]
    fn messages_say_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = listen(address).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot listen on {address}: ")), "{error}");
        let error = refused("user namespaces", Errno::EPERM, true).to_string();
        assert!(
            error.contains("user namespaces")
                && error.contains("`setpoint dev --nodes hollow` works without it"),
            "{error}"
        );
        // The test harness has threads.
        assert!(matches!(enter(vec![]), Err(EnterError::Threads | EnterError::Tool(_))));
    }
}
