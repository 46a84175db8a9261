//! The roles and bindings in the store, as authorization reads them.

use std::sync::Arc;

use serde_json::Value;

use crate::authz::Policies;
use crate::store::{Key, Store};

pub(crate) struct StoredPolicies<'a>(pub(crate) &'a Store);

fn storage(plural: &str) -> String {
    format!("{plural}.rbac.authorization.k8s.io")
}

impl Policies for StoredPolicies<'_> {
    fn list(&self, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let snapshot = self.0.snapshot(&storage(plural));
        snapshot.range(namespace.unwrap_or_default(), None).map(|(_, stored)| stored.value.shared()).collect()
    }

    fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Value>> {
        let stored = self.0.get(&storage(plural), &Key::new(namespace.unwrap_or_default(), name))?;
        Some(stored.value.shared())
    }
}
