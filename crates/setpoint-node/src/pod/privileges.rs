//! The rights of a container's processes: user, groups, capabilities.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Gid, Uid, fchown, isatty, setgid, setgroups, setuid};

use crate::protocol::CommandSetup;
use crate::spawn::StartFailure;

/// Names of the kernel's capabilities, in the order of their numbers (linux/capability.h).
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What container runtimes leave to a container that says nothing (containerd's and Docker's default).
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// The set that stays after `drop` and `add` of a container's security context, or the unknown name.
pub(crate) fn capabilities(drop: &[String], add: &[String]) -> Result<u64, String> {
    let mut set = 0;
    for name in DEFAULT {
        set |= bit(name)?;
    }
    for name in drop {
        set &= if name.eq_ignore_ascii_case("ALL") { 0 } else { !bit(name)? };
    }
    for name in add {
        set |= if name.eq_ignore_ascii_case("ALL") { u64::MAX >> (64 - NAMES.len()) } else { bit(name)? };
    }
    Ok(set)
}

fn bit(name: &str) -> Result<u64, String> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let number = NAMES.iter().position(|known| *known == short);
    number.map(|number| 1 << number).ok_or_else(|| format!("unknown capability {name:?}"))
}

/// Whether a stream is a device that is no terminal.
fn is_device(stream: BorrowedFd<'_>) -> bool {
    let device = fstat(stream).is_ok_and(|meta| meta.st_mode & libc::S_IFMT == libc::S_IFCHR);
    device && !isatty(stream).unwrap_or(false)
}

/// Takes the command's user, groups and capabilities, for good.
pub(super) fn take(command: &CommandSetup) -> Result<(), StartFailure> {
    if let Some(groups) = &command.groups {
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).map_err(|error| StartFailure::before("setting supplementary groups", error))?;
    }
    for (number, stream) in
        [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()].into_iter().enumerate()
    {
        if is_device(stream) {
            // No input is the machine's own /dev/null, which stays its owner's: the container has one that cannot be changed.
            let own = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty());
            let own = own.map_err(|error| StartFailure::before("opening /dev/null", error))?;
            // SAFETY: two open descriptors; the standard streams are not owned by anything.
            unsafe { libc::dup2(own.as_raw_fd(), number as RawFd) };
        } else {
            // Pipes and terminals are the node's user's: a program may open /dev/stderr again by its name. A stream that cannot
            // change its owner is still usable.
            let _ = fchown(stream, Some(Uid::from_raw(command.user)), Some(Gid::from_raw(command.group)));
        }
    }
    setgid(Gid::from_raw(command.group))
        .map_err(|error| StartFailure::before(format!("taking group {}", command.group), error))?;
    for number in 0..NAMES.len() {
        if command.capabilities & (1 << number) == 0 {
            drop_from_bounding_set(number)?;
        }
    }
    setuid(Uid::from_raw(command.user))
        .map_err(|error| StartFailure::before(format!("taking user {}", command.user), error))?;
    if command.user == 0 {
        keep(command.capabilities)?;
    }
    if command.no_new_privileges {
        prctl::set_no_new_privs().map_err(|error| StartFailure::before("setting no_new_privs", error))?;
    }
    Ok(())
}

fn drop_from_bounding_set(number: usize) -> Result<(), StartFailure> {
    // SAFETY: this prctl takes one number and touches no memory.
    let answer = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number as libc::c_ulong, 0, 0, 0) };
    let error = io::Error::last_os_error();
    // EINVAL: a kernel that is older than the capability.
    if answer < 0 && error.raw_os_error() != Some(libc::EINVAL) {
        return Err(StartFailure::before("dropping a capability", error));
    }
    Ok(())
}

/// The kernel's `__user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// The kernel's `__user_cap_data_struct`.
#[repr(C)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Reduces the permitted and effective sets of this process.
fn keep(set: u64) -> Result<(), StartFailure> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let half = |half: u64| {
        let half = (half & u64::from(u32::MAX)) as u32;
        Data { effective: half, permitted: half, inheritable: 0 }
    };
    let data = [half(set), half(set >> 32)];
    // SAFETY: version 3 reads one header and two data structures, which live during the call.
    let answer = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if answer < 0 {
        return Err(StartFailure::before("dropping capabilities", io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(drop: &[&str], add: &[&str]) -> Result<u64, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        capabilities(&owned(drop), &owned(add))
    }

    #[test]
    fn capabilities_are_dropped_then_added() {
        assert_eq!(set(&["ALL"], &[]), Ok(0));
        assert_eq!(set(&["ALL"], &["NET_BIND_SERVICE"]), Ok(1 << 10));
        assert_eq!(set(&[], &[]), Ok(0xa804_25fb), "the default that Docker documents");
        assert_eq!(set(&["CAP_MKNOD"], &[]), Ok(0xa804_25fb & !(1 << 27)));
        assert!(set(&[], &["FLY"]).unwrap_err().contains("FLY"));
    }
}
