//! Schemas, the sets of fields of managers, and rules: pure functions, called without a server where there is one to call.

use http::Method;
use serde_json::{Value, json};
use setpoint_schema::cel::Rules;
use setpoint_schema::{FieldPath, FieldSet, Schema, default, fingerprint, project, prune, validate};

use crate::server::{self, JSON, custom_object, schema};

/// How deep what the functions get may be: the server refuses deeper bodies before (upstream: 10,000, ours less).
const DEPTH: usize = 100;

fn depth(value: &Value) -> usize {
    let children: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => return 0,
    };
    1 + children.map(depth).max().unwrap_or(0)
}

fn parse(data: &[u8]) -> Option<Value> {
    serde_json::from_slice(data).ok().filter(|value| depth(value) < DEPTH)
}

/// Schemas of custom resources: the checks when a definition is created, and what the schema does to objects.
pub fn schemas(data: &[u8]) {
    let Some(fuzzed) = parse(data) else { return };
    let mut definition = server::definition(&json!([]));
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = fuzzed.clone();
    definition["spec"]["versions"][0]["name"] = "v2".into();
    definition["spec"]["names"]["plural"] = "others".into();
    definition["metadata"]["name"] = "others.fuzz.example.com".into();
    server::with(|server| {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";
        server.send(Method::POST, path, &[JSON], definition.to_string().as_bytes());
    });
    let Ok(schema) = Schema::from_openapi(&fuzzed) else { return };
    for mut value in [custom_object(), fuzzed] {
        default(&schema, &mut value);
        prune(&schema, &mut value);
        let once = value.clone();
        default(&schema, &mut value);
        prune(&schema, &mut value);
        let _ = validate(&schema, &value, &FieldPath::default());
        // What was pruned away does not come back, nor goes more.
        let pruned = value.clone();
        prune(&schema, &mut value);
        assert_eq!(value, pruned, "after {once}");
    }
}

/// `fieldsV1`: reading, writing, and the algebra of sets; and objects that carry such entries.
pub fn field_sets(data: &[u8]) {
    let Some(fields) = parse(data) else { return };
    if let Ok(set) = FieldSet::from_fields_v1(&fields) {
        let written = set.to_fields_v1();
        let again = FieldSet::from_fields_v1(&written);
        assert_eq!(again.as_ref().ok(), Some(&set), "written as {written}");
        let other = FieldSet::of_fields(&[&["spec", "text"], &["spec", "parts"], &["metadata", "labels"]]);
        assert_eq!(set.union(&set), set);
        assert_eq!(set.intersection(&set), set);
        assert!(set.difference(&set).is_empty());
        assert_eq!(set.union(&other), other.union(&set));
        assert_eq!(set.difference(&other).intersection(&other), FieldSet::default());
        let _ = (set.leaves(), set.paths(), set.recursive_difference(&other));
        let _ = fingerprint(&project(&custom_object(), &set));
    }
    let mut object = custom_object();
    object["metadata"]["managedFields"] = json!([
        {"manager": "a", "operation": "Apply", "apiVersion": "fuzz.example.com/v1", "fieldsType": "FieldsV1", "fieldsV1": fields.clone()},
        {"manager": "b", "operation": "Update", "apiVersion": "fuzz.example.com/v1", "fieldsType": "FieldsV1", "fieldsV1": fields},
    ]);
    let path = "/apis/fuzz.example.com/v1/namespaces/default/things/a?dryRun=All&fieldManager=c";
    server::with(|server| server.send(Method::PUT, path, &[JSON], object.to_string().as_bytes()));
}

/// CEL rules: compiled against a schema and asked about two objects; as a rule and, after a line break, as its message.
pub fn cel(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (rule, message) = text.split_once('\n').unwrap_or((&text, ""));
    let mut validation = json!({"rule": rule});
    if !message.is_empty() {
        validation["messageExpression"] = message.into();
    }
    let mut openapi = schema();
    openapi["properties"]["spec"]["x-kubernetes-validations"] = json!([validation]);
    let Ok(schema) = Schema::from_openapi(&openapi) else { return };
    let Ok(rules) = Rules::compile(&schema) else { return };
    let old = custom_object();
    let mut new = old.clone();
    new["spec"]["count"] = 6.into();
    new["spec"]["parts"][0]["size"] = 3.into();
    let _ = rules.validate(&new, Some(&old));
    let _ = rules.validate(&new, None);
}
