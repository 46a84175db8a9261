//! OpenAPI v3: an index and one document for each group version, group and path of neither, for `kubectl explain`, and for clients that look up schemas or whether a
//! parameter such as `fieldValidation` is known.
//!
//! The documents of built-in group versions are kube-apiserver's own, put together from the facts: schemas, their prose, and paths. Those of custom
//! resources have what their authors wrote (`custom`).
//! OpenAPI v2 has the same in one document (`v2`). Both are served as JSON or as protobuf (`v2_protobuf`, `v3_protobuf`).

mod custom;
mod kept;
mod protobuf;
mod v2;
mod v2_protobuf;
mod v3_protobuf;

pub(crate) use self::kept::KeptV2;
pub(crate) use self::v3_protobuf::encode as v3_protobuf;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use self::v2::v2_json;
use self::v2_protobuf::encode as v2_protobuf;
use serde_json::{Map, Value, json};
use setpoint_kinds::{Paths, Prose, REF_PREFIX, definition};

use crate::{
    catalog::{Resource, Shape},
    discovery::{etag, subresources},
};

/// The form in which kubectl asks for OpenAPI v2, and the older name of the same, which is no valid media type to answer with.
pub(crate) const V2_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
pub(crate) const V2_TYPE_OLD: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The same two names of OpenAPI v3.
pub(crate) const V3_TYPE: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
pub(crate) const V3_TYPE_OLD: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const GROUP_VERSION_KIND: &str = "x-kubernetes-group-version-kind";

/// The documents that are about no group and no version.
const OTHERS: [&str; 5] = [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"];

/// `/openapi/v3`: the paths of all documents; their URLs change with their content. Others have a turn after each: there may be thousands.
pub(crate) async fn index(resources: &[Arc<Resource>]) -> Value {
    let mut paths = Map::new();
    for name in documents(resources) {
        tokio::task::yield_now().await;
        let Some(hash) = hash(resources, &name) else { continue };
        let url = format!("/openapi/v3/{name}?hash={hash}");
        paths.insert(name, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// The names of all documents: of group versions, of built-in groups, and of what belongs to neither.
fn documents(resources: &[Arc<Resource>]) -> BTreeSet<String> {
    let built_in =
        resources.iter().filter(|resource| resource.custom().is_none() && !resource.group.is_empty());
    let groups = built_in.map(|resource| format!("apis/{}", resource.group));
    let versions = resources.iter().map(|resource| root(&resource.group, &resource.version));
    OTHERS.map(str::to_owned).into_iter().chain(groups).chain(versions).collect()
}

/// What a document is about.
enum Subject<'a> {
    Version {
        group: &'a str,
        version: &'a str,
    },
    /// A built-in group as such, or none.
    Path,
}

impl<'a> Subject<'a> {
    /// What the document `api/v1`, `apis/GROUP/VERSION`, `apis/GROUP` or of another name is about; `None` if there is none.
    fn of(resources: &[Arc<Resource>], name: &'a str) -> Option<Self> {
        let parts: Vec<_> = name.split('/').collect();
        let (group, version) = match parts.as_slice() {
            ["api", version] => ("", *version),
            ["apis", group, version] => (*group, *version),
            ["apis", group] => {
                let is = |resource: &&Arc<Resource>| resource.group == *group && resource.custom().is_none();
                return resources.iter().find(is).filter(|_| !group.is_empty()).map(|_| Self::Path);
            }
            _ => return OTHERS.contains(&name).then_some(Self::Path),
        };
        let is = |resource: &Arc<Resource>| resource.group == group && resource.version == version;
        resources.iter().any(is).then_some(Self::Version { group, version })
    }
}

/// Says which content a document has; `None` if there is no such document.
pub(crate) fn hash(resources: &[Arc<Resource>], name: &str) -> Option<String> {
    // The facts never change while the process lives; custom resources do.
    let content = match Subject::of(resources, name)? {
        Subject::Path => json!([setpoint_kinds::kubernetes_version(), name]),
        Subject::Version { group, version } => {
            let own = resources.iter().filter(|r| r.group == group && r.version == version);
            own.map(|resource| match &resource.shape {
                Shape::BuiltIn { kind, .. } => json!([setpoint_kinds::kubernetes_version(), kind.definition]),
                Shape::Custom(custom) => {
                    let names = subresources(resource);
                    let names: Vec<_> = names.iter().map(|sub| sub.name).collect();
                    json!([resource.kind, resource.plural, resource.namespaced, names, custom.openapi])
                }
            })
            .collect()
        }
    };
    Some(etag(content.to_string().as_bytes()).trim_matches('"').to_owned())
}

/// `/openapi/v3/NAME`; `None` if there is no such document.
pub(crate) fn document(resources: &[Arc<Resource>], name: &str) -> Option<Value> {
    document_from(&Facts::unpack(), resources, name)
}

/// What lies in the facts compressed.
struct Facts {
    paths: Paths,
    prose: Prose,
}

impl Facts {
    fn unpack() -> Self {
        Self { paths: Paths::unpack(), prose: Prose::unpack() }
    }
}

fn document_from(facts: &Facts, resources: &[Arc<Resource>], name: &str) -> Option<Value> {
    let (group, version) = match Subject::of(resources, name)? {
        Subject::Version { group, version } => (group, version),
        Subject::Path => ("", "v1"),
    };
    let own: Vec<_> = resources.iter().filter(|r| r.group == group && r.version == version).collect();
    let mut schemas = Schemas::new(group, version, &facts.prose);
    let (title, release, paths) = if own.first().is_some_and(|first| first.custom().is_some()) {
        let mut paths = Map::new();
        for resource in own {
            custom::add_schemas(&mut schemas, resource);
            custom::add_paths(&mut paths, &facts.paths.parameters(), resource);
        }
        ("Kubernetes CRD Swagger", "v0.1.0", Value::from(paths))
    } else {
        ("Kubernetes", release(), facts.paths.of(name)?)
    };
    schemas.add_references(&paths);
    let mut document = json!({
        "openapi": "3.0.0",
        "info": {"title": title, "version": release},
        "paths": paths,
        "components": {},
    });
    if !schemas.all.is_empty() {
        document["components"]["schemas"] = json!(schemas.all);
    }
    if title == "Kubernetes" {
        document["components"]["securitySchemes"] = json!({"BearerToken": {
            "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
        }});
    }
    Some(document)
}

/// `1.37` of `v1.37.2`.
fn release() -> &'static str {
    let version = setpoint_kinds::kubernetes_version().trim_start_matches('v');
    version.rsplit_once('.').map_or(version, |(release, _)| release)
}

/// `api/v1` or `apis/GROUP/VERSION`.
fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The schemas of a document: those that its paths refer to, and all that they refer to.
struct Schemas<'a> {
    group: &'a str,
    version: &'a str,
    prose: &'a Prose,
    all: BTreeMap<String, Value>,
}

impl<'a> Schemas<'a> {
    fn new(group: &'a str, version: &'a str, prose: &'a Prose) -> Self {
        Self { group, version, prose, all: BTreeMap::new() }
    }

    fn add_built_in(&mut self, name: &str) {
        if self.all.contains_key(name) {
            return;
        }
        let Some(schema) = definition(name) else { return };
        let mut described = schema.clone();
        self.prose.describe(name, &mut described);
        if name.starts_with(META)
            && let Some(Value::Array(kinds)) = described.get_mut(GROUP_VERSION_KIND)
        {
            // Every group has options of its own: a document names those that it is about.
            kinds.retain(|kind| {
                let is = |group: &str, version: &str| kind["group"] == group && kind["version"] == version;
                is("", "v1") || is(self.group, self.version)
            });
        }
        self.all.insert(name.to_owned(), described);
        self.add_references(schema);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn built_in() -> Vec<Arc<Resource>> {
        setpoint_kinds::kinds().iter().map(|kind| Arc::new(Resource::built_in(kind))).collect()
    }

    #[tokio::test]
    async fn every_document_of_the_index_exists_and_is_closed_under_references() {
        let all = built_in();
        let index = index(&all).await;
        let names: Vec<_> = index["paths"].as_object().expect("paths").keys().cloned().collect();
        let facts = Paths::unpack();
        assert_eq!(names, facts.documents().collect::<Vec<_>>());
        for path in &names {
            let document = document(&all, path).unwrap_or_else(|| panic!("{path}"));
            let none = Map::new();
            let schemas = document["components"]["schemas"].as_object().unwrap_or(&none);
            let text = document.to_string();
            for reference in text.split("\"#/components/schemas/").skip(1) {
                let name = reference.split('"').next().expect("a name");
                assert!(schemas.contains_key(name), "{path} lacks {name}");
            }
        }
        for missing in ["apis/nope/v1", "apis/nope", "api/v2", "apis/", "", "nope"] {
            assert_eq!(document(&all, missing), None, "{missing}");
        }
    }

    #[test]
    fn what_kubectl_looks_for() {
        let document = document(&built_in(), "apis/apps/v1").expect("apps/v1");
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
        assert!(schema["properties"]["spec"]["description"].is_string(), "explain needs texts");
    }
}
