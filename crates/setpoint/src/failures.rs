use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Key;

/// By controller and object: the last error, and how many failures there were in a row.
type Errors = BTreeMap<(Arc<str>, Key), (String, u32)>;

/// What fails now: the error of each object whose last reconcile failed. Cheap to clone; clones show the
/// same.
#[derive(Clone, Debug, Default)]
pub struct Failures(Arc<Mutex<Errors>>);

/// An object whose last reconcile failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The controller.
    pub controller: String,
    /// The object.
    pub key: Key,
    /// Why.
    pub error: String,
}

impl Failures {
    /// All of them, by controller and key.
    pub fn all(&self) -> Vec<Failure> {
        let failures = self.0.lock();
        let failure = |((controller, key), (error, _)): (&(Arc<str>, Key), &(String, u32))| Failure {
            controller: controller.to_string(),
            key: key.clone(),
            error: error.clone(),
        };
        failures.iter().map(failure).collect()
    }

    /// Notes how a reconcile ended; gives the failures in a row.
    pub(crate) fn note(&self, controller: &Arc<str>, key: &Key, error: Option<String>) -> u32 {
        let place = (Arc::clone(controller), key.clone());
        let mut failures = self.0.lock();
        let Some(error) = error else {
            failures.remove(&place);
            return 0;
        };
        let before = failures.get(&place).map_or(0, |(_, times)| *times);
        failures.insert(place, (error, before.saturating_add(1)));
        before.saturating_add(1)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "controller {}, {}: {}", self.controller, self.key, self.error)
    }
}
