//! The scopes of a quota: which pods (and claims) it is about.

use serde_json::Value;

use crate::catalog::Resource;

/// Whether a quota of this spec is about an object.
pub(super) fn include(spec: &Value, resource: &Resource, object: &Value) -> bool {
    let plain = spec["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let selected = spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    plain
        .map(|scope| (scope, "Exists", &Value::Null))
        .chain(selected.map(|one| {
            (
                one["scopeName"].as_str().unwrap_or_default(),
                one["operator"].as_str().unwrap_or_default(),
                &one["values"],
            )
        }))
        .all(|(scope, operator, values)| in_scope(resource, object, scope, operator, values))
}

fn in_scope(resource: &Resource, object: &Value, scope: &str, operator: &str, values: &Value) -> bool {
    let named = |name: &str| {
        let listed = || values.as_array().is_some_and(|values| values.iter().any(|value| value == name));
        match operator {
            "In" => !name.is_empty() && listed(),
            "NotIn" => !listed(),
            "Exists" => !name.is_empty(),
            "DoesNotExist" => name.is_empty(),
            _ => false,
        }
    };
    let spec = &object["spec"];
    if resource.is("", "persistentvolumeclaims") && scope == "VolumeAttributesClass" {
        return named(spec["volumeAttributesClassName"].as_str().unwrap_or_default());
    }
    if !resource.is("", "pods") {
        return false;
    }
    let ends = spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
    let best_effort = || object["status"]["qosClass"] == "BestEffort";
    match scope {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => named(spec["priorityClassName"].as_str().unwrap_or_default()),
        "CrossNamespacePodAffinity" => crosses_namespaces(&spec["affinity"]),
        _ => false,
    }
}

/// Whether a pod is placed by pods of other namespaces.
fn crosses_namespaces(affinity: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let terms = |key: &str| affinity[*kind][key].as_array().into_iter().flatten();
        let preferred =
            terms("preferredDuringSchedulingIgnoredDuringExecution").map(|term| &term["podAffinityTerm"]);
        let required = terms("requiredDuringSchedulingIgnoredDuringExecution");
        required.chain(preferred).any(|term| {
            !term["namespaceSelector"].is_null()
                || term["namespaces"].as_array().is_some_and(|all| !all.is_empty())
        })
    })
}
