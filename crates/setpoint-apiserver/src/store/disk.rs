//! Objects on disk: one redb file, in which a commit is there whole or not at all whenever the process or the machine dies.
//!
//! ```text
//! write ─▶ memory ─▶ queue ─▶ thread "setpoint-store": a batch, one commit, one sync ─▶ progress ─▶ answers and watches go out
//! ```
//!
//! Writes are decided in memory, in order, and wait there for the disk together: a commit takes whatever has come in during the one before.
//! Nothing that is not on disk leaves the server, neither as an answer nor in a watch. So after a crash nobody knows of a write that is not there.
//!
//! The thread is the one exception to the rule that there are no hidden threads: a sync blocks for milliseconds. It exists only with a data folder.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use bytes::Bytes;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition, WriteTransaction,
};
use tokio::sync::watch;

use super::stored::Field;
use super::{Key, Stored};

/// The name of the file in the data folder.
const FILE: &str = "objects.redb";
/// What this version writes. Another one is refused.
const FORMAT: u64 = 1;
/// By resource, namespace and name, with zero bytes in between; the value is the revision, where the kind is (see [`Field`]), and the object in JSON.
const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
/// `format`, and `revision`: that of the newest write of all.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// Keys and tokens by name.
const SECRETS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("secrets");
/// The most writes of one commit.
const BATCH: usize = 4096;
/// What redb keeps in memory. Objects are read once, at the start, and are in memory anyway.
const CACHE: usize = 4 << 20;

/// Why a data folder cannot be used. One line each that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be made, or nothing can be written there.
    #[error("cannot write to the data folder {}: {source}; make it writable, free some space, or choose another one", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{} is in use by another process: stop that one, or choose another data folder", file.display())]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// It is no store, or not whole.
    #[error("{} is damaged ({problem}): put a copy back in its place, or move it away to begin with an empty cluster", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Another version of Setpoint wrote it.
    #[error("{} has format {found}, and this version of setpoint knows {FORMAT}: use the version that wrote it, or choose another data folder", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// The format that it has.
        found: u64,
    },
}

/// How far the disk has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Everything up to here is on disk.
    revision: u64,
    /// Why nothing more gets there.
    failure: Option<Arc<str>>,
}

/// A write that is to be on disk: an object, or none where it was removed.
pub(super) struct Row {
    pub(super) revision: u64,
    pub(super) resource: Arc<str>,
    pub(super) key: Key,
    pub(super) object: Option<Arc<Stored>>,
}

/// What a file has.
pub(super) struct Contents {
    pub(super) revision: u64,
    /// In the order of resources and keys.
    pub(super) objects: Vec<(Arc<str>, Key, Arc<Stored>)>,
}

/// An open file. Dropping it waits until everything is on disk.
pub(super) struct Disk {
    database: Arc<Database>,
    file: PathBuf,
    /// None while it is dropped.
    rows: Option<mpsc::Sender<Row>>,
    progress: watch::Receiver<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Opens the file in `folder`, or makes it, and reads what it has.
    pub(super) fn open(folder: &Path) -> Result<(Self, Contents), OpenError> {
        let unusable = |source| OpenError::Folder { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(unusable)?;
        let file = folder.join(FILE);
        let is_new = !file.exists();
        let open = || redb::Builder::new().set_cache_size(CACHE).create(&file);
        // A file that is no database must not end the process.
        let opened = catch_unwind(AssertUnwindSafe(open));
        let opened = opened.map_err(|_| damaged(&file, "it cannot be read"))?;
        let database = opened.map_err(|error| refused(&file, error))?;
        if is_new {
            private(&file).and_then(|()| sync_folder(folder)).map_err(unusable)?;
        }
        let read = catch_unwind(AssertUnwindSafe(|| read(&database, &file)));
        let contents = read.unwrap_or_else(|_| Err(damaged(&file, "its tables cannot be read")))?;
        let database = Arc::new(database);
        let (rows, queue) = mpsc::channel();
        let (sender, progress) = watch::channel(Progress { revision: contents.revision, failure: None });
        let thread = {
            let (database, file) = (Arc::clone(&database), file.clone());
            let writer = std::thread::Builder::new().name("setpoint-store".to_owned());
            writer.spawn(move || follow(&database, &file, &queue, &sender)).map_err(unusable)?
        };
        Ok((Self { database, file, rows: Some(rows), progress, thread: Some(thread) }, contents))
    }

    /// Puts a write into the queue. Writes must come in the order of their revisions.
    pub(super) fn push(&self, row: Row) {
        // After a failure nobody takes it: whoever waits for it learns why.
        let _ = self.rows.as_ref().map(|rows| rows.send(row));
    }

    /// Waits until `revision` is on disk.
    ///
    /// # Errors
    /// Why it will not get there.
    pub(super) async fn reached(&self, revision: u64) -> Result<(), Arc<str>> {
        let mut progress = self.progress.clone();
        let found = progress.wait_for(|now| now.failure.is_some() || now.revision >= revision).await;
        match found {
            Ok(now) if now.revision >= revision => Ok(()),
            Ok(now) => Err(now.failure.clone().unwrap_or_else(|| "the store has stopped".into())),
            Err(_) => Err("the store has stopped".into()),
        }
    }

    /// Waits until nothing can be written any more, and says why.
    pub(super) async fn failure(&self) -> Arc<str> {
        let mut progress = self.progress.clone();
        let found = progress.wait_for(|now| now.failure.is_some()).await;
        found.ok().and_then(|now| now.failure.clone()).unwrap_or_else(|| "the store has stopped".into())
    }

    /// A key or token that was kept.
    pub(super) fn secret(&self, name: &str) -> Option<Vec<u8>> {
        let read = || -> Result<_, redb::Error> {
            let table = self.database.begin_read()?.open_table(SECRETS)?;
            Ok(table.get(name)?.map(|value| value.value().to_vec()))
        };
        read().ok().flatten()
    }

    /// All kept names that begin with `prefix`, and what they hold.
    pub(super) fn secrets(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let read = || -> Result<_, redb::Error> {
            let table = self.database.begin_read()?.open_table(SECRETS)?;
            let mut found = Vec::new();
            for entry in table.range(prefix..)? {
                let (name, value) = entry?;
                let Some(rest) = name.value().strip_prefix(prefix) else { break };
                found.push((rest.to_owned(), value.value().to_vec()));
            }
            Ok(found)
        };
        read().unwrap_or_default()
    }

    /// Keeps a key or token. On disk when it returns; rare enough to wait for it.
    pub(super) fn keep_secret(&self, name: &str, value: &[u8]) -> Result<(), Arc<str>> {
        let write = || -> Result<(), redb::Error> {
            let transaction = begin(&self.database)?;
            transaction.open_table(SECRETS)?.insert(name, value)?;
            Ok(transaction.commit()?)
        };
        write().map_err(|error| unwritable(&self.file, &error))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.rows = None;
        if let Some(thread) = self.thread.take() {
            // It ends when the queue is empty.
            let _ = thread.join();
        }
    }
}

/// The thread: commits what is in the queue, as much at a time as there is.
fn follow(database: &Database, file: &Path, queue: &mpsc::Receiver<Row>, progress: &watch::Sender<Progress>) {
    let opened = identity(file);
    while let Ok(first) = queue.recv() {
        if opened.is_some() && identity(file) != opened {
            progress.send_modify(|progress| progress.failure = Some(gone(file)));
            return;
        }
        let rows: Vec<Row> = std::iter::once(first).chain(queue.try_iter().take(BATCH - 1)).collect();
        let revision = rows.last().map_or(0, |row| row.revision);
        match commit(database, &rows) {
            Ok(()) => progress.send_modify(|progress| progress.revision = revision),
            Err(error) => {
                let failure = unwritable(file, &error);
                progress.send_modify(|progress| progress.failure = Some(failure));
                return;
            }
        }
    }
}

/// Writes rows in one transaction; they are on disk when it returns.
fn commit(database: &Database, rows: &[Row]) -> Result<(), redb::Error> {
    let transaction = begin(database)?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for row in rows {
            let name = name_of(&row.resource, &row.key);
            match &row.object {
                Some(object) => objects.insert(&*name, &*encode(object))?,
                None => objects.remove(&*name)?,
            };
        }
        if let Some(last) = rows.last() {
            transaction.open_table(NUMBERS)?.insert("revision", last.revision)?;
        }
    }
    Ok(transaction.commit()?)
}

/// A transaction that is committed in two phases: with one, redb cannot tell a commit that was damaged later from one that the crash
/// cut off, and would go back to the one before without a word.
fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// Reads everything, and makes the tables of a new file.
fn read(database: &Database, file: &Path) -> Result<Contents, OpenError> {
    let broken = |error: redb::Error| match error {
        redb::Error::Io(source) => OpenError::Folder { path: file.to_owned(), source },
        other => damaged(file, &other.to_string()),
    };
    let tables = || -> Result<u64, redb::Error> {
        let transaction = begin(database)?;
        transaction.open_table(OBJECTS)?;
        transaction.open_table(SECRETS)?;
        let format = {
            let mut numbers = transaction.open_table(NUMBERS)?;
            let found = numbers.get("format")?.map(|found| found.value());
            if found.is_none() {
                numbers.insert("format", FORMAT)?;
            }
            found.unwrap_or(FORMAT)
        };
        transaction.commit()?;
        Ok(format)
    };
    let found = tables().map_err(broken)?;
    if found != FORMAT {
        return Err(OpenError::Format { file: file.to_owned(), found });
    }
    let mut objects: Vec<(Arc<str>, Key, Arc<Stored>)> = Vec::new();
    let mut rows = || -> Result<Option<u64>, redb::Error> {
        let transaction = database.begin_read()?;
        for entry in transaction.open_table(OBJECTS)?.iter()? {
            let (name, value) = entry?;
            let Some((resource, key)) = parse_name(name.value()) else { continue };
            let resource = match objects.last() {
                Some((last, ..)) if **last == *resource => Arc::clone(last),
                _ => resource.into(),
            };
            let Some(stored) = decode(value.value()) else {
                return Err(redb::Error::Corrupted(format!("{}/{}: too short", key.namespace, key.name)));
            };
            objects.push((resource, key, stored));
        }
        Ok(transaction.open_table(NUMBERS)?.get("revision")?.map(|found| found.value()))
    };
    // The revision of a server that has written nothing yet.
    let revision = rows().map_err(broken)?.unwrap_or(1);
    Ok(Contents { revision, objects })
}

fn name_of(resource: &str, key: &Key) -> Vec<u8> {
    [resource.as_bytes(), key.namespace.as_bytes(), key.name.as_bytes()].join(&0)
}

fn parse_name(name: &[u8]) -> Option<(&str, Key)> {
    let mut parts = std::str::from_utf8(name).ok()?.splitn(3, '\0');
    Some((parts.next()?, Key::new(parts.next()?, parts.next()?)))
}

fn encode(stored: &Stored) -> Vec<u8> {
    let Field { start, end } = stored.kind_field();
    let mut bytes = Vec::with_capacity(stored.json.len() + 16);
    bytes.extend(stored.revision.to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend(end.to_le_bytes());
    bytes.extend_from_slice(&stored.json);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Arc<Stored>> {
    let (revision, rest) = bytes.split_first_chunk()?;
    let (start, rest) = rest.split_first_chunk()?;
    let (end, json) = rest.split_first_chunk()?;
    let field = Field { start: u32::from_le_bytes(*start), end: u32::from_le_bytes(*end) };
    Some(Stored::of(Bytes::copy_from_slice(json), u64::from_le_bytes(*revision), field))
}

fn damaged(file: &Path, problem: &str) -> OpenError {
    OpenError::Damaged { file: file.to_owned(), problem: problem.to_owned() }
}

fn refused(file: &Path, error: DatabaseError) -> OpenError {
    let folder = || file.parent().unwrap_or(file).to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { file: file.to_owned() },
        // What is no database at all is said to be invalid data; what has been cut off ends too early.
        DatabaseError::Storage(StorageError::Io(source))
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            OpenError::Folder { path: folder(), source }
        }
        other => damaged(file, &other.to_string()),
    }
}

/// What tells a file from another one of the same name.
fn identity(file: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(file).ok().map(|found| (found.dev(), found.ino()))
}

/// The file that is open has no name any more: what is written to it ends with the process.
fn gone(file: &Path) -> Arc<str> {
    format!(
        "{} has been removed or replaced while the cluster ran, so that nothing can be kept any more: put a copy back, or start again with an empty cluster",
        file.display()
    )
    .into()
}

fn unwritable(file: &Path, error: &redb::Error) -> Arc<str> {
    format!(
        "cannot write to {}: {error}; nothing that was acknowledged is lost: make room, then start again",
        file.display()
    )
    .into()
}

/// It holds keys and Secrets.
fn private(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))
}

/// Makes a new file's name durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
