//! Filling in defaults.

use serde_json::{Map, Value};

use crate::schema::{Child, Schema, Type};

/// Fills in every default of `schema` whose field is missing, or `null` where that is not allowed, and removes fields
/// that are `null`, not nullable and without a default. Defaults come in below objects that exist or that a default
/// brought in; a missing object without a default stays missing.
///
/// In `metadata` of custom resources what is empty goes, as it does when a server decodes it.
///
/// For built-in kinds only defaults that are not Go's zero values count: `protocol: TCP`, but not `""` or `{}`.
pub fn default(schema: &Schema, value: &mut Value) {
    fill(schema, value, Nulls::Drop);
}

/// As [`default`], for what a server-side apply of `intent` made of a custom resource: a `null` that is not allowed stays, for validation to refuse.
/// Upstream drops such values when it decodes a body, and what was applied it does not decode again.
pub fn default_applied(schema: &Schema, value: &mut Value, intent: &Value) {
    fill(schema, value, Nulls::Keep(Some(intent)));
}

/// What happens to a `null` that is not allowed.
#[derive(Clone, Copy)]
enum Nulls<'a> {
    Drop,
    /// It stays: in what was applied, at this place, if that is known.
    Keep(Option<&'a Value>),
}

impl Nulls<'_> {
    fn below(self, name: &str) -> Self {
        match self {
            Self::Drop => Self::Drop,
            Self::Keep(intent) => Self::Keep(intent.and_then(|intent| intent.get(name))),
        }
    }

    /// Whether a `null` of `schema` stays. A list that an apply has emptied goes, an object does not.
    fn stays(self, schema: &Schema) -> bool {
        match self {
            Self::Drop => false,
            Self::Keep(Some(Value::Null)) => true,
            Self::Keep(_) => schema.node.kind != Some(Type::Array),
        }
    }
}

fn fill(schema: &Schema, value: &mut Value, nulls: Nulls<'_>) {
    match value {
        Value::Object(fields) => {
            if schema.node.resource
                && let Some(Value::Object(metadata)) = fields.get_mut("metadata")
            {
                // In Go it is a pointer: zero is not nothing.
                metadata.retain(|name, value| name == "deletionGracePeriodSeconds" || !is_zero(value));
            }
            for (name, child) in schema.node.properties.iter() {
                // Looking behind a reference reads its definition: only where there is something to look at.
                let absent = !fields.contains_key(name);
                let declared = match child {
                    Child::Inline(schema) => schema.node.default.as_ref(),
                    Child::Reference(reference) => reference.default.as_ref(),
                };
                let Some(default) = declared.filter(|default| !(schema.node.builtin && is_zero(default)))
                else {
                    continue;
                };
                if absent || fields.get(name).is_some_and(Value::is_null) && !child.schema().node.nullable {
                    fields.insert(name.clone(), default.clone());
                }
            }
            fields.retain(|name, value| {
                let Some(child) = schema.declared(name) else { return true };
                match value {
                    Value::Null => {
                        let below = child.schema();
                        if let Some(default) = &below.node.default
                            && !below.node.nullable
                            && !below.node.builtin
                        {
                            *value = default.clone();
                        }
                        below.node.nullable || !value.is_null() || nulls.below(name).stays(below)
                    }
                    Value::Object(_) | Value::Array(_) => {
                        fill(child.schema(), value, nulls.below(name));
                        true
                    }
                    _ => true,
                }
            });
        }
        Value::Array(items) => {
            if let Some(child) = &schema.node.items {
                for item in items.iter_mut() {
                    let below = child.schema();
                    if item.is_null()
                        && !below.node.nullable
                        && let Some(default) = &below.node.default
                    {
                        *item = default.clone();
                    }
                    fill(below, item, nulls.below(""));
                }
            }
        }
        _ => {}
    }
}

/// Go's zero values, which it writes as nothing.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields == &Map::new(),
    }
}
