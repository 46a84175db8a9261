//! Validation against what a kube-apiserver v1.37.2 answered: for each spec the status and the causes
//! (`[field, reason, message]`, sorted).

use serde_json::{Value, json};
use setpoint_schema::{FieldPath, Schema, default, prune, validate};

#[test]
fn causes_are_those_of_a_real_server() {
    let recorded: Value = serde_json::from_str(include_str!("recorded/validation.json")).unwrap();
    let schema = Schema::from_openapi(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": recorded["properties"]},
    }}))
    .unwrap();
    let mut failures = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        let mut object = json!({"apiVersion": "example.com/v1", "kind": "Check", "metadata": {"name": "v"}, "spec": case["spec"]});
        assert!(prune(&schema, &mut object).is_empty(), "{object}");
        default(&schema, &mut object);
        let mut causes: Vec<Value> = validate(&schema, &object, &FieldPath::root())
            .iter()
            .map(|error| json!([error.path.to_string(), error.reason(), error.cause_message()]))
            .collect();
        causes.sort_by_key(|cause| {
            (0..3).map(|part| cause[part].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        });
        if Value::from(causes.clone()) != case["causes"] {
            failures.push(format!(
                "{}\n  theirs: {}\n  ours:   {}",
                case["spec"],
                case["causes"],
                Value::from(causes)
            ));
        }
    }
    assert!(failures.is_empty(), "{} deviations:\n{}", failures.len(), failures.join("\n"));
}
