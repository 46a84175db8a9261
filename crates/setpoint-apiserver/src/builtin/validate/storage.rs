//! Volumes, claims and storage classes.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{
    errors::{Errors, IMMUTABLE},
    volume::no_parent,
};
use crate::{
    builtin::{
        Quantity,
        edit::{copy, list, text},
    },
    object_meta::NameRule,
};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub fn claim(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let path = FieldPath::from("spec");
    claim_spec(errors, &new["spec"], &path);
    let Some(old) = old else { return };
    let (mut allowed, old_spec) = (new["spec"].clone(), &old["spec"]);
    // The binder's part, and a class given late.
    if text(old_spec, "volumeName").is_empty() {
        copy(&mut allowed, old_spec, "volumeName");
    }
    if old_spec["storageClassName"].is_null() {
        copy(&mut allowed, old_spec, "storageClassName");
    }
    if text(&old["status"], "phase") == "Bound" {
        let size = |spec: &Value| {
            spec["resources"]["requests"]["storage"].as_str().and_then(Quantity::parse).map(Quantity::nanos)
        };
        if size(&new["spec"]) < size(old_spec) {
            errors.forbidden(
                &path.child("resources.requests.storage"),
                "field can not be less than status.capacity",
            );
        }
        for key in ["resources", "volumeAttributesClassName"] {
            copy(&mut allowed, old_spec, key);
        }
    }
    if allowed != *old_spec {
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.forbidden(&path, detail);
    }
}

/// Checks the spec of a claim or of a claim template.
pub fn claim_spec(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    let modes = list(spec, "accessModes");
    if modes.is_empty() {
        errors.required(&path.child("accessModes"), "at least 1 access mode is required");
    }
    for mode in modes.iter().filter_map(Value::as_str).filter(|mode| !MODES.contains(mode)) {
        errors.unsupported(&path.child("accessModes"), mode, &MODES);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.forbidden(&path.child("accessModes"), detail);
    }
    let size = path.child("resources").key("storage");
    match spec["resources"]["requests"].get("storage") {
        None => errors.required(&size, ""),
        Some(value) => match value.as_str().and_then(Quantity::parse) {
            Some(quantity) if quantity.nanos() > 0 => {}
            Some(_) => errors.invalid(&size, value.clone(), "must be greater than zero"),
            None => drop(errors.quantity(&size, value)),
        },
    }
    class_name(errors, spec, path);
    errors.one_of(spec, path, "volumeMode", &["Block", "Filesystem"]);
}

fn class_name(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    let name = text(spec, "storageClassName");
    if !name.is_empty() {
        errors.name(&path.child("storageClassName"), name, NameRule::Subdomain);
    }
}

pub fn volume(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    /// The fields of a spec that are no volume source.
    const COMMON: [&str; 9] = [
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
    ];
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    if list(spec, "accessModes").is_empty() {
        errors.required(&path.child("accessModes"), "");
    }
    for mode in
        list(spec, "accessModes").iter().filter_map(Value::as_str).filter(|mode| !MODES.contains(mode))
    {
        errors.unsupported(&path.child("accessModes"), mode, &MODES);
    }
    let capacity = path.child("capacity");
    match spec["capacity"].get("storage") {
        None => {
            if spec["capacity"].as_object().is_none_or(serde_json::Map::is_empty) {
                errors.required(&capacity, "");
            }
            errors.unsupported(&capacity, spec["capacity"].clone(), &["storage"]);
        }
        Some(value) => drop(errors.quantity(&capacity.key("storage"), value)),
    }
    errors.one_of(spec, &path, "persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"]);
    errors.one_of(spec, &path, "volumeMode", &["Block", "Filesystem"]);
    class_name(errors, spec, &path);
    let source = |spec: &Value| -> Vec<(String, Value)> {
        let fields = spec.as_object().into_iter().flatten();
        fields
            .filter(|(key, _)| !COMMON.contains(&key.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    let sources = source(spec);
    if sources.is_empty() {
        errors.required(&path, "must specify a volume type");
    }
    for (second, _) in sources.iter().skip(1) {
        errors.forbidden(&path.child(second), "may not specify more than 1 volume type");
    }
    for kind in ["hostPath", "local"] {
        if spec[kind].is_object() {
            let path = path.child(kind);
            if errors.present(&spec[kind], &path, "path") {
                no_parent(errors, &path.child("path"), text(&spec[kind], "path"));
            }
        }
    }
    if let Some(old) = old.map(|old| &old["spec"])
        && source(old) != sources
    {
        let detail = "spec.persistentvolumesource is immutable after creation";
        errors.forbidden(&path.child("persistentvolumesource"), detail);
    }
}

pub fn class(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let root = FieldPath::root();
    if errors.present(new, &root, "provisioner") {
        for part in text(new, "provisioner").split('/').take(1) {
            errors.name(&root.child("provisioner"), &part.to_lowercase(), NameRule::Subdomain);
        }
    }
    errors.one_of(new, &root, "reclaimPolicy", &["Delete", "Retain"]);
    errors.one_of(new, &root, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]);
    if let Some(old) = old {
        // Upstream shows no value here.
        if new["provisioner"] != old["provisioner"] {
            errors.invalid(&root.child("provisioner"), Value::Null, IMMUTABLE);
        }
        for key in ["parameters", "reclaimPolicy", "volumeBindingMode"] {
            errors.immutable(new, old, &root, key);
        }
    }
}
