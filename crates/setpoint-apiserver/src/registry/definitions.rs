//! Custom resource definitions at run time: serving what they define, and taking it away again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{DeleteOptions, Place, Registry};
use crate::catalog::Resource;
use crate::custom;
use crate::object::{Metadata, fields, meta_mut};
use crate::store::{Change, Expect, Key};

/// Holds a definition until its objects are gone.
pub(super) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// A definition that is served.
pub(super) struct Installed {
    uid: String,
    /// The definition as it was installed; an equal one is not built again.
    spec: Value,
    accepted: Value,
    terminating: bool,
    resources: Vec<Arc<Resource>>,
    removed: CancellationToken,
}

impl Registry {
    /// Follows a write that may concern the catalog.
    pub(super) fn after_write(&self, resource: &Resource, object: &Value) {
        if resource.is(custom::GROUP, custom::PLURAL) {
            self.refresh_definitions();
            if object.is_deleting() {
                self.clean_up(object.meta("name"));
            }
        }
    }

    /// Follows the removal of an object.
    pub(super) fn after_removal(&self, resource: &Resource, _object: &Value) {
        if resource.is(custom::GROUP, custom::PLURAL) {
            self.refresh_definitions();
        } else if resource.custom().is_some() {
            self.finish_definition(&format!("{}.{}", resource.plural, resource.group));
        }
    }

    /// Serves exactly what the stored definitions say.
    pub(super) fn refresh_definitions(&self) {
        let mut installed = self.installed.lock();
        let definitions = self.store.snapshot(custom::STORAGE);
        let mut next = BTreeMap::new();
        for (key, stored) in definitions.objects.iter() {
            let definition = &stored.value;
            let before = installed.remove(&key.name);
            let unchanged = before.as_ref().is_some_and(|before| {
                before.uid == definition.meta("uid")
                    && before.spec == definition["spec"]
                    && before.accepted == definition["status"]["acceptedNames"]
                    && before.terminating == definition.is_deleting()
            });
            match before {
                Some(before) if unchanged => {
                    next.insert(key.name.clone(), before);
                    continue;
                }
                Some(before) if before.uid != definition.meta("uid") => before.removed.cancel(),
                Some(before) => {
                    let removed = before.removed;
                    next.insert(key.name.clone(), install(definition, stored.revision, removed));
                    continue;
                }
                None => {}
            }
            next.insert(key.name.clone(), install(definition, stored.revision, CancellationToken::new()));
        }
        for gone in installed.values() {
            gone.removed.cancel();
        }
        let mut woken: Vec<Arc<str>> = Vec::new();
        for gone in installed.values() {
            woken.extend(gone.resources.iter().map(|resource| Arc::clone(&resource.storage)));
        }
        self.catalog.set_custom(next.values().flat_map(|installed| installed.resources.iter().cloned()));
        *installed = next;
        drop(installed);
        for storage in woken {
            self.store.wake(&storage);
        }
    }

    /// Deletes the objects of a definition that is being deleted.
    fn clean_up(&self, name: &str) {
        let resource = {
            let installed = self.installed.lock();
            installed.get(name).and_then(|installed| installed.resources.first().cloned())
        };
        if let Some(resource) = resource {
            for stored in self.store.snapshot(&resource.storage).objects.values() {
                let place = Place {
                    resource: Arc::clone(&resource),
                    namespace: stored.value.meta("namespace").to_owned(),
                    name: stored.value.meta("name").to_owned(),
                };
                // Objects with finalizers stay; whoever removes the last one comes back here.
                let _ = self.delete(&place, &DeleteOptions::default());
            }
        }
        self.finish_definition(name);
    }

    /// Releases a definition that is being deleted once none of its objects is left.
    fn finish_definition(&self, name: &str) {
        let key = Key::new("", name);
        while let Some(stored) = self.store.get(custom::STORAGE, &key) {
            let definition = &stored.value;
            let spec = &definition["spec"];
            let storage = crate::catalog::storage_name(
                spec["group"].as_str().unwrap_or_default(),
                spec["names"]["plural"].as_str().unwrap_or_default(),
            );
            if !definition.is_deleting() || !self.store.snapshot(&storage).objects.is_empty() {
                return;
            }
            let mut left: Value = (**definition).clone();
            let finalizers: Vec<&str> =
                definition.finalizers().into_iter().filter(|finalizer| *finalizer != CLEANUP).collect();
            let done = finalizers.is_empty();
            meta_mut(&mut left).insert("finalizers".to_owned(), json!(finalizers));
            if done {
                meta_mut(&mut left).remove("finalizers");
            }
            if !done && left == **definition {
                return;
            }
            let change = if done { Change::Remove(left) } else { Change::Put(left) };
            let storage: Arc<str> = custom::STORAGE.into();
            if self.store.write(&storage, &key, Expect::Revision(stored.revision), change).is_ok() {
                self.refresh_definitions();
                return;
            }
        }
    }
}

/// Sets a condition by its type; one whose status stays the same keeps its transition time.
pub(super) fn set_condition(definition: &mut Value, condition: &Value) {
    let status = fields(&mut definition["status"]);
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|known| known["type"] == condition["type"]) {
        Some(known) => {
            let since = known["lastTransitionTime"].clone();
            let same = known["status"] == condition["status"];
            *known = condition.clone();
            if same {
                known["lastTransitionTime"] = since;
            }
        }
        None => list.push(condition.clone()),
    }
}

fn install(definition: &Value, revision: u64, removed: CancellationToken) -> Installed {
    // Creation has checked the schemas; one that cannot be read any more is not served.
    let resources = custom::resources(definition, revision, &removed).unwrap_or_default();
    Installed {
        uid: definition.meta("uid").to_owned(),
        spec: definition["spec"].clone(),
        accepted: definition["status"]["acceptedNames"].clone(),
        terminating: definition.is_deleting(),
        resources: resources.into_iter().map(Arc::new).collect(),
        removed,
    }
}
