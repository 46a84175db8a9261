//! Access reviews (`pkg/apis/authorization/validation`).

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::builtin::edit::{list, text};

/// Checks a review. `namespace` is that of the request.
pub fn access(errors: &mut Errors, kind: &str, review: &Value) {
    let (spec, path) = (&review["spec"], FieldPath::from("spec"));
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if resource.is_object() == other.is_object() {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.invalid_at(&path, &path.child("nonResourceAttributes"), other, detail);
    }
    for key in ["labelSelector", "fieldSelector"] {
        selector(errors, &resource[key], &path.child("resourceAttributes").child(key));
    }
    if kind != "SelfSubjectAccessReview" && text(spec, "user").is_empty() && list(spec, "groups").is_empty() {
        errors.invalid(&path.child("user"), "", "at least one of user or group must be specified");
    }
    let namespaced = kind == "LocalSubjectAccessReview";
    let says = |(key, value): (&String, &Value)| {
        let empty =
            value.is_null() || value == "" || value.as_object().is_some_and(serde_json::Map::is_empty);
        key != "managedFields" && !empty && !(namespaced && key == "namespace")
    };
    if review["metadata"].as_object().into_iter().flatten().any(says) {
        let detail = if namespaced { "must be empty except for namespace" } else { "must be empty" };
        errors.invalid(&FieldPath::from("metadata"), review["metadata"].clone(), detail);
    }
    if !namespaced {
        return;
    }
    let asked = text(resource, "namespace");
    if resource.is_object() && asked != text(&review["metadata"], "namespace") {
        let detail = "must match metadata.namespace";
        errors.invalid(&path.child("resourceAttributes.namespace"), asked, detail);
    }
    if other.is_object() {
        errors.invalid(
            &path.child("nonResourceAttributes"),
            other.clone(),
            "disallowed on this kind of request",
        );
    }
}

fn selector(errors: &mut Errors, selector: &Value, path: &FieldPath) {
    if selector.is_null() {
        return;
    }
    let (raw, requirements) = (text(selector, "rawSelector"), list(selector, "requirements"));
    match (raw.is_empty(), requirements.is_empty()) {
        (false, false) => {
            let detail = "may not specified at the same time as requirements";
            return errors.invalid(&path.child("rawSelector"), raw, detail);
        }
        (true, true) => {
            let detail = "when selector is specified, requirements or rawSelector is required";
            return errors.required(&path.child("requirements"), detail);
        }
        _ => {}
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let path = path.child("requirements").index(index);
        errors.present(requirement, &path, "key");
        let values = list(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.required(&path.child("values"), detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&path.child("values"), detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
    }
}
