//! Volumes, claims and storage classes.

use serde_json::Value;
use setpoint_schema::{ErrorKind, FieldPath};

use super::volume_source::{self, ORDER, Of};
use super::{errors::Errors, selector};
use crate::{
    builtin::{
        Quantity,
        edit::{copy, list, text},
        go::{self, GoValue},
    },
    object::Metadata,
    object_meta::NameRule,
};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub fn claim(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeClaimSpec";
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
    errors.immutable(&new["spec"], old_spec, &FieldPath::root(), "volumeMode");
    let size =
        |resources: &Value| resources["storage"].as_str().and_then(Quantity::parse).map(Quantity::nanos);
    if text(&old["status"], "phase") == "Bound" {
        let (now, before) =
            (size(&new["spec"]["resources"]["requests"]), size(&old_spec["resources"]["requests"]));
        // A claim that grows can go back as far as what it has.
        let least = size(&old["status"]["capacity"]);
        if now < before && now <= least {
            errors.forbidden(
                &path.child("resources.requests.storage"),
                "field can not be less than status.capacity",
            );
        }
        if size(&new["spec"]["resources"]["requests"]).is_some() {
            allowed["resources"]["requests"] = old_spec["resources"]["requests"].clone();
        }
        copy(&mut allowed, old_spec, "volumeAttributesClassName");
    }
    if allowed != *old_spec {
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        // The message shows everything that was sent.
        let sent = &mut new["spec"].clone();
        if text(old_spec, "volumeName").is_empty() {
            copy(sent, old_spec, "volumeName");
        }
        errors.forbidden_change(&path, detail, SPEC, [&shown(old_spec, sent), sent]);
    }
}

/// The old spec with the size of the new one, which was not the mistake if something else was.
fn shown(old: &Value, new: &Value) -> Value {
    let mut shown = old.clone();
    let only_size = {
        let mut new = new.clone();
        copy(&mut new, old, "resources");
        new == *old
    };
    if !only_size {
        copy(&mut shown, new, "resources");
    }
    shown
}

/// What a write to the status of a claim may say.
pub fn claim_status(errors: &mut Errors, new: &Value) {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let (status, path) = (&new["status"], FieldPath::from("status"));
    for (name, amount) in status["capacity"].as_object().into_iter().flatten() {
        if amount.as_str().and_then(Quantity::parse).is_some_and(Quantity::is_negative) {
            let nanos = amount.as_str().and_then(Quantity::parse).map_or(0, Quantity::nanos) / 1_000_000_000;
            let number = i64::try_from(nanos).unwrap_or(i64::MIN);
            errors.invalid(&path.child("capacity").key(name), number, "must be a valid resource quantity");
        }
    }
    for (name, state) in status["allocatedResourceStatuses"].as_object().into_iter().flatten() {
        let path = path.child("allocatedResourceStatuses");
        if name != "storage" && !name.contains('/') {
            errors.unsupported(&path, name.as_str(), &["storage"]);
        }
        if !state.as_str().is_some_and(|state| STATES.contains(&state)) {
            errors.unsupported(&path, name.as_str(), &STATES);
        }
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
    if spec["selector"].is_object() {
        selector::check(errors, &spec["selector"], &path.child("selector"));
    }
    let attributes = text(spec, "volumeAttributesClassName");
    if !attributes.is_empty() {
        errors.name(&path.child("volumeAttributesClassName"), attributes, NameRule::Subdomain);
    }
    class_name(errors, spec, path);
    errors.one_of(spec, path, "volumeMode", &["Block", "Filesystem"]);
    for key in ["dataSource", "dataSourceRef"] {
        if spec[key].is_object() {
            data_source(errors, &spec[key], &path.child(key));
        }
    }
    if spec["dataSource"].is_object() && spec["dataSourceRef"].is_object() {
        let (one, other) = (&spec["dataSource"], &spec["dataSourceRef"]);
        let other_namespace = !text(other, "namespace").is_empty();
        let same = ["name", "kind", "apiGroup"].iter().all(|key| text(one, key) == text(other, key));
        if other_namespace || !same {
            let detail = if other_namespace {
                "may not be specified when dataSourceRef.namespace is specified"
            } else {
                "must match dataSourceRef"
            };
            // As upstream, which shows a path where it means a value.
            errors.push_shown(ErrorKind::Invalid, path, &GoValue::fields([]), detail);
        }
    }
}

/// Where the content of a new claim comes from.
fn data_source(errors: &mut Errors, source: &Value, path: &FieldPath) {
    errors.present(source, path, "name");
    errors.present(source, path, "kind");
    let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid(path, kind, detail);
    }
    if !group.is_empty() {
        errors.name(&path.child("apiGroup"), group, NameRule::Subdomain);
    }
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
    let modes = list(spec, "accessModes");
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.forbidden(&path.child("accessModes"), detail);
    }
    let capacity = path.child("capacity");
    let amounts = spec["capacity"].as_object();
    if amounts.is_none_or(serde_json::Map::is_empty) {
        errors.required(&capacity, "");
    }
    if amounts.is_none_or(|amounts| amounts.len() != 1 || !amounts.contains_key("storage")) {
        errors.unsupported(&capacity, spec["capacity"].clone(), &["storage"]);
    }
    for (name, amount) in amounts.into_iter().flatten() {
        let path = capacity.key(name);
        let Some(quantity) = amount.as_str().and_then(Quantity::parse) else { continue };
        if quantity.is_negative() {
            let number = i64::try_from(quantity.nanos() / 1_000_000_000).unwrap_or(i64::MIN);
            errors.invalid(&path, number, "must be a valid resource quantity");
        }
        if quantity.nanos() <= 0 {
            errors.invalid(&path, amount.clone(), "must be greater than zero");
        }
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
    let mut sources = source(spec);
    sources.sort_by_key(|(kind, _)| ORDER.iter().position(|known| known == kind));
    if sources.is_empty() {
        errors.required(&path, "must specify a volume type");
    }
    for (second, _) in sources.iter().skip(1) {
        errors.forbidden(&path.child(second), "may not specify more than 1 volume type");
    }
    if let Some((kind, given)) = sources.first() {
        volume_source::check(errors, kind, given, &path.child(kind), Of::Volume(new.meta("name")));
    }
    if let Some(attributes) = spec["volumeAttributesClassName"].as_str() {
        let at = path.child("volumeAttributesClassName");
        if attributes.is_empty() {
            errors.required(&at, "an empty string is disallowed");
        } else {
            errors.name(&at, attributes, NameRule::Subdomain);
        }
        if spec["csi"].is_null() {
            errors.required(&path.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
    let affinity = &spec["nodeAffinity"];
    if affinity.is_object() {
        let path = path.child("nodeAffinity.required");
        if affinity["required"].is_object() {
            selector::nodes(errors, &affinity["required"], &path);
        } else {
            errors.required(&path, "must specify required node constraints");
        }
    } else if spec["local"].is_object() {
        errors.required(&path.child("nodeAffinity"), "Local volume requires node affinity");
    }
    if spec["persistentVolumeReclaimPolicy"] == "Recycle" && text(&spec["hostPath"], "path") == "/" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(&path.child("persistentVolumeReclaimPolicy"), detail);
    }
    let Some(old) = old.map(|old| &old["spec"]) else { return };
    if source(old) != source(spec) {
        let detail = "spec.persistentvolumesource is immutable after creation";
        let shown = |spec: &Value| go::of("io.k8s.api.core.v1.PersistentVolumeSpec", spec).without(&COMMON);
        errors.forbidden_diff(&path.child("persistentvolumesource"), detail, [&shown(old), &shown(spec)]);
    }
    errors.immutable(spec, old, &FieldPath::root(), "volumeMode");
    if old["volumeAttributesClassName"].is_string() && spec["volumeAttributesClassName"].is_null() {
        let detail = "update from non-nil value to nil is forbidden";
        errors.forbidden(&path.child("volumeAttributesClassName"), detail);
    }
    if !old["nodeAffinity"].is_null() && spec["nodeAffinity"] != old["nodeAffinity"] {
        let detail = "field is immutable, except for updating from beta label to GA";
        let of = FieldPath::from("spec.nodeAffinity");
        errors.invalid_at(&FieldPath::from("nodeAffinity"), &of, &spec["nodeAffinity"], detail);
    }
}

pub fn driver(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    for mode in list(spec, "volumeLifecycleModes").iter().filter_map(Value::as_str) {
        if !matches!(mode, "Persistent" | "Ephemeral") {
            errors.unsupported(&path.child("volumeLifecycleModes"), mode, &["Persistent", "Ephemeral"]);
        }
    }
    let mut audiences = std::collections::BTreeSet::new();
    for (index, request) in list(spec, "tokenRequests").iter().enumerate() {
        let path = path.child("tokenRequests").index(index);
        if !audiences.insert(text(request, "audience")) {
            errors.duplicate(&path.child("audience"), text(request, "audience"));
            continue;
        }
        if let Some(seconds) = request["expirationSeconds"].as_i64().filter(|seconds| *seconds < 600) {
            let detail = "may not specify a duration less than 10 minutes";
            errors.invalid(&path.child("expirationSeconds"), seconds, detail);
        }
    }
}

pub fn node(errors: &mut Errors, new: &Value) {
    for (index, driver) in list(&new["spec"], "drivers").iter().enumerate() {
        let path = FieldPath::from("spec.drivers").index(index);
        for key in list(driver, "topologyKeys").iter().filter_map(Value::as_str) {
            errors.qualified(&path, key);
        }
        let name = text(driver, "name");
        if list(&new["spec"], "drivers")[..index].iter().any(|other| text(other, "name") == name) {
            errors.duplicate(&path.child("name"), name);
        }
    }
}

pub fn attachment(errors: &mut Errors, new: &Value) {
    let (source, path) = (&new["spec"]["source"], FieldPath::from("spec.source"));
    match (source["inlineVolumeSpec"].is_null(), source["persistentVolumeName"].is_null()) {
        (true, true) => {
            let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.required(&path, detail);
        }
        (false, false) => {
            let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            errors.forbidden(&path, detail);
        }
        _ => {}
    }
}

pub fn attributes(errors: &mut Errors, new: &Value) {
    let root = FieldPath::root();
    let name = text(new, "driverName").to_lowercase();
    if !name.is_empty() {
        errors.qualified(&root.child("driverName"), &name);
    }
    if new["parameters"].as_object().is_none_or(serde_json::Map::is_empty) {
        errors.required(&root.child("parameters"), "must contain at least one key/value pair");
    }
}

pub fn class(errors: &mut Errors, new: &Value) {
    let root = FieldPath::root();
    let provisioner = text(new, "provisioner");
    if !provisioner.is_empty() {
        errors.qualified(&root.child("provisioner"), &provisioner.to_lowercase());
    }
    if new["parameters"].as_object().is_some_and(|parameters| parameters.contains_key("")) {
        errors.invalid(&root.child("parameters"), "", "field can not be empty.");
    }
    let terms = list(new, "allowedTopologies");
    for (index, term) in terms.iter().enumerate() {
        let path = root.child("allowedTopologies").index(index).child("matchLabelExpressions");
        let expressions = list(term, "matchLabelExpressions");
        for (index, expression) in expressions.iter().enumerate() {
            let (path, key) = (path.index(index), text(expression, "key"));
            let values = list(expression, "values");
            if values.is_empty() {
                errors.required(&path.child("values"), "");
            }
            for (index, value) in values.iter().enumerate() {
                if values[..index].contains(value) {
                    errors.duplicate(&path.child("values").index(index), value.clone());
                }
            }
            errors.qualified(&path.child("key"), key);
            if expressions[..index].iter().any(|other| text(other, "key") == key) {
                errors.duplicate(&path.child("key"), key);
            }
        }
        if expressions.is_empty() && index > 0 || terms[..index].contains(term) {
            errors.duplicate(&path, "");
        }
    }
}
