//! Pods and pod templates.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{
    container::{self, Pod},
    errors::Errors,
    selector, volume,
};
use crate::{
    builtin::edit::{list, text},
    object_meta::{NameRule, is_label},
};

/// Checks a new pod or an update of one.
pub fn pod(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let path = FieldPath::from("spec");
    if let Some(old) = old {
        update(errors, &new["spec"], &old["spec"], &path);
        return;
    }
    spec(errors, &new["spec"], &path, &[]);
    for (index, container) in list(&new["spec"], "containers").iter().enumerate() {
        let image = text(container, "image");
        if image != image.trim() {
            let path = path.child("containers").index(index).child("image");
            errors.invalid(&path, image, "must not have leading or trailing whitespace");
        }
    }
}

/// Checks a `{metadata, spec}` template. `claims` are the names of claim templates, which can be mounted like volumes.
pub fn template(errors: &mut Errors, template: &Value, path: &FieldPath, claims: &[&str]) {
    let metadata = path.child("metadata");
    errors.labels(&metadata.child("labels"), &template["metadata"]["labels"]);
    spec(errors, &template["spec"], &path.child("spec"), claims);
}

fn spec(errors: &mut Errors, spec: &Value, path: &FieldPath, claims: &[&str]) {
    let mut volumes = volume::all(errors, spec, path);
    volumes.extend(claims);
    container::all(errors, &Pod { spec, volumes }, path);
    errors.one_of(spec, path, "restartPolicy", &["Always", "OnFailure", "Never"]);
    errors.one_of(spec, path, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    errors.in_range(spec, path, "activeDeadlineSeconds", 1, i64::from(i32::MAX));
    errors.labels(&path.child("nodeSelector"), &spec["nodeSelector"]);
    let security = path.child("securityContext");
    for key in ["runAsUser", "runAsGroup", "fsGroup"] {
        errors.in_range(&spec["securityContext"], &security, key, 0, i64::from(i32::MAX));
    }
    for key in ["serviceAccountName", "nodeName"] {
        if !text(spec, key).is_empty() {
            errors.name(&path.child(key), text(spec, key), NameRule::Subdomain);
        }
    }
    let host = text(spec, "hostname");
    if !host.is_empty() {
        errors.name(&path.child("hostname"), host, NameRule::Label);
    }
    let domain = text(spec, "subdomain");
    if !domain.is_empty() && !is_label(domain) {
        if domain.contains('.') {
            errors.invalid(&path.child("subdomain"), domain, "must not contain dots");
        } else {
            errors.name(&path.child("subdomain"), domain, NameRule::Label);
        }
    }
    tolerations(errors, spec, path);
    spread(errors, spec, path);
    affinity(errors, &spec["affinity"], &path.child("affinity"));
}

fn tolerations(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    for (index, toleration) in list(spec, "tolerations").iter().enumerate() {
        let path = path.child("tolerations").index(index);
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        if !key.is_empty() {
            errors.qualified(&path.child("key"), key);
        }
        if key.is_empty() && operator != "Exists" {
            let detail =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&path.child("operator"), operator, detail);
        }
        let effect = text(toleration, "effect");
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(&path.child("effect"), effect, detail);
        }
        let value = text(toleration, "value");
        match operator {
            "" | "Equal" => errors.label_value(&path.child("operator"), value),
            "Exists" if !value.is_empty() => {
                errors.invalid(
                    &path.child("operator"),
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Exists" => {}
            "Lt" | "Gt" => {
                if value.parse::<i64>().is_err() {
                    errors.invalid(
                        &path.child("value"),
                        value,
                        "must be a whole number when `operator` is 'Lt' or 'Gt'",
                    );
                }
            }
            other => errors.unsupported(&path.child("operator"), other, &["Equal", "Exists", "Lt", "Gt"]),
        }
        errors.one_of(toleration, &path, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
    }
}

fn spread(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    for (index, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = path.child("topologySpreadConstraints").index(index);
        if constraint["maxSkew"].as_i64().unwrap_or(0) <= 0 {
            errors.invalid(
                &path.child("maxSkew"),
                constraint["maxSkew"].clone(),
                "must be greater than zero",
            );
        }
        if text(constraint, "topologyKey").is_empty() {
            errors.required(&path.child("topologyKey"), "can not be empty");
        }
        errors.one_of(constraint, &path, "whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]);
        if constraint["labelSelector"].is_object() {
            selector::check(errors, &constraint["labelSelector"], &path.child("labelSelector"));
        }
    }
}

fn affinity(errors: &mut Errors, affinity: &Value, path: &FieldPath) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    for key in ["podAffinity", "podAntiAffinity"] {
        let (terms, path) = (&affinity[key], path.child(key));
        for (index, term) in list(terms, REQUIRED).iter().enumerate() {
            affinity_term(errors, term, &path.child(REQUIRED).index(index));
        }
        for (index, weighted) in list(terms, PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED).index(index);
            if !weighted["weight"].as_i64().is_some_and(|weight| (1..=100).contains(&weight)) {
                errors.invalid(
                    &path.child("weight"),
                    weighted["weight"].clone(),
                    "must be in the range 1-100",
                );
            }
            affinity_term(errors, &weighted["podAffinityTerm"], &path.child("podAffinityTerm"));
        }
    }
    let node = &affinity["nodeAffinity"][REQUIRED];
    if node.is_object() && list(node, "nodeSelectorTerms").is_empty() {
        let path = path.child("nodeAffinity").child(REQUIRED).child("nodeSelectorTerms");
        errors.required(&path, "must have at least one node selector term");
    }
}

fn affinity_term(errors: &mut Errors, term: &Value, path: &FieldPath) {
    if term["labelSelector"].is_object() {
        selector::check(errors, &term["labelSelector"], &path.child("labelSelector"));
    }
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errors.required(&path.child("topologyKey"), "can not be empty");
    }
    errors.qualified(&path.child("topologyKey"), key);
}

/// What an update of a pod may change is little.
fn update(errors: &mut Errors, new: &Value, old: &Value, path: &FieldPath) {
    const FORBIDDEN: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    for key in ["containers", "initContainers"] {
        if list(new, key).len() != list(old, key).len() {
            errors.forbidden(&path.child(key), "pod updates may not add or remove containers");
            return;
        }
    }
    let mut allowed = new.clone();
    for key in ["containers", "initContainers"] {
        for (index, container) in list(new, key).iter().enumerate() {
            errors.present(container, &path.child(key).index(index), "image");
            allowed[key][index]["image"] = old[key][index]["image"].clone();
        }
    }
    let (deadline, before) = (new["activeDeadlineSeconds"].as_i64(), old["activeDeadlineSeconds"].as_i64());
    let deadline_path = path.child("activeDeadlineSeconds");
    match (deadline, before) {
        (Some(now), _) if !(1..=i64::from(i32::MAX)).contains(&now) => {
            errors.in_range(new, path, "activeDeadlineSeconds", 1, i64::from(i32::MAX));
        }
        (Some(now), Some(before)) if now > before => {
            errors.invalid(&deadline_path, now, "must be less than or equal to previous value");
        }
        (None, Some(_)) => {
            errors.invalid(
                &deadline_path,
                Value::Null,
                "must not update from a positive integer to nil value",
            );
        }
        _ => {}
    }
    // Scheduling gates may be lifted; tolerations may be added.
    for key in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        crate::builtin::edit::copy(&mut allowed, old, key);
    }
    let kept = |old: &Value| list(new, "tolerations").iter().any(|new| same_toleration(new, old));
    if !list(old, "tolerations").iter().all(kept) {
        errors.forbidden(
            &path.child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
    if list(new, "schedulingGates").iter().any(|gate| !list(old, "schedulingGates").contains(gate)) {
        errors.forbidden(
            &path.child("schedulingGates"),
            "only deletion is allowed, but found new scheduling gates",
        );
    }
    if old["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        crate::builtin::edit::copy(&mut allowed, old, "terminationGracePeriodSeconds");
    }
    if allowed != *old {
        errors.forbidden(path, FORBIDDEN);
    }
}

fn same_toleration(a: &Value, b: &Value) -> bool {
    ["key", "operator", "value", "effect"].iter().all(|key| text(a, key) == text(b, key))
}
