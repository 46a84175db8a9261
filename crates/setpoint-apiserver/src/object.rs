//! Reading and writing the metadata of an object.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// Read access to `metadata`, with empty texts for what is absent.
pub(crate) trait Metadata {
    fn meta(&self, field: &str) -> &str;
    fn finalizers(&self) -> Vec<&str>;
    fn is_deleting(&self) -> bool;
    fn generation(&self) -> i64;
}

impl Metadata for Value {
    fn meta(&self, field: &str) -> &str {
        self["metadata"][field].as_str().unwrap_or_default()
    }

    fn finalizers(&self) -> Vec<&str> {
        let list = self["metadata"]["finalizers"].as_array();
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    fn is_deleting(&self) -> bool {
        !self.meta("deletionTimestamp").is_empty()
    }

    fn generation(&self) -> i64 {
        self["metadata"]["generation"].as_i64().unwrap_or_default()
    }
}

/// The metadata of an object, made if it isn't there. An object that is no JSON object becomes one.
pub(crate) fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    fields(fields(object).entry("metadata").or_insert_with(empty))
}

/// `value` as a JSON object; anything else is replaced by an empty one.
pub(crate) fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = empty();
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("made an object above"),
    }
}

fn empty() -> Value {
    Value::Object(Map::new())
}

/// Sets a field of the metadata, or removes it for an empty text.
pub(crate) fn set_meta(object: &mut Value, field: &str, value: &str) {
    let meta = meta_mut(object);
    if value.is_empty() {
        meta.remove(field);
    } else {
        meta.insert(field.to_owned(), value.into());
    }
}

/// Copies a field of the metadata from `from`, or removes it where `from` has none.
pub(crate) fn copy_meta(to: &mut Value, from: &Value, field: &str) {
    copy(meta_mut(to), from["metadata"].as_object(), field);
}

/// Copies a top-level field from `from`, or removes it where `from` has none.
pub(crate) fn copy_field(to: &mut Value, from: &Value, field: &str) {
    copy(fields(to), from.as_object(), field);
}

fn copy(to: &mut Map<String, Value>, from: Option<&Map<String, Value>>, field: &str) {
    match from.and_then(|from| from.get(field)) {
        Some(value) => to.insert(field.to_owned(), value.clone()),
        None => to.remove(field),
    };
}

/// A time as Kubernetes writes it: whole seconds in UTC.
pub(crate) fn timestamp(at: Timestamp) -> String {
    // Printing RFC 3339 takes a fraction of what a format of one's own does.
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// The type that Go gives to a decoded JSON value.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
