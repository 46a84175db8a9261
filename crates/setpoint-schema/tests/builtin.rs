//! Every definition of the facts about built-in kinds is a schema.

use serde_json::json;
use setpoint_schema::{FieldSet, Schema, default, prune};

#[test]
fn every_definition_parses() {
    for name in setpoint_kinds::definition_names() {
        assert!(Schema::builtin(name).is_some(), "{name}");
    }
    assert!(Schema::builtin("io.k8s.api.core.v1.Nothing").is_none());
}

#[test]
fn definitions_that_contain_themselves_are_read_as_far_as_needed() {
    let schema =
        Schema::builtin("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition")
            .unwrap();
    let deep =
        ["spec", "versions", "*", "schema", "openAPIV3Schema", "properties", "*", "properties", "*", "type"];
    assert!(schema.at(&deep).is_some());
}

#[test]
fn unknown_fields_of_built_in_kinds_are_found() {
    let schema = Schema::builtin("io.k8s.api.apps.v1.Deployment").unwrap();
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"any": "thing"}, "oops": 1},
        "spec": {"replicas": 1, "replica": 2, "template": {"spec": {"containers": [{"name": "c", "imagee": "x", "resources": {"limits": {"cpu": "1"}}}]}}},
    });
    let unknown: Vec<String> = prune(&schema, &mut object).iter().map(ToString::to_string).collect();
    assert_eq!(
        unknown,
        [
            r#"unknown field "metadata.oops""#,
            r#"unknown field "spec.replica""#,
            r#"unknown field "spec.template.spec.containers[0].imagee""#,
        ]
    );
    assert_eq!(object["metadata"]["labels"], json!({"any": "thing"}));
}

#[test]
fn zero_values_are_no_defaults() {
    let schema = Schema::builtin("io.k8s.api.core.v1.Service").unwrap();
    let mut object = json!({"spec": {"ports": [{"port": 80}]}});
    default(&schema, &mut object);
    assert_eq!(object, json!({"spec": {"ports": [{"port": 80, "protocol": "TCP"}]}}));
}

#[test]
fn list_maps_of_built_in_kinds_have_their_keys() {
    let schema = Schema::builtin("io.k8s.api.core.v1.Pod").unwrap();
    let object = json!({"spec": {
        "containers": [{"name": "c", "ports": [{"containerPort": 80}], "args": ["a"]}],
        "nodeSelector": {"a": "b"},
        "imagePullSecrets": [{"name": "s"}],
    }});
    let paths: Vec<String> =
        FieldSet::of(&schema, &object).leaves().paths().iter().map(ToString::to_string).collect();
    assert_eq!(
        paths,
        [
            ".spec.nodeSelector",
            r#".spec.containers[name="c"].args"#,
            r#".spec.containers[name="c"].name"#,
            r#".spec.containers[name="c"].ports[containerPort=80,protocol="TCP"].containerPort"#,
            // An item that is atomic is owned as a whole.
            r#".spec.imagePullSecrets[name="s"]"#,
        ]
    );
}
