//! The field set of an object: what somebody who applies it will own.

use std::collections::BTreeMap;

use serde_json::Value;

use super::shape::{Shape, elements, field, items, shape};
use crate::{
    element::Element,
    field_set::{FieldSet, Node},
    schema::Schema,
};

impl FieldSet {
    /// Every field that `object` sets: leaves, items of list maps and sets, entries of maps, and empty values.
    /// Atomic lists and maps are leaves.
    pub fn of(schema: &Schema, object: &Value) -> Self {
        node(schema, object).children
    }

    /// This set with the listed fields on the way to its members as members too. A struct's field belongs to whoever
    /// owns something below it; an entry of a map or an item of a list is owned by itself.
    pub(super) fn with_named_fields(&self, schema: &Schema) -> Self {
        let mut set = Self::default();
        for (element, node) in self.nodes() {
            let (child, named) = match element {
                Element::Field(name) => (field(schema, name), schema.named(name).is_some()),
                _ => (schema.item(), false),
            };
            set.attach(
                element.clone(),
                Node {
                    member: node.member || named && !node.children.is_empty(),
                    children: node.children.with_named_fields(child),
                },
            );
        }
        set
    }
}

/// The set at and below one value.
pub(super) fn node(schema: &Schema, value: &Value) -> Node {
    match (shape(schema, value), value) {
        (Shape::Leaf, _) => Node::leaf(),
        (Shape::Map, Value::Object(fields)) => {
            let mut children = FieldSet::default();
            for (name, value) in fields {
                let mut child = node(field(schema, name), value);
                let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                child.member |= empty || schema.named(name).is_none();
                children.attach(Element::field(name.as_str()), child);
            }
            Node { member: false, children }
        }
        (Shape::List, Value::Array(_)) => {
            let listed = elements(schema, items(Some(value)));
            let mut seen = BTreeMap::new();
            for (element, _) in &listed {
                *seen.entry(element.clone()).or_insert(0_usize) += 1;
            }
            let mut children = FieldSet::default();
            for (element, item) in listed {
                // Duplicates are owned as one, without what is in them.
                let mut child = if seen[&element] > 1 { Node::default() } else { node(schema.item(), item) };
                child.member = true;
                children.attach(element, child);
            }
            Node { member: false, children }
        }
        _ => Node::default(),
    }
}
