//! What a write changed, field by field.

use std::collections::BTreeMap;

use serde_json::Value;

use super::shape::{Shape, elements, field, fields, items, shape};
use crate::{
    element::{Element, equal},
    field_set::{FieldSet, Node},
    omit::with_zeros,
    schema::Schema,
};

/// The difference between two objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

/// Compares `old` with `new`, leaving out what is in or below `ignored`. What Go's types of built-in kinds always write is in both, so nobody
/// comes to own them.
pub(super) fn compare(schema: &Schema, old: &Value, new: &Value, ignored: &FieldSet) -> Comparison {
    let (old, new) = (with_zeros(schema, old), with_zeros(schema, new));
    let changes = walk(schema, Some(&old), Some(&new));
    let kept = |mut node: Node| {
        node.children.remove_below(ignored);
        node.children
    };
    Comparison {
        added: kept(changes.added),
        modified: kept(changes.modified),
        removed: kept(changes.removed),
    }
}

/// The changes at and below one value.
#[derive(Default)]
struct Changes {
    added: Node,
    modified: Node,
    removed: Node,
}

impl Changes {
    fn attach(&mut self, element: Element, below: Self) {
        // Most values only came, only changed or only went.
        let mut sorts = [
            (&mut self.added, below.added),
            (&mut self.modified, below.modified),
            (&mut self.removed, below.removed),
        ]
        .into_iter()
        .filter(|(_, node)| !node.is_empty())
        .peekable();
        while let Some((into, node)) = sorts.next() {
            if sorts.peek().is_none() {
                into.children.attach(element, node);
                return;
            }
            into.children.attach(element.clone(), node);
        }
    }

    fn leaf(old: Option<&Value>, new: Option<&Value>) -> Self {
        let mut changes = Self::default();
        match (old, new) {
            (None, Some(_)) => changes.added.member = true,
            (Some(_), None) => changes.removed.member = true,
            (Some(old), Some(new)) => changes.modified.member = !equal(old, new),
            (None, None) => {}
        }
        changes
    }
}

fn walk(schema: &Schema, old: Option<&Value>, new: Option<&Value>) -> Changes {
    let (old_shape, new_shape) = match (old, new) {
        (None, None) => return Changes::default(),
        (Some(old), Some(new)) => {
            if old == new {
                return Changes::default();
            }
            (shape(schema, old), shape(schema, new))
        }
        (Some(one), None) | (None, Some(one)) => (shape(schema, one), shape(schema, one)),
    };
    let (mut changes, mut leaf) = walk_as(schema, new_shape, old, new);
    if std::mem::discriminant(&old_shape) != std::mem::discriminant(&new_shape) {
        // The value changed its kind: the old one goes in its own shape, the new one came in its own.
        let (other, _) = walk_as(schema, old_shape, old, new);
        for (into, from) in [
            (&mut changes.added, other.added),
            (&mut changes.modified, other.modified),
            (&mut changes.removed, other.removed),
        ] {
            into.member |= from.member;
            into.children.extend(from.children);
        }
        leaf = false;
    }
    if !leaf {
        changes.added.member |= old.is_none();
        changes.removed.member |= new.is_none();
    }
    changes
}

/// Compares two values as one shape; also whether they were compared as a whole.
fn walk_as(schema: &Schema, shape: Shape, old: Option<&Value>, new: Option<&Value>) -> (Changes, bool) {
    match shape {
        Shape::Leaf => (Changes::leaf(old, new), true),
        Shape::Map => {
            let (old_fields, new_fields) = (fields(old), fields(new));
            let none = |fields: Option<&serde_json::Map<String, Value>>| {
                fields.is_none_or(serde_json::Map::is_empty)
            };
            if none(old_fields) && none(new_fields) {
                // Keeps apart what is empty, null or absent.
                return (Changes::leaf(old, new), true);
            }
            let mut changes = Changes::default();
            for (name, old) in old_fields.into_iter().flatten() {
                let new = new_fields.and_then(|fields| fields.get(name));
                if new != Some(old) {
                    changes.attach(Element::field(name.as_str()), walk(field(schema, name), Some(old), new));
                }
            }
            for (name, new) in new_fields.into_iter().flatten() {
                if old_fields.is_none_or(|fields| !fields.contains_key(name)) {
                    changes.attach(Element::field(name.as_str()), walk(field(schema, name), None, Some(new)));
                }
            }
            (changes, false)
        }
        Shape::List => {
            let (old_items, new_items) = (items(old), items(new));
            if old_items.is_empty() && new_items.is_empty() {
                return (Changes::leaf(old, new), true);
            }
            (walk_items(schema, old_items, new_items), false)
        }
    }
}

fn walk_items(schema: &Schema, old: &[Value], new: &[Value]) -> Changes {
    let mut by_element: BTreeMap<Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for (element, item) in elements(schema, old) {
        by_element.entry(element).or_default().0.push(item);
    }
    for (element, item) in elements(schema, new) {
        by_element.entry(element).or_default().1.push(item);
    }
    let mut changes = Changes::default();
    for (element, (old, new)) in by_element {
        let marker = |changes: Changes, pick: fn(&mut Changes) -> &mut Node| {
            let mut changes = changes;
            pick(&mut changes).member = true;
            changes
        };
        let below = match (old.as_slice(), new.as_slice()) {
            ([], [new]) => walk(schema.item(), None, Some(new)),
            ([old], []) => walk(schema.item(), Some(old), None),
            ([old], [new]) => walk(schema.item(), Some(old), Some(new)),
            // Items with one key are compared as a whole and owned as one.
            ([_, _, ..], [_, _, ..]) if old.iter().eq(new.iter()) => Changes::default(),
            ([_, _, ..], [_, _, ..]) => marker(Changes::default(), |changes| &mut changes.modified),
            ([_, _, ..], new) => {
                marker(walk(schema.item(), None, new.first().copied()), |changes| &mut changes.removed)
            }
            (old, _) => marker(walk(schema.item(), old.first().copied(), None), |changes| &mut changes.added),
        };
        changes.attach(element, below);
    }
    changes
}
