//! Merging an applied configuration into the live object.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value};

use super::shape::{Shape, elements, field, fields, items, shape};
use crate::{element::Element, schema::Schema};

/// The live object with everything that `intent` sets.
pub(super) fn merge(schema: &Schema, live: &Value, intent: &Value) -> Value {
    merge_value(schema, Some(live), intent)
}

fn merge_value(schema: &Schema, live: Option<&Value>, intent: &Value) -> Value {
    match shape(schema, intent) {
        Shape::Leaf => intent.clone(),
        Shape::Map => {
            let (live_fields, intent_fields) = (fields(live), fields(Some(intent)));
            if live_fields.is_none_or(Map::is_empty) && intent_fields.is_none_or(Map::is_empty) {
                return intent.clone();
            }
            let mut merged = live_fields.cloned().unwrap_or_default();
            for (name, value) in intent_fields.into_iter().flatten() {
                let there = live_fields.and_then(|fields| fields.get(name));
                merged.insert(name.clone(), merge_value(field(schema, name), there, value));
            }
            Value::Object(merged)
        }
        Shape::List => {
            let (live_items, intent_items) = (items(live), items(Some(intent)));
            if live_items.is_empty() && intent_items.is_empty() {
                return intent.clone();
            }
            Value::Array(merge_items(schema, live_items, intent_items))
        }
    }
}

/// Merges two lists by what their items are called. The applied items come in their own order; live items that are
/// not applied stay before the shared item that they were before.
fn merge_items(schema: &Schema, live: &[Value], intent: &[Value]) -> Vec<Value> {
    let live = elements(schema, live);
    let intent = elements(schema, intent);
    let mut live_by_element: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in &live {
        // An applied item does not merge with one of several live ones: it takes their place.
        live_by_element.entry(element).and_modify(|there| *there = None).or_insert(Some(item));
    }
    let applied: BTreeMap<&Element, &Value> = intent.iter().map(|(element, item)| (element, *item)).collect();
    let merged_item = |element: &Element, item: &Value| {
        merge_value(schema.item(), live_by_element.get(element).copied().flatten(), item)
    };

    let mut shared: VecDeque<&Element> = intent
        .iter()
        .map(|(element, _)| element)
        .filter(|element| live_by_element.contains_key(element))
        .collect();
    let mut out = Vec::with_capacity(live.len().max(intent.len()));
    let (mut at_live, mut at_intent) = (0, 0);
    while at_live < live.len() || at_intent < intent.len() {
        if let (Some((there, _)), Some((wanted, item))) = (live.get(at_live), intent.get(at_intent)) {
            if there == wanted {
                out.push(merged_item(wanted, item));
                at_live += 1;
                at_intent += 1;
                shared.pop_front();
                continue;
            }
            if applied.contains_key(there) && shared.front().is_some_and(|next| *next != there) {
                // A shared item, but another one's turn: it comes where it is applied.
                at_live += 1;
                continue;
            }
        }
        if let Some((there, item)) = live.get(at_live) {
            if !applied.contains_key(there) {
                out.push((*item).clone());
                at_live += 1;
                continue;
            }
            if intent[..at_intent].iter().any(|(element, _)| element == there) {
                at_live += 1;
            }
        }
        if let Some((wanted, item)) = intent.get(at_intent) {
            out.push(merged_item(wanted, item));
            at_intent += 1;
            if shared.front() == Some(&wanted) {
                shared.pop_front();
            }
        }
    }
    out
}
