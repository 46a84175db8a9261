//! The store: one revision counter, objects by resource, namespace and name, and an event log for watches.
//!
//! ```text
//! write ──▶ writer lock: check expected revision, count up, encode once ──▶ publish: map + log ──▶ wake watchers
//! read  ──▶ clone of an Arc of the map (a snapshot): neither waits for the other's work
//! ```
//!
//! With a data folder each write also goes to disk, and answers and watches wait until what they show is there: see `disk.rs`.

mod disk;
mod listener;
mod log;
mod objects;
mod pins;
mod stored;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

pub use self::disk::OpenError;
use self::disk::{Disk, Row};
pub(crate) use self::listener::Listener;
use self::log::Log;
pub(crate) use self::log::{Compacted, Event, EventKind, watch_line};
pub(crate) use self::objects::Objects;
use self::pins::Pins;
use self::stored::Draft;
pub(crate) use self::stored::Stored;
use crate::object::Metadata;

/// An object's place within its resource. Cluster-scoped objects have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// All objects of a resource as they were at `revision`.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) revision: u64,
    pub(crate) objects: Objects,
}

impl Snapshot {
    /// The objects of `namespace` (all namespaces when empty) from `start` on, in the order of their keys.
    pub(crate) fn range<'a>(
        &'a self,
        namespace: &'a str,
        start: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> {
        let first = match start {
            Some(start) => Some(start.clone()),
            None if namespace.is_empty() => None,
            None => Some(Key::new(namespace, "")),
        };
        let bound = first.as_ref().map_or(Bound::Unbounded, Bound::Included);
        self.objects
            .from(bound)
            .take_while(move |(key, _)| namespace.is_empty() || key.namespace == namespace)
    }

    /// How many objects of `namespace` (all namespaces when empty) there are from `start` on.
    pub(crate) fn count(&self, namespace: &str, start: &Key) -> usize {
        // No name of a namespace is between this one and the next longer one.
        let end = (!namespace.is_empty()).then(|| Key::new(format!("{namespace}\0"), ""));
        self.objects.count(start, end.as_ref())
    }
}

/// What a write must find to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    Revision(u64),
}

#[derive(Debug)]
pub(crate) enum Change {
    Put(Value),
    /// Removes the object; watchers are shown this last state.
    Remove(Value),
}

/// A change in bytes: encoded before it is this write's turn.
struct Encoded {
    draft: Draft,
    removal: bool,
}

impl Encoded {
    fn of(change: &Change) -> Self {
        let (removal, value) = match change {
            Change::Put(value) => (false, value),
            Change::Remove(value) => (true, value),
        };
        Self { draft: Draft::of(value), removal }
    }
}

/// The object is not as the write expected: somebody else was faster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Raced;

/// An object without which another one may not come into being: its namespace, its definition. It must exist and not be
/// on its way out at the moment of the write, so that whoever empties it before it goes has seen everything.
#[derive(Debug)]
pub(crate) struct Holder<'a> {
    pub(crate) resource: &'a str,
    pub(crate) key: Key,
    /// Its uid, if only this one will do and not a later one of the same name.
    pub(crate) uid: Option<&'a str>,
}

/// Why an object could not be created.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is one of this name.
    Taken,
    /// A holder is missing or going away.
    Unheld,
}

struct Collection {
    objects: Objects,
    log: Log,
    changed: watch::Sender<u64>,
    /// Whether anything was ever written.
    used: bool,
}

impl Collection {
    fn new(limits: LogLimits, base: u64) -> Self {
        Self {
            objects: Objects::default(),
            log: Log::new(limits, base),
            changed: watch::Sender::new(0),
            used: false,
        }
    }
}

struct State {
    revision: u64,
    collections: BTreeMap<Arc<str>, Collection>,
    /// Who wants to hear of the first write to each resource.
    first_use: Vec<mpsc::UnboundedSender<Arc<str>>>,
    /// Who wants to hear in which namespaces something is written.
    listeners: Vec<Weak<Listener>>,
}

impl State {
    fn new(revision: u64, collections: BTreeMap<Arc<str>, Collection>) -> Self {
        Self { revision, collections, first_use: Vec::new(), listeners: Vec::new() }
    }

    /// Tells all listeners that are left.
    fn tell(&mut self, tell: impl Fn(&Listener)) {
        self.listeners.retain(|listener| listener.upgrade().inspect(|listener| tell(listener)).is_some());
    }
}

/// See the module's documentation. Resources are named `plural.group` (`pods`, `deployments.apps`).
pub(crate) struct Store {
    /// Held over a whole write, so that readers wait only for its publication.
    writer: Mutex<()>,
    state: RwLock<State>,
    pins: Pins,
    limits: LogLimits,
    /// The revision at which this process took over: what was before is compacted. 0 for a new store.
    base: u64,
    /// Where objects are kept beyond this process.
    disk: Option<Disk>,
}

/// How much history the event log of each resource keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLimits {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { events: 4096, bytes: 8 << 20 }
    }
}

impl Store {
    pub(crate) fn new(limits: LogLimits) -> Self {
        Self {
            writer: Mutex::new(()),
            state: RwLock::new(State::new(1, BTreeMap::new())),
            pins: Pins::default(),
            limits,
            base: 0,
            disk: None,
        }
    }

    /// A store with what an earlier one left in `folder`, and that keeps its objects there.
    pub(crate) fn open(limits: LogLimits, folder: &Path) -> Result<Self, OpenError> {
        let (disk, contents) = Disk::open(folder)?;
        // A folder in which nothing was written yet has no history to refuse.
        let base = if contents.objects.is_empty() { 0 } else { contents.revision };
        let mut collections: BTreeMap<Arc<str>, Collection> = BTreeMap::new();
        for chunk in contents.objects.chunk_by(|(a, ..), (b, ..)| a == b) {
            let Some((resource, ..)) = chunk.first() else { continue };
            let mut collection = Collection::new(limits, base);
            collection.objects =
                Objects::from_sorted(chunk.iter().map(|(_, key, stored)| (key.clone(), Arc::clone(stored))));
            collection.used = true;
            collections.insert(Arc::clone(resource), collection);
        }
        let state = State::new(contents.revision, collections);
        Ok(Self { base, disk: Some(disk), state: RwLock::new(state), ..Self::new(limits) })
    }

    /// Waits until everything up to `revision` survives a crash. At once without a folder.
    ///
    /// # Errors
    /// Why it will not.
    pub(crate) async fn kept(&self, revision: u64) -> Result<(), Arc<str>> {
        match &self.disk {
            Some(disk) => disk.reached(revision).await,
            None => Ok(()),
        }
    }

    /// Waits until the disk fails, and says why. For ever without a folder.
    pub(crate) async fn failure(&self) -> Arc<str> {
        match &self.disk {
            Some(disk) => disk.failure().await,
            None => std::future::pending().await,
        }
    }

    /// A key or token that an earlier process kept.
    pub(crate) fn secret(&self, name: &str) -> Option<Vec<u8>> {
        self.disk.as_ref()?.secret(name)
    }

    /// All of them whose names begin with `prefix`, by the rest of the name.
    pub(crate) fn secrets(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        self.disk.as_ref().map(|disk| disk.secrets(prefix)).unwrap_or_default()
    }

    /// Keeps a key or token for later processes. Does nothing without a folder.
    pub(crate) fn keep_secret(&self, name: &str, value: &[u8]) -> Result<(), Arc<str>> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.keep_secret(name, value))
    }

    /// The revision of the newest write of all.
    pub(crate) fn revision(&self) -> u64 {
        self.state.read().revision
    }

    pub(crate) fn get(&self, resource: &str, key: &Key) -> Option<Arc<Stored>> {
        self.state.read().collections.get(resource)?.objects.get(key).cloned()
    }

    pub(crate) fn snapshot(&self, resource: &str) -> Snapshot {
        let state = self.state.read();
        let objects =
            state.collections.get(resource).map_or_else(Objects::default, |found| found.objects.clone());
        Snapshot { revision: state.revision, objects }
    }

    /// The state at an earlier `revision`: one that is kept for a list in pages, or today's with later events undone.
    pub(crate) fn snapshot_at(&self, resource: &str, revision: u64) -> Result<Snapshot, Compacted> {
        if let Some(kept) = self.pins.get(resource, revision) {
            return Ok(kept);
        }
        let state = self.state.read();
        let Some(collection) = state.collections.get(resource) else {
            return self.unused(revision).map(|()| Snapshot { revision, objects: Objects::default() });
        };
        let undo = collection.log.after(revision)?;
        let mut objects = collection.objects.clone();
        drop(state);
        for event in undo.iter().rev() {
            match &event.old {
                Some(old) => objects.insert(event.key.clone(), Arc::clone(old)),
                None => objects.remove(&event.key),
            };
        }
        Ok(Snapshot { revision, objects })
    }

    /// Keeps a snapshot for the next pages of a list, for about as long as etcd keeps history.
    pub(crate) fn pin(&self, resource: &Arc<str>, snapshot: &Snapshot) {
        self.pins.keep(resource, snapshot);
    }

    /// Writes if the object still is as `expect` says. Returns what was stored (or the last state, with the
    /// revision of its removal).
    #[expect(clippy::needless_pass_by_value, reason = "whoever writes an object has no more use for it")]
    pub(crate) fn write(
        &self,
        resource: &Arc<str>,
        key: &Key,
        expect: Expect,
        change: Change,
    ) -> Result<Arc<Stored>, Raced> {
        let change = Encoded::of(&change);
        let _writing = self.writer.lock();
        self.write_alone(resource, key, expect, &change)
    }

    /// Writes an object that is not there yet, if all its holders are.
    pub(crate) fn create(
        &self,
        resource: &Arc<str>,
        key: &Key,
        holders: &[Holder<'_>],
        object: &Value,
    ) -> Result<Arc<Stored>, Refused> {
        let put = Encoded { draft: Draft::of(object), removal: false };
        let _writing = self.writer.lock();
        let holds = |holder: &Holder<'_>| {
            self.get(holder.resource, &holder.key).is_some_and(|found| {
                !found.value.is_deleting() && holder.uid.is_none_or(|uid| uid == found.value.meta("uid"))
            })
        };
        if !holders.iter().all(holds) {
            return Err(Refused::Unheld);
        }
        self.write_alone(resource, key, Expect::Absent, &put).map_err(|Raced| Refused::Taken)
    }

    /// The write itself; the caller holds the writer lock.
    fn write_alone(
        &self,
        resource: &Arc<str>,
        key: &Key,
        expect: Expect,
        change: &Encoded,
    ) -> Result<Arc<Stored>, Raced> {
        let (revision, old) = {
            let state = self.state.read();
            let found = state.collections.get(resource).and_then(|found| found.objects.get(key)).cloned();
            (state.revision + 1, found)
        };
        if old.as_ref().map_or(Expect::Absent, |old| Expect::Revision(old.revision)) != expect {
            return Err(Raced);
        }
        let stored = change.draft.at(revision);
        let event = Event::new(key.clone(), old, Arc::clone(&stored), change.removal);
        if let Some(disk) = &self.disk {
            let object = (!change.removal).then(|| Arc::clone(&stored));
            disk.push(Row { revision, resource: Arc::clone(resource), key: key.clone(), object });
        }

        let mut state = self.state.write();
        state.revision = revision;
        state.tell(|listener| listener.written(resource, event.kind, &key.namespace));
        let State { collections, first_use, .. } = &mut *state;
        let collection = match collections.get_mut(resource) {
            Some(known) => known,
            None => collections
                .entry(Arc::clone(resource))
                .or_insert_with(|| Collection::new(self.limits, self.base)),
        };
        if !collection.used {
            collection.used = true;
            first_use.retain(|subscriber| subscriber.send(Arc::clone(resource)).is_ok());
        }
        if change.removal {
            collection.objects.remove(key);
        } else {
            collection.objects.insert(key.clone(), Arc::clone(&stored));
        }
        let gone = collection.log.push(event);
        let changed = collection.changed.clone();
        drop(state);
        // What no longer fits into the log is freed without the lock, and so are watchers woken.
        drop(gone);
        self.pins.tidy();
        changed.send_replace(revision);
        Ok(stored)
    }

    /// The resources that were ever written to, and then each other one at its first write.
    pub(crate) fn first_uses(&self) -> mpsc::UnboundedReceiver<Arc<str>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state.write();
        for (resource, _) in state.collections.iter().filter(|(_, collection)| collection.used) {
            // The receiver is in our hands.
            let _ = sender.send(Arc::clone(resource));
        }
        state.first_use.push(sender);
        receiver
    }

    /// Collects from now on the namespaces in which something is written that counts, by resource and what happened.
    pub(crate) fn listen(
        &self,
        counts: impl Fn(&str, EventKind) -> bool + Send + Sync + 'static,
    ) -> Arc<Listener> {
        let listener = Arc::new(Listener::new(counts));
        self.state.write().listeners.push(Arc::downgrade(&listener));
        listener
    }

    /// Tells those who [`listen`](Self::listen) of a namespace although nothing was written.
    pub(crate) fn tell(&self, namespace: &str) {
        self.state.write().tell(|listener| listener.add(namespace));
    }

    /// The events of a resource after `revision`, oldest first, and the revision up to which they reach.
    pub(crate) fn events_after(
        &self,
        resource: &str,
        revision: u64,
    ) -> Result<(Vec<Arc<Event>>, u64), Compacted> {
        let state = self.state.read();
        let events = match state.collections.get(resource) {
            Some(collection) => collection.log.after(revision)?,
            None => self.unused(revision).map(|()| Vec::new())?,
        };
        Ok((events, state.revision))
    }

    /// What is known of a resource that nothing is stored of: nothing of the time before this process.
    fn unused(&self, revision: u64) -> Result<(), Compacted> {
        if revision < self.base { Err(Compacted { oldest: self.base }) } else { Ok(()) }
    }

    /// Tells those who asked for [`first_uses`](Self::first_uses) of a resource again, if it was ever written to.
    pub(crate) fn announce_again(&self, resource: &Arc<str>) {
        let mut state = self.state.write();
        if state.collections.get(resource).is_some_and(|collection| collection.used) {
            state.first_use.retain(|subscriber| subscriber.send(Arc::clone(resource)).is_ok());
        }
    }

    /// Wakes the watchers of a resource although nothing was written: they look whether it is still served.
    pub(crate) fn wake(&self, resource: &str) {
        let state = self.state.read();
        if let Some(collection) = state.collections.get(resource) {
            collection.changed.send_replace(state.revision);
        }
    }

    /// A signal that fires after each write to the resource.
    pub(crate) fn subscribe(&self, resource: &Arc<str>) -> watch::Receiver<u64> {
        let mut state = self.state.write();
        let collection = state
            .collections
            .entry(Arc::clone(resource))
            .or_insert_with(|| Collection::new(self.limits, self.base));
        collection.changed.subscribe()
    }
}

#[cfg(test)]
mod tests;
