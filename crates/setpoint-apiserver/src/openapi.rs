//! OpenAPI v3: an index and one document for each group version, for `kubectl explain`, and for clients that look up schemas or whether a
//! parameter such as `fieldValidation` is known.
//!
//! The schemas of built-in kinds have no descriptions (the facts leave prose out); those of custom resources have what their authors wrote.
//! OpenAPI v2 is there for one question of kubectl only: whether it has a kind that v3 lacks. It has none (see `crate::openapi::v2`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use setpoint_kinds::{REF_PREFIX, definition};

use crate::{
    catalog::{Resource, Shape},
    discovery::{etag, subresources},
    registry::PatchKind,
};

/// What a request for `/openapi/v2` in another form than [`V2_TYPE`] is told, with status 406.
pub(crate) const V2_REFUSAL: &str = "this server has no OpenAPI v2: use /openapi/v3";

/// The form in which kubectl asks for OpenAPI v2, and the older name of the same, which is no valid media type to answer with.
pub(crate) const V2_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
pub(crate) const V2_TYPE_OLD: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The OpenAPI v2 document without any kind, as protobuf (gnostic's `openapi.v2.Document`: swagger is field 1, info 2, paths 8).
///
/// kubectl checks objects by v3 since 1.27, but asks v2 about a kind that v3 lacks before it says that there is no such kind.
pub(crate) fn v2() -> Vec<u8> {
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        // Lengths below 128 are one byte.
        let mut out = vec![number << 3 | 2, content.len() as u8];
        out.extend(content);
        out
    }
    let info = [
        field(1, b"Kubernetes"),
        field(2, setpoint_kinds::kubernetes_version().as_bytes()),
        field(3, b"Kinds are described at /openapi/v3 only."),
    ];
    [field(1, b"2.0"), field(2, &info.concat()), field(8, b"")].concat()
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// `/openapi/v3`: the paths of all documents; their URLs change with their content.
pub(crate) fn index(resources: &[Arc<Resource>]) -> Value {
    let mut paths = Map::new();
    let versions: BTreeSet<_> = resources.iter().map(|r| (r.group.as_str(), r.version.as_str())).collect();
    for (group, version) in versions {
        let path = root(group, version);
        let path = path.trim_start_matches('/');
        // The facts never change while the process lives; custom resources do.
        let own = resources.iter().filter(|r| r.group == group && r.version == version);
        let content: Vec<_> = own
            .map(|resource| match &resource.shape {
                Shape::BuiltIn { kind, .. } => json!([setpoint_kinds::kubernetes_version(), kind.definition]),
                Shape::Custom(custom) => {
                    let names = subresources(resource);
                    let names: Vec<_> = names.iter().map(|sub| sub.name).collect();
                    json!([resource.kind, resource.plural, resource.namespaced, names, custom.openapi])
                }
            })
            .collect();
        let hash = etag(Value::from(content).to_string().as_bytes());
        let url = format!("/openapi/v3/{path}?hash={}", hash.trim_matches('"'));
        paths.insert(path.to_owned(), json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// `/openapi/v3/api/v1` and `/openapi/v3/apis/GROUP/VERSION`; `None` if there is no such group version.
pub(crate) fn document(resources: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let own: Vec<_> = resources.iter().filter(|r| r.group == group && r.version == version).collect();
    if own.is_empty() {
        return None;
    }
    let mut schemas = Schemas::default();
    let mut paths = Map::new();
    for name in ["DeleteOptions", "Status", "Patch"] {
        schemas.add_built_in(&format!("{META}.{name}"));
    }
    for resource in own {
        let name = schemas.add(resource);
        add_paths(&mut paths, resource, &name);
        for sub in subresources(resource) {
            let known = setpoint_kinds::by_kind(sub.group, sub.version, sub.kind).map(|kind| kind.definition);
            let other = match sub.kind {
                "Scale" => Some("io.k8s.api.autoscaling.v1.Scale"),
                "Eviction" => Some("io.k8s.api.policy.v1.Eviction"),
                "TokenRequest" => Some("io.k8s.api.authentication.v1.TokenRequest"),
                _ => known,
            };
            if let Some(other) = other {
                schemas.add_built_in(other);
            }
        }
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": setpoint_kinds::kubernetes_version()},
        "paths": paths,
        "components": {
            "schemas": schemas.0,
            "securitySchemes": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"}},
        },
    }))
}

/// `/api/v1` or `/apis/GROUP/VERSION`.
fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// The schemas of a document: those of its kinds, and all that they refer to.
#[derive(Default)]
struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    /// Adds the schemas of a kind and its list; answers with the name of the former.
    fn add(&mut self, resource: &Resource) -> String {
        match &resource.shape {
            Shape::BuiltIn { kind, .. } => {
                self.add_built_in(kind.definition);
                self.add_built_in(&format!("{}List", kind.definition));
                kind.definition.to_owned()
            }
            Shape::Custom(custom) => {
                let reversed: Vec<_> = resource.group.split('.').rev().collect();
                let name = format!("{}.{}.{}", reversed.join("."), resource.version, resource.kind);
                let list = format!("{name}List");
                self.0.insert(list, list_schema(resource, &name));
                self.0.insert(name.clone(), custom_schema(resource, &custom.openapi));
                self.add_built_in(&format!("{META}.ObjectMeta"));
                self.add_built_in(&format!("{META}.ListMeta"));
                name
            }
        }
    }

    fn add_built_in(&mut self, name: &str) {
        if self.0.contains_key(name) {
            return;
        }
        if let Some(schema) = definition(name) {
            self.0.insert(name.to_owned(), schema.clone());
            self.add_references(schema);
        }
    }

    fn add_references(&mut self, schema: &Value) {
        match schema {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match (key.as_str(), value) {
                        ("$ref", Value::String(target)) => {
                            self.add_built_in(target.trim_start_matches(REF_PREFIX));
                        }
                        ("properties", Value::Object(properties)) => {
                            properties.values().for_each(|property| self.add_references(property));
                        }
                        ("default" | "enum", _) => {}
                        _ => self.add_references(value),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_references(item)),
            _ => {}
        }
    }
}

fn group_version_kind(resource: &Resource, kind: &str) -> Value {
    json!({"group": resource.group, "kind": kind, "version": resource.version})
}

/// The schema as its author wrote it, with the fields that every object has.
fn custom_schema(resource: &Resource, written: &Value) -> Value {
    let mut schema = if written.is_object() { written.clone() } else { json!({"type": "object"}) };
    complete(&mut schema);
    if let Some(fields) = schema.as_object_mut() {
        let properties = fields.entry("properties").or_insert_with(|| json!({}));
        properties["apiVersion"] = json!({"type": "string"});
        properties["kind"] = json!({"type": "string"});
        properties["metadata"] = json!({"allOf": [{"$ref": format!("{REF_PREFIX}{META}.ObjectMeta")}]});
        fields.insert(
            "x-kubernetes-group-version-kind".to_owned(),
            json!([group_version_kind(resource, &resource.kind)]),
        );
    }
    schema
}

/// Says what `x-kubernetes-int-or-string` means in plain OpenAPI, and leaves out validation rules, as kube-apiserver publishes schemas.
fn complete(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if fields.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        fields.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(complete);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            complete(inner);
        }
    }
}

fn list_schema(resource: &Resource, name: &str) -> Value {
    json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [{"$ref": format!("{REF_PREFIX}{META}.ListMeta")}]},
            "items": {"type": "array", "items": {"$ref": format!("{REF_PREFIX}{name}")}},
        },
        "x-kubernetes-group-version-kind": [group_version_kind(resource, &resource.list_kind)],
    })
}

/// The paths of a resource, with the operations that its verbs allow.
fn add_paths(paths: &mut Map<String, Value>, resource: &Resource, schema: &str) {
    let root = root(&resource.group, &resource.version);
    let plural = &resource.plural;
    let (scope, parameters) = if resource.namespaced {
        ("/namespaces/{namespace}", vec![path_parameter("namespace")])
    } else {
        ("", vec![])
    };
    let kind = group_version_kind(resource, &resource.kind);
    let has = |verb: &str| resource.verbs.iter().any(|v| v == verb);
    let operations = |table: &[(&str, &str, &str)]| -> Map<String, Value> {
        table
            .iter()
            .filter(|(_, verb, _)| has(verb))
            .map(|(method, _, action)| ((*method).to_owned(), operation(resource, action, &kind, schema)))
            .collect()
    };
    let with = |mut operations: Map<String, Value>, parameters: &[Value]| -> Value {
        operations.insert("parameters".to_owned(), parameters.into());
        operations.into()
    };
    let collection = operations(&[
        ("get", "list", "list"),
        ("post", "create", "post"),
        ("delete", "deletecollection", "deletecollection"),
    ]);
    if !collection.is_empty() {
        paths.insert(format!("{root}{scope}/{plural}"), with(collection, &parameters));
    }
    if resource.namespaced && has("list") {
        paths.insert(format!("{root}/{plural}"), with(operations(&[("get", "list", "list")]), &[]));
    }
    let mut named = parameters;
    named.push(path_parameter("name"));
    let item = operations(&[
        ("get", "get", "get"),
        ("put", "update", "put"),
        ("patch", "patch", "patch"),
        ("delete", "delete", "delete"),
    ]);
    if !item.is_empty() {
        paths.insert(format!("{root}{scope}/{plural}/{{name}}"), with(item, &named));
    }
    for sub in subresources(resource) {
        let kind = json!({"group": sub.group, "version": sub.version, "kind": sub.kind});
        let operations = [("get", "get"), ("put", "update"), ("patch", "patch"), ("post", "create")]
            .into_iter()
            .filter(|(_, verb)| sub.verbs.contains(verb))
            .map(|(method, _)| (method.to_owned(), operation(resource, method, &kind, schema)))
            .collect();
        paths.insert(format!("{root}{scope}/{plural}/{{name}}/{}", sub.name), with(operations, &named));
    }
}

fn path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
}

fn operation(resource: &Resource, action: &str, kind: &Value, schema: &str) -> Value {
    let content = |schema: &str, types: &[&str]| -> Value {
        let schema = json!({"schema": {"$ref": format!("{REF_PREFIX}{schema}")}});
        types.iter().map(|media| ((*media).to_owned(), schema.clone())).collect::<Map<_, _>>().into()
    };
    let query: &[&str] = match action {
        "post" | "put" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" | "deletecollection" => &["dryRun", "gracePeriodSeconds", "propagationPolicy"],
        "list" => &["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch"],
        _ => &[],
    };
    let parameters: Vec<_> = query
        .iter()
        .map(|name| {
            let kind = match *name {
                "force" | "watch" => "boolean",
                "limit" | "gracePeriodSeconds" => "integer",
                _ => "string",
            };
            json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
        })
        .collect();
    let answer = match action {
        "list" => format!("{schema}List"),
        "delete" | "deletecollection" => format!("{META}.Status"),
        _ => schema.to_owned(),
    };
    let mut operation = json!({
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": content(&answer, &["application/json", "application/yaml"])}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
    });
    let body = match action {
        "post" | "put" => content(schema, &["*/*"]),
        "patch" => {
            // From this list kubectl chooses what its client-side apply sends.
            content(&format!("{META}.Patch"), &PatchKind::media_types(resource).collect::<Vec<_>>())
        }
        "delete" | "deletecollection" => content(&format!("{META}.DeleteOptions"), &["*/*"]),
        _ => return operation,
    };
    operation["requestBody"] = json!({"content": body});
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built_in() -> Vec<Arc<Resource>> {
        setpoint_kinds::kinds().iter().map(|kind| Arc::new(Resource::built_in(kind))).collect()
    }

    #[test]
    fn every_document_of_the_index_exists_and_is_closed_under_references() {
        let all = built_in();
        let index = index(&all);
        for (path, _) in index["paths"].as_object().expect("paths") {
            let (group, version) = match path.strip_prefix("apis/") {
                Some(rest) => rest.split_once('/').expect("a group version"),
                None => ("", path.strip_prefix("api/").expect("the core group")),
            };
            let document = document(&all, group, version).unwrap_or_else(|| panic!("{path}"));
            let schemas = document["components"]["schemas"].as_object().expect("schemas");
            let text = document.to_string();
            for reference in text.split("\"#/components/schemas/").skip(1) {
                let name = reference.split('"').next().expect("a name");
                // Bindings and reviews are created only: they have no list.
                let created_only = name.ends_with("List");
                assert!(schemas.contains_key(name) || created_only, "{path} lacks {name}");
            }
        }
        assert_eq!(document(&all, "nope", "v1"), None);
    }

    #[test]
    fn version_two_is_a_document_without_kinds() {
        let document = v2();
        assert!(document.starts_with(b"\x0a\x032.0\x12"));
        assert!(document.len() < 128 && document.ends_with(b"\x42\x00"), "{document:?}");
    }

    #[test]
    fn what_kubectl_looks_for() {
        let document = document(&built_in(), "apps", "v1").expect("apps/v1");
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"]["patch"];
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "apps", "version": "v1", "kind": "StatefulSet"})
        );
        assert!(
            patch["parameters"]
                .as_array()
                .is_some_and(|all| all.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"))
        );
        let schema = &document["components"]["schemas"]["io.k8s.api.apps.v1.StatefulSet"];
        assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], "StatefulSet");
    }
}
