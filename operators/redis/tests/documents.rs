//! The users' document names every field, condition and annotation.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use std::path::Path;

use redis_operator::api;
use serde_json::Value;

/// The paths of all fields below `schema` that have no fields themselves.
fn fields(schema: &Value, path: &str, found: &mut Vec<String>) {
    match schema["properties"].as_object() {
        // The types of Kubernetes' own pod fields are documented there.
        Some(properties) if path != "spec.scheduling.affinity" => {
            for (name, property) in properties {
                fields(property, &format!("{path}.{name}"), found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

#[test]
fn every_field_and_annotation_is_documented() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/redis.md");
    let document = std::fs::read_to_string(document).unwrap();
    let crd = serde_json::to_value(api::versions().crd().unwrap()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(crd["spec"]["versions"][0]["name"], "v1");
    let mut spec = Vec::new();
    fields(&schema["spec"], "spec", &mut spec);
    assert!(spec.len() > 5, "{spec:?}");
    for field in spec {
        assert!(document.contains(&format!("| `{field}` |")), "{field} has no row");
    }
    for field in schema["status"]["properties"].as_object().unwrap().keys() {
        assert!(document.contains(field), "status.{field} is not mentioned");
    }
    for annotation in [
        api::PAUSED,
        api::SWITCHOVER,
        api::CONFIRM_DOWN,
        api::CHOOSE_PRIMARY,
        api::ACCEPT_DATA_LOSS,
        api::ALLOW_SCALE_DOWN,
    ] {
        let name = annotation.rsplit('/').next().unwrap();
        assert!(document.contains(&format!("| `{name}: ")), "{name} has no row");
    }
}
