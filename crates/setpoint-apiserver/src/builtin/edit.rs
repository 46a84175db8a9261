//! Small edits of JSON objects. As in Go, where a missing field is its zero value, an empty text counts as absent.

use serde_json::{Map, Value};

/// Whether a field counts as absent.
pub fn is_empty(value: &Value) -> bool {
    value.is_null() || value == ""
}

/// Sets a field that is absent.
pub fn fill(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Value::Object(fields) = object
        && fields.get(key).is_none_or(is_empty)
    {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Sets a field that is not there: one that Go has a pointer for, where an empty text is something.
pub fn fill_absent(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Value::Object(fields) = object
        && fields.get(key).is_none_or(Value::is_null)
    {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Sets a number that is absent or zero: for numbers that upstream has no pointer for.
pub fn fill_number(object: &mut Value, key: &str, number: i64) {
    if object.get(key).is_some_and(|value| value.as_i64() == Some(0)) {
        object[key] = number.into();
    }
    fill(object, key, number);
}

/// Sets a field, if `object` is an object.
pub fn set(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Value::Object(fields) = object {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Removes a field.
pub fn remove(object: &mut Value, key: &str) -> Option<Value> {
    object.as_object_mut()?.remove(key)
}

/// The object in a field, made if it is absent.
pub fn child<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    fill(object, key, Map::new());
    // Not an object: the caller's edits do nothing to what validation will refuse.
    &mut object[key]
}

/// The object in a field, if there is one.
pub fn existing<'a>(object: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    object.get_mut(key).filter(|value| value.is_object())
}

/// The elements of the list in a field.
pub fn items<'a>(object: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The text in a field, or an empty one.
pub fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The list in a field, or an empty one.
pub fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Copies a field from another object, or removes it if that has none.
pub fn copy(object: &mut Value, from: &Value, key: &str) {
    match from.get(key) {
        Some(value) => set(object, key, value.clone()),
        None => drop(remove(object, key)),
    }
}
