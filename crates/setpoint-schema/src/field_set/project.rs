//! The part of an object that a field set covers.

use serde_json::{Map, Value};

use super::{FieldSet, Node};
use crate::element::Element;

/// The part of `object` that `set` covers, without a schema: the values at its leaves, the items of list maps that
/// its keys name (with no key field that the set does not have), the items of sets that its values name.
///
/// Items keep the order they have in `object`. A path that `object` lacks is left out, and so is an object or list
/// that only led to such paths.
///
/// ```
/// # use setpoint_schema::{FieldSet, project};
/// # use serde_json::json;
/// let live = json!({"spec": {"replicas": 3, "paused": false, "ports": [
///     {"name": "web", "port": 80, "protocol": "TCP"}, {"name": "metrics", "port": 9090},
/// ]}});
/// let ours = FieldSet::from_fields_v1(&json!({"f:spec": {
///     "f:replicas": {}, "f:ports": {"k:{\"name\":\"web\"}": {".": {}, "f:name": {}, "f:port": {}}},
/// }}))?;
/// let expected = json!({"spec": {"replicas": 3, "ports": [{"name": "web", "port": 80}]}});
/// assert_eq!(project(&live, &ours), expected);
/// # Ok::<(), setpoint_schema::FieldSetError>(())
/// ```
pub fn project(object: &Value, set: &FieldSet) -> Value {
    below(object, set).unwrap_or_else(|| Value::Object(Map::new()))
}

/// The covered part, or nothing when nothing is covered.
fn below(value: &Value, set: &FieldSet) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            let part: Map<String, Value> = set
                .nodes()
                .filter_map(|(element, node)| {
                    let Element::Field(name) = element else { return None };
                    Some((name.to_string(), covered(fields.get(&**name)?, node)?))
                })
                .collect();
            (!part.is_empty()).then_some(Value::Object(part))
        }
        Value::Array(items) => {
            let part: Vec<Value> = items
                .iter()
                .enumerate()
                .filter_map(|(index, value)| {
                    let (_, node) = set.nodes().find(|(element, _)| element.names(index, value))?;
                    covered(value, node)
                })
                .collect();
            (!part.is_empty()).then_some(Value::Array(part))
        }
        _ => None,
    }
}

fn covered(value: &Value, node: &Node) -> Option<Value> {
    if node.children.is_empty() {
        return Some(value.clone());
    }
    match below(value, &node.children) {
        None if node.member => Some(match value {
            Value::Object(_) => Value::Object(Map::new()),
            Value::Array(_) => Value::Array(Vec::new()),
            // The value is no longer of the shape that was owned: show what is there.
            other => other.clone(),
        }),
        part => part,
    }
}
