//! A structural schema says a type at every place, and what it says in `allOf` and its like adds no fields
//! (`apiextensions-apiserver/pkg/apiserver/schema/validation.go`, `complete.go`).

use serde_json::{Value, json};

use crate::status::Cause;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

pub(super) fn check(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    invariants(schema, Level::Root, at, causes);
    for (below, path) in junctions(schema, at) {
        complete(below, schema, at, &path, causes);
    }
}

/// The schemas of `allOf`, `anyOf`, `oneOf` and `not`, with their paths.
fn junctions<'a>(schema: &'a Value, at: &str) -> Vec<(&'a Value, String)> {
    let mut found = Vec::new();
    for keyword in ["allOf", "anyOf", "oneOf"] {
        for (index, below) in schema[keyword].as_array().into_iter().flatten().enumerate() {
            found.push((below, format!("{at}.{keyword}[{index}]")));
        }
    }
    if schema["not"].is_object() {
        found.push((&schema["not"], format!("{at}.not")));
    }
    found
}

fn invariants(schema: &Value, level: Level, at: &str, causes: &mut Vec<Cause>) {
    let kind = schema["type"].as_str().unwrap_or_default();
    let is = |keyword: &str| schema[keyword] == true;
    let int_or_string = is("x-kubernetes-int-or-string");
    let preserved = is("x-kubernetes-preserve-unknown-fields");
    let embedded = is("x-kubernetes-embedded-resource");
    let properties = schema["properties"].as_object();
    let additional = &schema["additionalProperties"];
    let mut required =
        |field: &str, detail: &str| causes.push(Cause::required(format!("{at}.{field}"), detail));
    if kind == "array" && !schema["items"].is_object() {
        required("items", "must be specified");
    }
    if embedded && kind.is_empty() {
        required("type", "must be object if x-kubernetes-embedded-resource is true");
    } else if kind.is_empty() && !int_or_string && !preserved {
        required(
            "type",
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    if embedded && !preserved && properties.is_none_or(serde_json::Map::is_empty) {
        required(
            "properties",
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        );
    }
    let mut invalid = |field: &str, value: &Value, detail: &str| {
        causes.push(Cause::invalid(format!("{at}.{field}"), value, detail));
    };
    if embedded && !kind.is_empty() && kind != "object" {
        invalid("type", &schema["type"], "must be object if x-kubernetes-embedded-resource is true");
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        invalid("type", &schema["type"], "must be object at the root");
    }
    for (keyword, set) in
        [("x-kubernetes-preserve-unknown-fields", preserved), ("x-kubernetes-embedded-resource", embedded)]
    {
        if int_or_string && set {
            invalid(keyword, &json!(true), "must be false if x-kubernetes-int-or-string is true");
        }
    }
    if level == Level::Root || embedded {
        for name in ["kind", "apiVersion"] {
            if let Some(property) = properties.and_then(|map| map.get(name)).filter(|p| p["type"] != "string")
            {
                let kind = json!(property["type"].as_str().unwrap_or_default());
                invalid(&format!("properties[{name}].type"), &kind, "must be string");
            }
        }
    }
    if level == Level::Root && !additional.is_null() {
        causes.push(Cause::forbidden(format!("{at}.additionalProperties"), "must not be used at the root"));
    }
    if embedded && !additional.is_null() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        causes.push(Cause::forbidden(format!("{at}.additionalProperties"), detail));
    }
    if let Some(metadata) = properties.and_then(|map| map.get("metadata")) {
        self::metadata(metadata, level, embedded, &format!("{at}.properties[metadata]"), causes);
    }
    values(schema, at, causes);
    if schema["items"].is_object() {
        invariants(&schema["items"], Level::Item, &format!("{at}.items"), causes);
    }
    for (name, property) in properties.into_iter().flatten() {
        invariants(property, Level::Field, &format!("{at}.properties[{name}]"), causes);
    }
    if additional.is_object() {
        invariants(additional, Level::Field, &format!("{at}.additionalProperties"), causes);
    }
}

/// A definition may restrict an object's names, and nothing else of its metadata.
fn metadata(schema: &Value, level: Level, embedded: bool, at: &str, causes: &mut Vec<Cause>) {
    if (level == Level::Root || embedded) && schema["type"] != "object" {
        let kind = json!(schema["type"].as_str().unwrap_or_default());
        causes.push(Cause::invalid(format!("{at}.type"), &kind, "must be object"));
    }
    if level != Level::Root {
        return;
    }
    let names = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let only_names = names.into_iter().all(|name| matches!(name, "name" | "generateName"));
    let only_type = schema.as_object().into_iter().flatten().all(|(keyword, value)| {
        value.is_null() || matches!(keyword.as_str(), "type" | "default" | "properties")
    });
    if !only_names || !only_type {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        causes.push(Cause::forbidden(at, detail));
    }
}

/// `anyOf` of an integer and a string is how `x-kubernetes-int-or-string` may be spelled out.
fn is_int_or_string(any_of: &Value) -> bool {
    *any_of == json!([{"type": "integer"}, {"type": "string"}])
}

/// What restricts values: it may not say anything about their structure.
fn values(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let first = &schema["allOf"][0];
    for (below, path) in junctions(schema, at) {
        let exempt = is_int_or_string(&schema["anyOf"]) && path.starts_with(&format!("{at}.anyOf["));
        if exempt {
            continue;
        }
        if std::ptr::eq(below, first) && is_int_or_string(&first["anyOf"]) {
            let mut rest = below.clone();
            rest["anyOf"] = Value::Null;
            nested(&rest, &path, causes);
        } else {
            nested(below, &path, causes);
        }
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(problem) = regex::Regex::new(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {}", in_go(pattern, &problem));
        causes.push(Cause::invalid(format!("{at}.pattern"), &schema["pattern"], &detail));
    }
}

fn nested(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    values(schema, at, causes);
    if schema["items"].is_object() {
        nested(&schema["items"], &format!("{at}.items"), causes);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        nested(property, &format!("{at}.properties[{name}]"), causes);
    }
    for (keyword, wanted) in [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        ("x-kubernetes-preserve-unknown-fields", "false"),
        ("x-kubernetes-embedded-resource", "false"),
        ("x-kubernetes-int-or-string", "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-map-type", "undefined"),
        ("x-kubernetes-validations", "empty"),
    ] {
        let value = &schema[keyword];
        let set = match value {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        };
        if set {
            causes.push(Cause::forbidden(
                format!("{at}.{keyword}"),
                &format!("must be {wanted} to be structural"),
            ));
        }
    }
    if schema["properties"]["metadata"].is_object() {
        let detail = "must not be specified in a nested context";
        causes.push(Cause::forbidden(format!("{at}.properties[metadata]"), detail));
    }
}

/// Every field that a restriction names must be there in the structure: `schema` at `at`.
fn complete(restriction: &Value, schema: &Value, at: &str, by: &str, causes: &mut Vec<Cause>) {
    for (below, path) in junctions(restriction, by) {
        complete(below, schema, at, &path, causes);
    }
    let mut below = |restriction: &Value, schema: &Value, step: &str| {
        let (at, by) = (format!("{at}.{step}"), format!("{by}.{step}"));
        if schema.is_object() {
            complete(restriction, schema, &at, &by, causes);
        } else {
            causes.push(Cause::required(at, &format!("because it is defined in {by}")));
        }
    };
    if restriction["items"].is_object() {
        below(&restriction["items"], &schema["items"], "items");
    }
    for (name, property) in restriction["properties"].as_object().into_iter().flatten() {
        below(property, &schema["properties"][name], &format!("properties[{name}]"));
    }
}

/// A pattern's fault as Go's parser names it, where that is known (`regexp/syntax`, `ErrorCode`).
fn in_go(pattern: &str, problem: &regex::Error) -> String {
    let text = problem.to_string();
    let fault = text.rsplit("error: ").next().unwrap_or_default().trim();
    let (name, part) = match fault {
        "unclosed group" => ("missing closing )", pattern),
        "unopened group" => ("unexpected )", pattern),
        "unclosed character class" => {
            ("missing closing ]", pattern.rfind('[').map_or(pattern, |start| &pattern[start..]))
        }
        other => (other, pattern),
    };
    format!("error parsing regexp: {name}: `{part}`")
}
