//! The roles and bindings in the store, as authorization reads them.

use std::sync::Arc;

use serde_json::Value;

use crate::authz::Policies;
use crate::store::{Key, Snapshot, Store};

pub(crate) struct StoredPolicies<'a>(pub(crate) &'a Store);

const KINDS: [&str; 4] = ["clusterrolebindings", "clusterroles", "rolebindings", "roles"];

fn storage(plural: &str) -> String {
    format!("{plural}.rbac.authorization.k8s.io")
}

impl Policies for StoredPolicies<'_> {
    fn list(&self, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        list(&self.0.snapshot(&storage(plural)), namespace)
    }

    fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Value>> {
        let stored = self.0.get(&storage(plural), &Key::new(namespace.unwrap_or_default(), name))?;
        Some(stored.value.shared())
    }
}

fn list(snapshot: &Snapshot, namespace: Option<&str>) -> Vec<Arc<Value>> {
    snapshot.range(namespace.unwrap_or_default(), None).map(|(_, stored)| stored.value.shared()).collect()
}

/// The roles and bindings as they were at one time.
pub(crate) struct RoleSnapshot([Snapshot; 4]);

impl RoleSnapshot {
    pub(crate) fn of(store: &Store) -> Self {
        Self(KINDS.map(|plural| store.snapshot(&storage(plural))))
    }

    fn snapshot(&self, plural: &str) -> Option<&Snapshot> {
        KINDS.iter().position(|known| *known == plural).map(|index| &self.0[index])
    }
}

impl Policies for RoleSnapshot {
    fn list(&self, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.snapshot(plural).map_or_else(Vec::new, |snapshot| list(snapshot, namespace))
    }

    fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Value>> {
        let key = Key::new(namespace.unwrap_or_default(), name);
        Some(self.snapshot(plural)?.objects.get(&key)?.value.shared())
    }
}
