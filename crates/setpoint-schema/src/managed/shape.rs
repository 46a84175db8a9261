//! What a value is to structured merge: a scalar, a list or a map, and how it merges.

use serde_json::{Map, Value};

use crate::{
    element::{Element, Literal},
    schema::{ListType, Schema, Type},
};

/// How a value at a schema merges.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// One value, replaced as a whole: a scalar, an atomic list or an atomic map.
    Leaf,
    /// A list whose items have keys or are a set.
    List,
    /// A map or struct whose fields merge one by one.
    Map,
}

/// Which shape `value` has at `schema`. The value decides where the schema allows several types; where it fits none,
/// or is `null`, the schema does, maps before scalars before lists, as upstream resolves it.
pub(super) fn shape(schema: &Schema, value: &Value) -> Shape {
    let by_value = match value {
        Value::Null => None,
        Value::Object(_) => Some(Type::Object),
        Value::Array(_) => Some(Type::Array),
        _ => Some(Type::String),
    };
    let kind = match (schema.node.kind, by_value) {
        (None, None) => Type::Object,
        // `RawExtension` is an object by its document and any value in truth.
        (Some(Type::Object), Some(kind)) if schema.is_free_form() => kind,
        (Some(kind), _) | (None, Some(kind)) => kind,
    };
    match kind {
        Type::Object if schema.node.atomic_map => Shape::Leaf,
        Type::Object => Shape::Map,
        Type::Array if schema.node.list == ListType::Atomic => Shape::Leaf,
        Type::Array => Shape::List,
        _ => Shape::Leaf,
    }
}

/// The fields of a value that is a map; none where it is something else.
pub(super) fn fields(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// The items of a value that is a list; none where it is something else.
pub(super) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The schema of a field; what the schema does not know has no type.
pub(super) fn field<'a>(schema: &'a Schema, name: &str) -> &'a Schema {
    schema.field(name).unwrap_or(Schema::untyped_ref())
}

/// How an item of a list map or set is called.
///
/// # Errors
/// In the words of upstream: an item without a key, or one that cannot be in a set.
pub(super) fn item_element(schema: &Schema, item: &Value) -> Result<Element, String> {
    match (&schema.node.list, item) {
        (ListType::Map(_), Value::Null) => {
            Err("associative list with keys may not have a null element".into())
        }
        (ListType::Map(keys), Value::Object(fields)) => {
            let item_schema = schema.item();
            let key: Vec<_> = keys
                .iter()
                .filter_map(|name| {
                    let value = fields.get(&**name).cloned();
                    let default = || item_schema.named(name)?.node.default.clone();
                    Some((name.clone(), value.or_else(default)?))
                })
                .collect();
            if key.is_empty() {
                let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have \
                     default values for any key fields)",
                    keys.join(" ")
                ));
            }
            Ok(Element::key(key))
        }
        (ListType::Map(_), _) => Err("associative list with keys may not have non-map elements".into()),
        (_, Value::Object(_)) => Err("associative list without keys has an element that's a map type".into()),
        (_, Value::Array(_)) => Err("not supported: associative list with lists as elements".into()),
        (_, Value::Null) => {
            Err("associative list without keys has an element that's an explicit null".into())
        }
        (_, scalar) => Ok(Element::Value(Literal(scalar.clone()))),
    }
}

/// The items of a list with how they are called; items that cannot be called anything are left out.
pub(super) fn elements<'a>(schema: &Schema, items: &'a [Value]) -> Vec<(Element, &'a Value)> {
    items.iter().filter_map(|item| Some((item_element(schema, item).ok()?, item))).collect()
}
