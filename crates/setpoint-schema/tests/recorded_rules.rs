//! CEL rules against what a kube-apiserver v1.37.2 answered: for each spec (and old spec) the status and the causes
//! (`[field, reason, message]`, sorted).
#![cfg(feature = "cel")]

use serde_json::{Value, json};
use setpoint_schema::{FieldPath, Schema, cel::Rules, default, validate};

#[test]
fn causes_are_those_of_a_real_server() {
    let recorded: Value = serde_json::from_str(include_str!("recorded/rules.json")).unwrap();
    let schema = Schema::from_openapi(&recorded["schema"]).unwrap();
    let rules = Rules::compile(&schema).unwrap();
    let mut failures = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        let object = |spec: &Value| {
            let mut object = json!({"apiVersion": "example.com/v1", "kind": "Rule", "metadata": {"name": case["name"]}, "spec": spec});
            default(&schema, &mut object);
            object
        };
        let new = object(&case["spec"]);
        let old = Some(&case["old"]).filter(|old| !old.is_null()).map(object);
        let mut errors = validate(&schema, &new, &FieldPath::root());
        rules.validate_after(&mut errors, &new, old.as_ref());
        let mut causes: Vec<Value> = errors
            .iter()
            .map(|error| json!([error.path.to_string(), error.reason(), error.cause_message()]))
            .collect();
        causes.sort_by_key(|cause| {
            (0..3).map(|part| cause[part].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        });
        if Value::from(causes.clone()) != case["causes"] {
            failures.push(format!(
                "{} {}\n  theirs: {}\n  ours:   {}",
                case["spec"],
                case["old"],
                case["causes"],
                Value::from(causes)
            ));
        }
    }
    assert!(failures.is_empty(), "{} deviations:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn broken_rules_are_named() {
    let schema = Schema::from_openapi(&json!({"type": "object", "properties": {"spec": {
        "type": "object", "x-kubernetes-validations": [{"rule": "self.a >"}],
    }}}))
    .unwrap();
    let errors = Rules::compile(&schema).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].path, "properties[spec].x-kubernetes-validations[0].rule");
    assert_eq!(errors[0].expression, "self.a >");
}

#[test]
fn rules_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Rules>();
}
