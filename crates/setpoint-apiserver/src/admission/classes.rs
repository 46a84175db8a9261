//! Plugins about what is chosen by default: `TaintNodesByCondition`, `DefaultStorageClass`, and of `Priority` what it says of classes.

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::object::{Metadata, fields};
use crate::registry::Registry;
use crate::status::Result;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// Taints a new node until somebody has seen that it is ready.
pub(super) fn taint_node(request: &Attributes<'_>, node: &mut Value) {
    if request.operation != Operation::Create || !request.is("", "nodes") {
        return;
    }
    let taints = fields(&mut node["spec"]).entry("taints").or_insert_with(|| json!([]));
    let Some(taints) = taints.as_array_mut() else { return };
    let known = |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
    if !taints.iter().any(known) {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

impl Registry {
    /// Gives a new claim that names no class the default one: the newest that says it is.
    pub(super) fn set_storage_class(&self, request: &Attributes<'_>, claim: &mut Value) {
        let named = !claim["spec"]["storageClassName"].is_null()
            || !claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"].is_null();
        if request.operation != Operation::Create || !request.is("", "persistentvolumeclaims") || named {
            return;
        }
        let classes = self.store.snapshot("storageclasses.storage.k8s.io");
        let defaults = classes
            .objects
            .values()
            .filter(|class| class.value["metadata"]["annotations"][DEFAULT_CLASS] == "true");
        let created = |class: &Value| class.meta("creationTimestamp").to_owned();
        // Of those of one second the first by name.
        let newest = defaults.max_by(|one, other| {
            created(&one.value)
                .cmp(&created(&other.value))
                .then_with(|| other.value.meta("name").cmp(one.value.meta("name")))
        });
        if let Some(class) = newest {
            fields(&mut claim["spec"]).insert("storageClassName".to_owned(), class.value.meta("name").into());
        }
    }

    /// Only one class of priority can be the default.
    pub(super) fn check_priority_class(&self, request: &Attributes<'_>, class: &Value) -> Result<()> {
        if !request.is("scheduling.k8s.io", "priorityclasses") || class["globalDefault"] != true {
            return Ok(());
        }
        let classes = self.store.snapshot("priorityclasses.scheduling.k8s.io");
        let other = classes.objects.values().find(|other| {
            other.value["globalDefault"] == true && other.value.meta("name") != class.meta("name")
        });
        match other {
            Some(other) => {
                let name = other.value.meta("name");
                let why =
                    format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(request.forbidden(class, &why))
            }
            None => Ok(()),
        }
    }
}
