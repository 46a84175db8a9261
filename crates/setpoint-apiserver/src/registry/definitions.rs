//! Custom resource definitions at run time: serving what they define, and taking it away again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{DeleteOptions, Place, Registry};
use crate::catalog::Resource;
use crate::custom;
use crate::object::{Metadata, copy_field, fields, meta_mut};
use crate::store::{Change, Expect, Key, Stored};

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
    pub(super) fn after_write(&self, resource: &Resource, written: &Stored) {
        if resource.is(custom::GROUP, custom::PLURAL) {
            let object = &written.value;
            if object.is_deleting() {
                self.refresh_definitions();
                self.clean_up(object.meta("name"));
            } else {
                self.settle_names(object.meta("name"));
                self.refresh_definitions();
            }
        }
    }

    /// Follows the removal of an object.
    pub(super) fn after_removal(&self, resource: &Resource) {
        if resource.is(custom::GROUP, custom::PLURAL) {
            self.refresh_definitions();
            self.accept_freed_names();
        } else if resource.custom().is_some() {
            self.finish_definition(&format!("{}.{}", resource.plural, resource.group));
        }
    }

    /// Gives a definition that was written the names that it gets: a write of its own, as by upstream's controllers.
    fn settle_names(&self, name: &str) {
        let _defining = self.defining.lock();
        let key = Key::new("", name);
        while let Some(stored) = self.store.get(custom::STORAGE, &key) {
            let old: &Value = &stored.value;
            let mut new = old.clone();
            self.accept_names(&mut new);
            if old.is_deleting() || new == *old {
                return;
            }
            self.own_status(old, &mut new);
            let expect = Expect::Revision(stored.revision);
            if self.store.write(&custom::STORAGE.into(), &key, expect, Change::Put(new)).is_ok() {
                return;
            }
        }
    }

    fn own_status(&self, old: &Value, new: &mut Value) {
        if let Some(resource) = self.catalog.find(custom::GROUP, "v1", custom::PLURAL) {
            self.own_status_as_server(&resource, old, new);
        }
    }

    /// Decides which names a definition gets, and says so in its status. Names that another definition of the
    /// group, or a built-in kind, already has are not accepted.
    fn accept_names(&self, definition: &mut Value) {
        let now = self.now();
        let (accepted, conflict) = self.names_for(definition);
        definition["status"]["acceptedNames"] = accepted;
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now});
        if definition["status"]["conditions"].is_null() {
            fields(&mut definition["status"]).remove("conditions");
        }
        match conflict {
            None => {
                let names = condition("NamesAccepted", "True", "NoConflicts", "no conflicts found");
                set_condition(definition, &names);
                let message = "the initial names have been accepted";
                set_condition(definition, &condition("Established", "True", "InitialNamesAccepted", message));
            }
            Some((reason, message)) => {
                set_condition(definition, &condition("NamesAccepted", "False", reason, &message));
                let established = definition["status"]["conditions"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|known| known["type"] == "Established" && known["status"] == "True");
                if !established {
                    let message = "not all names are accepted";
                    set_condition(definition, &condition("Established", "False", "NotAccepted", message));
                }
            }
        }
    }

    /// The names that a definition may have, and the last conflict with its reason.
    fn names_for(&self, definition: &Value) -> (Value, Option<(&'static str, String)>) {
        let spec = &definition["spec"];
        let wanted = spec["names"].clone();
        let group = spec["group"].as_str().unwrap_or_default();
        let own = format!("{}.{group}", wanted["plural"].as_str().unwrap_or_default());
        let (mut resources, mut kinds) = (Vec::new(), Vec::new());
        for built_in in self.catalog.all().iter() {
            if built_in.group == group && built_in.custom().is_none() {
                resources.extend([built_in.plural.clone(), built_in.singular.clone()]);
                resources.extend(built_in.short_names.iter().cloned());
                kinds.extend([built_in.kind.clone(), built_in.list_kind.clone()]);
            }
        }
        let text = |name: &Value| name.as_str().unwrap_or_default().to_owned();
        let stored = self.store.snapshot(custom::STORAGE);
        let others = stored.objects.iter().filter(|(key, _)| key.name != own);
        for other in others.map(|(_, other)| &other.value).filter(|other| other["spec"]["group"] == group) {
            let names = &other["status"]["acceptedNames"];
            resources.extend([text(&names["plural"]), text(&names["singular"])]);
            resources.extend(names["shortNames"].as_array().into_iter().flatten().map(text));
            kinds.extend([text(&names["kind"]), text(&names["listKind"])]);
        }
        let mut accepted = definition["status"]["acceptedNames"].clone();
        let mut conflict = None;
        for (field, reason, taken) in [
            ("plural", "PluralConflict", &resources),
            ("singular", "SingularConflict", &resources),
            ("shortNames", "ShortNamesConflict", &resources),
            ("kind", "KindConflict", &kinds),
            ("listKind", "ListKindConflict", &kinds),
        ] {
            let names: Vec<&str> = match &wanted[field] {
                Value::String(name) => vec![name],
                Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            };
            match names.iter().find(|name| taken.iter().any(|taken| taken == *name)) {
                Some(name) => {
                    conflict = Some((reason, format!("\"{name}\" is already in use")));
                }
                None => copy_field(&mut accepted, &wanted, field),
            }
        }
        copy_field(&mut accepted, &wanted, "categories");
        (accepted, conflict)
    }

    /// Gives definitions the names that they were refused, where nobody has them any more.
    fn accept_freed_names(&self) {
        let _defining = self.defining.lock();
        for (key, stored) in self.store.snapshot(custom::STORAGE).objects.iter() {
            let refused =
                |condition: &Value| condition["type"] == "NamesAccepted" && condition["status"] == "False";
            let waits =
                stored.value["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(refused));
            let mut new = (*stored.value).clone();
            if !waits || new.is_deleting() {
                continue;
            }
            self.accept_names(&mut new);
            if new == *stored.value {
                continue;
            }
            self.own_status(&stored.value, &mut new);
            let expect = Expect::Revision(stored.revision);
            // Whoever wrote to it in between has chosen its names anew.
            if self.store.write(&custom::STORAGE.into(), key, expect, Change::Put(new)).is_ok() {
                self.refresh_definitions();
            }
        }
    }

    /// Serves what an earlier process left, and goes on with what it had begun.
    pub(crate) fn restore_definitions(&self) {
        self.refresh_definitions();
        let definitions = self.store.snapshot(custom::STORAGE);
        for (key, stored) in definitions.objects.iter() {
            if stored.value.is_deleting() {
                self.clean_up(&key.name);
            } else {
                self.settle_names(&key.name);
            }
        }
        self.refresh_definitions();
    }

    /// Serves exactly what the stored definitions say.
    pub(super) fn refresh_definitions(&self) {
        let mut installed = self.installed.lock();
        let definitions = self.store.snapshot(custom::STORAGE);
        let mut next = BTreeMap::new();
        let mut woken: Vec<Arc<str>> = Vec::new();
        let mut changed: Vec<Arc<str>> = Vec::new();
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
                Some(before) if before.uid != definition.meta("uid") => {
                    before.removed.cancel();
                    woken.extend(before.storage());
                }
                Some(before) => {
                    // Watches of a version that is no longer served end.
                    woken.extend(before.storage());
                    let after = install(definition, stored.revision, before.removed);
                    changed.extend(after.storage());
                    next.insert(key.name.clone(), after);
                    continue;
                }
                None => {}
            }
            let after = install(definition, stored.revision, CancellationToken::new());
            changed.extend(after.storage());
            next.insert(key.name.clone(), after);
        }
        for gone in installed.values() {
            gone.removed.cancel();
            woken.extend(gone.storage());
        }
        let served = next.values().flat_map(|installed| &installed.resources).filter(|r| r.is_served());
        self.catalog.set_custom(served.cloned());
        *installed = next;
        drop(installed);
        for storage in woken {
            self.store.wake(&storage);
        }
        for storage in changed {
            self.store.announce_again(&storage);
        }
    }

    /// The same resource in the version `api_version`, served or not.
    pub(super) fn version(&self, resource: &Resource, api_version: &str) -> Option<Arc<Resource>> {
        if resource.custom().is_some() {
            return self.version_of(resource, api_version);
        }
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let found = self.catalog.find(group, version, &resource.plural);
        found.filter(|found| found.storage == resource.storage)
    }

    /// The version `api_version` of the same custom resource, served or not.
    pub(super) fn version_of(&self, resource: &Resource, api_version: &str) -> Option<Arc<Resource>> {
        let installed = self.installed.lock();
        let of = installed.get(&format!("{}.{}", resource.plural, resource.group))?;
        of.resources.iter().find(|version| version.api_version() == api_version).cloned()
    }

    /// Deletes the objects of a definition that is being deleted.
    fn clean_up(&self, name: &str) {
        let resource = {
            let installed = self.installed.lock();
            installed.get(name).and_then(|installed| installed.resources.first().cloned())
        };
        self.note_removal(name);
        if let Some(resource) = resource {
            for stored in self.store.snapshot(&resource.storage).objects.values() {
                let place = Place {
                    resource: Arc::clone(&resource),
                    namespace: stored.value.meta("namespace").to_owned(),
                    name: stored.value.meta("name").to_owned(),
                };
                // Objects with finalizers stay; whoever removes the last one comes back here.
                let _ = self.delete_unasked(&place, &DeleteOptions::default());
            }
        }
        self.finish_definition(name);
    }

    /// Says in the status of a definition that its objects are being deleted now.
    fn note_removal(&self, name: &str) {
        let key = Key::new("", name);
        while let Some(stored) = self.store.get(custom::STORAGE, &key) {
            let mut new = (*stored.value).clone();
            set_condition(
                &mut new,
                &json!({"type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress",
                    "message": "CustomResource deletion is in progress", "lastTransitionTime": self.now()}),
            );
            if !stored.value.is_deleting() || new == *stored.value {
                return;
            }
            self.own_status(&stored.value, &mut new);
            let expect = Expect::Revision(stored.revision);
            if self.store.write(&custom::STORAGE.into(), &key, expect, Change::Put(new)).is_ok() {
                return;
            }
        }
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
                if done {
                    self.accept_freed_names();
                }
                return;
            }
        }
    }
}

/// The status of a new definition: no names yet, and the version in which it will store objects.
pub(super) fn begin_status(definition: &mut Value) {
    definition["status"] =
        json!({"acceptedNames": {"plural": "", "kind": ""}, "conditions": null, "storedVersions": null});
    note_storage_version(definition);
}

/// Adds the version in which objects are stored to those that ever were.
pub(super) fn note_storage_version(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array();
    let storage = versions.into_iter().flatten().find(|version| version["storage"] == true);
    let Some(name) = storage.map(|version| version["name"].clone()) else { return };
    let stored = &mut definition["status"]["storedVersions"];
    match stored.as_array_mut() {
        Some(list) if list.contains(&name) => {}
        Some(list) => list.push(name),
        None => *stored = json!([name]),
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

impl Installed {
    /// Where its objects are, if it has names.
    fn storage(&self) -> Option<Arc<str>> {
        self.resources.first().map(|resource| Arc::clone(&resource.storage))
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
