use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use redb::StorageBackend;
use serde_json::json;

use super::*;

/// What the file was asked to do.
#[derive(Clone, Debug)]
enum Operation {
    SetLength(u64),
    Write(u64, Vec<u8>),
    Sync,
}

/// A file in memory that notes every operation. Its disk may become full.
#[derive(Clone, Debug, Default)]
struct Recorded(Arc<Mutex<(Vec<u8>, Vec<Operation>)>>, Arc<AtomicBool>);

impl Recorded {
    fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new((bytes, Vec::new()))), Arc::default())
    }

    fn check_room(&self) -> io::Result<()> {
        if self.1.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Recorded {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.lock().unwrap().0.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let offset = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.0.lock().unwrap().0[offset..offset + out.len()]);
        Ok(())
    }

    fn set_len(&self, length: u64) -> Result<(), io::Error> {
        self.check_room()?;
        let (bytes, operations) = &mut *self.0.lock().unwrap();
        apply(bytes, &Operation::SetLength(length), usize::MAX);
        operations.push(Operation::SetLength(length));
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.0.lock().unwrap().1.push(Operation::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.check_room()?;
        let (bytes, operations) = &mut *self.0.lock().unwrap();
        let operation = Operation::Write(offset, data.to_vec());
        apply(bytes, &operation, usize::MAX);
        operations.push(operation);
        Ok(())
    }
}

/// Does an operation, of a write no more than `most` bytes.
fn apply(bytes: &mut Vec<u8>, operation: &Operation, most: usize) {
    match operation {
        Operation::SetLength(length) => bytes.resize(usize::try_from(*length).unwrap(), 0),
        Operation::Write(offset, data) => {
            let offset = usize::try_from(*offset).unwrap();
            let data = &data[..data.len().min(most)];
            if bytes.len() < offset + data.len() {
                bytes.resize(offset + data.len(), 0);
            }
            bytes[offset..offset + data.len()].copy_from_slice(data);
        }
        Operation::Sync => {}
    }
}

/// What the machine leaves of the operations before `crash`: all that were synced, of the others those that `survives` says, and of the last
/// one no more than `torn` bytes.
fn after_crash(operations: &[Operation], crash: usize, torn: usize, survives: &[bool]) -> Vec<u8> {
    let happened = &operations[..crash];
    let synced = happened.iter().rposition(|operation| matches!(operation, Operation::Sync)).unwrap_or(0);
    let mut bytes = Vec::new();
    for (index, operation) in happened.iter().enumerate() {
        // The length belongs to the file system's journal.
        let length = matches!(operation, Operation::SetLength(_));
        if index < synced || length || survives[index % survives.len()] {
            let last = index + 1 == crash;
            apply(&mut bytes, operation, if last { torn } else { usize::MAX });
        }
    }
    bytes
}

fn contents(database: &Database) -> (u64, BTreeMap<String, u64>) {
    let found = read(database, Path::new("objects.redb")).unwrap();
    let objects = found.objects.iter().map(|(resource, key, stored)| {
        assert_eq!(stored.value["metadata"]["resourceVersion"], stored.revision.to_string());
        (format!("{resource}/{}/{}", key.namespace, key.name), stored.revision)
    });
    (found.revision, objects.collect())
}

fn row(revision: u64, id: u8, put: bool) -> Row {
    let object = json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": id}, "data": "x".repeat(usize::from(id) * 40)});
    Row {
        revision,
        resource: if id.is_multiple_of(2) { "pods" } else { "secrets" }.into(),
        key: Key::new("default", id.to_string()),
        object: put.then(|| Stored::encode(&object, revision)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whenever the machine dies and whatever of the unsynced writes gets to the disk, what is found afterwards is what some commit left: no
    /// earlier one than the last that was acknowledged, and nothing half.
    #[test]
    fn what_was_acknowledged_survives_any_crash(
        batches in prop::collection::vec(prop::collection::vec((0u8..12, 0u8..4), 1..12), 1..8),
        crashes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..5000, prop::collection::vec(any::<bool>(), 1..9)), 8),
    ) {
        let file = Recorded::default();
        let database = Database::builder().create_with_backend(file.clone()).unwrap();
        contents(&database);
        // For each commit how many operations there were when it was acknowledged, and what it left.
        let acknowledged = file.0.lock().unwrap().1.len();
        let mut states = vec![(acknowledged, contents(&database))];
        let mut revision = 1;
        for batch in &batches {
            let rows: Vec<Row> = batch.iter().map(|&(id, action)| { revision += 1; row(revision, id, action > 0) }).collect();
            commit(&database, &rows).unwrap();
            let acknowledged = file.0.lock().unwrap().1.len();
            states.push((acknowledged, contents(&database)));
        }
        let operations = file.0.lock().unwrap().1.clone();
        let first = states[0].0;
        for (at, torn, survives) in crashes {
            let crash = first + at.index(operations.len() - first + 1);
            let bytes = after_crash(&operations, crash, torn, &survives);
            let recovered = Recorded::of(bytes);
            let database = Database::builder().create_with_backend(recovered).unwrap();
            let found = contents(&database);
            let acknowledged = states.iter().rposition(|(operations, _)| *operations <= crash).unwrap();
            let allowed = &states[acknowledged..(acknowledged + 2).min(states.len())];
            prop_assert!(
                allowed.iter().any(|(_, state)| *state == found),
                "crash at {crash} of {}: found {found:?}, allowed {allowed:?}", operations.len()
            );
        }
    }
}

#[tokio::test]
async fn a_file_gives_back_what_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, contents) = Disk::open(folder.path()).unwrap();
    assert_eq!((contents.revision, contents.objects.len()), (1, 0));
    for (revision, id, put) in [(2, 1, true), (3, 2, true), (4, 2, false), (5, 4, true)] {
        disk.push(row(revision, id, put));
    }
    disk.reached(5).await.unwrap();
    disk.keep_secret("token/a", b"x").unwrap();
    disk.keep_secret("unrelated", b"y").unwrap();
    drop(disk);
    let (disk, contents) = Disk::open(folder.path()).unwrap();
    assert_eq!(contents.revision, 5);
    let names: Vec<_> =
        contents.objects.iter().map(|(resource, key, _)| format!("{resource}/{}", key.name)).collect();
    assert_eq!(names, ["pods/4", "secrets/1"]);
    assert_eq!(contents.objects[0].2.json, row(5, 4, true).object.unwrap().json);
    assert_eq!(disk.secrets("token/"), [("a".to_owned(), b"x".to_vec())]);
    assert_eq!(disk.secret("unrelated").unwrap(), b"y");
}

fn message(folder: &Path) -> String {
    Disk::open(folder).err().unwrap().to_string()
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, _) = Disk::open(folder.path()).unwrap();
    assert!(message(folder.path()).contains("is in use by another process"), "{}", message(folder.path()));
    drop(disk);

    let file = folder.path().join(FILE);
    let whole = fs::read(&file).unwrap();
    for (what, bytes) in [
        ("no database", b"hello".to_vec()),
        ("its first half", whole[..whole.len() / 2].to_vec()),
        ("its first bytes", whole[..100].to_vec()),
        ("all but its last byte", whole[..whole.len() - 1].to_vec()),
        ("other bytes", vec![7; whole.len()]),
    ] {
        fs::write(&file, bytes).unwrap();
        let text = message(folder.path());
        assert!(text.contains("is damaged") && !text.contains('\n'), "{what}: {text}");
    }

    fs::remove_file(&file).unwrap();
    let database = Database::create(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(NUMBERS).unwrap().insert("format", 99).unwrap();
    transaction.commit().unwrap();
    drop(database);
    assert!(message(folder.path()).contains("has format 99"), "{}", message(folder.path()));

    let text = message(Path::new("/proc/no/such/folder"));
    assert!(text.contains("cannot write to the data folder") && !text.contains('\n'), "{text}");
}

#[test]
fn a_full_disk_is_said_in_one_line_and_keeps_what_was_acknowledged() {
    let file = Recorded::default();
    let database = Database::builder().create_with_backend(file.clone()).unwrap();
    contents(&database);
    let (rows, queue) = mpsc::channel();
    let (sender, progress) = watch::channel(Progress::default());
    rows.send(row(2, 1, true)).unwrap();
    let path = Path::new("objects.redb");
    let run = || {
        let (next, rest) = mpsc::channel();
        for row in queue.try_iter() {
            next.send(row).unwrap();
        }
        drop(next);
        follow(&database, path, &rest, &sender);
    };
    run();
    assert_eq!((progress.borrow().revision, progress.borrow().failure.clone()), (2, None));
    file.1.store(true, Ordering::Relaxed);
    rows.send(row(3, 2, true)).unwrap();
    run();
    let failure = progress.borrow().failure.clone().unwrap();
    assert!(failure.contains("cannot write to objects.redb") && failure.contains("make room"), "{failure}");
    assert!(!failure.contains('\n'), "{failure}");
    assert_eq!(progress.borrow().revision, 2);
    // As it would be found by the next process.
    let bytes = file.0.lock().unwrap().0.clone();
    let reopened = Database::builder().create_with_backend(Recorded::of(bytes)).unwrap();
    assert_eq!(self::contents(&reopened), (2, BTreeMap::from([("secrets/default/1".to_owned(), 2)])));
}

/// A process that was killed leaves a file that is checked when it is opened. What was acknowledged and is damaged must not look like
/// what a crash cut off: then the commit before it would come back without a word.
#[test]
fn a_flipped_bit_in_the_last_commit_is_damage_and_no_older_state() {
    let file = Recorded::default();
    let database = Database::builder().create_with_backend(file.clone()).unwrap();
    contents(&database);
    commit(&database, &[row(2, 1, true)]).unwrap();
    commit(&database, &[row(3, 2, true)]).unwrap();
    let mut bytes = file.0.lock().unwrap().0.clone();
    let last = b"\"resourceVersion\":\"3\"";
    let at = bytes.windows(last.len()).position(|window| window == last).unwrap();
    let whole = Database::builder().create_with_backend(Recorded::of(bytes.clone())).unwrap();
    assert_eq!(contents(&whole).0, 3);
    bytes[at] ^= 1;
    let error = Database::builder().create_with_backend(Recorded::of(bytes)).unwrap_err();
    let text = refused(Path::new("objects.redb"), error).to_string();
    assert!(text.contains("objects.redb is damaged") && !text.contains('\n'), "{text}");
}

#[tokio::test]
async fn a_folder_that_is_removed_or_replaced_ends_the_writes() {
    for replaced in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = Disk::open(folder.path()).unwrap();
        disk.push(row(2, 1, true));
        disk.reached(2).await.unwrap();
        fs::remove_file(folder.path().join(FILE)).unwrap();
        if replaced {
            fs::write(folder.path().join(FILE), "another").unwrap();
        }
        disk.push(row(3, 2, true));
        let why = disk.reached(3).await.unwrap_err();
        assert!(why.contains("has been removed or replaced") && !why.contains('\n'), "{why}");
    }
}
