//! Uniqueness in list maps and sets.

use serde_json::{Map, Value};

use crate::{
    element::equal,
    field_error::{FieldError, FieldPath},
    schema::{Additional, ListType, Schema},
};

/// Reports the first repetition of each value of a set and of each key of a list map.
pub(super) fn check(schema: &Schema, value: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (schema.node.properties.get(name), &schema.node.additional) {
                    (Some(child), _) => descend(child.schema(), value, || path.child(name), errors),
                    (None, Additional::Schema(child)) => {
                        descend(child.schema(), value, || path.key(name), errors);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            match &schema.node.list {
                ListType::Atomic => {}
                ListType::Set => {
                    for index in repeated(items) {
                        errors.push(FieldError::duplicate(&path.index(index), items[index].clone()));
                    }
                }
                ListType::Map(keys) => {
                    if let Some((index, item)) =
                        items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null())
                    {
                        let detail = "must be an object for an array of list-type map";
                        errors.push(FieldError::invalid(&path.index(index), item.clone(), detail));
                        return;
                    }
                    let keys: Vec<Value> = items.iter().map(|item| key_of(item, keys)).collect();
                    for index in repeated(&keys) {
                        errors.push(FieldError::duplicate(&path.index(index), keys[index].clone()));
                    }
                }
            }
            for (index, item) in items.iter().enumerate() {
                descend(schema.item(), item, || path.index(index), errors);
            }
        }
        _ => {}
    }
}

/// Goes into lists and maps only, so that no path is made for a scalar.
fn descend(schema: &Schema, value: &Value, path: impl FnOnce() -> FieldPath, errors: &mut Vec<FieldError>) {
    if matches!(value, Value::Object(_) | Value::Array(_)) {
        check(schema, value, &path(), errors);
    }
}

fn key_of(item: &Value, keys: &[Box<str>]) -> Value {
    let fields: Map<String, Value> =
        keys.iter().filter_map(|key| Some((key.to_string(), item.get(&**key)?.clone()))).collect();
    Value::Object(fields)
}

/// The indices of second appearances.
fn repeated(items: &[Value]) -> Vec<usize> {
    let earlier = |index: usize| items[..index].iter().filter(|other| equal(other, &items[index])).count();
    (1..items.len()).filter(|index| earlier(*index) == 1).collect()
}
