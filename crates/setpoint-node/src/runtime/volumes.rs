//! Volumes' directories on this machine.
//!
//! ```text
//! DATA/pods/UID/volumes/NAME   files and emptyDir, removed with the pod
//! DATA/pods/UID/roots, logs, messages
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use setpoint_cluster::kubelet::{RuntimeError, SandboxConfig, VolumeSource};

use crate::machine::Shared;

/// Where logs of a pod's containers are, below its directory.
pub(super) const LOGS: &str = "logs";
/// Where root file systems get mounted.
pub(super) const ROOTS: &str = "roots";
/// Where termination messages are.
pub(super) const MESSAGES: &str = "messages";
const VOLUMES: &str = "volumes";

fn pod_directory(shared: &Shared, uid: &str) -> PathBuf {
    shared.data_dir.join("pods").join(uid)
}

/// Makes a pod's directories.
pub(super) fn make_pod(shared: &Shared, uid: &str) -> Result<PathBuf, RuntimeError> {
    let directory = pod_directory(shared, uid);
    for part in [LOGS, ROOTS, MESSAGES, VOLUMES] {
        let path = directory.join(part);
        fs::create_dir_all(&path).map_err(|source| failed(&path, source))?;
    }
    Ok(directory)
}

/// Removes a pod's directories with what is in them; persistent volumes are elsewhere.
pub(super) fn remove_pod(shared: &Shared, uid: &str) -> Result<(), RuntimeError> {
    let directory = pod_directory(shared, uid);
    // Volumes in memory are mounts of the sandbox.
    for entry in fs::read_dir(directory.join(VOLUMES)).into_iter().flatten().flatten() {
        let _ = umount2(&entry.path(), MntFlags::MNT_DETACH);
    }
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&directory, error)),
        _ => Ok(()),
    }
}

/// Makes or checks the directory of each volume.
pub(super) fn make(
    shared: &Shared,
    pod: &Path,
    config: &SandboxConfig,
) -> Result<BTreeMap<String, PathBuf>, RuntimeError> {
    let group = config.fs_group.filter(|_| shared.all_users).and_then(|group| u32::try_from(group).ok());
    let mut made = BTreeMap::new();
    for volume in &config.volumes {
        let own = pod.join(VOLUMES).join(&volume.name);
        let path = match &volume.source {
            VolumeSource::Files => {
                make_readable(&own).map_err(|source| failed(&own, source))?;
                own
            }
            VolumeSource::EmptyDir { memory, size_limit } => {
                make_writable(&own, group)?;
                // A pod that gets a new sandbox keeps it.
                if *memory && !is_mounted(&own) {
                    mount_memory(&own, *size_limit, group)?;
                }
                own
            }
            VolumeSource::Persistent { path, .. } => {
                make_writable(path, group)?;
                path.clone()
            }
            VolumeSource::HostPath { path, kind } => {
                check_host_path(path, kind)?;
                path.clone()
            }
        };
        made.insert(volume.name.clone(), path);
    }
    Ok(made)
}

fn failed(path: &Path, source: io::Error) -> RuntimeError {
    RuntimeError::Io { what: path.display().to_string(), source }
}

/// A directory that any user of a container may look into, whatever this process's umask is.
fn make_readable(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A directory that any user of a container may write, and that belongs to the pod's `fsGroup`.
fn make_writable(path: &Path, group: Option<u32>) -> Result<(), RuntimeError> {
    if !path.exists() {
        fs::create_dir_all(path).map_err(|source| failed(path, source))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))
            .map_err(|source| failed(path, source))?;
    }
    let current = fs::metadata(path).map_err(|source| failed(path, source))?.gid();
    match group {
        Some(group) if group != current => give_to_group(path, group).map_err(|source| failed(path, source)),
        _ => Ok(()),
    }
}

/// As `fsGroup` is defined: everything belongs to the group, which may read and write; new files inherit it.
fn give_to_group(path: &Path, group: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to_group(&entry?.path(), group)?;
        }
    }
    chown(path, None, Some(group))?;
    let bits = if meta.is_dir() { 0o2770 } else { 0o660 };
    fs::set_permissions(path, fs::Permissions::from_mode(meta.mode() & 0o7777 | bits))
}

/// Whether another file system is mounted at a directory.
fn is_mounted(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    path.parent().is_some_and(|parent| device(parent) != device(path))
}

fn mount_memory(path: &Path, size: Option<u64>, group: Option<u32>) -> Result<(), RuntimeError> {
    let size = size.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    let group = group.map(|group| format!(",gid={group}")).unwrap_or_default();
    let options = format!("mode=2777{size}{group}");
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::MS_NODEV | MsFlags::MS_NOSUID, Some(options.as_str()))
        .map_err(|error| failed(path, error.into()))
}

/// The checks and creations of `hostPath.type`.
fn check_host_path(path: &Path, kind: &str) -> Result<(), RuntimeError> {
    let meta = fs::metadata(path);
    if meta.as_ref().is_ok_and(|meta| meta.file_type().is_char_device() || meta.file_type().is_block_device())
    {
        let what = format!("hostPath {} is a device, which no container may use", path.display());
        return Err(RuntimeError::Unsupported(what));
    }
    let fits = match kind {
        "" => true,
        "DirectoryOrCreate" => return fs::create_dir_all(path).map_err(|source| failed(path, source)),
        "FileOrCreate" if meta.is_err() => {
            return fs::File::create(path).map(drop).map_err(|source| failed(path, source));
        }
        "Directory" => meta.as_ref().is_ok_and(fs::Metadata::is_dir),
        "File" | "FileOrCreate" => meta.as_ref().is_ok_and(fs::Metadata::is_file),
        other => return Err(RuntimeError::Unsupported(format!("hostPath type {other}"))),
    };
    if fits && meta.is_ok() {
        return Ok(());
    }
    Err(failed(path, io::Error::other(format!("hostPath type check failed: it is not a {kind}"))))
}

/// The path inside a volume that a mount names; it is created as a directory if missing, and must not lead
/// out of the volume, also not through links.
pub(super) fn below(volume: &Path, sub_path: &str) -> Result<PathBuf, RuntimeError> {
    let inside = Path::new(sub_path);
    let outside = || failed(inside, io::Error::other("subPath must stay inside the volume"));
    if !inside.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(outside());
    }
    let path = volume.join(inside);
    let mut created = volume.to_owned();
    let mode = fs::metadata(volume).map_err(|source| failed(volume, source))?.permissions();
    for part in inside.components() {
        created.push(part);
        if fs::metadata(&created).is_err() {
            // With the rights of the volume, as upstream makes it.
            let made = fs::create_dir(&created).and_then(|()| fs::set_permissions(&created, mode.clone()));
            made.map_err(|source| failed(&created, source))?;
        }
    }
    let root = fs::canonicalize(volume).map_err(|source| failed(volume, source))?;
    let real = fs::canonicalize(&path).map_err(|source| failed(&path, source))?;
    if real.starts_with(&root) { Ok(real) } else { Err(outside()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sub_path_stays_inside_its_volume() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        fs::create_dir_all(directory.path().join("secret")).unwrap();
        fs::create_dir_all(&volume).unwrap();
        std::os::unix::fs::symlink("../secret", volume.join("link")).unwrap();
        assert!(below(&volume, "new/sub").unwrap().is_dir());
        for path in ["../secret", "/etc", "link"] {
            assert!(below(&volume, path).is_err(), "{path}");
        }
    }

    #[test]
    fn host_paths_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        assert!(check_host_path(&directory.path().join("new"), "DirectoryOrCreate").is_ok());
        assert!(check_host_path(&directory.path().join("new"), "Directory").is_ok());
        assert!(check_host_path(&directory.path().join("new"), "File").is_err());
        assert!(check_host_path(&directory.path().join("missing"), "").is_err());
        let device = check_host_path(Path::new("/dev/null"), "").unwrap_err().to_string();
        assert!(device.contains("hostPath /dev/null is a device"), "{device}");
    }
}
