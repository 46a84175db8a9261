//! JSON patch (RFC 6902).

use serde_json::Value;

use super::PatchError;

/// The most operations that a JSON patch may have (upstream: `maxJSONPatchOperations`).
const MAX_OPERATIONS: usize = 10_000;

/// Applies a JSON patch (RFC 6902). On an error the target is unchanged.
///
/// # Errors
/// [`PatchError::Malformed`] when `patch` is no list or has more than 10,000 operations, [`PatchError::Unprocessable`]
/// when an operation is unknown or fails: a path that is not there, a `test` that does not hold.
pub fn json(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Array(operations) = patch else {
        return Err(PatchError::Malformed(format!(
            "error decoding patch: expected a list of operations, got {patch}"
        )));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::Malformed(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let patch: ::json_patch::Patch = serde_json::from_value(patch.clone())
        .map_err(|problem| PatchError::Unprocessable(format!("error decoding patch: {problem}")))?;
    ::json_patch::patch(target, &patch).map_err(|problem| PatchError::Unprocessable(problem.to_string()))
}
