//! Uniqueness in list maps and sets.

use serde_json::{Map, Value};

use crate::{
    element::equal,
    field_error::{FieldError, FieldPath},
    schema::{Additional, ListType, Schema},
};

/// The way to a value; a path is only made of it for an error.
pub(super) enum Trail<'a> {
    Start(&'a FieldPath),
    Child(&'a Self, &'a str),
    Key(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl Trail<'_> {
    fn path(&self) -> FieldPath {
        match self {
            Self::Start(path) => (*path).clone(),
            Self::Child(parent, name) => parent.path().child(name),
            Self::Key(parent, key) => parent.path().key(key),
            Self::Index(parent, index) => parent.path().index(*index),
        }
    }
}

/// Reports the first repetition of each value of a set and of each key of a list map.
pub(super) fn check(schema: &Schema, value: &Value, trail: &Trail<'_>, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (schema.node.properties.get(name), &schema.node.additional) {
                    (Some(child), _) => check(child.schema(), value, &Trail::Child(trail, name), errors),
                    (None, Additional::Schema(child)) => {
                        check(child.schema(), value, &Trail::Key(trail, name), errors);
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
                        errors.push(FieldError::duplicate(&trail.path().index(index), items[index].clone()));
                    }
                }
                ListType::Map(keys) => {
                    if let Some((index, item)) =
                        items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null())
                    {
                        let detail = "must be an object for an array of list-type map";
                        errors.push(FieldError::invalid(&trail.path().index(index), item.clone(), detail));
                        return;
                    }
                    let keys: Vec<Value> = items.iter().map(|item| key_of(item, keys)).collect();
                    for index in repeated(&keys) {
                        errors.push(FieldError::duplicate(&trail.path().index(index), keys[index].clone()));
                    }
                }
            }
            for (index, item) in items.iter().enumerate() {
                check(schema.item(), item, &Trail::Index(trail, index), errors);
            }
        }
        _ => {}
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
