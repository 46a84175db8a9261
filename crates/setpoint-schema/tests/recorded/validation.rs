//! Validation against what a kube-apiserver v1.37.2 answered: for each spec the status and the causes
//! (`[field, reason, message]`, sorted).

use serde_json::{Value, json};
use setpoint_schema::{FieldPath, Schema, default, prune, validate};

use crate::causes::causes;

#[test]
fn causes_are_those_of_a_real_server() {
    let recorded: Value = serde_json::from_str(include_str!("validation.json")).unwrap();
    let schema = Schema::from_openapi(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": recorded["properties"]},
    }}))
    .unwrap();
    let mut failures = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        let mut object = json!({"apiVersion": "example.com/v1", "kind": "Check", "metadata": {"name": "v"}, "spec": case["spec"]});
        assert!(prune(&schema, &mut object).is_empty(), "{object}");
        default(&schema, &mut object);
        let seen = causes(&validate(&schema, &object, &FieldPath::root()));
        if seen != case["causes"] {
            failures.push(format!("{}\n  theirs: {}\n  ours:   {}", case["spec"], case["causes"], seen));
        }
    }
    assert!(failures.is_empty(), "{} deviations:\n{}", failures.len(), failures.join("\n"));
}

/// The paths, and their order, are those of `unknown field "…"` in v1.37.2's strict decoding error.
#[test]
fn unknown_fields_are_pruned_and_named() {
    let schema = Schema::from_openapi(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "ports": {"type": "array", "items": {"type": "object", "properties": {"port": {"type": "integer"}}}},
        "config": {"type": "object", "additionalProperties": {"type": "string"}},
        "any": {"type": "object", "additionalProperties": true},
        "free": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"known": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        },
        "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
    }}}}))
    .unwrap();
    let mut object = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "v", "zzz": 1}, "bar": 1,
        "spec": {
            "foo": 1,
            "ports": [{"port": 1, "x": 2}],
            "config": {"k": "v"},
            "any": {"k": {"deep": 1}},
            "free": {"any": [{"x": 1}], "known": {"a": 1, "b": 2}},
            "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}, "yyy": 1}, "spec": {"x": 1}},
        },
    });
    let unknown: Vec<String> = prune(&schema, &mut object).iter().map(ToString::to_string).collect();
    assert_eq!(
        unknown,
        [
            r#"unknown field "metadata.zzz""#,
            r#"unknown field "bar""#,
            r#"unknown field "spec.any.k.deep""#,
            r#"unknown field "spec.foo""#,
            r#"unknown field "spec.free.known.b""#,
            r#"unknown field "spec.pod.metadata.yyy""#,
            r#"unknown field "spec.pod.spec.x""#,
            r#"unknown field "spec.ports[0].x""#,
        ]
    );
    assert_eq!(
        object["spec"],
        json!({
            "ports": [{"port": 1}],
            "config": {"k": "v"},
            "any": {"k": {}},
            "free": {"any": [{"x": 1}], "known": {"a": 1}},
            "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {}},
        })
    );
}
