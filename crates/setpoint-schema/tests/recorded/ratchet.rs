//! Updates of an object that was stored before its schema became stricter, against what a kube-apiserver v1.37.2
//! answered: for each new spec the status and the causes (`[field, reason, message]`, sorted).

use serde_json::{Value, json};
use setpoint_schema::{FieldPath, Schema, cel::Rules, default, prune, validate_update};

use crate::causes::causes;

#[test]
fn only_what_changed_is_held_against_the_schema() {
    let recorded: Value = serde_json::from_str(include_str!("ratchet.json")).unwrap();
    let schema = Schema::from_openapi(&recorded["schema"]).unwrap();
    let rules = Rules::compile(&schema).unwrap();
    let object = |spec: &Value| {
        let mut object = json!({"apiVersion": "example.com/v1", "kind": "Ratchet", "metadata": {"name": "r"}, "spec": spec});
        prune(&schema, &mut object);
        default(&schema, &mut object);
        object
    };
    let old = object(&recorded["old"]);
    let mut failures = Vec::new();
    for case in recorded["cases"].as_array().unwrap() {
        let new = object(&case["new"]);
        let mut errors = validate_update(&schema, &new, &old, &FieldPath::root());
        rules.validate_after(&mut errors, &new, Some(&old));
        let seen = causes(&errors);
        if seen != case["causes"] {
            failures.push(format!("{}\n  theirs: {}\n  ours:   {}", case["new"], case["causes"], seen));
        }
    }
    assert!(failures.is_empty(), "{} deviations:\n{}", failures.len(), failures.join("\n"));
}
