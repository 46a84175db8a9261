//! Writes the files of ConfigMap, Secret, downward API and projected volumes so that a reader sees either
//! all old or all new files, in the layout of upstream's AtomicWriter:
//!
//! ```text
//! volume/..3f2a9c…/redis.conf     the files
//! volume/..data -> ..3f2a9c…      switched by one rename
//! volume/redis.conf -> ..data/redis.conf
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Component, Path};

use sha2::{Digest, Sha256};

use super::runtime::{RuntimeError, VolumeFiles};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Writes file volumes below directories of this machine.
#[derive(Debug, Clone, Copy)]
pub struct VolumeStore;

impl VolumeStore {
    /// Makes `directory` hold exactly `files`. Nothing is written when it already does. Fails for paths that
    /// would leave the directory, and when the machine refuses; the old files then stay visible.
    pub fn write(directory: &Path, files: &VolumeFiles) -> Result<(), RuntimeError> {
        write(directory, files).map_err(|source| RuntimeError::Io {
            what: format!("write volume {}", directory.display()),
            source,
        })
    }
}

fn write(directory: &Path, files: &VolumeFiles) -> io::Result<()> {
    if let Some(path) = files.files.keys().find(|path| !stays_inside(path)) {
        return Err(io::Error::other(format!("file path {path:?} must be relative, without .. elements")));
    }
    make_directory(directory)?;
    let version = format!("..{}", fingerprint(files));
    let data = directory.join(DATA);
    let current = fs::read_link(&data).ok();
    if current.as_deref() != Some(Path::new(&version)) {
        let target = directory.join(&version);
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        make_directory(&target)?;
        for (path, file) in &files.files {
            let parents = Path::new(path).ancestors().skip(1).collect::<Vec<_>>();
            for parent in parents.into_iter().rev() {
                make_directory(&target.join(parent))?;
            }
            let path = target.join(path);
            fs::write(&path, &file.data)?;
            // With an fsGroup the group must be able to read, as upstream adds 0440.
            let mode = if files.group.is_some() { file.mode | 0o440 } else { file.mode };
            if file.user.is_some() || files.group.is_some() {
                let id = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
                chown(&path, id(file.user), id(files.group))?;
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        let new = directory.join(DATA_NEW);
        let _ = fs::remove_file(&new);
        symlink(&version, &new)?;
        fs::rename(&new, &data)?;
    }
    let visible: BTreeSet<&str> = files.files.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &visible {
        let link = directory.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = directory.join(&name);
        if name.starts_with("..") {
            if name != DATA && name != version {
                fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path))?;
            }
        } else if !visible.contains(name.as_str()) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Makes a directory that every user of a container can look into, whatever this process's umask is.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn stays_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
}

fn fingerprint(files: &VolumeFiles) -> String {
    let mut hash = Sha256::new();
    for (path, file) in &files.files {
        hash.update(format!("{}\0{}\0{:?}\0", path, file.mode, file.user));
        hash.update((file.data.len() as u64).to_be_bytes());
        hash.update(&file.data);
    }
    hash.update(format!("{:?}", files.group));
    hash.finalize().iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::super::runtime::VolumeFile;
    use super::*;

    fn files(content: &[(&str, &str)]) -> VolumeFiles {
        let file = |data: &str| VolumeFile { data: data.to_owned().into(), mode: 0o640, user: None };
        VolumeFiles {
            files: content.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect(),
            group: None,
        }
    }

    #[test]
    fn replaces_all_files_by_one_link() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("config");
        VolumeStore::write(&volume, &files(&[("a", "1"), ("sub/b", "2")])).unwrap();
        let old = fs::read_link(volume.join("..data")).unwrap();
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(volume.join("sub/b")).unwrap(), "2");
        assert_eq!(fs::read_link(volume.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(fs::metadata(volume.join("a")).unwrap().permissions().mode() & 0o777, 0o640);

        VolumeStore::write(&volume, &files(&[("a", "3"), ("c", "4")])).unwrap();
        assert_ne!(fs::read_link(volume.join("..data")).unwrap(), old);
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
        assert_eq!(fs::read_to_string(volume.join("c")).unwrap(), "4");
        assert!(!volume.join("sub").exists() && !volume.join(&old).exists());
    }

    #[test]
    fn refuses_paths_that_leave_the_volume() {
        let root = tempfile::tempdir().unwrap();
        for path in ["../x", "a/../../x", "/etc/passwd", "..hidden", ""] {
            let error = VolumeStore::write(root.path(), &files(&[(path, "1")])).unwrap_err();
            assert!(error.to_string().contains("write volume"), "{path}: {error}");
        }
    }
}
