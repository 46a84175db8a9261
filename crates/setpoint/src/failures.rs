use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Key;

/// By controller and object.
type Errors = BTreeMap<(Arc<str>, Key), String>;

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
        let failure = |((controller, key), error): (&(Arc<str>, Key), &String)| Failure {
            controller: controller.to_string(),
            key: key.clone(),
            error: error.clone(),
        };
        failures.iter().map(failure).collect()
    }

    /// Notes how a reconcile ended.
    pub(crate) fn note(&self, controller: &Arc<str>, key: &Key, error: Option<String>) {
        let place = (Arc::clone(controller), key.clone());
        match error {
            Some(error) => drop(self.0.lock().insert(place, error)),
            None => drop(self.0.lock().remove(&place)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "controller {}, {}: {}", self.controller, self.key, self.error)
    }
}
