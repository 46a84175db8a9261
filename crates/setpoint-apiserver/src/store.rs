//! The store: one revision counter, objects by resource, namespace and name, and an event log for watches.
//!
//! ```text
//! write ──▶ writer lock: check expected revision, count up, encode once ──▶ publish: map + log ──▶ wake watchers
//! read  ──▶ clone of an Arc of the map (a snapshot): neither waits for the other's work
//! ```

mod log;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use self::log::Log;
pub(crate) use self::log::{Compacted, Event, EventKind, watch_line};
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

/// An object as it was written: decoded, and encoded once for every reader.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) value: Arc<Value>,
    pub(crate) json: Bytes,
    /// The revision of the write; also in `metadata.resourceVersion`.
    pub(crate) revision: u64,
}

impl Stored {
    pub(crate) fn encode(mut value: Value, revision: u64) -> Arc<Self> {
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let json = Bytes::from(value.to_string());
        Arc::new(Self { value: Arc::new(value), json, revision })
    }
}

pub(crate) type Objects = BTreeMap<Key, Arc<Stored>>;

/// All objects of a resource as they were at `revision`.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) revision: u64,
    pub(crate) objects: Arc<Objects>,
}

impl Snapshot {
    /// The objects of `namespace` (all namespaces when empty) from `start` on, in the order of their keys.
    pub(crate) fn range<'a>(
        &'a self,
        namespace: &'a str,
        start: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> {
        let first = start.cloned().unwrap_or_else(|| Key::new(namespace, ""));
        self.objects
            .range(first..)
            .take_while(move |(key, _)| namespace.is_empty() || key.namespace == namespace)
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
    objects: Arc<Objects>,
    log: Log,
    changed: watch::Sender<u64>,
    /// Whether anything was ever written.
    used: bool,
}

impl Collection {
    fn new(limits: LogLimits) -> Self {
        Self { objects: Arc::default(), log: Log::new(limits), changed: watch::Sender::new(0), used: false }
    }
}

struct State {
    revision: u64,
    collections: BTreeMap<Arc<str>, Collection>,
    /// Who wants to hear of the first write to each resource.
    first_use: Vec<mpsc::UnboundedSender<Arc<str>>>,
}

/// See the module's documentation. Resources are named `plural.group` (`pods`, `deployments.apps`).
pub(crate) struct Store {
    /// Held over a whole write, so that readers wait only for its publication.
    writer: Mutex<()>,
    state: RwLock<State>,
    limits: LogLimits,
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
        let state = State { revision: 1, collections: BTreeMap::new(), first_use: Vec::new() };
        Self { writer: Mutex::new(()), state: RwLock::new(state), limits }
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
            state.collections.get(resource).map_or_else(Arc::default, |found| Arc::clone(&found.objects));
        Snapshot { revision: state.revision, objects }
    }

    /// The state at an earlier `revision`: today's with later events undone.
    pub(crate) fn snapshot_at(&self, resource: &str, revision: u64) -> Result<Snapshot, Compacted> {
        let state = self.state.read();
        let Some(collection) = state.collections.get(resource) else {
            return Ok(Snapshot { revision, objects: Arc::default() });
        };
        let undo = collection.log.after(revision)?;
        let mut objects = Arc::clone(&collection.objects);
        drop(state);
        for event in undo.iter().rev() {
            let objects = Arc::make_mut(&mut objects);
            match &event.old {
                Some(old) => objects.insert(event.key.clone(), Arc::clone(old)),
                None => objects.remove(&event.key),
            };
        }
        Ok(Snapshot { revision, objects })
    }

    /// Writes if the object still is as `expect` says. Returns what was stored (or the last state, with the
    /// revision of its removal).
    pub(crate) fn write(
        &self,
        resource: &Arc<str>,
        key: &Key,
        expect: Expect,
        change: Change,
    ) -> Result<Arc<Stored>, Raced> {
        let _writing = self.writer.lock();
        self.write_alone(resource, key, expect, change)
    }

    /// Writes an object that is not there yet, if all its holders are.
    pub(crate) fn create(
        &self,
        resource: &Arc<str>,
        key: &Key,
        holders: &[Holder<'_>],
        object: Value,
    ) -> Result<Arc<Stored>, Refused> {
        let _writing = self.writer.lock();
        let holds = |holder: &Holder<'_>| {
            self.get(holder.resource, &holder.key).is_some_and(|found| {
                !found.value.is_deleting() && holder.uid.is_none_or(|uid| uid == found.value.meta("uid"))
            })
        };
        if !holders.iter().all(holds) {
            return Err(Refused::Unheld);
        }
        let put = Change::Put(object);
        self.write_alone(resource, key, Expect::Absent, put).map_err(|Raced| Refused::Taken)
    }

    /// The write itself; the caller holds the writer lock.
    fn write_alone(
        &self,
        resource: &Arc<str>,
        key: &Key,
        expect: Expect,
        change: Change,
    ) -> Result<Arc<Stored>, Raced> {
        let (revision, old) = {
            let state = self.state.read();
            let found = state.collections.get(resource).and_then(|found| found.objects.get(key)).cloned();
            (state.revision + 1, found)
        };
        if old.as_ref().map_or(Expect::Absent, |old| Expect::Revision(old.revision)) != expect {
            return Err(Raced);
        }
        let (removal, value) = match change {
            Change::Put(value) => (false, value),
            Change::Remove(value) => (true, value),
        };
        let stored = Stored::encode(value, revision);
        let event = Event::new(key.clone(), old, Arc::clone(&stored), removal);

        let mut state = self.state.write();
        state.revision = revision;
        let State { collections, first_use, .. } = &mut *state;
        let collection =
            collections.entry(Arc::clone(resource)).or_insert_with(|| Collection::new(self.limits));
        if !collection.used {
            collection.used = true;
            first_use.retain(|subscriber| subscriber.send(Arc::clone(resource)).is_ok());
        }
        let objects = Arc::make_mut(&mut collection.objects);
        if removal {
            objects.remove(key);
        } else {
            objects.insert(key.clone(), Arc::clone(&stored));
        }
        collection.log.push(event);
        collection.changed.send_replace(revision);
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

    /// The events of a resource after `revision`, oldest first, and the revision up to which they reach.
    pub(crate) fn events_after(
        &self,
        resource: &str,
        revision: u64,
    ) -> Result<(Vec<Arc<Event>>, u64), Compacted> {
        let state = self.state.read();
        let events = match state.collections.get(resource) {
            Some(collection) => collection.log.after(revision)?,
            None => Vec::new(),
        };
        Ok((events, state.revision))
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
        let collection =
            state.collections.entry(Arc::clone(resource)).or_insert_with(|| Collection::new(self.limits));
        collection.changed.subscribe()
    }
}

#[cfg(test)]
mod tests;
