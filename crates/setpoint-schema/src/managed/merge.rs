//! Merging an applied configuration into the live object.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use super::shape::{Shape, elements, field, item_element, shape};
use crate::{element::Element, schema::Schema};

/// The live object with everything that `intent` sets.
pub(super) fn merge(schema: &Schema, live: &Value, intent: &Value) -> Value {
    merge_value(schema, Some(live.clone()), intent)
}

/// Merges in place: what the intent does not mention is moved, not copied.
fn merge_value(schema: &Schema, live: Option<Value>, intent: &Value) -> Value {
    match (shape(schema, intent), live) {
        (Shape::Map, Some(Value::Object(mut merged))) if !merged.is_empty() => {
            for (name, value) in intent.as_object().into_iter().flatten() {
                match merged.get_mut(name) {
                    Some(there) => *there = merge_value(field(schema, name), Some(there.take()), value),
                    None => {
                        merged.insert(name.clone(), merge_value(field(schema, name), None, value));
                    }
                }
            }
            Value::Object(merged)
        }
        (Shape::List, Some(Value::Array(items))) if !items.is_empty() => match intent.as_array() {
            Some(intent) => Value::Array(merge_items(schema, items, intent)),
            None => Value::Array(items),
        },
        // There is nothing to merge with: the intent as it is, which keeps what is empty, null or absent apart.
        _ => intent.clone(),
    }
}

/// Merges two lists by what their items are called. The applied items come in their own order; live items that are
/// not applied stay before the shared item that they were before.
fn merge_items(schema: &Schema, live: Vec<Value>, intent: &[Value]) -> Vec<Value> {
    let mut live: Vec<(Element, Option<Value>)> =
        live.into_iter().filter_map(|item| Some((item_element(schema, &item).ok()?, Some(item)))).collect();
    let intent = elements(schema, intent);
    let mut places: BTreeMap<Element, Vec<usize>> = BTreeMap::new();
    for (index, (element, _)) in live.iter().enumerate() {
        places.entry(element.clone()).or_default().push(index);
    }
    let applied: BTreeSet<&Element> = intent.iter().map(|(element, _)| element).collect();
    let mut shared: VecDeque<&Element> =
        intent.iter().map(|(element, _)| element).filter(|element| places.contains_key(element)).collect();

    let mut out = Vec::with_capacity(live.len().max(intent.len()));
    let (mut at_live, mut at_intent) = (0, 0);
    while at_live < live.len() || at_intent < intent.len() {
        let there = live.get(at_live).map(|(element, _)| element);
        let wanted = intent.get(at_intent).map(|(element, _)| element);
        if let (Some(there), Some(wanted)) = (there, wanted)
            && there != wanted
            && applied.contains(there)
            && shared.front().is_some_and(|next| *next != there)
        {
            // A shared item, but another one's turn: it comes where it is applied.
            at_live += 1;
            continue;
        }
        if let Some(there) = there
            && !applied.contains(there)
        {
            out.extend(live[at_live].1.take());
            at_live += 1;
            continue;
        }
        if there.is_some_and(|there| {
            Some(there) == wanted || intent[..at_intent].iter().any(|(element, _)| element == there)
        }) {
            at_live += 1;
        }
        if let Some((wanted, item)) = intent.get(at_intent) {
            let live_item = match places.get(wanted).map(Vec::as_slice) {
                Some([only]) => live[*only].1.take(),
                // An applied item does not merge with one of several live ones: it takes their place.
                _ => None,
            };
            out.push(merge_value(schema.item(), live_item, item));
            at_intent += 1;
            if shared.front() == Some(&wanted) {
                shared.pop_front();
            }
        }
    }
    out
}
