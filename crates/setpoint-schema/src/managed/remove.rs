//! Taking a set of fields out of an object.

use serde_json::Value;

use super::shape::{Shape, field, item_element, shape};
use crate::{
    element::Element,
    field_error::FieldPath,
    field_set::FieldSet,
    schema::{Schema, Type},
};

/// `value` without what `set` names. A map or list that loses its last entry by that becomes `null`, as upstream's does;
/// what was empty before stays.
pub(super) fn remove(schema: &Schema, value: Value, set: &FieldSet) -> Value {
    if set.is_empty() {
        return value;
    }
    match (shape(schema, &value), value) {
        (Shape::Map, Value::Object(mut fields)) if !fields.is_empty() => {
            for (element, node) in set.nodes() {
                let Element::Field(name) = element else { continue };
                if node.member {
                    fields.remove(&**name);
                } else if let Some(value) = fields.get_mut(&**name) {
                    *value = remove(field(schema, name), value.take(), &node.children);
                }
            }
            if fields.is_empty() { Value::Null } else { Value::Object(fields) }
        }
        (Shape::List, Value::Array(items)) if !items.is_empty() => {
            let kept: Vec<Value> = items
                .into_iter()
                .filter_map(|item| {
                    let node = item_element(schema, &item).ok().and_then(|element| set.node(&element));
                    match node {
                        None => Some(item),
                        Some(node) if node.member => None,
                        Some(node) => Some(remove(schema.item(), item, &node.children)),
                    }
                })
                .collect();
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        (_, value) => value,
    }
}

/// The objects of a custom resource that an apply has emptied, and that may not be `null`: they are invalid then, since upstream leaves a `null` of the
/// type of objects that no default replaces.
pub fn emptied(schema: &Schema, object: &Value, intent: &Value) -> Vec<FieldPath> {
    let mut found = Vec::new();
    walk(schema, object, Some(intent), &FieldPath::root(), &mut found);
    found
}

fn walk(
    schema: &Schema,
    object: &Value,
    intent: Option<&Value>,
    path: &FieldPath,
    found: &mut Vec<FieldPath>,
) {
    match object {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !path.is_root() || *name != "metadata") {
                let (below, intent) = (field(schema, name), intent.and_then(|intent| intent.get(name)));
                let path = path.child(name);
                let node = &below.node;
                if !value.is_null() {
                    walk(below, value, intent, &path, found);
                } else if intent.is_none_or(|intent| !intent.is_null())
                    && node.kind == Some(Type::Object)
                    && !node.nullable
                    && node.default.is_none()
                {
                    found.push(path);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(schema.item(), item, None, &path.index(index), found);
            }
        }
        _ => {}
    }
}
