//! The objects of one watch as a pure machine, written through by our own writes.
//!
//! Two streams meet here: the watch, in order but late, and the answers to our own writes, early but in any
//! order. Versions decide: what is older than what is stored was seen already. Each change of an object is
//! given out once, as a [`Transition`] with the right old state, whichever stream brought it first.
//!
//! What is kept is small: texts that are decoded when they are read, and keys that slots and indexes share.

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use index::Values;

use serde::de::DeserializeOwned;

use crate::fingerprint::{Memo, Print};
use crate::packed::{Head, Packed};
use crate::{Key, Object};
use index::Index;

/// A resource version. Numbers compare, within one kind only; others are never compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Number(u64),
    Text(Box<str>),
}

impl Version {
    pub(crate) fn new(text: &str) -> Self {
        // What is written otherwise than a number would be is none.
        let canonical = text == "0" || !text.starts_with(['0', '+']);
        match text.parse() {
            Ok(number) if canonical => Self::Number(number),
            _ => Self::Text(text.into()),
        }
    }

    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }

    /// As the server writes it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.to_string(),
        }
    }
}

/// An object, or why it cannot be decoded.
#[derive(Debug)]
pub(crate) enum Payload<T> {
    Object(Arc<T>),
    /// It was decoded once, and can be again.
    Packed(Packed),
    Undecodable(Arc<str>),
}

impl<T: DeserializeOwned> Payload<T> {
    pub(crate) fn object(&self) -> Option<Arc<T>> {
        match self {
            Self::Object(object) => Some(Arc::clone(object)),
            Self::Packed(packed) => packed.decode().ok().map(Arc::new),
            Self::Undecodable(_) => None,
        }
    }
}

impl<T: Object> Payload<T> {
    /// What is told without decoding it; `None` if it cannot be decoded.
    pub(crate) fn head(&self) -> Option<Head> {
        match self {
            Self::Object(object) => Some(Head::of(object.meta())),
            Self::Packed(packed) => Some(packed.head()),
            Self::Undecodable(_) => None,
        }
    }
}

impl<T> Payload<T> {
    pub(crate) fn is_undecodable(&self) -> bool {
        matches!(self, Self::Undecodable(_))
    }
}

impl<T> Clone for Payload<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Object(object) => Self::Object(Arc::clone(object)),
            Self::Packed(packed) => Self::Packed(packed.clone()),
            Self::Undecodable(problem) => Self::Undecodable(Arc::clone(problem)),
        }
    }
}

/// An object as the server showed it.
#[derive(Debug)]
pub(crate) struct Seen<T> {
    pub(crate) key: Arc<Key>,
    pub(crate) uid: String,
    pub(crate) version: Version,
    pub(crate) payload: Payload<T>,
    /// What is kept instead of the object.
    pub(crate) packed: Option<Packed>,
    pub(crate) prints: Box<[Print]>,
}

impl<T> Seen<T> {
    /// The same, without the decoded object.
    pub(crate) fn pack(mut self) -> Self {
        if let Some(packed) = self.packed.take() {
            self.payload = Payload::Packed(packed);
        }
        self
    }
}

/// A stored object.
#[derive(Debug)]
pub(crate) struct Record<T> {
    pub(crate) uid: Box<str>,
    pub(crate) version: Version,
    pub(crate) payload: Payload<T>,
    pub(crate) prints: Box<[Print]>,
    pub(crate) memos: Vec<Memo>,
}

#[derive(Debug)]
enum Slot<T> {
    Present(Box<Record<T>>),
    /// It left the selector by our own write of this version.
    Tombstone(u64),
}

/// A change of what can be read.
#[derive(Debug)]
pub(crate) struct Transition<T> {
    pub(crate) key: Arc<Key>,
    pub(crate) old: Option<Payload<T>>,
    pub(crate) new: Option<Payload<T>>,
    /// Somebody else's change that an own write has overtaken: told so that it is not missed, although what can be read is newer.
    pub(crate) late: bool,
}

/// Own writes of an object whose events are still to come. Between them may be what others did meanwhile.
struct Overtaking<T> {
    /// Versions that were written, in whatever order they were answered.
    own: Vec<u64>,
    /// The last state that was seen before.
    before: Payload<T>,
    version: u64,
}

/// What became of an own write.
#[derive(Debug)]
pub(crate) enum Put<T> {
    /// It is visible now.
    Stored(Transition<T>),
    /// It was seen already, or will never be visible here.
    Known,
    /// Only the watch can tell: wait until its progress has passed this version.
    Wait(u64),
}

/// Whether a written object is one of this watch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    Yes,
    No,
    Unknown,
}

/// What a finished list changed.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) transitions: Vec<Transition<T>>,
    /// A quorum list was older than what was seen: the server's data was restored from a backup.
    pub(crate) restored: bool,
}

/// A list that is older than what was seen already, though the server was asked for none such.
#[derive(Debug, thiserror::Error)]
#[error("the server gave a list of version {listed}, older than the version {progress} that was seen")]
pub(crate) struct StaleList {
    listed: u64,
    progress: u64,
}

/// See the module.
pub(crate) struct Store<T> {
    slots: BTreeMap<Arc<Key>, Slot<T>>,
    /// Deleted by us: not read any more, until the watch says that it is gone.
    hidden: BTreeMap<Key, String>,
    /// No tombstone is older: events don't look at every object for one.
    oldest_tombstone: Option<u64>,
    /// Own writes that were faster than their events.
    overtaking: BTreeMap<Arc<Key>, Overtaking<T>>,
    /// Everything up to this version was seen.
    progress: Option<Version>,
    /// Keys whose last write has an unknown outcome.
    suspects: BTreeSet<Key>,
    indexes: BTreeMap<&'static str, Index<T>>,
    /// Objects are kept decoded: see [`Store::unpack`].
    unpacked: bool,
    synced: bool,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            hidden: BTreeMap::new(),
            oldest_tombstone: None,
            overtaking: BTreeMap::new(),
            progress: None,
            suspects: BTreeSet::new(),
            indexes: BTreeMap::new(),
            unpacked: false,
            synced: false,
        }
    }
}

impl<T> Store<T> {
    /// ADDED or MODIFIED.
    pub(crate) fn applied(&mut self, seen: Seen<T>) -> Option<Transition<T>> {
        self.advance(&seen.version);
        let newer = match self.slots.get(&seen.key) {
            Some(Slot::Present(record)) => match (seen.version.number(), record.version.number()) {
                (Some(new), Some(old)) => new > old,
                _ => seen.version != record.version,
            },
            // Still there after our progress went on: this version is older than the tombstone.
            Some(Slot::Tombstone(version)) => seen.version.number().is_none_or(|new| new > *version),
            None => true,
        };
        if newer { self.store(seen) } else { self.overtaken(seen) }
    }

    /// What an event older than what is stored tells: nothing, or a change of somebody else that an own write has overtaken.
    fn overtaken(&mut self, seen: Seen<T>) -> Option<Transition<T>> {
        let version = seen.version.number()?;
        let (key, overtaking) = self.overtaking.get_key_value(&seen.key)?;
        let newest = overtaking.own.iter().max()?;
        if version <= overtaking.version || version >= *newest || overtaking.own.contains(&version) {
            return None;
        }
        let key = Arc::clone(key);
        let new = seen.payload.clone();
        let overtaking = self.overtaking.get_mut(&key)?;
        overtaking.version = version;
        let old = std::mem::replace(&mut overtaking.before, seen.pack().payload);
        Some(Transition { key, old: Some(old), new: Some(new), late: true })
    }

    /// DELETED: gone, or no longer selected.
    pub(crate) fn deleted(&mut self, key: &Key, uid: &str, version: &Version) -> Option<Transition<T>> {
        self.advance(version);
        let remove = match self.slots.get(key) {
            Some(Slot::Present(record)) => match (version.number(), record.version.number()) {
                (Some(gone), Some(stored)) => gone >= stored,
                _ => *record.uid == *uid,
            },
            _ => false,
        };
        let transition = if remove { self.remove(key) } else { None };
        // An object that left the selector and came back by our write has a Deleted event of before.
        let still = matches!(self.slots.get(key), Some(Slot::Present(record)) if *record.uid == *uid);
        if !still && self.hidden.get(key).is_some_and(|hidden| hidden == uid) {
            self.hidden.remove(key);
        }
        transition
    }

    /// Whether this state of an object is what is stored: there is nothing to be learned from it.
    pub(crate) fn knows(&self, key: &Key, uid: &str, version: &Version) -> bool {
        matches!(self.slots.get(key), Some(Slot::Present(record)) if record.version == *version && *record.uid == *uid)
    }

    /// A bookmark: everything up to `version` was seen.
    pub(crate) fn bookmark(&mut self, version: &Version) {
        self.advance(version);
    }

    /// A complete list at `version`. `quorum`: it is the newest state, not one "not older than".
    pub(crate) fn listed(
        &mut self,
        items: BTreeMap<Arc<Key>, Seen<T>>,
        version: &Version,
        quorum: bool,
    ) -> Result<Listed<T>, StaleList> {
        let progress = self.progress.as_ref().and_then(Version::number);
        let mut restored = false;
        if let (Some(listed), Some(progress)) = (version.number(), progress)
            && listed < progress
        {
            if !quorum {
                return Err(StaleList { listed, progress });
            }
            restored = true;
        }
        if restored {
            // Versions start again from the past: nothing that is pending can be compared any more.
            self.hidden.clear();
            self.suspects.clear();
            self.overtaking.clear();
            self.slots.retain(|_, slot| matches!(slot, Slot::Present(_)));
        }
        // Own writes that the list cannot know stay.
        let survives = |number: Option<u64>| match (number, version.number()) {
            (Some(number), Some(listed)) => !restored && number > listed,
            _ => false,
        };
        let mut transitions = Vec::new();
        let absent: Vec<Arc<Key>> = self
            .slots
            .iter()
            .filter(|(key, slot)| {
                !items.contains_key(&***key)
                    && !survives(match slot {
                        Slot::Present(record) => record.version.number(),
                        Slot::Tombstone(version) => Some(*version),
                    })
            })
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in absent {
            transitions.extend(self.remove(&key));
        }
        for item in items.into_values() {
            let take = match self.slots.get(&item.key) {
                Some(Slot::Present(record)) => {
                    !survives(record.version.number())
                        && (record.version != item.version || *record.uid != *item.uid)
                }
                Some(Slot::Tombstone(version)) => !survives(Some(*version)),
                None => true,
            };
            if take {
                transitions.extend(self.store(item));
            }
        }
        let slots = &self.slots;
        self.hidden
            .retain(|key, uid| matches!(slots.get(key), Some(Slot::Present(record)) if *record.uid == **uid));
        self.progress = Some(version.clone());
        // What was between is in no event any more: nobody can tell whether there was anything.
        let passed = self.overtaking.keys().cloned().collect::<Vec<_>>();
        self.drop_passed();
        for key in passed.into_iter().filter(|key| !self.overtaking.contains_key(key)) {
            if let Some(record) = self.visible(&key)
                && !transitions.iter().any(|transition| transition.key == key)
            {
                let (old, new) = (Some(record.payload.clone()), Some(record.payload.clone()));
                transitions.push(Transition { key, old, new, late: true });
            }
        }
        self.synced = true;
        Ok(Listed { transitions, restored })
    }

    /// The answer to an own write.
    pub(crate) fn wrote(&mut self, seen: Seen<T>, member: Member) -> Put<T> {
        let Some(number) = seen.version.number() else {
            self.suspects.insert(Key::clone(&seen.key));
            return Put::Known;
        };
        let progress = self.progress.as_ref().and_then(Version::number);
        if progress.is_some_and(|progress| number <= progress) && !self.is_stored(&seen) {
            return Put::Known;
        }
        let stored = match self.slots.get_mut(&seen.key) {
            Some(Slot::Present(record)) => {
                if record.version == seen.version && *record.uid == *seen.uid {
                    // Nothing changed, or the event was faster. The fingerprints are as good as new.
                    record.prints = seen.prints;
                    return Put::Known;
                }
                record.version.number()
            }
            Some(Slot::Tombstone(version)) => Some(*version),
            None => None,
        };
        if let Some(overtaking) = self.overtaking.get_mut(&seen.key) {
            overtaking.own.push(number);
        } else if let Some(stored) = stored.filter(|stored| *stored < number)
            && let Some((key, Slot::Present(record))) = self.slots.get_key_value(&seen.key)
            && *record.uid == *seen.uid
        {
            let overtaking =
                Overtaking { own: vec![number], before: record.payload.clone(), version: stored };
            self.overtaking.insert(Arc::clone(key), overtaking);
        }
        if stored.is_some_and(|stored| number <= stored) {
            return Put::Known;
        }
        let transition = match member {
            Member::Unknown => return Put::Wait(number),
            Member::Yes => self.store(seen),
            Member::No => {
                let key = seen.key;
                let transition = self.remove(&key);
                self.slots.insert(key, Slot::Tombstone(number));
                self.oldest_tombstone = self.oldest_tombstone.min(Some(number)).or(Some(number));
                transition
            }
        };
        transition.map_or(Put::Known, Put::Stored)
    }

    /// Our deletion was answered with success: the object is not read any more.
    pub(crate) fn hide(&mut self, key: &Key, uid: &str) -> Option<Transition<T>> {
        let Some(Slot::Present(record)) = self.slots.get(key) else { return None };
        if *record.uid != *uid {
            return None;
        }
        let old = self.visible(key).map(|record| record.payload.clone());
        self.hidden.insert(key.clone(), uid.to_owned());
        self.transition(&Arc::new(key.clone()), old, None)
    }

    /// The outcome of a write to this key is unknown.
    pub(crate) fn suspect(&mut self, key: &Key) {
        self.suspects.insert(key.clone());
    }

    /// Keys to read live before the next read.
    pub(crate) fn suspects(&self) -> impl Iterator<Item = &Key> {
        self.suspects.iter()
    }

    pub(crate) fn is_suspect(&self, key: &Key) -> bool {
        self.suspects.contains(key)
    }

    /// A live read settles a suspect.
    pub(crate) fn settled(&mut self, key: &Key) {
        self.suspects.remove(key);
    }

    /// What can be read under a key.
    pub(crate) fn visible(&self, key: &Key) -> Option<&Record<T>> {
        match self.slots.get(key) {
            Some(Slot::Present(record)) if self.hidden.get(key).map(String::as_str) != Some(&*record.uid) => {
                Some(record)
            }
            _ => None,
        }
    }

    /// For the memo of an apply.
    pub(crate) fn record_mut(&mut self, key: &Key) -> Option<&mut Record<T>> {
        match self.slots.get_mut(key) {
            Some(Slot::Present(record)) => Some(record),
            _ => None,
        }
    }

    /// Everything that can be read, by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<Key>, &Record<T>)> {
        self.slots.keys().filter_map(|key| Some((key, self.visible(key)?)))
    }

    /// The objects of an index under a value, by key. `None`: there is no such index.
    pub(crate) fn by_index(&self, index: &str, value: &str) -> Option<Vec<Payload<T>>> {
        let index = self.indexes.get(index)?;
        Some(index.keys(value).filter_map(|key| Some(self.visible(key)?.payload.clone())).collect())
    }

    /// Keeps objects decoded from now on, for who reads many of them again and again.
    pub(crate) fn unpack(&mut self)
    where
        T: DeserializeOwned,
    {
        if std::mem::replace(&mut self.unpacked, true) {
            return;
        }
        for slot in self.slots.values_mut() {
            if let Slot::Present(record) = slot
                && let Some(object) = record.payload.object()
            {
                record.payload = Payload::Object(object);
            }
        }
    }

    /// Adds an index, unless there is one of that name.
    pub(crate) fn add_index(&mut self, name: &'static str, values: &Values<T>) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut index = Index::new(Arc::clone(values));
        for (key, record) in self.iter() {
            index.change(key, None, Some(&record.payload));
        }
        self.indexes.insert(name, index);
    }

    /// Whether the first list is complete.
    pub(crate) fn synced(&self) -> bool {
        self.synced
    }

    /// Everything up to here was seen.
    pub(crate) fn progress(&self) -> Option<&Version> {
        self.progress.as_ref()
    }

    /// Whether everything was seen that a list of version `at` has, by key and version: also what it has no more.
    pub(crate) fn covers(&self, listed: &BTreeMap<Key, u64>, at: u64) -> bool {
        let progress = self.progress.as_ref().and_then(Version::number).unwrap_or_default();
        if progress >= at {
            return true;
        }
        let stored = |key: &Key| match self.slots.get(key) {
            Some(Slot::Present(record)) => record.version.number(),
            _ => None,
        };
        listed.iter().all(|(key, version)| progress >= *version || stored(key) >= Some(*version))
            && self.iter().all(|(key, record)| {
                listed.contains_key(&**key) || record.version.number().is_none_or(|version| version > at)
            })
    }

    /// How many visible objects cannot be decoded.
    pub(crate) fn undecodable(&self) -> usize {
        self.iter().filter(|(_, record)| record.payload.is_undecodable()).count()
    }

    fn is_stored(&self, seen: &Seen<T>) -> bool {
        matches!(self.slots.get(&seen.key), Some(Slot::Present(record)) if record.version == seen.version)
    }

    fn advance(&mut self, version: &Version) {
        let further = match (version.number(), self.progress.as_ref().and_then(Version::number)) {
            (Some(new), Some(old)) => new > old,
            _ => true,
        };
        if further {
            self.progress = Some(version.clone());
            self.drop_passed();
        }
    }

    /// Forgets what was waited for up to the present progress.
    fn drop_passed(&mut self) {
        let Some(progress) = self.progress.as_ref().and_then(Version::number) else { return };
        self.overtaking.retain(|_, overtaking| overtaking.own.iter().any(|own| *own > progress));
        if self.oldest_tombstone.is_none_or(|oldest| oldest > progress) {
            return;
        }
        self.oldest_tombstone = None;
        self.slots.retain(|_, slot| {
            let Slot::Tombstone(version) = slot else { return true };
            let stays = *version > progress;
            if stays {
                self.oldest_tombstone = self.oldest_tombstone.min(Some(*version)).or(Some(*version));
            }
            stays
        });
    }

    fn store(&mut self, seen: Seen<T>) -> Option<Transition<T>> {
        let key = seen.key;
        let old = self.visible(&key).map(|record| record.payload.clone());
        if self.hidden.get(&key).is_some_and(|hidden| *hidden != seen.uid) {
            self.hidden.remove(&key);
        }
        let (key, memos) = match self.slots.remove_entry(&*key) {
            Some((key, Slot::Present(record))) if *record.uid == *seen.uid => (key, record.memos),
            Some((key, _)) => (key, Vec::new()),
            None => (key, Vec::new()),
        };
        // Who is told of it has the object as it was decoded; a packed one is kept.
        let told = seen.payload;
        let payload = match seen.packed.filter(|_| !self.unpacked) {
            Some(packed) => Payload::Packed(packed),
            None => told.clone(),
        };
        let (uid, version, prints) = (seen.uid.into(), seen.version, seen.prints);
        let record = Record { uid, version, payload, prints, memos };
        self.slots.insert(Arc::clone(&key), Slot::Present(Box::new(record)));
        let new = self.visible(&key).is_some().then_some(told);
        self.transition(&key, old, new)
    }

    fn remove(&mut self, key: &Key) -> Option<Transition<T>> {
        let old = self.visible(key).map(|record| record.payload.clone());
        let (key, _) = self.slots.remove_entry(key)?;
        self.overtaking.remove(&key);
        self.transition(&key, old, None)
    }

    fn transition(
        &mut self,
        key: &Arc<Key>,
        old: Option<Payload<T>>,
        new: Option<Payload<T>>,
    ) -> Option<Transition<T>> {
        if old.is_none() && new.is_none() {
            return None;
        }
        for index in self.indexes.values_mut() {
            index.change(key, old.as_ref(), new.as_ref());
        }
        Some(Transition { key: Arc::clone(key), old, new, late: false })
    }
}

#[cfg(test)]
mod tests;
