//! OpenAPI v2 from the documents of v3: one document for all group versions.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use setpoint_kinds::REF_PREFIX;

use super::{Facts, document_from, documents, release};
use crate::catalog::Resource;

/// `/openapi/v2` as JSON. Others have a turn after each group version: there may be thousands of definitions.
pub(crate) async fn v2_json(resources: &[Arc<Resource>]) -> Value {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    let facts = Facts::unpack();
    for name in documents(resources) {
        tokio::task::yield_now().await;
        let Some(mut document) = document_from(&facts, resources, &name) else { continue };
        if let Value::Object(schemas) = document["components"]["schemas"].take() {
            for (name, schema) in schemas {
                let schema = schema_of(schema);
                match definitions.get_mut(&name) {
                    Some(known) => merge_kinds(known, schema),
                    None => drop(definitions.insert(name, schema)),
                }
            }
        }
        if let Value::Object(all) = document["paths"].take() {
            paths.extend(all.into_iter().map(|(path, item)| {
                let item = path_item(item, &name);
                (path, item)
            }));
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": release()},
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": {
            "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
        }},
        "security": [{"BearerToken": []}],
    })
}

/// Options name the groups whose they are: in one document for all, these are all.
fn merge_kinds(known: &mut Value, mut other: Value) {
    const KEY: &str = "x-kubernetes-group-version-kind";
    let (Some(Value::Array(known)), Some(Value::Array(more))) =
        (known.get_mut(KEY), other.get_mut(KEY).map(Value::take))
    else {
        return;
    };
    for kind in more {
        if !known.contains(&kind) {
            known.push(kind);
        }
    }
}

/// A schema in the words of v2: references by themselves, one type, no defaults, no `nullable`.
fn schema_of(schema: Value) -> Value {
    let Value::Object(fields) = schema else { return schema };
    let mut out = Map::new();
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("$ref", Value::String(target)) => {
                out.insert(key, target.replace(REF_PREFIX, "#/definitions/").into());
            }
            ("allOf", Value::Array(parts)) => {
                // A reference that has a description beside it.
                for part in parts {
                    if let Value::Object(part) = schema_of(part) {
                        out.extend(part);
                    }
                }
            }
            // Of a built-in type that may be a number or a text.
            ("oneOf", _) => drop(out.entry("type").or_insert_with(|| "string".into())),
            ("anyOf" | "default" | "nullable" | "not", _) => {}
            ("properties", Value::Object(properties)) => {
                let properties = properties.into_iter().map(|(name, below)| (name, schema_of(below)));
                out.insert(key, properties.collect::<Map<_, _>>().into());
            }
            ("items" | "additionalProperties", below) => {
                out.insert(key, schema_of(below));
            }
            (_, value) => {
                out.insert(key, value);
            }
        }
    }
    out.into()
}

fn path_item(item: Value, document: &str) -> Value {
    let Value::Object(operations) = item else { return item };
    let item = operations.into_iter().map(|(method, value)| match method.as_str() {
        "parameters" => (method, parameters(value)),
        _ => (method, operation(value, document)),
    });
    item.collect::<Map<_, _>>().into()
}

/// The type of a parameter stands beside its name.
fn parameters(list: Value) -> Value {
    let Value::Array(list) = list else { return list };
    let plain = |parameter: Value| {
        let Value::Object(mut fields) = parameter else { return parameter };
        if let Some(Value::Object(schema)) = fields.remove("schema") {
            fields.extend(schema);
        }
        Value::from(fields)
    };
    list.into_iter().map(plain).collect()
}

/// The media types of some content, in the order in which upstream registers them.
fn media(content: &Value) -> Vec<String> {
    const ORDER: [&str; 8] = [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json;stream=watch",
        "application/vnd.kubernetes.protobuf;stream=watch",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ];
    let mut all: Vec<_> = content.as_object().into_iter().flat_map(Map::keys).cloned().collect();
    all.sort_by_key(|media| ORDER.iter().position(|known| known == media).unwrap_or(ORDER.len()));
    all
}

fn operation(operation: Value, document: &str) -> Value {
    let Value::Object(mut fields) = operation else { return operation };
    let mut all = Vec::new();
    let body = fields.remove("requestBody");
    let mut consumes = vec!["*/*".to_owned()];
    if let Some(body) = body {
        consumes = media(&body["content"]);
        let schema = body["content"].as_object().and_then(|content| content.values().next());
        let schema = schema.map_or(Value::Null, |content| schema_of(content["schema"].clone()));
        let mut parameter = json!({"name": "body", "in": "body", "schema": schema});
        if body["required"] == true {
            parameter["required"] = true.into();
        }
        all.push(parameter);
    }
    if let Some(Value::Array(rest)) = fields.remove("parameters").map(parameters) {
        all.extend(rest);
    }
    if !all.is_empty() {
        fields.insert("parameters".to_owned(), all.into());
    }
    let mut produces = Vec::new();
    if let Some(Value::Object(responses)) = fields.get_mut("responses") {
        for response in responses.values_mut() {
            let Some(response) = response.as_object_mut() else { continue };
            let Some(content) = response.remove("content") else { continue };
            for one in media(&content) {
                if !produces.contains(&one) {
                    produces.push(one);
                }
            }
            let schema = content.as_object().and_then(|content| content.values().next());
            if let Some(schema) = schema {
                response.insert("schema".to_owned(), schema_of(schema["schema"].clone()));
            }
        }
    }
    // What is about no version says so by what it gives; what is about tokens says nothing.
    match document.split('/').collect::<Vec<_>>()[..] {
        [".well-known" | "openid", ..] => {}
        [_] | ["apis", _] => drop(fields.insert("consumes".to_owned(), produces.clone().into())),
        _ => drop(fields.insert("consumes".to_owned(), consumes.into())),
    }
    fields.insert("produces".to_owned(), produces.into());
    fields.insert("schemes".to_owned(), json!(["https"]));
    fields.into()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn every_reference_has_a_definition() {
        let all: Vec<_> =
            setpoint_kinds::kinds().iter().map(|kind| Arc::new(Resource::built_in(kind))).collect();
        assert!(v2_json(&all).now_or_never().is_none(), "others have a turn before it is made");
        let document = v2_json(&all).await;
        let definitions = document["definitions"].as_object().unwrap();
        let text = document.to_string();
        for reference in text.split("\"#/definitions/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(definitions.contains_key(name), "{name}");
        }
        assert!(!text.contains("#/components/"));
        let secret = &definitions["io.k8s.api.core.v1.Secret"]["properties"];
        assert_eq!(
            secret["metadata"]["$ref"],
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        let port = &definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
        assert_eq!((&port["type"], &port["format"]), (&json!("string"), &json!("int-or-string")));
    }
}
