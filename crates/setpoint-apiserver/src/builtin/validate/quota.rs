//! Limit ranges and resource quotas (`pkg/apis/core/validation`).

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::builtin::Quantity;
use crate::builtin::edit::{list, text};
use crate::object_meta::check_qualified;

const STANDARD: [&str; 21] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
    "hugepages",
];
/// Of which only whole numbers can be had.
const WHOLE: [&str; 9] = [
    "pods",
    "persistentvolumeclaims",
    "services",
    "services.nodeports",
    "services.loadbalancers",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
];
/// Resources of pods that quotas count, beside those of devices and huge pages.
pub(crate) const POD_RESOURCES: [&str; 10] = [
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

pub fn limit_range(errors: &mut Errors, new: &Value) {
    let mut kinds: Vec<&str> = Vec::new();
    for (index, limit) in list(&new["spec"], "limits").iter().enumerate() {
        let path = FieldPath::from("spec.limits").index(index);
        let kind = text(limit, "type");
        limit_type(errors, kind, &path.child("type"));
        if kinds.contains(&kind) {
            errors.duplicate(&path.child("type"), kind);
        }
        kinds.push(kind);
        if kind == "Pod" {
            for key in ["default", "defaultRequest"] {
                if limit[key].as_object().is_some_and(|amounts| !amounts.is_empty()) {
                    errors.forbidden(&path.child(key), "may not be specified when `type` is 'Pod'");
                }
            }
        }
        if kind == "PersistentVolumeClaim"
            && limit["min"]["storage"].is_null()
            && limit["max"]["storage"].is_null()
        {
            let detail = "either minimum or maximum storage value is required, but neither was provided";
            errors.required(&path.child("limits"), detail);
        }
        bounds(errors, limit, &path);
    }
}

fn limit_type(errors: &mut Errors, kind: &str, path: &FieldPath) {
    let problems = check_qualified(kind);
    if problems.is_empty()
        && !kind.contains('/')
        && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim")
    {
        errors.invalid(path, kind, "must be a standard limit type or fully qualified");
    }
    for problem in problems {
        errors.invalid(path, kind, problem);
    }
}

fn resource_name(errors: &mut Errors, name: &str, path: &FieldPath) {
    let problems = check_qualified(name);
    let known = name.contains('/') || STANDARD.contains(&name) || is_huge(name);
    if problems.is_empty() && !known {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
    for problem in problems {
        errors.invalid(path, name, problem);
    }
}

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

fn bounds(errors: &mut Errors, limit: &Value, path: &FieldPath) {
    let keys = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let mut names: Vec<&str> = Vec::new();
    for key in keys.into_iter().filter(|key| text(limit, "type") != "Pod" || !key.starts_with("default")) {
        for (name, value) in limit[key].as_object().into_iter().flatten() {
            let path = path.child(key).key(name);
            resource_name(errors, name, &path);
            let of_containers =
                matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || is_huge(name);
            if matches!(text(limit, "type"), "Pod" | "Container") && !name.contains('/') && !of_containers {
                errors.invalid(&path, name.as_str(), "must be a standard resource for containers");
            }
            if value.as_str().and_then(Quantity::parse).is_none() {
                errors.quantity(&path, value);
            }
            names.push(name);
        }
    }
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of = |key: &str| limit[key][name].as_str().and_then(Quantity::parse);
        let (max, min) = (of("max"), of("min"));
        let (default, request, ratio) = (of("default"), of("defaultRequest"), of("maxLimitRequestRatio"));
        let over = |one: Option<Quantity>, other: Option<Quantity>| {
            one.zip(other).filter(|(one, other)| one.nanos() > other.nanos())
        };
        let mut wrong = |key: &str, value: Quantity, detail: String| {
            errors.invalid(&path.child(key).key(name), value.to_string(), detail);
        };
        if let Some((min, max)) = over(min, max) {
            wrong("min", min, format!("min value {min} is greater than max value {max}"));
        }
        if let Some((min, request)) = over(min, request) {
            wrong(
                "defaultRequest",
                request,
                format!("min value {min} is greater than default request value {request}"),
            );
        }
        if let Some((request, max)) = over(request, max) {
            wrong(
                "defaultRequest",
                request,
                format!("default request value {request} is greater than max value {max}"),
            );
        }
        if let Some((request, default)) = over(request, default) {
            let detail =
                format!("default request value {request} is greater than default limit value {default}");
            wrong("defaultRequest", request, detail);
        }
        if let Some((min, default)) = over(min, default) {
            wrong("default", min, format!("min value {min} is greater than default value {default}"));
        }
        if let Some((default, max)) = over(default, max) {
            wrong("default", max, format!("default value {default} is greater than max value {max}"));
        }
        let Some(ratio) = ratio else { continue };
        if ratio.nanos() < Quantity::whole(1).nanos() {
            wrong("maxLimitRequestRatio", ratio, format!("ratio {ratio} is less than 1"));
        }
        if let Some((min, max)) = min.zip(max) {
            let most = max.ratio(min);
            if ratio.ratio(Quantity::whole(1)) > most {
                let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
                wrong("maxLimitRequestRatio", ratio, detail);
            }
        }
    }
}

pub fn resource_quota(errors: &mut Errors, new: &Value, old: Option<&Value>, status: bool) {
    let keys: &[&str] = if status { &["status.hard", "status.used"] } else { &["spec.hard"] };
    for key in keys {
        let path = FieldPath::from(*key);
        let (part, name) = key.split_once('.').unwrap_or((key, ""));
        for (name, value) in new[part][name].as_object().into_iter().flatten() {
            hard(errors, name, value, &path.key(name));
        }
    }
    if status {
        return;
    }
    let spec = &new["spec"];
    let path = FieldPath::from("spec.scopes");
    let scopes: Vec<&str> = list(spec, "scopes").iter().filter_map(Value::as_str).collect();
    for _ in scopes.iter().filter(|scope| !is_scope(scope)) {
        errors.invalid(&path, spec["scopes"].clone(), "unsupported scope");
    }
    let names = || spec["hard"].as_object().into_iter().flat_map(|hard| hard.keys());
    let misapplied = |scope: &&str| names().any(|name| is_standard(name) && !can_count(scope, name));
    if scopes.iter().any(misapplied) {
        errors.invalid(&path, spec["scopes"].clone(), "unsupported scope applied to resource");
    }
    let both = |one: &str, other: &str| scopes.contains(&one) && scopes.contains(&other);
    if both("BestEffort", "NotBestEffort") || both("Terminating", "NotTerminating") {
        errors.invalid(&path, spec["scopes"].clone(), "conflicting scopes");
    }
    scope_selector(errors, spec, &FieldPath::from("spec.scopeSelector.matchExpressions"));
    if let Some(old) = old {
        let set = |quota: &Value| {
            let mut scopes: Vec<String> = list(&quota["spec"], "scopes")
                .iter()
                .filter_map(|scope| scope.as_str().map(str::to_owned))
                .collect();
            scopes.sort_unstable();
            scopes.dedup();
            scopes
        };
        if set(old) != set(new) {
            errors.invalid(&path, spec["scopes"].clone(), super::errors::IMMUTABLE);
        }
    }
}

fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name) || is_huge(name)
}

fn hard(errors: &mut Errors, name: &str, value: &Value, path: &FieldPath) {
    resource_name(errors, name, path);
    if !name.contains('/') && !is_standard(name) {
        errors.invalid(path, name, "must be a standard resource for quota");
    }
    let written = value.as_str().and_then(Quantity::parse);
    errors.quantity(path, value);
    let whole = WHOLE.contains(&name) || name.contains('/');
    if let Some(quantity) =
        written.filter(|quantity| whole && quantity.nanos() % Quantity::whole(1).nanos() != 0)
    {
        errors.invalid(path, quantity.to_string(), "must be an integer");
    }
}

fn is_scope(scope: &str) -> bool {
    matches!(
        scope,
        "Terminating"
            | "NotTerminating"
            | "BestEffort"
            | "NotBestEffort"
            | "PriorityClass"
            | "CrossNamespacePodAffinity"
            | "VolumeAttributesClass"
    )
}

/// Whether a quota of the scope can count the resource.
fn can_count(scope: &str, name: &str) -> bool {
    match scope {
        "BestEffort" => name == "pods",
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => POD_RESOURCES.contains(&name),
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn scope_selector(errors: &mut Errors, spec: &Value, path: &FieldPath) {
    for expression in list(&spec["scopeSelector"], "matchExpressions") {
        let (scope, operator) = (text(expression, "scopeName"), text(expression, "operator"));
        let values = list(expression, "values");
        if !is_scope(scope) {
            errors.invalid(&path.child("scopeName"), scope, "unsupported scope");
        }
        let alone = !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && is_scope(scope);
        if alone && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&path.child("operator"), operator, detail);
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail =
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&path.child("values"), detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail =
                    "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector";
                errors.invalid(&path.child("values"), expression["values"].clone(), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
    }
}
