//! From OpenAPI v3 documents to [`Node`]s.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use regex::Regex;
use serde_json::{Map, Number, Value};

use super::{Additional, Checks, Child, ListType, Node, Patch, Reference, Schema, Type};

/// Indicates that a schema is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct SchemaError {
    /// The place in the schema, such as `openAPIV3Schema.properties[spec].type`.
    pub path: String,
    /// What is wrong there.
    pub problem: String,
}

/// Where a document comes from: custom resources' schemas must not refer to definitions, built-in ones do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Custom,
    Builtin,
}

/// Keywords of JSON schema that structural schemas forbid (Kubernetes documentation, "Specifying a structural schema").
const FORBIDDEN: [&str; 6] =
    ["$ref", "additionalItems", "definitions", "dependencies", "patternProperties", "deprecated"];

pub(super) fn node(schema: &Value, origin: Origin, path: &str) -> Result<Node, SchemaError> {
    let Value::Object(fields) = schema else {
        return Err(error(path, format!("a schema must be an object, not {schema}")));
    };
    let keywords = Keywords { fields, path };
    if origin == Origin::Custom
        && let Some(keyword) = FORBIDDEN.iter().find(|keyword| fields.contains_key(**keyword))
    {
        return Err(error(&format!("{path}.{keyword}"), "is not allowed in a structural schema"));
    }
    let rules = match fields.get("x-kubernetes-validations") {
        None | Some(Value::Null) => Arc::default(),
        Some(Value::Array(rules)) => rules.as_slice().into(),
        Some(other) => {
            return Err(error(&format!("{path}.x-kubernetes-validations"), expected("a list", other)));
        }
    };
    Ok(Node {
        kind: keywords.kind()?,
        nullable: keywords.flag("nullable")?,
        int_or_string: keywords.flag("x-kubernetes-int-or-string")?,
        preserve_unknown: keywords.flag("x-kubernetes-preserve-unknown-fields")?,
        resource: keywords.flag("x-kubernetes-embedded-resource")?,
        builtin: origin == Origin::Builtin,
        format: keywords.text("format")?.map(Into::into),
        default: fields.get("default").filter(|default| !default.is_null()).cloned(),
        properties: Arc::new(properties(&keywords, origin)?),
        additional: additional(&keywords, origin)?,
        items: match fields.get("items") {
            None | Some(Value::Null) => None,
            Some(items) => Some(child(items, origin, &format!("{path}.items"))?),
        },
        list: list_type(&keywords)?,
        atomic_map: atomic_map(&keywords)?.unwrap_or(false),
        patch: patch(&keywords)?,
        checks: Arc::new(checks(&keywords, origin)?),
        presence: Arc::default(),
        rules,
    })
}

/// A schema below another. `$ref`, or `allOf` with nothing but one, is followed when it is first reached.
fn child(schema: &Value, origin: Origin, path: &str) -> Result<Child, SchemaError> {
    if origin == Origin::Builtin
        && let Some(definition) = reference(schema)
    {
        let Value::Object(fields) = schema else { return Err(error(path, "a schema must be an object")) };
        let keywords = Keywords { fields, path };
        return Ok(Child::Reference(Arc::new(Reference {
            definition: definition.into(),
            default: fields.get("default").cloned(),
            nullable: keywords.flag("nullable")?,
            atomic_map: atomic_map(&keywords)?,
            patch: patch(&keywords)?,
            resolved: OnceLock::new(),
        })));
    }
    Ok(Child::Inline(Schema::of(node(schema, origin, path)?)))
}

/// The name of the definition that a schema refers to.
fn reference(schema: &Value) -> Option<&str> {
    let target = schema.get("$ref").or_else(|| match schema.get("allOf")?.as_array()?.as_slice() {
        [only] => only.get("$ref"),
        _ => None,
    });
    target?.as_str()?.rsplit('/').next()
}

fn properties(keywords: &Keywords<'_>, origin: Origin) -> Result<BTreeMap<String, Child>, SchemaError> {
    let path = keywords.path;
    match keywords.fields.get("properties") {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(properties)) => properties
            .iter()
            .map(|(name, schema)| {
                Ok((name.clone(), child(schema, origin, &format!("{path}.properties[{name}]"))?))
            })
            .collect(),
        Some(other) => Err(error(&format!("{path}.properties"), expected("an object", other))),
    }
}

fn additional(keywords: &Keywords<'_>, origin: Origin) -> Result<Additional, SchemaError> {
    let path = format!("{}.additionalProperties", keywords.path);
    Ok(match keywords.fields.get("additionalProperties") {
        None | Some(Value::Null) => Additional::Unset,
        Some(Value::Bool(true)) => Additional::Allowed,
        Some(Value::Bool(false)) => Additional::Denied,
        Some(schema) => Additional::Schema(child(schema, origin, &path)?),
    })
}

/// `x-kubernetes-list-type`, or what the patch strategy of a built-in list amounts to.
fn list_type(keywords: &Keywords<'_>) -> Result<ListType, SchemaError> {
    let keys = || match keywords.fields.get("x-kubernetes-list-map-keys") {
        Some(Value::Array(keys)) if !keys.is_empty() && keys.iter().all(Value::is_string) => {
            Ok(keys.iter().filter_map(Value::as_str).map(Into::into).collect())
        }
        _ => {
            let path = format!("{}.x-kubernetes-list-map-keys", keywords.path);
            Err(error(&path, "must list the key fields if x-kubernetes-list-type is map"))
        }
    };
    Ok(match keywords.text("x-kubernetes-list-type")? {
        Some("atomic") => ListType::Atomic,
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(keys()?),
        Some(other) => {
            let path = format!("{}.x-kubernetes-list-type", keywords.path);
            return Err(error(&path, format!("must be atomic, set or map, not {other:?}")));
        }
        None => {
            let patch = patch(keywords)?;
            match patch.merge_key {
                Some(key) if patch.merge => ListType::Map(Arc::new([key])),
                None if patch.merge => ListType::Set,
                _ => ListType::Atomic,
            }
        }
    })
}

fn atomic_map(keywords: &Keywords<'_>) -> Result<Option<bool>, SchemaError> {
    match keywords.text("x-kubernetes-map-type")? {
        None => Ok(None),
        Some("granular") => Ok(Some(false)),
        Some("atomic") => Ok(Some(true)),
        Some(other) => {
            let path = format!("{}.x-kubernetes-map-type", keywords.path);
            Err(error(&path, format!("must be granular or atomic, not {other:?}")))
        }
    }
}

fn patch(keywords: &Keywords<'_>) -> Result<Patch, SchemaError> {
    let mut patch = Patch {
        merge_key: keywords.text("x-kubernetes-patch-merge-key")?.map(Into::into),
        ..Patch::default()
    };
    for strategy in keywords.text("x-kubernetes-patch-strategy")?.unwrap_or_default().split(',') {
        match strategy {
            "" => {}
            "merge" => patch.merge = true,
            "replace" => patch.replace = true,
            "retainKeys" => patch.retain_keys = true,
            other => {
                let path = format!("{}.x-kubernetes-patch-strategy", keywords.path);
                return Err(error(&path, format!("must be merge, replace or retainKeys, not {other:?}")));
            }
        }
    }
    Ok(patch)
}

fn checks(keywords: &Keywords<'_>, origin: Origin) -> Result<Checks, SchemaError> {
    let path = keywords.path;
    let schemas = |keyword: &str| match keywords.fields.get(keyword) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(schemas)) => schemas
            .iter()
            .enumerate()
            .map(|(index, schema)| {
                Ok(child(schema, origin, &format!("{path}.{keyword}[{index}]"))?.schema().clone())
            })
            .collect(),
        Some(other) => Err(error(&format!("{path}.{keyword}"), expected("a list", other))),
    };
    Ok(Checks {
        minimum: keywords.number("minimum")?,
        exclusive_minimum: keywords.flag("exclusiveMinimum")?,
        maximum: keywords.number("maximum")?,
        exclusive_maximum: keywords.flag("exclusiveMaximum")?,
        multiple_of: keywords.number("multipleOf")?,
        min_length: keywords.count("minLength")?,
        max_length: keywords.count("maxLength")?,
        pattern: match keywords.text("pattern")? {
            None | Some("") => None,
            Some(pattern) => Some(Regex::new(pattern).map_err(|problem| {
                error(&format!("{path}.pattern"), format!("must be a valid regular expression: {problem}"))
            })?),
        },
        min_items: keywords.count("minItems")?,
        max_items: keywords.count("maxItems")?,
        unique_items: keywords.flag("uniqueItems")?,
        min_properties: keywords.count("minProperties")?,
        max_properties: keywords.count("maxProperties")?,
        required: keywords.list("required")?.iter().filter_map(Value::as_str).map(Into::into).collect(),
        allowed: keywords.list("enum")?.to_vec(),
        all_of: if reference(&Value::Object(keywords.fields.clone())).is_some() && origin == Origin::Builtin {
            Vec::new()
        } else {
            schemas("allOf")?
        },
        any_of: schemas("anyOf")?,
        one_of: schemas("oneOf")?,
        not: match keywords.fields.get("not") {
            None | Some(Value::Null) => None,
            Some(schema) => Some(child(schema, origin, &format!("{path}.not"))?.schema().clone()),
        },
    })
}

/// The keywords of one schema, and where it stands.
struct Keywords<'a> {
    fields: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Keywords<'a> {
    fn get<T>(
        &self,
        keyword: &str,
        what: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, SchemaError> {
        match self.fields.get(keyword) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| error(&format!("{}.{keyword}", self.path), expected(what, value))),
        }
    }

    fn flag(&self, keyword: &str) -> Result<bool, SchemaError> {
        Ok(self.get(keyword, "true or false", Value::as_bool)?.unwrap_or_default())
    }

    fn text(&self, keyword: &str) -> Result<Option<&'a str>, SchemaError> {
        self.get(keyword, "a string", Value::as_str)
    }

    fn number(&self, keyword: &str) -> Result<Option<Number>, SchemaError> {
        self.get(keyword, "a number", |value| match value {
            Value::Number(number) => Some(number.clone()),
            _ => None,
        })
    }

    fn count(&self, keyword: &str) -> Result<Option<u64>, SchemaError> {
        self.get(keyword, "a non-negative integer", Value::as_u64)
    }

    fn list(&self, keyword: &str) -> Result<&'a [Value], SchemaError> {
        Ok(self.get(keyword, "a list", |value| value.as_array().map(Vec::as_slice))?.unwrap_or_default())
    }

    fn kind(&self) -> Result<Option<Type>, SchemaError> {
        self.get("type", "object, array, string, integer, number or boolean", |value| {
            match value.as_str()? {
                "" => Some(None),
                "object" => Some(Some(Type::Object)),
                "array" => Some(Some(Type::Array)),
                "string" => Some(Some(Type::String)),
                "integer" => Some(Some(Type::Integer)),
                "number" => Some(Some(Type::Number)),
                "boolean" => Some(Some(Type::Boolean)),
                _ => None,
            }
        })
        .map(Option::flatten)
    }
}

fn expected(what: &str, found: &Value) -> String {
    format!("must be {what}, not {found}")
}

fn error(path: &str, problem: impl Into<String>) -> SchemaError {
    SchemaError { path: path.into(), problem: problem.into() }
}
