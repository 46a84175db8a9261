//! Taking a set of fields out of an object.

use serde_json::{Map, Value};

use super::shape::{Shape, field, item_element, shape};
use crate::{element::Element, field_set::FieldSet, schema::Schema};

/// `value` without what `set` names. What was emptied by that is gone too; what was empty before stays.
pub(super) fn remove(schema: &Schema, value: &Value, set: &FieldSet) -> Option<Value> {
    if set.is_empty() {
        return Some(value.clone());
    }
    match (shape(schema, value), value) {
        (Shape::Map, Value::Object(fields)) if !fields.is_empty() => {
            let mut kept = Map::new();
            for (name, value) in fields {
                match set.node(&Element::field(name.as_str())) {
                    None => {
                        kept.insert(name.clone(), value.clone());
                    }
                    Some(node) if node.member => {}
                    Some(node) => {
                        if let Some(value) = remove(field(schema, name), value, &node.children) {
                            kept.insert(name.clone(), value);
                        }
                    }
                }
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        (Shape::List, Value::Array(items)) if !items.is_empty() => {
            let kept: Vec<Value> = items
                .iter()
                .filter_map(|item| {
                    let node = item_element(schema, item).ok().and_then(|element| set.node(&element));
                    match node {
                        None => Some(item.clone()),
                        Some(node) if node.member => None,
                        Some(node) => remove(schema.item(), item, &node.children),
                    }
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        _ => Some(value.clone()),
    }
}
