use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::Key;

/// The values under which an index files an object.
pub(crate) type Values<T> = Arc<dyn Fn(&T) -> Vec<String> + Send + Sync>;

/// Keys by value.
pub(crate) struct Index<T> {
    values: Values<T>,
    keys: BTreeMap<String, BTreeSet<Key>>,
}

impl<T> Index<T> {
    pub(crate) fn new(values: Values<T>) -> Self {
        Self { values, keys: BTreeMap::new() }
    }

    pub(crate) fn change(&mut self, key: &Key, old: Option<&T>, new: Option<&T>) {
        for value in old.map(|object| (self.values)(object)).unwrap_or_default() {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
        for value in new.map(|object| (self.values)(object)).unwrap_or_default() {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    pub(crate) fn keys(&self, value: &str) -> impl Iterator<Item = &Key> {
        self.keys.get(value).into_iter().flatten()
    }
}
