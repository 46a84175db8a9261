//! The objects of a resource in the order of their keys, copied on write.
//!
//! A sorted list of sorted chunks: a snapshot is one more owner of the list, and a write while there are snapshots copies one chunk and the list
//! of chunks, both of pointers. So neither a list of a hundred thousand objects keeps a writer waiting, nor the other way round.

use std::ops::Bound;
use std::sync::Arc;

use super::{Key, Stored};

/// The most entries of a chunk. Small enough to copy in a microsecond, large enough that a hundred thousand objects are some thousand chunks.
const CHUNK: usize = 128;

type Entry = (Arc<Key>, Arc<Stored>);

/// See the module's documentation. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    /// None is empty.
    chunks: Arc<Vec<Arc<Vec<Entry>>>>,
    len: usize,
}

/// Where an entry is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    chunk: usize,
    index: usize,
}

impl Objects {
    /// From entries that come in the order of their keys, each key once.
    pub(crate) fn from_sorted(entries: impl IntoIterator<Item = (Key, Arc<Stored>)>) -> Self {
        let mut chunks = Vec::new();
        let mut chunk = Vec::new();
        let mut len = 0;
        for (key, stored) in entries {
            len += 1;
            chunk.push((Arc::new(key), stored));
            if chunk.len() == CHUNK {
                chunks.push(Arc::new(std::mem::take(&mut chunk)));
            }
        }
        if !chunk.is_empty() {
            chunks.push(Arc::new(chunk));
        }
        Self { chunks: Arc::new(chunks), len }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        let place = self.find(key).ok()?;
        Some(&self.chunks[place.chunk][place.index].1)
    }

    /// All entries from the bound on.
    pub(crate) fn from<'a>(
        &'a self,
        first: Bound<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> + use<'a> {
        let start = self.start(first);
        let rest = self.chunks.get(start.chunk..).unwrap_or_default();
        rest.iter()
            .enumerate()
            .flat_map(move |(n, chunk)| if n == 0 { &chunk[start.index..] } else { &chunk[..] })
            .map(|(key, stored)| (&**key, stored))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Arc<Stored>)> {
        self.from(Bound::Unbounded)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.iter().map(|(_, stored)| stored)
    }

    /// How many entries there are from `first` on and before `end`, without looking at them.
    pub(crate) fn count(&self, first: &Key, end: Option<&Key>) -> usize {
        let rank = |place: Place| {
            let before = self.chunks.iter().take(place.chunk).map(|chunk| chunk.len());
            before.sum::<usize>() + place.index
        };
        let end = end.map_or(self.len, |end| rank(self.start(Bound::Included(end))));
        end.saturating_sub(rank(self.start(Bound::Included(first))))
    }

    /// Puts an object in, and gives back what was there.
    pub(crate) fn insert(&mut self, key: Key, stored: Arc<Stored>) -> Option<Arc<Stored>> {
        match self.find(&key) {
            Ok(place) => {
                let chunk = Arc::make_mut(&mut Arc::make_mut(&mut self.chunks)[place.chunk]);
                Some(std::mem::replace(&mut chunk[place.index].1, stored))
            }
            Err(place) => {
                self.insert_at(place, (Arc::new(key), stored));
                None
            }
        }
    }

    fn insert_at(&mut self, place: Place, entry: Entry) {
        self.len += 1;
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(chunk) = chunks.get_mut(place.chunk) else {
            chunks.push(Arc::new(vec![entry]));
            return;
        };
        let chunk = Arc::make_mut(chunk);
        if chunk.len() < CHUNK {
            chunk.insert(place.index, entry);
            return;
        }
        // Names often ascend: what comes at the end begins a chunk, and full ones stay full.
        let at_end = place.index == CHUNK && place.chunk + 1 == chunks.len();
        if at_end {
            chunks.push(Arc::new(vec![entry]));
            return;
        }
        let chunk = Arc::make_mut(&mut chunks[place.chunk]);
        let mut upper = chunk.split_off(CHUNK / 2);
        match place.index.checked_sub(CHUNK / 2) {
            Some(index) => upper.insert(index, entry),
            None => chunk.insert(place.index, entry),
        }
        chunks.insert(place.chunk + 1, Arc::new(upper));
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Stored>> {
        let place = self.find(key).ok()?;
        self.len -= 1;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[place.chunk]);
        let (_, removed) = chunk.remove(place.index);
        let left = chunk.len();
        if left == 0 {
            chunks.remove(place.chunk);
        } else if left < CHUNK / 4
            && place.chunk + 1 < chunks.len()
            && chunks[place.chunk + 1].len() < CHUNK / 2
        {
            let upper = chunks.remove(place.chunk + 1);
            Arc::make_mut(&mut chunks[place.chunk]).extend(upper.iter().cloned());
        }
        Some(removed)
    }

    fn start(&self, first: Bound<&Key>) -> Place {
        match first {
            Bound::Unbounded => Place { chunk: 0, index: 0 },
            Bound::Included(key) => self.find(key).unwrap_or_else(|place| place),
            Bound::Excluded(key) => match self.find(key) {
                Ok(place) => Place { index: place.index + 1, ..place },
                Err(place) => place,
            },
        }
    }

    /// Where the key is, or else where it belongs.
    fn find(&self, key: &Key) -> Result<Place, Place> {
        // The last chunk that does not begin after the key.
        let chunk = self.chunks.partition_point(|chunk| *chunk[0].0 <= *key).saturating_sub(1);
        let Some(entries) = self.chunks.get(chunk) else { return Err(Place { chunk, index: 0 }) };
        match entries.binary_search_by(|(known, _)| (**known).cmp(key)) {
            Ok(index) => Ok(Place { chunk, index }),
            Err(index) => Err(Place { chunk, index }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn key(id: u16) -> Key {
        Key::new(if id.is_multiple_of(3) { "a" } else { "b" }, format!("{id:05}"))
    }

    fn stored(revision: u64) -> Arc<Stored> {
        Stored::encode(&json!({"metadata": {}}), revision)
    }

    fn contents(objects: &Objects) -> Vec<(Key, u64)> {
        objects.iter().map(|(key, stored)| (key.clone(), stored.revision)).collect()
    }

    proptest! {
        /// A map that is known to be right does the same; and what a snapshot shows never changes.
        #[test]
        fn it_is_a_sorted_map(steps in prop::collection::vec((any::<bool>(), 0u16..700), 0..1500), start in 0u16..700) {
            let mut objects = Objects::default();
            let mut model: BTreeMap<Key, u64> = BTreeMap::new();
            let mut snapshots = Vec::new();
            for (n, (put, id)) in steps.into_iter().enumerate() {
                let revision = n as u64;
                if put || id % 4 != 0 {
                    let before = objects.insert(key(id), stored(revision)).map(|old| old.revision);
                    prop_assert_eq!(before, model.insert(key(id), revision));
                } else {
                    prop_assert_eq!(objects.remove(&key(id)).map(|old| old.revision), model.remove(&key(id)));
                }
                if n % 100 == 0 {
                    snapshots.push((objects.clone(), contents(&objects)));
                }
                prop_assert_eq!(objects.len(), model.len());
            }
            let all: Vec<(Key, u64)> = model.clone().into_iter().collect();
            prop_assert_eq!(contents(&objects), all.clone());
            prop_assert_eq!(contents(&Objects::from_sorted(objects.iter().map(|(k, s)| (k.clone(), Arc::clone(s))))), all);
            let start = key(start);
            for first in [Bound::Included(&start), Bound::Excluded(&start), Bound::Unbounded] {
                let found: Vec<Key> = objects.from(first).map(|(key, _)| key.clone()).collect();
                let expected: Vec<Key> = model.range((first.cloned(), Bound::Unbounded)).map(|(key, _)| key.clone()).collect();
                prop_assert_eq!(found, expected);
            }
            let end = Key::new("a\0", "");
            prop_assert_eq!(objects.count(&start, None), model.range(&start..).count());
            if start <= end {
                prop_assert_eq!(objects.count(&start, Some(&end)), model.range(&start..&end).count());
            }
            for (key, revision) in &model {
                prop_assert_eq!(objects.get(key).map(|stored| stored.revision), Some(*revision));
            }
            for (snapshot, then) in snapshots {
                prop_assert_eq!(contents(&snapshot), then);
            }
        }
    }

    #[test]
    fn ascending_names_fill_the_chunks() {
        let mut objects = Objects::default();
        for n in 0..10_000_u64 {
            objects.insert(Key::new("a", format!("{n:06}")), stored(n));
        }
        assert!(objects.chunks.len() <= 10_000 / CHUNK + 1, "{} chunks", objects.chunks.len());
    }
}
