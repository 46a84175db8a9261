//! From kubectl's client-side apply to server-side apply.

use serde_json::Value;

use super::{compare::compare, conflict::Conflicts};
use crate::{field_set::FieldSet, schema::Schema};

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn annotation(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}

/// Conflicts about fields that client-side apply set, and that still have the values it set, are none.
///
/// # Errors
/// The conflicts that are left.
pub(super) fn left_over(
    schema: &Schema,
    live: &Value,
    api_version: &str,
    conflicts: Conflicts,
) -> Result<(), Conflicts> {
    let Some(last) = annotation(live).and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return Err(conflicts);
    };
    if last.get("apiVersion").and_then(Value::as_str) != Some(api_version) {
        return Err(conflicts);
    }
    let changes = compare(schema, &last, live, &FieldSet::default());
    let allowed = FieldSet::of(schema, &last)
        .difference(&changes.modified)
        .difference(&changes.added)
        .difference(&changes.removed);
    let left: Vec<_> = conflicts.0.into_iter().filter(|conflict| !allowed.has(&conflict.path.0)).collect();
    if left.is_empty() { Ok(()) } else { Err(Conflicts(left)) }
}

/// Brings the annotation of an object that has one up to date, so that client-side apply may follow.
pub(super) fn refresh(object: &mut Value, intent: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut last = intent.clone();
    if let Some(Value::Object(annotations)) = last.pointer_mut("/metadata/annotations") {
        annotations.remove(ANNOTATION);
        if annotations.is_empty()
            && let Some(Value::Object(metadata)) = last.get_mut("metadata")
        {
            metadata.remove("annotations");
        }
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations") {
        annotations[ANNOTATION] = Value::from(format!("{last}\n"));
    }
}
