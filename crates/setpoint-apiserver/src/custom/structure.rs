//! Whether the schema of a custom resource is one that Kubernetes takes
//! (`apiextensions-apiserver/pkg/apis/apiextensions/validation`, `ValidateCustomResourceDefinitionOpenAPISchema`).

mod defaults;
mod rules;
mod structural;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use setpoint_schema::{Schema, is_known_format};

use crate::builtin::GoValue;
use crate::status::Cause;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Keywords of JSON schema that are not taken. With one of these, upstream cannot look at the structure at all.
const UNSUPPORTED: [&str; 6] =
    ["$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties"];

/// Everything that is wrong with the schema at the path `at`. With a status subresource, the root must be an object.
pub(super) fn check(schema: &Value, at: &str, has_status: bool, causes: &mut Vec<Cause>) {
    let before = causes.len();
    let kind = schema["type"].as_str().unwrap_or_default();
    if has_status && !kind.is_empty() && kind != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        causes.push(Cause::invalid(format!("{at}.type"), &json!(kind), detail));
    }
    if schema["nullable"] == true {
        causes.push(Cause::forbidden(format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
    let mut walk = Walk { causes: Vec::new(), readable: true };
    walk.schema(schema, at, true, None);
    let Walk { causes: mut found, readable } = walk;
    let (structured, mut typed) = (causes.len(), None);
    if readable {
        structural::check(schema, at, causes);
        if causes.len() == structured && found.is_empty() {
            match Schema::from_openapi(schema) {
                Ok(schema) => typed = Some(schema),
                Err(error) => causes.push(Cause {
                    reason: "FieldValueInvalid".to_owned(),
                    message: format!("Invalid value: \"\": {error}"),
                    field: at.to_owned(),
                }),
            }
        }
    }
    causes.append(&mut found);
    if let Some(typed) = typed {
        defaults::check(schema, &typed, at, causes);
        if causes.len() == before {
            rules::check(schema, &typed, at, causes);
        }
    }
}

/// What a schema says and nothing heeds: formats that the server does not know, and the types of items of sets that are
/// no scalars.
pub(super) fn notices(schema: &Value, formats: &mut BTreeSet<String>, sets: &mut BTreeSet<String>) {
    let format = schema["format"].as_str().unwrap_or_default();
    let known = match schema["type"].as_str().unwrap_or_default() {
        "" | "string" => is_known_format(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !known {
        formats.insert(format.to_owned());
    }
    let items = schema["items"]["type"].as_str().unwrap_or_default();
    if schema["x-kubernetes-list-type"] == "set" && matches!(items, "object" | "array") {
        sets.insert(items.to_owned());
    }
    let maps = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::values);
    let lists = ["allOf", "anyOf", "oneOf"].iter().filter_map(|key| schema[key].as_array()).flatten();
    let single = ["items", "additionalProperties", "not"].iter().map(|key| &schema[key]);
    for below in maps.chain(lists).chain(single).filter(|below| below.is_object()) {
        notices(below, formats, sets);
    }
}

/// The schema of the field at a path such as `.spec.size` or, if `brackets` are allowed, `.spec['a.b']`.
///
/// # Errors
/// Why there is none, in upstream's words.
pub(super) fn field_path<'a>(schema: &'a Value, path: &str, brackets: bool) -> Result<&'a Value, String> {
    let (mut schema, mut rest) = (schema, path);
    let missing = || "does not refer to a valid field".to_owned();
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end == 0 {
                return Err("unexpected end of JSON path".to_owned());
            }
            (name, rest) = after.split_at(end);
        } else if rest.starts_with('[') {
            if !brackets {
                return Err("array notation is not allowed".to_owned());
            }
            let quoted = rest.strip_prefix("['").and_then(|after| after.split_once("']"));
            (name, rest) = quoted.ok_or_else(|| format!("expected single quoted string but got {rest}"))?;
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            return Err(format!("expected [ or . but got: {}", &rest[..end]));
        }
        schema = match &schema["properties"] {
            Value::Object(properties) => properties.get(name).ok_or_else(missing)?,
            _ if schema["additionalProperties"].is_object() => &schema["additionalProperties"],
            _ => return Err(missing()),
        };
    }
    Ok(schema)
}

/// A walk through a schema as a document, whatever its structure.
struct Walk {
    causes: Vec<Cause>,
    /// Whether the structure can be looked at.
    readable: bool,
}

impl Walk {
    /// `no_default` says where defaults are not allowed.
    fn schema(&mut self, schema: &Value, at: &str, root: bool, no_default: Option<&str>) {
        let kind = schema["type"].as_str().unwrap_or_default();
        if !kind.is_empty() && !TYPES.contains(&kind) {
            self.causes.push(Cause::unsupported(format!("{at}.type"), &schema["type"], &TYPES));
        }
        if let Some(place) = no_default.filter(|_| !schema["default"].is_null()) {
            self.causes.push(Cause::forbidden(format!("{at}.default"), &format!("must not be set {place}")));
        }
        for keyword in UNSUPPORTED.iter().filter(|keyword| !schema[**keyword].is_null()) {
            self.readable = false;
            let detail = format!("{keyword} is not supported");
            self.causes.push(Cause::forbidden(format!("{at}.{keyword}"), &detail));
        }
        if schema["uniqueItems"] == true {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.causes.push(Cause::forbidden(format!("{at}.uniqueItems"), detail));
        }
        let additional = &schema["additionalProperties"];
        let properties = schema["properties"].as_object();
        if properties.is_some_and(|map| !map.is_empty())
            && !additional.is_null()
            && additional != &json!(true)
        {
            let detail = "additionalProperties and properties are mutual exclusive";
            self.causes.push(Cause::forbidden(format!("{at}.additionalProperties"), detail));
        }
        if additional.is_object() {
            self.schema(additional, &format!("{at}.additionalProperties"), false, no_default);
        }
        for (name, property) in properties.into_iter().flatten() {
            let top = root && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
            let place = top.then(|| format!("in top-level {name}"));
            let below = format!("{at}.properties[{name}]");
            self.schema(property, &below, false, place.as_deref().or(no_default));
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for (index, below) in schema[keyword].as_array().into_iter().flatten().enumerate() {
                self.schema(below, &format!("{at}.{keyword}[{index}]"), false, no_default);
            }
        }
        if schema["not"].is_object() {
            self.schema(&schema["not"], &format!("{at}.not"), false, no_default);
        }
        match &schema["items"] {
            Value::Array(_) => {
                self.readable = false;
                let detail = "items must be a schema object and not an array";
                self.causes.push(Cause::forbidden(format!("{at}.items"), detail));
            }
            items @ Value::Object(_) => self.schema(items, &format!("{at}.items"), false, no_default),
            _ => {}
        }
        self.extensions(schema, at);
        self.list(schema, at);
        for (index, rule) in schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
            rules::declaration(
                schema,
                rule,
                &format!("{at}.x-kubernetes-validations[{index}]"),
                &mut self.causes,
            );
        }
    }

    /// What needs a certain type, or has only certain values.
    fn extensions(&mut self, schema: &Value, at: &str) {
        if schema["x-kubernetes-preserve-unknown-fields"] == false {
            let field = format!("{at}.x-kubernetes-preserve-unknown-fields");
            self.causes.push(Cause::invalid(field, &json!(false), "must be true or undefined"));
        }
        for (keyword, kind, supported) in [
            ("x-kubernetes-map-type", "object", ["atomic", "granular"].as_slice()),
            ("x-kubernetes-list-type", "array", ["atomic", "set", "map"].as_slice()),
        ] {
            let Some(given) = schema[keyword].as_str() else { continue };
            let detail = format!("must be {kind} if {keyword} is specified");
            match schema["type"].as_str().unwrap_or_default() {
                "" => self.causes.push(Cause::required(format!("{at}.type"), &detail)),
                other if other != kind => {
                    self.causes.push(Cause::invalid(format!("{at}.type"), &schema["type"], &detail));
                }
                _ => {}
            }
            if !supported.contains(&given) {
                self.causes.push(Cause::unsupported(format!("{at}.{keyword}"), &schema[keyword], supported));
            }
        }
    }

    /// Sets and list maps, whose items must be comparable by their value or their keys.
    fn list(&mut self, schema: &Value, at: &str) {
        let list = schema["x-kubernetes-list-type"].as_str().unwrap_or_default();
        let items = &schema["items"];
        let keys_at = format!("{at}.x-kubernetes-list-map-keys");
        let keys = schema["x-kubernetes-list-map-keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !keys.is_empty() && list != "map" {
            let (field, detail) = (
                format!("{at}.x-kubernetes-list-type"),
                "must be map if x-kubernetes-list-map-keys is non-empty",
            );
            self.causes.push(match list {
                "" => Cause::required(field, detail),
                _ => Cause::invalid(field, &schema["x-kubernetes-list-type"], detail),
            });
        }
        if matches!(list, "set" | "map") && items["nullable"] == true {
            let detail = format!("cannot be nullable when x-kubernetes-list-type is {list}");
            self.causes.push(Cause::forbidden(format!("{at}.items.nullable"), &detail));
        }
        if list == "set" && schema["type"] == "array" {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            // Upstream shows the items' list type in both errors.
            let shown = &items["x-kubernetes-list-type"];
            if items["type"] == "array" && !shown.is_null() && shown != "atomic" {
                self.causes.push(Cause::invalid(format!("{at}.items.x-kubernetes-list-type"), shown, detail));
            }
            if items["type"] == "object" && items["x-kubernetes-map-type"] != "atomic" {
                self.causes.push(Cause::invalid(format!("{at}.items.x-kubernetes-map-type"), shown, detail));
            }
        }
        if list != "map" {
            return;
        }
        if keys.is_empty() {
            let detail = "must not be empty if x-kubernetes-list-type is map";
            self.causes.push(Cause::required(keys_at.as_str(), detail));
        }
        if items.is_null() {
            let detail = "must have a schema if x-kubernetes-list-type is map";
            self.causes.push(Cause::required(format!("{at}.items"), detail));
        } else if items["type"] != "object" {
            let kind = items["type"].as_str().unwrap_or_default();
            let detail = "must be object if parent array's x-kubernetes-list-type is map";
            self.causes.push(Cause::invalid(format!("{at}.items.type"), &json!(kind), detail));
            return;
        }
        let mut seen = Vec::new();
        for key in keys {
            let name = key.as_str().unwrap_or_default();
            let all = &schema["x-kubernetes-list-map-keys"];
            if seen.contains(&name) {
                self.causes.push(Cause::invalid(keys_at.as_str(), all, "must not contain duplicate entries"));
            }
            seen.push(name);
            let property = &items["properties"][name];
            if !property.is_object() {
                let detail = "entries must all be names of item properties";
                self.causes.push(Cause::invalid(keys_at.as_str(), all, detail));
                continue;
            }
            let of_key = format!("{at}.items.properties[{name}]");
            if property["type"] == "array" || property["type"] == "object" {
                // Upstream shows the items' type.
                let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.causes.push(Cause::invalid(format!("{of_key}.type"), &items["type"], detail));
            }
            let required = items["required"].as_array().is_some_and(|required| required.contains(key));
            if !required && property["default"].is_null() {
                let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.causes.push(Cause::required(format!("{of_key}.default"), detail));
            }
            if property["nullable"] == true {
                let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.causes.push(Cause::forbidden(format!("{of_key}.nullable"), detail));
            }
        }
    }
}

/// A rule as upstream holds it.
fn shown(rule: &Value) -> GoValue {
    let text = |key: &str| GoValue::Plain(rule[key].as_str().unwrap_or_default().into());
    let plain = |key: &str| GoValue::Plain(rule[key].clone());
    GoValue::fields([
        ("Rule", text("rule")),
        ("Message", text("message")),
        ("MessageExpression", text("messageExpression")),
        ("Reason", plain("reason")),
        ("FieldPath", text("fieldPath")),
        ("OptionalOldSelf", plain("optionalOldSelf")),
    ])
}
