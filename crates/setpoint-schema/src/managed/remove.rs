//! Taking a set of fields out of an object.

use serde_json::Value;

use super::shape::{Shape, field, item_element, shape};
use crate::{element::Element, field_set::FieldSet, schema::Schema};

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
