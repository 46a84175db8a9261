//! Label selectors as objects carry them: `{matchLabels, matchExpressions}`.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::builtin::edit::{list, text};

/// Whether a label selector selects these labels; an empty one selects everything, one with an unknown operator nothing.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    let pairs = selector["matchLabels"].as_object();
    pairs.into_iter().flatten().all(|(key, value)| label(key) == value.as_str())
        && list(selector, "matchExpressions").iter().all(|expression| {
            let found = label(text(expression, "key"));
            let listed = |found: &str| list(expression, "values").iter().any(|value| value == found);
            match text(expression, "operator") {
                "In" => found.is_some_and(listed),
                "NotIn" => found.is_none_or(|found| !listed(found)),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// Whether a selector selects everything.
pub fn is_empty(selector: &Value) -> bool {
    selector["matchLabels"].as_object().is_none_or(serde_json::Map::is_empty)
        && list(selector, "matchExpressions").is_empty()
}

/// Checks a selector; answers whether it can be used.
pub fn check(errors: &mut Errors, selector: &Value, path: &FieldPath) -> bool {
    let before = errors.len();
    errors.labels(&path.child("matchLabels"), &selector["matchLabels"]);
    for (index, expression) in list(selector, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = list(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.required(&path.child("values"), detail);
            }
            "In" | "NotIn" => {
                for (index, value) in values.iter().enumerate() {
                    let path = path.child("values").index(index);
                    errors.label_value(&path, value.as_str().unwrap_or_default());
                }
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&path.child("values"), detail);
            }
            "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        errors.qualified(&path.child("key"), text(expression, "key"));
    }
    errors.len() == before
}

/// Checks a selector of nodes: terms of which one must match.
pub fn nodes(errors: &mut Errors, selector: &Value, path: &FieldPath) {
    let path = path.child("nodeSelectorTerms");
    let terms = list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(&path, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        node_term(errors, term, &path.index(index), true);
    }
}

/// Checks one term of a selector of nodes; what is only preferred may name values that no label has.
pub fn node_term(errors: &mut Errors, term: &Value, path: &FieldPath, values_of_labels: bool) {
    for (index, expression) in list(term, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = list(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.required(&path.child("values"), detail);
            }
            "In" | "NotIn" => {
                let checked = values.iter().filter_map(Value::as_str).filter(|_| values_of_labels);
                for (index, value) in checked.enumerate() {
                    errors.label_value(&path.child("values").index(index), value);
                }
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&path.child("values"), detail);
            }
            "Gt" | "Lt" if values.len() != 1 => {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.required(&path.child("values"), detail);
            }
            "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        errors.qualified(&path.child("key"), text(expression, "key"));
    }
    for (index, field) in list(term, "matchFields").iter().enumerate() {
        let path = path.child("matchFields").index(index);
        let (key, values) = (text(field, "key"), list(field, "values"));
        match text(field, "operator") {
            "In" | "NotIn" if values.len() != 1 => {
                let detail =
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.required(&path.child("values"), detail);
            }
            "In" | "NotIn" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        if key == "metadata.name" {
            for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
                errors.name(
                    &path.child("values").index(index),
                    value,
                    crate::object_meta::NameRule::Subdomain,
                );
            }
        } else {
            errors.invalid(&path.child("key"), key, "not a valid field selector key");
        }
    }
}
