//! Patches of a Deployment against what a kube-apiserver v1.37.2 made of them.

use serde_json::Value;
use setpoint_schema::{Schema, patch, patch::PatchError, prune};

/// Without empty lists, maps and strings and without `null`: built-in kinds drop them.
fn dense(value: &Value) -> Value {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), dense(value)))
            .filter(|(_, value)| !empty(value))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(dense).collect(),
        other => other.clone(),
    }
}

#[test]
fn patches_end_as_on_a_real_server() {
    let recorded: Value = serde_json::from_str(include_str!("patches.json")).unwrap();
    let schema = Schema::builtin("io.k8s.api.apps.v1.Deployment").unwrap();
    let mut failures = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        let mut object = recorded["before"].clone();
        let outcome = match case["type"].as_str().unwrap() {
            "strategic-merge" => patch::strategic(&schema, &mut object, &case["patch"]),
            "merge" => patch::merge(&mut object, &case["patch"]),
            _ => patch::json(&mut object, &case["patch"]),
        };
        let name = format!("{} {}", case["type"], case["patch"]);
        match (case["code"].as_u64().unwrap(), outcome) {
            (200, Ok(())) => {
                prune(&schema, &mut object);
                let (theirs, ours) = (dense(&case["after"]), dense(&object));
                if theirs != ours {
                    failures.push(format!("{name}\n  theirs: {theirs}\n  ours:   {ours}"));
                }
            }
            // Upstream answers some malformed patches with 500: they are the client's fault.
            (422, Err(PatchError::Unprocessable(_) | PatchError::TestFailed(_)))
            | (400 | 500, Err(PatchError::Malformed(_)))
            | (500, Err(PatchError::Failed(_))) => {}
            (code, outcome) => {
                failures.push(format!("{name}: {code} {}, ours: {outcome:?}", case["message"]));
            }
        }
    }
    assert!(failures.is_empty(), "{} deviations:\n{}", failures.len(), failures.join("\n"));
}
