//! A container's root file system, built in the mount namespace of its first process.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::unistd::pivot_root;

use crate::protocol::{RootSetup, RootSource};
use crate::spawn::StartFailure;

/// Device nodes that are bound from the machine: as an ordinary user none can be made.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Directories of a merged-usr system that are links, or directories of their own on older ones.
const PROGRAM_DIRECTORIES: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Parts of the machine's `/etc` without which its programs do not work: alternatives' links, the dynamic
/// linker's and TLS' files, names of protocols and services.
const CONFIGURATION: [&str; 8] = [
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl",
    "protocols",
    "services",
    "os-release",
];

/// Parts of `/proc` through which the machine could be changed: `/proc/sys` is machine-wide for real root.
const READ_ONLY_PROC: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// Files of `/proc` that show the machine's memory and keys.
const HIDDEN_PROC: [&str; 4] = ["kcore", "keys", "latency_stats", "timer_list"];

/// Builds the root file system and makes it this process's `/`.
pub(super) fn enter(setup: &RootSetup) -> Result<(), StartFailure> {
    // Opened now, because the machine's paths are gone after the switch.
    let mut sources = Vec::new();
    for mount in &setup.mounts {
        let source = open(&mount.source, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|error| StartFailure::before(format!("volume at {}", mount.source.display()), error))?;
        sources.push(source);
    }
    let root = match &setup.source {
        RootSource::Host => host_root(&setup.at)?,
        RootSource::Directory(image) => image_root(&setup.at, image)?,
    };
    for directory in ["proc", "dev", "etc", "tmp", "run", "var/tmp"] {
        make_directory(&root.join(directory))?;
    }
    for directory in ["tmp", "var/tmp"] {
        let path = root.join(directory);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777))
            .map_err(|error| failed(&path, error))?;
    }
    devices(&root.join("dev"))?;
    processes(&root.join("proc"))?;
    for (path, content) in &setup.files {
        write(&root, path, content)?;
    }
    switch_to(&root)?;
    for (mount, source) in setup.mounts.iter().zip(sources) {
        bind_volume(&source, &mount.target, mount.read_only)?;
    }
    umount2(".", MntFlags::MNT_DETACH)
        .map_err(|error| failed(Path::new("the machine's root"), error.into()))?;
    std::env::set_current_dir("/").map_err(|error| failed(Path::new("/"), error))?;
    if setup.read_only {
        restrict(Path::new("/"), Access::ReadOnly, false)?;
    }
    Ok(())
}

fn failed(path: &Path, error: io::Error) -> StartFailure {
    StartFailure::before(format!("root file system: {}", path.display()), error)
}

/// The machine's programs without its data: memory, with `/usr` bound read-only.
fn host_root(at: &Path) -> Result<PathBuf, StartFailure> {
    mount_memory(at, "mode=0755")?;
    bind_read_only(Path::new("/usr"), &at.join("usr"))?;
    for name in PROGRAM_DIRECTORIES {
        let outside = Path::new("/").join(name);
        let inside = at.join(name);
        match fs::read_link(&outside) {
            Ok(target) => symlink(target, &inside).map_err(|error| failed(&inside, error))?,
            Err(_) if outside.is_dir() => bind_read_only(&outside, &inside)?,
            Err(_) => {}
        }
    }
    for directory in
        ["etc", "root", "home", "opt", "srv", "mnt", "media", "var/lib", "var/log", "var/cache", "var/spool"]
    {
        make_directory(&at.join(directory))?;
    }
    symlink("/run", at.join("var/run")).map_err(|error| failed(&at.join("var/run"), error))?;
    for name in CONFIGURATION {
        let outside = Path::new("/etc").join(name);
        if outside.exists() {
            bind_read_only(&outside, &at.join("etc").join(name))?;
        }
    }
    Ok(at.to_owned())
}

/// An unpacked root file system under a layer in memory that takes the writes.
fn image_root(at: &Path, image: &Path) -> Result<PathBuf, StartFailure> {
    mount_memory(at, "mode=0755")?;
    let [upper, work, merged] = ["upper", "work", "merged"].map(|name| at.join(name));
    for directory in [&upper, &work, &merged] {
        make_directory(directory)?;
    }
    let options =
        format!("lowerdir={},upperdir={},workdir={}", image.display(), upper.display(), work.display());
    let overlay =
        |options: &str| mount(Some("overlay"), &merged, Some("overlay"), MsFlags::MS_NODEV, Some(options));
    // In a user namespace the kernel wants to be told that only user.* attributes can be used.
    overlay(&format!("{options},userxattr"))
        .or_else(|_| overlay(&options))
        .map_err(|error| failed(image, error.into()))?;
    Ok(merged)
}

fn mount_memory(at: &Path, options: &str) -> Result<(), StartFailure> {
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::MS_NODEV, Some(options))
        .map_err(|error| failed(at, error.into()))
}

fn make_directory(path: &Path) -> Result<(), StartFailure> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| failed(path, error))
}

/// Binds a file or directory, with all mounts below it.
fn bind(outside: &Path, inside: &Path) -> Result<(), StartFailure> {
    let directory = fs::metadata(outside).map_err(|error| failed(outside, error))?.is_dir();
    make_mount_point(inside, directory)?;
    mount(Some(outside), inside, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(|error| failed(outside, error.into()))
}

fn bind_read_only(outside: &Path, inside: &Path) -> Result<(), StartFailure> {
    bind(outside, inside)?;
    restrict(inside, Access::ReadOnly, true)
}

/// Makes what a mount needs to be put on.
fn make_mount_point(path: &Path, directory: bool) -> Result<(), StartFailure> {
    if directory {
        return make_directory(path);
    }
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    if !path.exists() {
        fs::File::create(path).map_err(|error| failed(path, error))?;
    }
    Ok(())
}

/// What a mount allows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Everything but the use of device nodes: a container with the right to make some must not reach the machine's disks.
    NoDevices,
    /// Reading, in addition.
    ReadOnly,
    /// The use of a device node, whose owner and mode are the machine's and stay.
    DeviceOnly,
}

/// Restricts a mount, with all below it if `recursive`; other flags stay as they are.
fn restrict(path: &Path, access: Access, recursive: bool) -> Result<(), StartFailure> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|error| StartFailure::before("a zero byte in a path", error))?;
    let (attributes, old_flags) = match access {
        Access::NoDevices => (libc::MOUNT_ATTR_NODEV, MsFlags::MS_NODEV),
        Access::ReadOnly => {
            (libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_RDONLY, MsFlags::MS_NODEV | MsFlags::MS_RDONLY)
        }
        // A device takes writes all the same.
        Access::DeviceOnly => (libc::MOUNT_ATTR_RDONLY, MsFlags::MS_RDONLY),
    };
    let attributes = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the name is zero-terminated, the structure lives during the call and its size is given.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            name.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 {
        return Ok(());
    }
    if Errno::last() != Errno::ENOSYS {
        return Err(failed(path, io::Error::last_os_error()));
    }
    // Linux before 5.12: only this mount, and all of its flags must be named again.
    let current = nix::sys::statvfs::statvfs(path).map_err(|error| failed(path, error.into()))?.flags();
    let kept = MsFlags::from_bits_truncate(current.bits());
    let flags = kept | old_flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).map_err(|error| failed(path, error.into()))
}

fn devices(dev: &Path) -> Result<(), StartFailure> {
    mount_memory(dev, "mode=0755,size=64k")?;
    for name in DEVICES {
        let inside = dev.join(name);
        bind(&Path::new("/dev").join(name), &inside)?;
        restrict(&inside, Access::DeviceOnly, false)?;
    }
    let terminals = dev.join("pts");
    make_directory(&terminals)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    // Group 5 is `tty`; it does not exist where only one group is mapped.
    mount(Some("devpts"), &terminals, Some("devpts"), flags, Some(format!("{options},gid=5").as_str()))
        .or_else(|_| mount(Some("devpts"), &terminals, Some("devpts"), flags, Some(options)))
        .map_err(|error| failed(&terminals, error.into()))?;
    let shared = dev.join("shm");
    make_directory(&shared)?;
    mount_memory(&shared, "mode=1777,size=64m")?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        let link = dev.join(name);
        symlink(target, &link).map_err(|error| failed(&link, error))?;
    }
    Ok(())
}

fn processes(proc: &Path) -> Result<(), StartFailure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), proc, Some("proc"), flags, None::<&str>)
        .map_err(|error| failed(proc, error.into()))?;
    for name in READ_ONLY_PROC {
        let path = proc.join(name);
        if path.exists() {
            bind_read_only(&path, &path)?;
        }
    }
    for name in HIDDEN_PROC {
        let path = proc.join(name);
        if path.exists() {
            bind(Path::new("/dev/null"), &path)?;
        }
    }
    Ok(())
}

/// Writes one file below `root`, replacing a link: an image's `/etc/resolv.conf` may lead anywhere.
fn write(root: &Path, path: &Path, content: &str) -> Result<(), StartFailure> {
    let file = root.join(path.strip_prefix("/").unwrap_or(path));
    if let Some(parent) = file.parent() {
        make_directory(parent)?;
    }
    let _ = fs::remove_file(&file);
    fs::write(&file, content).map_err(|error| failed(&file, error))
}

/// Makes `root` this process's `/`. The machine's root stays mounted over it, at the current directory,
/// until the caller detaches it.
fn switch_to(root: &Path) -> Result<(), StartFailure> {
    std::env::set_current_dir(root).map_err(|error| failed(root, error))?;
    pivot_root(".", ".").map_err(|error| failed(root, error.into()))
}

/// Binds a volume after the switch, so that links inside the image cannot lead out of it.
fn bind_volume(source: &OwnedFd, target: &Path, read_only: bool) -> Result<(), StartFailure> {
    let failed = |error: io::Error| StartFailure::before(format!("volume mount {}", target.display()), error);
    let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
    let directory = fs::metadata(&source).map_err(failed)?.is_dir();
    make_mount_point(target, directory)?;
    mount(Some(&source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(|error| failed(error.into()))?;
    restrict(target, if read_only { Access::ReadOnly } else { Access::NoDevices }, true)
}
