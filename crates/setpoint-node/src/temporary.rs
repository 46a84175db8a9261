//! A folder that goes with its process, however that ends.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::poll::poll;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::{ForkResult, fork, mkdtemp, setsid};

use crate::spawn::{exit_now, keep_only, single_threaded};

/// Held by the processes that use the folder, and by those alone: the kernel lets go when the last of them ends.
const LOCK: &str = ".lock";

/// How often removing is tried, and how long is waited in between (milliseconds): processes of a sandbox that is
/// just being killed may still write.
const TRIES: u32 = 250;
const PAUSE: u16 = 20;

/// A new folder in the machine's folder for temporary files, which only this user can read. It is removed when this
/// is dropped; when the process is killed before, a small process that waits for nothing else removes it.
/// Where that was killed, too, the next folder of the same name removes it.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    _lock: Flock<File>,
}

impl TemporaryFolder {
    /// Makes the folder `NAME-RANDOM`. Call it before the process starts a thread; it lasts as long as the last of this
    /// process and its forked copies.
    ///
    /// # Errors
    ///
    /// When the folder for temporary files cannot be written, or when there are threads.
    pub fn create(name: &str) -> io::Result<Self> {
        if !single_threaded() {
            return Err(io::Error::other(
                "a temporary folder must be made before the process starts a thread",
            ));
        }
        // Programs with other working directories are told of it.
        let temporary = std::path::absolute(std::env::temp_dir())?;
        remove_forgotten(&temporary, name);
        let path = mkdtemp(&temporary.join(format!("{name}-XXXXXX")))?;
        let made = lock(&path).and_then(|lock| watch(&path).map(|()| lock));
        match made {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(error) => {
                drop(fs::remove_dir_all(&path));
                Err(error)
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.path));
    }
}

/// Makes the lock. It gets its name when it is held, so that nobody takes a new folder for a forgotten one.
fn lock(folder: &Path) -> io::Result<Flock<File>> {
    let nameless = folder.join(".new");
    let lock = Flock::lock(File::create(&nameless)?, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, error)| io::Error::from(error))?;
    fs::rename(&nameless, folder.join(LOCK))?;
    Ok(lock)
}

/// Removes folders of dead processes. Those of other users cannot be opened.
fn remove_forgotten(temporary: &Path, name: &str) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let ours =
            entry.file_name().to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix('-')).is_some();
        if ours
            && let Ok(file) = File::open(entry.path().join(LOCK))
            && let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// Starts a process that removes the folder once nobody uses it any more.
fn watch(folder: &Path) -> io::Result<()> {
    let lock = File::open(folder.join(LOCK))?;
    // SAFETY: this process has one thread (checked by the caller), so that the child finds no lock held by another.
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => Ok(()),
        ForkResult::Child => {
            wait_and_remove(lock.into(), folder);
            exit_now(0)
        }
    }
}

fn wait_and_remove(lock: OwnedFd, folder: &Path) {
    // What ends the process from its terminal must not end this one.
    let _ = setsid();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    drop(std::env::set_current_dir("/"));
    let Ok(lock) = keep_only(lock) else { return };
    if Flock::lock(lock, FlockArg::LockExclusive).is_err() {
        return;
    }
    for _ in 0..TRIES {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let _ = poll(&mut [], PAUSE);
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_that_nobody_uses_are_forgotten() {
        let temporary = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = temporary.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let (used, forgotten, new, other) = (make("x-1"), make("x-2"), make("x-3"), make("y-1"));
        let held = lock(&used).unwrap();
        for folder in [&forgotten, &other] {
            drop(lock(folder).unwrap());
        }
        remove_forgotten(temporary.path(), "x");
        assert!(used.exists() && new.exists() && other.exists());
        assert!(!forgotten.exists());
        drop(held);
        remove_forgotten(temporary.path(), "x");
        assert!(!used.exists());
    }

    #[test]
    fn threads_are_refused() {
        // The test harness has some.
        assert!(TemporaryFolder::create("setpoint-test").is_err());
    }
}
