//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

use super::PatchError;

/// Applies a JSON merge patch (RFC 7386): objects merge field by field, `null` removes a field, all else replaces.
///
/// # Errors
/// [`PatchError::Malformed`] when the patch is no object: it would replace the whole target.
pub fn merge(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed(format!("a merge patch must be an object, not {patch}")));
    }
    apply(target, patch);
    Ok(())
}

fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            apply(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The merge patch that turns `old` into `new`: `{}` when they are equal. A merge patch cannot set a field to `null`,
/// so a `null` in `new` that `old` lacks is lost.
pub fn merge_diff(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return new.clone() };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(there) if there == value => {}
            Some(there) => {
                patch.insert(key.clone(), merge_diff(there, value));
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}
