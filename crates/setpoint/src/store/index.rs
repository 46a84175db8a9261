use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Payload;
use crate::Key;

/// The values under which an index files an object.
pub(crate) type Values<T> = Arc<dyn Fn(&Payload<T>) -> Vec<String> + Send + Sync>;

/// Keys by value.
pub(crate) struct Index<T> {
    values: Values<T>,
    keys: BTreeMap<Box<str>, Keys>,
}

/// Most values file one object, for which a set would be a waste.
enum Keys {
    One(Arc<Key>),
    Many(BTreeSet<Arc<Key>>),
}

impl<T> Index<T> {
    pub(crate) fn new(values: Values<T>) -> Self {
        Self { values, keys: BTreeMap::new() }
    }

    pub(crate) fn change(&mut self, key: &Arc<Key>, old: Option<&Payload<T>>, new: Option<&Payload<T>>) {
        for value in self.values(old) {
            match self.keys.get_mut(&*value) {
                Some(Keys::Many(keys)) => {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.keys.remove(&*value);
                    }
                }
                Some(Keys::One(one)) if one == key => {
                    self.keys.remove(&*value);
                }
                Some(Keys::One(_)) | None => {}
            }
        }
        for value in self.values(new) {
            match self.keys.get_mut(&*value) {
                Some(Keys::Many(keys)) => {
                    keys.insert(Arc::clone(key));
                }
                Some(keys) => {
                    if let Keys::One(one) = keys
                        && one != key
                    {
                        *keys = Keys::Many([Arc::clone(one), Arc::clone(key)].into());
                    }
                }
                None => {
                    self.keys.insert(value.into(), Keys::One(Arc::clone(key)));
                }
            }
        }
    }

    /// An author's function that panics files the object nowhere; its watch goes on.
    fn values(&self, object: Option<&Payload<T>>) -> Vec<String> {
        let Some(object) = object else { return Vec::new() };
        catch_unwind(AssertUnwindSafe(|| (self.values)(object))).unwrap_or_else(|_| {
            tracing::error!("the function of an index panicked; the object is not in the index");
            Vec::new()
        })
    }

    pub(crate) fn keys(&self, value: &str) -> impl Iterator<Item = &Key> {
        let (one, many) = match self.keys.get(value) {
            Some(Keys::One(one)) => (Some(one), None),
            Some(Keys::Many(many)) => (None, Some(many)),
            None => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten()).map(|key| &**key)
    }
}
