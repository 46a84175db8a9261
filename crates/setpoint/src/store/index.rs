use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
        for value in self.values(old) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
        for value in self.values(new) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    /// An author's function that panics files the object nowhere; its watch goes on.
    fn values(&self, object: Option<&T>) -> Vec<String> {
        let Some(object) = object else { return Vec::new() };
        catch_unwind(AssertUnwindSafe(|| (self.values)(object))).unwrap_or_else(|_| {
            tracing::error!("the function of an index panicked; the object is not in the index");
            Vec::new()
        })
    }

    pub(crate) fn keys(&self, value: &str) -> impl Iterator<Item = &Key> {
        self.keys.get(value).into_iter().flatten()
    }
}
