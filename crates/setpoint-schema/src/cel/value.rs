//! From JSON to CEL values, as a schema types them.

use std::sync::Arc;

use base64::Engine;
use kube_cel::cel::{
    self,
    functions::time,
    objects::{Key, Map},
};
use serde_json::Value;

use crate::schema::{Additional, Schema, Type};

pub(super) fn to_cel(schema: &Schema, value: &Value) -> cel::Value {
    let node = &schema.node;
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) if node.kind != Some(Type::Number) => cel::Value::Int(integer),
            _ if node.kind == Some(Type::Integer) => {
                cel::Value::Int(number.as_f64().unwrap_or_default() as i64)
            }
            _ => cel::Value::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => text_to_cel(node.format.as_deref(), text),
        Value::Array(items) => {
            cel::Value::List(Arc::new(items.iter().map(|item| to_cel(schema.item(), item)).collect()))
        }
        Value::Object(fields) => {
            // Keys of maps are data; names of fields are escaped so that rules can select them.
            let is_map = matches!(node.additional, Additional::Schema(_) | Additional::Allowed);
            // A field that is null counts as not there.
            let map = fields
                .iter()
                .filter(|(_, value)| is_map || !value.is_null())
                .map(|(name, value)| {
                    let below = schema.field(name).unwrap_or(Schema::untyped_ref());
                    let name = if is_map { name.clone() } else { escape(name) };
                    (Key::String(Arc::new(name)), to_cel(below, value))
                })
                .collect();
            cel::Value::Map(Map { map: Arc::new(map) })
        }
    }
}

/// Formatted strings are values of their own; one that does not parse stays a string.
fn text_to_cel(format: Option<&str>, text: &str) -> cel::Value {
    let string = || Arc::new(text.to_owned());
    let value = match format {
        Some("date-time") => time::timestamp(string()).ok(),
        Some("date") => time::timestamp(Arc::new(format!("{text}T00:00:00Z"))).ok(),
        Some("duration") => time::duration(string()).ok(),
        Some("byte") => base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()
            .map(|bytes| cel::Value::Bytes(Arc::new(bytes))),
        _ => None,
    };
    value.unwrap_or_else(|| cel::Value::String(string()))
}

/// Names that CEL reserves.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether CEL reserves `name`, so that no variable or field of a rule can be called by it.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// A field's name in a rule: `__` is `__underscores__`, `.` is `__dot__`, `-` is `__dash__`, `/` is `__slash__`, and
/// a reserved word stands between `__` (Kubernetes: CustomResourceDefinitions, "Validation rules"; kube-cel escapes
/// single underscores too, which Kubernetes does not).
pub(super) fn escape(name: &str) -> String {
    if is_reserved(name) {
        return format!("__{name}__");
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn names_are_escaped_as_kubernetes_does() {
        for (name, escaped) in [
            ("maxMemory", "maxMemory"),
            ("max_memory", "max_memory"),
            ("x__y", "x__underscores__y"),
            ("a-b.c/d", "a__dash__b__dot__c__slash__d"),
            ("namespace", "__namespace__"),
        ] {
            assert_eq!(escape(name), escaped);
        }
    }
}
