//! Removing fields that a schema does not know.

use std::fmt::{self, Write as _};

use serde_json::Value;

use crate::schema::{Additional, Child, Schema};

/// A field that the schema does not know. Printed as warnings and strict decoding errors name it:
/// `unknown field "spec.foo"`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownField {
    /// The path, such as `spec.ports[0].foo`.
    pub path: String,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown field {:?}", self.path)
    }
}

/// Removes every field that `schema` does not know and answers which, sorted; those of a custom resource's `metadata` first.
///
/// `x-kubernetes-preserve-unknown-fields` keeps them, except in listed fields below it. Objects of the API have
/// `apiVersion`, `kind` and `metadata`, listed or not.
pub fn prune(schema: &Schema, value: &mut Value) -> Vec<UnknownField> {
    let mut prune = Prune { path: String::new(), unknown: Vec::new() };
    prune.value(Some(schema), value);
    let mut unknown = prune.unknown;
    // The metadata of custom resources is read before the rest.
    let custom = !schema.node.builtin;
    unknown.sort_by_cached_key(|path| (!(custom && path.starts_with("metadata.")), path.clone()));
    unknown.into_iter().map(|path| UnknownField { path }).collect()
}

struct Prune {
    path: String,
    unknown: Vec<String>,
}

impl Prune {
    /// `None` for a schema is one that knows nothing, and keeps no field.
    fn value(&mut self, schema: Option<&Schema>, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let names: Vec<String> = fields.keys().cloned().collect();
                for name in names {
                    let length = self.path.len();
                    if length > 0 {
                        self.path.push('.');
                    }
                    self.path.push_str(&name);
                    match schema.map_or(Known::No, |schema| known(schema, &name)) {
                        Known::AsIs => {}
                        Known::By(below) => {
                            if let Some(value) = fields.get_mut(&name) {
                                self.value(below, value);
                            }
                        }
                        Known::No => {
                            self.unknown.push(self.path.clone());
                            fields.remove(&name);
                        }
                    }
                    self.path.truncate(length);
                }
            }
            Value::Array(items) => {
                let below = match schema {
                    // Inside what is kept, items without a schema are kept.
                    Some(schema)
                        if schema.node.items.is_none()
                            && (schema.node.preserve_unknown || schema.node.builtin) =>
                    {
                        return;
                    }
                    Some(schema) => schema.node.items.as_ref().map(Child::schema),
                    None => None,
                };
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    // Writing to a String does not fail.
                    let _ = write!(self.path, "[{index}]");
                    self.value(below, item);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }
}

enum Known<'a> {
    /// Kept with all that is in it.
    AsIs,
    /// Kept, and pruned by this schema; `None` keeps no field in it.
    By(Option<&'a Schema>),
    No,
}

fn known<'a>(schema: &'a Schema, name: &str) -> Known<'a> {
    let node = &schema.node;
    if node.resource && matches!(name, "apiVersion" | "kind") {
        return Known::AsIs;
    }
    if let Some(field) = schema.named(name) {
        return Known::By(Some(field));
    }
    match &node.additional {
        Additional::Schema(child) => Known::By(Some(child.schema())),
        _ if node.preserve_unknown => Known::AsIs,
        // In the documents of built-in kinds a value without fields or type may be anything.
        _ if node.builtin && node.properties.is_empty() => Known::AsIs,
        Additional::Allowed => Known::By(None),
        _ => Known::No,
    }
}
