//! Plugins about what is chosen by default: `TaintNodesByCondition`, `DefaultStorageClass`, `DefaultIngressClass`, and of `Priority` what it says of classes.

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::object::{Metadata, fields};
use crate::registry::Registry;
use crate::status::Result;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The kinds whose new objects get a class if they name none: resource, field of the spec, annotation that names one as well, resource of the classes,
/// annotation of the default class.
const CLASSES: [(&str, &str, &str, &str, &str, &str); 2] = [
    (
        "",
        "persistentvolumeclaims",
        "storageClassName",
        "volume.beta.kubernetes.io/storage-class",
        "storageclasses.storage.k8s.io",
        "storageclass.kubernetes.io/is-default-class",
    ),
    (
        "networking.k8s.io",
        "ingresses",
        "ingressClassName",
        "kubernetes.io/ingress.class",
        "ingressclasses.networking.k8s.io",
        "ingressclass.kubernetes.io/is-default-class",
    ),
];

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
    /// Gives a new claim or ingress that names no class the default one: the newest that says it is.
    pub(super) fn set_default_class(&self, request: &Attributes<'_>, object: &mut Value) {
        if request.operation != Operation::Create {
            return;
        }
        let mut kinds = CLASSES.iter().filter(|(group, plural, ..)| request.is(group, plural));
        let Some((_, _, field, annotation, classes, default)) = kinds.next() else { return };
        if !object["spec"][*field].is_null() || !object["metadata"]["annotations"][*annotation].is_null() {
            return;
        }
        let classes = self.store.snapshot(classes);
        let defaults = classes
            .objects
            .values()
            .filter(|class| class.value["metadata"]["annotations"][*default] == "true");
        let created = |class: &Value| class.meta("creationTimestamp").to_owned();
        // Of those of one second the first by name.
        let newest = defaults.max_by(|one, other| {
            created(&one.value)
                .cmp(&created(&other.value))
                .then_with(|| other.value.meta("name").cmp(one.value.meta("name")))
        });
        if let Some(class) = newest {
            fields(&mut object["spec"]).insert((*field).to_owned(), class.value.meta("name").into());
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
