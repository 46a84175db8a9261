//! The part of custom resources in OpenAPI v3 (`k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder`).

use serde_json::{Map, Value, json};
use setpoint_kinds::REF_PREFIX;

use super::{GROUP_VERSION_KIND, META, Schemas, root};
use crate::{
    catalog::{Resource, Shape},
    discovery::subresources,
    registry::PatchKind,
};

const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
/// A definition that has what every object and every list has, with their descriptions.
const EXAMPLE: &str = "io.k8s.api.core.v1.ConfigMap";
const MEDIA: [&str; 2] = ["application/json", "application/yaml"];
const LIST: [&str; 11] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
];

/// `com.example.v1.Site` for `sites.example.com` in `v1`.
fn name(resource: &Resource) -> String {
    let reversed: Vec<_> = resource.group.split('.').rev().collect();
    format!("{}.{}.{}", reversed.join("."), resource.version, resource.kind)
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("{REF_PREFIX}{schema}")})
}

fn group_version_kind(resource: &Resource, kind: &str) -> Value {
    json!({"group": resource.group, "kind": kind, "version": resource.version})
}

/// Adds the schemas of a custom resource and its list.
pub(super) fn add_schemas(schemas: &mut Schemas<'_>, resource: &Resource) {
    let Shape::Custom(custom) = &resource.shape else { return };
    let texts = schemas.prose.of(EXAMPLE);
    let own = texts.iter().map(|(field, text)| (field.as_str(), text.as_str())).collect::<Vec<_>>();
    let text =
        |field: &str| own.iter().find(|(name, _)| *name == field).map_or("", |(_, text)| *text).to_owned();
    let (name, kind, plural) = (name(resource), &resource.kind, &resource.plural);
    let metadata = |what: &str, about: String| json!({"allOf": [reference(&format!("{META}.{what}"))], "description": about});
    let api_version = json!({"type": "string", "description": text("apiVersion")});
    let kind_field = json!({"type": "string", "description": text("kind")});

    let mut schema =
        if custom.openapi.is_object() { custom.openapi.clone() } else { json!({"type": "object"}) };
    complete(&mut schema);
    if let Some(fields) = schema.as_object_mut() {
        let properties = fields.entry("properties").or_insert_with(|| json!({}));
        properties["apiVersion"] = api_version.clone();
        properties["kind"] = kind_field.clone();
        properties["metadata"] = metadata("ObjectMeta", text("metadata"));
        fields.insert(GROUP_VERSION_KIND.to_owned(), json!([group_version_kind(resource, kind)]));
    }
    let of_list = text("metadata")
        .replace("Standard object's metadata", "Standard list metadata")
        .replace("#metadata", "#types-kinds");
    let guide = text("metadata");
    let guide = guide.rsplit_once(' ').map_or("", |(_, url)| url).trim_end_matches("#metadata").to_owned();
    let list = json!({
        "description": format!("{} is a list of {kind}", resource.list_kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": api_version,
            "kind": kind_field,
            "metadata": metadata("ListMeta", of_list),
            "items": {"type": "array", "items": reference(&name), "description": format!("List of {plural}. More info: {guide}")},
        },
        GROUP_VERSION_KIND: [group_version_kind(resource, &resource.list_kind)],
    });
    schemas.add_references(&schema);
    schemas.add_references(&list);
    schemas.all.insert(format!("{name}List"), list);
    schemas.all.insert(name, schema);
}

/// Says what `x-kubernetes-int-or-string` and `x-kubernetes-embedded-resource` mean in plain OpenAPI.
fn complete(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is = |fields: &Map<String, Value>, key: &str| fields.get(key) == Some(&Value::Bool(true));
    if is(fields, "x-kubernetes-int-or-string") {
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
    if is(fields, "x-kubernetes-embedded-resource") {
        let properties = fields.entry("properties").or_insert_with(|| json!({}));
        properties["apiVersion"] = json!({"type": "string"});
        properties["kind"] = json!({"type": "string"});
        properties["metadata"] = json!({"allOf": [reference(&format!("{META}.ObjectMeta"))]});
        let required = fields.entry("required").or_insert_with(|| json!([]));
        for key in ["kind", "apiVersion"] {
            if let Some(list) = required.as_array_mut()
                && !list.iter().any(|known| known == key)
            {
                list.push(key.into());
            }
        }
    }
}

/// Adds the paths of a custom resource; `known` has the parameters that operations of all kinds have.
pub(super) fn add_paths(paths: &mut Map<String, Value>, known: &[Value], resource: &Resource) {
    let paths_of = PathsOf { resource, known, schema: name(resource) };
    let base = format!("/{}", root(&resource.group, &resource.version));
    let plural = &resource.plural;
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let list = |parameters: &[&str]| paths_of.operation("list", "", parameters);
    let mut collection = json!({
        "get": list(&LIST),
        "post": paths_of.operation("post", "", &["dryRun", "fieldManager", "fieldValidation"]),
        "delete": paths_of.operation("deletecollection", "", &LIST),
    });
    collection["parameters"] = paths_of.path_parameters(false);
    paths.insert(format!("{base}{scope}/{plural}"), collection);
    if resource.namespaced {
        let mut all = json!({"get": list(&[])});
        let mut parameters = LIST.to_vec();
        parameters.insert(5, "pretty");
        all["parameters"] = paths_of.parameters(&parameters);
        all["get"]["operationId"] = format!("list{}ForAllNamespaces", paths_of.named("")).into();
        paths.insert(format!("{base}/{plural}"), all);
    }
    let options = [
        "dryRun",
        "gracePeriodSeconds",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "orphanDependents",
        "propagationPolicy",
    ];
    let subs = subresources(resource);
    for sub in std::iter::once("").chain(subs.iter().map(|sub| sub.name)) {
        let mut item = json!({
            "get": paths_of.operation("get", sub, &["resourceVersion"]),
            "put": paths_of.operation("put", sub, &["dryRun", "fieldManager", "fieldValidation"]),
            "patch": paths_of.operation("patch", sub, &["dryRun", "fieldManager", "fieldValidation", "force"]),
            "parameters": paths_of.path_parameters(true),
        });
        let mut path = format!("{base}{scope}/{plural}/{{name}}");
        if sub.is_empty() {
            item["delete"] = paths_of.operation("delete", "", &options);
        } else {
            path = format!("{path}/{sub}");
        }
        paths.insert(path, item);
    }
}

struct PathsOf<'a> {
    resource: &'a Resource,
    known: &'a [Value],
    /// Name of the kind's schema.
    schema: String,
}

impl PathsOf<'_> {
    /// The parameters of these names; those of custom resources are those of all kinds.
    fn parameters(&self, names: &[&str]) -> Value {
        let length = |known: &&Value| known["description"].as_str().map_or(0, str::len);
        // What is said of the manager for patches has one sentence more.
        let patch = names.contains(&"force");
        let find = |name: &&str| {
            let all = self.known.iter().filter(|known| known["name"] == **name);
            if patch { all.max_by_key(length) } else { all.min_by_key(length) }.cloned()
        };
        names.iter().filter_map(find).collect()
    }

    /// The parameters in the path, and `pretty`.
    fn path_parameters(&self, with_name: bool) -> Value {
        let mut all = Vec::new();
        if with_name {
            let about = format!("name of the {}", self.resource.kind);
            all.push(json!({"name": "name", "in": "path", "required": true, "description": about,
                "schema": {"type": "string", "uniqueItems": true}}));
        }
        let common: &[&str] = if self.resource.namespaced { &["namespace", "pretty"] } else { &["pretty"] };
        all.extend(self.parameters(common).as_array().cloned().unwrap_or_default());
        all.into()
    }

    /// `ExampleComV1NamespacedSite`, with a word after the version.
    fn named(&self, word: &str) -> String {
        let group = self.resource.group.split(['.', '-']).map(capital).collect::<String>();
        format!("{group}{}{word}{}", capital(&self.resource.version), self.resource.kind)
    }

    fn operation(&self, action: &str, sub: &str, parameters: &[&str]) -> Value {
        let Self { resource, schema, .. } = self;
        let kind = &resource.kind;
        let scope = if resource.namespaced { "Namespaced" } else { "" };
        let (verb, about) = match action {
            "list" => ("list", format!("list objects of kind {kind}")),
            "post" => ("create", format!("create a {kind}")),
            "deletecollection" => ("delete", format!("delete collection of {kind}")),
            "get" => ("read", format!("read the specified {kind}")),
            "put" => ("replace", format!("replace the specified {kind}")),
            "patch" => ("patch", format!("partially update the specified {kind}")),
            _ => ("delete", format!("delete a {kind}")),
        };
        let about = if sub.is_empty() {
            about
        } else {
            about.replace("the specified", &format!("{sub} of the specified"))
        };
        let scope =
            if action == "deletecollection" { format!("Collection{scope}") } else { scope.to_owned() };
        let id = format!("{verb}{}{}", self.named(&scope), capital(sub));
        let object = if sub == "scale" { SCALE } else { schema };
        let answer = match action {
            "list" => format!("{schema}List"),
            "delete" | "deletecollection" => format!("{META}.Status"),
            _ => object.to_owned(),
        };
        let content = |schema: &str, media: &mut dyn Iterator<Item = &'static str>| -> Value {
            let of = json!({"schema": reference(schema)});
            media.map(|media| (media.to_owned(), of.clone())).collect::<Map<_, _>>().into()
        };
        let codes: &[(&str, &str)] = match action {
            "post" => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
            "put" => &[("200", "OK"), ("201", "Created")],
            "delete" => &[("200", "OK"), ("202", "Accepted")],
            _ => &[("200", "OK")],
        };
        let mut responses: Map<String, Value> = codes
            .iter()
            .map(|(code, about)| {
                let of = json!({"description": about, "content": content(&answer, &mut MEDIA.into_iter())});
                ((*code).to_owned(), of)
            })
            .collect();
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        let mut group = resource.group.split(['.', '-']);
        let tag = group.next().unwrap_or_default().to_owned() + &group.map(capital).collect::<String>();
        let mut operation = json!({
            "tags": [format!("{tag}_{}", resource.version)],
            "description": about,
            "operationId": id,
            "responses": responses,
            "x-kubernetes-action": action,
            GROUP_VERSION_KIND: group_version_kind(resource, kind),
        });
        if !parameters.is_empty() {
            operation["parameters"] = self.parameters(parameters);
        }
        match action {
            "post" | "put" => {
                operation["requestBody"] =
                    json!({"content": content(object, &mut MEDIA.into_iter()), "required": true});
            }
            // From this list kubectl chooses what its client-side apply sends.
            "patch" => {
                let media = &mut PatchKind::media_types(resource);
                operation["requestBody"] =
                    json!({"content": content(&format!("{META}.Patch"), media), "required": true});
            }
            "delete" => {
                let options = format!("{META}.DeleteOptions");
                operation["requestBody"] = json!({"content": content(&options, &mut MEDIA.into_iter())});
            }
            _ => {}
        }
        operation
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
