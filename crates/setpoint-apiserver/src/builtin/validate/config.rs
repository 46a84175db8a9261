//! Small kinds: config maps, secrets, namespaces, nodes, leases, priority classes, events.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use setpoint_schema::{FieldError, FieldPath};

use super::{errors::Errors, network};
use crate::builtin::edit::{list, text};

/// Upstream: `MaxSecretSize`, which config maps share.
const SIZE_LIMIT: usize = 1024 * 1024;
const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const FROZEN: &str = "field is immutable when `immutable` is set";

pub fn config_map(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let root = FieldPath::root();
    keys(errors, new, "data");
    keys(errors, new, "binaryData");
    for key in new["data"].as_object().into_iter().flatten().map(|(key, _)| key) {
        if new["binaryData"].get(key).is_some() {
            errors.invalid(
                &root.child("data").key(key),
                key.as_str(),
                "duplicate of key present in binaryData",
            );
        }
    }
    size(errors, new, &["data", "binaryData"], "");
    if let Some(old) = old {
        frozen(errors, new, old, &["data", "binaryData"]);
    }
}

pub fn secret(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let root = FieldPath::root();
    keys(errors, new, "data");
    size(errors, new, &["data"], "data");
    let data = &new["data"];
    let mut needs = |key: &str| {
        if data.get(key).is_none() {
            errors.required(&root.child("data").key(key), "");
        }
    };
    match text(new, "type") {
        "kubernetes.io/tls" => ["tls.crt", "tls.key"].into_iter().for_each(&mut needs),
        "kubernetes.io/ssh-auth" => needs("ssh-privatekey"),
        "kubernetes.io/basic-auth"
            // Either will do.
            if data.get("username").is_none() && data.get("password").is_none() => {
                ["username", "password"].into_iter().for_each(&mut needs);
            }
        "kubernetes.io/dockercfg" => json_file(errors, data, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json_file(errors, data, ".dockerconfigjson"),
        "kubernetes.io/service-account-token" => {
            let annotation = "kubernetes.io/service-account.name";
            if text(&new["metadata"]["annotations"], annotation).is_empty() {
                errors.required(&root.child("metadata.annotations").key(annotation), "");
            }
        }
        _ => {}
    }
    if let Some(old) = old {
        errors.immutable(new, old, &root, "type");
        frozen(errors, new, old, &["data"]);
    }
}

fn json_file(errors: &mut Errors, data: &Value, key: &str) {
    let path = FieldPath::from("data").key(key);
    let Some(content) = data[key].as_str() else { return errors.required(&path, "") };
    let decoded = STANDARD.decode(content).unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<Value>(&decoded) {
        // As Go's decoder says, which shows one character of a secret at most.
        let decoded = String::from_utf8_lossy(&decoded);
        let first = decoded.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
        let detail = match first.chars().nth(error.column().saturating_sub(1)) {
            Some(character) if !error.is_eof() => {
                format!("invalid character {character:?} looking for beginning of value")
            }
            _ => "unexpected end of JSON input".to_owned(),
        };
        errors.invalid(&path, "<secret contents redacted>", detail);
    }
}

fn keys(errors: &mut Errors, object: &Value, field: &str) {
    for key in object[field].as_object().into_iter().flatten().map(|(key, _)| key.as_str()) {
        self::key(errors, &FieldPath::from(field).key(key), key);
    }
}

/// Checks a key of a config map or secret.
pub fn key(errors: &mut Errors, path: &FieldPath, key: &str) {
    if key.len() > 253 {
        errors.invalid(path, key, "must be no more than 253 characters");
    }
    if key.is_empty() || !key.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c)) {
        errors.invalid(path, key, KEY);
    } else if key == "." || key == ".." {
        errors.invalid(path, key, format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        errors.invalid(path, key, "must not start with '..'");
    }
}

fn size(errors: &mut Errors, object: &Value, fields: &[&str], named: &str) {
    let total: usize = fields
        .iter()
        .flat_map(|field| object[*field].as_object().into_iter().flatten())
        .map(|(_, value)| value.as_str().map_or(0, str::len))
        .sum();
    if total > SIZE_LIMIT {
        errors.push(FieldError::too_long(&FieldPath::from(named), SIZE_LIMIT as u64));
    }
}

fn frozen(errors: &mut Errors, new: &Value, old: &Value, fields: &[&str]) {
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        errors.forbidden(&FieldPath::from("immutable"), FROZEN);
    }
    for field in fields {
        if new[*field] != old[*field] {
            errors.forbidden(&FieldPath::from(*field), FROZEN);
        }
    }
}

pub fn runtime_class(errors: &mut Errors, new: &Value) {
    let scheduling = &new["scheduling"];
    for (name, amount) in new["overhead"]["podFixed"].as_object().into_iter().flatten() {
        // As upstream, which looks at it as a limit.
        let path = FieldPath::from("overhead.limits").key(name);
        super::container::resource_name(errors, &path, name);
        errors.quantity(&path, amount);
    }
    super::pod::tolerations(errors, scheduling, &FieldPath::from("scheduling"), &["Equal", "Exists"]);
}

/// Only known or qualified finalizers hold a namespace.
pub fn namespace(errors: &mut Errors, new: &Value, finalizing: bool) {
    for (index, name) in list(&new["spec"], "finalizers").iter().filter_map(Value::as_str).enumerate() {
        let path = FieldPath::from("spec.finalizers");
        let path = if finalizing { path.index(index) } else { path };
        errors.qualified(&path, name);
        if name != "kubernetes" && !name.contains('/') {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(&path, name, detail);
        }
    }
}

/// Only a deletion ends a namespace (upstream: `ValidateNamespaceStatusUpdate`, which names the field by its Go name).
pub fn namespace_status(errors: &mut Errors, new: &Value) {
    let (path, phase) = (FieldPath::from("status.Phase"), text(&new["status"], "phase"));
    let deleting = !new["metadata"]["deletionTimestamp"].is_null();
    if !deleting && phase != "Active" {
        errors.invalid(&path, phase, "may only be 'Active' if `deletionTimestamp` is empty");
    } else if deleting && phase != "Terminating" {
        errors.invalid(&path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty");
    }
}

pub fn node(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    for (index, taint) in list(&new["spec"], "taints").iter().enumerate() {
        // As upstream, which has the wrong parent.
        let path = FieldPath::from("metadata.taints").index(index);
        errors.qualified(&path.child("key"), text(taint, "key"));
        errors.one_of(taint, &path, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        if text(taint, "effect").is_empty() {
            errors.required(&path.child("effect"), "");
        }
    }
    let (ranges, path) = (list(&new["spec"], "podCIDRs"), FieldPath::from("spec.podCIDRs"));
    let mut families = Vec::new();
    for (index, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
        families
            .extend(network::cidr(errors, &path.index(index), range).map(|(address, _)| address.is_ipv4()));
    }
    if ranges.len() > 2 || ranges.len() == 2 && families.first() == families.get(1) {
        let detail = "may specify no more than one CIDR for each IP family";
        errors.invalid(&path, ranges.to_vec(), detail);
    }
    let range = |node: &Value| text(&node["spec"], "podCIDR").to_owned();
    if let Some(old) = old.map(range).filter(|old| !old.is_empty())
        && range(new) != old
    {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        errors.forbidden(&FieldPath::from("spec.podCIDRs"), detail);
    }
}

pub fn priority_class(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    if old.is_none() {
        let root = FieldPath::root();
        if new["preemptionPolicy"] == "" {
            errors.required(&root.child("preemptionPolicy"), "");
        } else {
            errors.one_of(new, &root, "preemptionPolicy", &["PreemptLowerPriority", "Never"]);
        }
    }
    let name = text(&new["metadata"], "name");
    if name.starts_with("system-") {
        let detail = format!(
            "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system priority class"
        );
        errors.forbidden(&FieldPath::from("metadata.name"), &detail);
    }
    if new["value"].as_i64().is_some_and(|value| value > 1_000_000_000) {
        let detail = "maximum allowed value of a user defined priority is 1000000000";
        errors.forbidden(&FieldPath::from("value"), detail);
    }
}
