//! Autoscalers: what looks at several fields (`pkg/apis/autoscaling/validation`).

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::builtin::{
    Quantity,
    edit::{list, text},
};

const TYPES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

pub fn autoscaler(errors: &mut Errors, new: &Value) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let (least, most) = (spec["minReplicas"].as_i64(), spec["maxReplicas"].as_i64().unwrap_or(0));
    let metrics = list(spec, "metrics");
    if let Some(least) = least.filter(|least| *least < 0) {
        errors.invalid(&path.child("minReplicas"), least, "must be greater than or equal to 0");
    }
    match most {
        // Declared as required: zero is as good as nothing.
        0 => errors.required(&path.child("maxReplicas"), ""),
        ..0 => errors.invalid(&path.child("maxReplicas"), most, "must be greater than or equal to 1"),
        _ => {}
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid(&path.child("maxReplicas"), most, "must be greater than or equal to `minReplicas`");
    }
    let target = &spec["scaleTargetRef"];
    let version = text(target, "apiVersion");
    let grouped = version.split_once('/').is_some_and(|(group, _)| !group.is_empty());
    group_version(errors, target, &path.child("scaleTargetRef"));
    if !grouped && text(target, "kind") != "ReplicationController" {
        let detail = "apiVersion must specify API group";
        errors.invalid(&path.child("scaleTargetRef.apiVersion"), version, detail);
    }
    for (index, metric) in list(spec, "metrics").iter().enumerate() {
        let path = path.child("metrics").index(index).child("object.describedObject");
        group_version(errors, &metric["object"]["describedObject"], &path);
    }
    for direction in ["scaleUp", "scaleDown"] {
        let (rules, at) = (&spec["behavior"][direction], path.child("behavior").child(direction));
        if let Some(seconds) = rules["stabilizationWindowSeconds"].as_i64().filter(|seconds| *seconds < 0) {
            errors.invalid(
                &at.child("stabilizationWindowSeconds"),
                seconds,
                "must be greater than or equal to zero",
            );
        }
        for (index, policy) in list(rules, "policies").iter().enumerate() {
            let at = at.child("policies").index(index);
            if text(policy, "type").is_empty() {
                errors.unsupported(&at.child("type"), "", &["Percent", "Pods"]);
            }
            for key in ["value", "periodSeconds"] {
                if policy[key].is_null() {
                    errors.invalid(&at.child(key), 0, "must be greater than zero");
                }
            }
        }
    }
    let scales_from_outside = |metric: &Value| matches!(text(metric, "type"), "Object" | "External");
    if least == Some(0) && !metrics.iter().any(scales_from_outside) {
        let detail =
            "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden(&path.child("metrics"), detail);
    }
    for (index, metric) in metrics.iter().enumerate() {
        self::metric(errors, metric, &path.child("metrics").index(index));
    }
}

/// A reference to an object has at most one slash in its version.
fn group_version(errors: &mut Errors, reference: &Value, path: &FieldPath) {
    let version = text(reference, "apiVersion");
    if version.matches('/').count() > 1 {
        let detail = format!("unexpected GroupVersion string: {version}");
        errors.invalid(&path.child("apiVersion"), version, detail);
    }
}

fn metric(errors: &mut Errors, metric: &Value, path: &FieldPath) {
    let kind = text(metric, "type");
    let known = TYPES.iter().find(|(name, _)| *name == kind);
    if known.is_none() {
        errors.unsupported(&path.child("type"), kind, &TYPES.map(|(name, _)| name));
    }
    for (name, field) in TYPES {
        let (source, at) = (&metric[field], path.child(field));
        if name != kind {
            if source.is_object() && known.is_some() {
                errors.forbidden(&at, "must populate the given metric source only");
            }
            continue;
        }
        if !source.is_object() {
            errors.required(&at, "must populate information for the given metric source");
            continue;
        }
        target(errors, field, &source["target"], &at.child("target"));
    }
}

fn target(errors: &mut Errors, source: &str, target: &Value, path: &FieldPath) {
    let kind = text(target, "type");
    if kind.is_empty() {
        errors.required(&path.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        errors.invalid(&path.child("type"), kind, "must be either Utilization, Value, or AverageValue");
    }
    let given = |key: &str| !target[key].is_null();
    for key in ["value", "averageValue"] {
        let amount = target[key].as_str().and_then(Quantity::parse);
        if amount.is_some_and(|amount| amount.nanos() <= 0) {
            errors.invalid(&path.child(key), target[key].clone(), "must be positive");
        }
    }
    if let Some(share) = target["averageUtilization"].as_i64().filter(|share| *share < 1) {
        errors.invalid(&path.child("averageUtilization"), share, "must be greater than 0");
    }
    match source {
        "resource" | "containerResource" => match (given("averageUtilization"), given("averageValue")) {
            (false, false) => {
                let detail = "must set either a target raw value or a target utilization";
                errors.required(&path.child("averageUtilization"), detail);
            }
            (true, true) => {
                let detail = "may not set both a target raw value and a target utilization";
                errors.forbidden(&path.child("averageValue"), detail);
            }
            _ => {}
        },
        "pods" => {
            if !given("averageValue") {
                errors.required(&path.child("averageValue"), "must specify a positive target averageValue");
            }
        }
        "object" => {
            if !given("value") && !given("averageValue") {
                errors
                    .required(&path.child("averageValue"), "must set either a target value or averageValue");
            }
        }
        _ => match (given("value"), given("averageValue")) {
            (false, false) => {
                let detail = "must set either a target value for metric or a per-pod target";
                errors.required(&path.child("averageValue"), detail);
            }
            (true, true) => {
                let detail = "may not set both a target value for metric and a per-pod target";
                errors.forbidden(&path.child("value"), detail);
            }
            _ => {}
        },
    }
}
