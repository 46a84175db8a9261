//! JSON patch (RFC 6902), with limits: a `copy` may double the document, so a few dozen operations could fill any memory.

use ::json_patch::{
    AddOperation, Patch, PatchErrorKind, PatchOperation,
    jsonptr::{Pointer, Token},
};
use serde_json::Value;

use super::PatchError;
use crate::size::{depth, json_size};

/// The most operations that a JSON patch may have (upstream: `maxJSONPatchOperations`).
const MAX_OPERATIONS: usize = 10_000;
/// The most bytes that the `copy` operations of a patch may add in all, counted as compact JSON (upstream: `JSONPatchMaxCopyBytes`).
const MAX_COPIED: usize = 3 << 20;
/// The most bytes that the `move` operations of a patch may carry in all: each costs as much as what it carries.
const MAX_MOVED: usize = 32 << 20;
/// How deep values may be nested: what the JSON parser accepts. A deeper object could not be read back.
const MAX_DEPTH: usize = 128;

/// Applies a JSON patch (RFC 6902). On an error the target may be half patched.
///
/// As upstream reads it, `replace` of a missing member of an object adds it, a missing `value` is `null`, and `test` for `null` holds where nothing is.
///
/// # Errors
/// [`PatchError::Malformed`] when `patch` is no list; [`PatchError::TooLarge`] when it has more than 10,000 operations;
/// [`PatchError::Unprocessable`] when an operation is unknown or fails: a path that is not there, a `test` that does not hold,
/// copies of more than 3 MiB in all, moves of more than 32 MiB in all, values nested deeper than 128.
pub fn json(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = patch.as_array().map_or(0, Vec::len);
    if operations > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {operations}"
        )));
    }
    json_of_any_length(target, patch)
}

/// As [`json`], without a limit to the number of operations: what webhooks and policies answer has none.
///
/// # Errors
/// As of [`json`], but for [`PatchError::TooLarge`].
pub fn json_of_any_length(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Array(operations) = patch else {
        return Err(PatchError::Malformed("error decoding patch: expected a list of operations".to_owned()));
    };
    let known = ["add", "remove", "replace", "move", "copy", "test"];
    let given = operations.iter().filter_map(|operation| operation["op"].as_str());
    if let Some(unknown) = given.into_iter().find(|op| !known.contains(op)) {
        return Err(PatchError::Unprocessable(format!("Unexpected kind: {unknown}")));
    }
    let patch: Patch = serde_json::from_value(operations.iter().map(with_value).collect())
        .map_err(|problem| PatchError::Unprocessable(format!("error decoding patch: {problem}")))?;
    let (mut copied, mut moved) = (0, 0);
    for operation in &patch.0 {
        check(target, operation, &mut copied, &mut moved)?;
        let Some(operation) = lenient(target, operation) else { continue };
        // What fails changes nothing, so the target still shows why.
        ::json_patch::patch_unsafe(target, std::slice::from_ref(&operation)).map_err(|problem| {
            let why = words(target, &operation);
            match problem.kind {
                PatchErrorKind::TestFailed => PatchError::TestFailed(why),
                _ => PatchError::Unprocessable(why),
            }
        })?;
    }
    Ok(())
}

/// Why an operation does not apply, as upstream's library (evanphx/json-patch) says it.
fn words(target: &Value, operation: &PatchOperation) -> String {
    let path = operation.path().as_str();
    let (parent, key) = operation.path().split_back().unwrap_or((Pointer::root(), Token::new("")));
    let (parent, key) = (target.pointer(parent.as_str()), key.decoded());
    let missing = !matches!(parent, Some(Value::Object(_) | Value::Array(_)));
    let wrong = match parent {
        Some(Value::Array(_)) => format!("Unable to access invalid index: {key}: invalid index referenced"),
        _ => format!("Unable to remove nonexistent key: {key}: missing value"),
    };
    match operation {
        PatchOperation::Test(_) => format!("testing value {path} failed: test failed"),
        PatchOperation::Add(_) | PatchOperation::Remove(_) => {
            let name = if matches!(operation, PatchOperation::Add(_)) { "add" } else { "remove" };
            if missing {
                format!("{name} operation does not apply: doc is missing path: \"{path}\": missing value")
            } else {
                format!("error in {name} for path: '{path}': {wrong}")
            }
        }
        PatchOperation::Replace(_) => {
            let what = if missing { "path" } else { "key" };
            format!("replace operation does not apply: doc is missing {what}: {path}: missing value")
        }
        PatchOperation::Move(operation) => {
            format!(
                "move operation does not apply: doc is missing from path: {}: missing value",
                operation.from
            )
        }
        PatchOperation::Copy(operation) => {
            format!(
                "copy operation does not apply: doc is missing from path: {}: missing value",
                operation.from
            )
        }
    }
}

/// An operation whose missing value is `null`.
fn with_value(operation: &Value) -> Value {
    let mut operation = operation.clone();
    let needs = matches!(operation["op"].as_str(), Some("add" | "replace" | "test"));
    if let (true, Value::Object(fields)) = (needs, &mut operation) {
        fields.entry("value").or_insert(Value::Null);
    }
    operation
}

/// The operation as upstream carries it out where the member that it names is missing; `None` for a test that holds.
fn lenient(target: &Value, operation: &PatchOperation) -> Option<PatchOperation> {
    let (parent, key) = operation.path().split_back().unwrap_or((Pointer::root(), Token::new("")));
    let missing = || match target.pointer(parent.as_str()) {
        Some(Value::Object(fields)) => !fields.contains_key(&*key.decoded()),
        _ => false,
    };
    match operation {
        PatchOperation::Replace(replace) if missing() => {
            let (path, value) = (replace.path.clone(), replace.value.clone());
            Some(PatchOperation::Add(AddOperation { path, value }))
        }
        PatchOperation::Test(test) if test.value.is_null() && missing() => None,
        other => Some(other.clone()),
    }
}

/// Refuses an operation that would make the document too large or too deep, before anything is copied.
/// `copied` and `moved` count the bytes of all copies and moves so far. What is not there is left to the operation itself to report.
fn check(
    target: &Value,
    operation: &PatchOperation,
    copied: &mut usize,
    moved: &mut usize,
) -> Result<(), PatchError> {
    let value = match operation {
        PatchOperation::Add(add) => Some(&add.value),
        PatchOperation::Replace(replace) => Some(&replace.value),
        PatchOperation::Move(operation) => {
            let source = target.pointer(operation.from.as_str());
            *moved = moved.saturating_add(source.map_or(0, json_size));
            if *moved > MAX_MOVED {
                return Err(PatchError::Unprocessable(format!(
                    "Unable to complete the move, the operations move {moved} bytes in all, exceeding the limit {MAX_MOVED}"
                )));
            }
            source
        }
        PatchOperation::Copy(copy) => {
            let source = target.pointer(copy.from.as_str());
            *copied = copied.saturating_add(source.map_or(0, json_size));
            if *copied > MAX_COPIED {
                return Err(PatchError::Unprocessable(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                )));
            }
            source
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
    };
    match value {
        Some(value) if operation.path().count().saturating_add(depth(value)) > MAX_DEPTH => {
            Err(PatchError::Unprocessable(format!(
                "the value at {:?} would be nested deeper than {MAX_DEPTH}",
                operation.path().as_str()
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn copies_that_double_the_document_are_refused_before_memory_is_used() {
        let bomb: Vec<Value> =
            (0..40).map(|_| json!({"op": "copy", "from": "/list", "path": "/list/-"})).collect();
        let mut wide = json!({"list": ["x".repeat(1000)]});
        let error = json(&mut wide, &bomb.into()).unwrap_err();
        assert!(
            matches!(&error, PatchError::Unprocessable(why) if why.contains("exceeding the limit 3145728")),
            "{error}"
        );
        assert!(json_size(&wide) <= MAX_COPIED + 2048, "{}", json_size(&wide));
    }

    #[test]
    fn moves_to_and_fro_come_to_an_end() {
        let there = json!({"op": "move", "from": "/a", "path": "/b"});
        let back = json!({"op": "move", "from": "/b", "path": "/a"});
        let patch: Vec<Value> = (0..5000).flat_map(|_| [there.clone(), back.clone()]).collect();
        let mut small = json!({"a": ["x"]});
        assert_eq!(json(&mut small, &patch.clone().into()), Ok(()));
        let error = json(&mut json!({"a": vec!["x"; 100_000]}), &patch.into()).unwrap_err();
        assert!(error.to_string().contains("exceeding the limit 33554432"), "{error}");
    }

    #[test]
    fn nesting_is_bounded_for_every_operation() {
        let copy = |from: &str, path: String| json!({"op": "copy", "from": from, "path": path});
        let nest = (1..400).map(|level| copy("/b", format!("/a{}", "/a".repeat(level))));
        let add = (1..400)
            .map(|level| json!({"op": "add", "path": format!("/a{}", "/a".repeat(level)), "value": {}}));
        let moved = (0..400).flat_map(|_| {
            [
                json!({"op": "add", "path": "/c", "value": {}}),
                json!({"op": "move", "from": "/a", "path": "/c/a"}),
                json!({"op": "move", "from": "/c", "path": "/a"}),
            ]
        });
        for patch in [nest.collect::<Vec<_>>(), add.collect(), moved.collect()] {
            let mut target = json!({"a": {}, "b": {}});
            let error = json(&mut target, &patch.into()).unwrap_err();
            assert!(error.to_string().contains("nested deeper than 128"), "{error}");
            assert!(depth(&target) <= MAX_DEPTH);
        }
    }

    #[test]
    fn operations_are_counted() {
        let test = json!({"op": "test", "path": "/a", "value": 1});
        let mut target = json!({"a": 1});
        assert_eq!(json(&mut target, &vec![test.clone(); MAX_OPERATIONS].into()), Ok(()));
        let error = json(&mut target, &vec![test; MAX_OPERATIONS + 1].into()).unwrap_err();
        let why = "The allowed maximum operations in a JSON patch is 10000, got 10001";
        assert_eq!(error, PatchError::TooLarge(why.to_owned()));
    }

    #[test]
    fn honest_copies_pass_and_errors_name_their_operation() {
        let mut target = json!({"a": {"b": [1, 2]}});
        let patch =
            json!([{"op": "copy", "from": "/a", "path": "/c"}, {"op": "move", "from": "/a/b", "path": "/d"}]);
        assert_eq!(json(&mut target, &patch), Ok(()));
        assert_eq!(target, json!({"a": {}, "c": {"b": [1, 2]}, "d": [1, 2]}));
        let patch = json!([{"op": "replace", "path": "/new", "value": 1}, {"op": "test", "path": "/none", "value": null},
            {"op": "test", "path": "/none"}, {"op": "add", "path": "/a/null"}]);
        assert_eq!(json(&mut target, &patch), Ok(()), "missing members");
        assert_eq!(target, json!({"a": {"null": null}, "c": {"b": [1, 2]}, "d": [1, 2], "new": 1}));
        for path in ["/none/x", "/d/7", "/d/-"] {
            let patch = json!([{"op": "replace", "path": path, "value": 1}]);
            assert!(json(&mut target, &patch).is_err(), "{path}");
        }
        let patch = json!([{"op": "test", "path": "/d/0", "value": 1}, {"op": "remove", "path": "/x"}]);
        let error = json(&mut target, &patch).unwrap_err();
        let expected = "error in remove for path: '/x': Unable to remove nonexistent key: x: missing value";
        assert_eq!(error.to_string(), expected);
    }
}
