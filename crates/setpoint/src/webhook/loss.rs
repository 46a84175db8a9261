//! What a conversion loses, kept so that the way back restores it.
//!
//! A version that cannot express a field of another one gives back a `base` where there was a `target`. The difference is
//! a [`Loss`]; it is applied again to what comes back later: each place that still is as in `base` gets what `target` had
//! there, and each place that somebody has changed meanwhile stays as they made it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Fields by which items of a list are told apart, whatever place they have.
const KEYS: [&str; 4] = ["name", "key", "type", "id"];

/// The difference between two values, with both sides of each place that differs. Absent and null are the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Loss {
    /// A value is another one.
    Value {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<Value>,
    },
    /// Fields of an object differ.
    Fields(BTreeMap<String, Loss>),
    /// Items of a list differ, which are told apart by their field `key`. `order` are all keys of the target, in order.
    Items { key: String, items: BTreeMap<String, Loss>, order: Vec<String> },
}

impl Loss {
    /// What leads from `base` to `target`; `None` if nothing does.
    pub(super) fn between(base: Option<&Value>, target: Option<&Value>) -> Option<Self> {
        if base == target {
            return None;
        }
        match (base, target) {
            (Some(Value::Object(base)), Some(Value::Object(target))) => {
                let fields: BTreeSet<&String> = base.keys().chain(target.keys()).collect();
                let lost = fields.into_iter().filter_map(|field| {
                    Some((field.clone(), Self::between(base.get(field), target.get(field))?))
                });
                Some(Self::Fields(lost.collect()))
            }
            (Some(Value::Array(base)), Some(Value::Array(target))) => Self::items(base, target),
            _ => None,
        }
        .or_else(|| Some(Self::Value { base: base.cloned(), target: target.cloned() }))
    }

    /// The difference of two lists, if a field tells the items of both apart and those in both have the same order.
    fn items(base: &[Value], target: &[Value]) -> Option<Self> {
        let key = KEYS.into_iter().find(|key| by(key, base).is_some() && by(key, target).is_some())?;
        let (old, new) = (by(key, base)?, by(key, target)?);
        let names = |items: &[Value], in_both: &BTreeMap<&str, &Value>| -> Vec<String> {
            let names = items.iter().filter_map(|item| item[key].as_str());
            names.filter(|name| in_both.contains_key(name)).map(str::to_owned).collect()
        };
        if names(base, &new) != names(target, &old) {
            return None;
        }
        let all: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
        let items = all.into_iter().filter_map(|name| {
            Some((name.to_owned(), Self::between(old.get(name).copied(), new.get(name).copied())?))
        });
        Some(Self::Items { key: key.to_owned(), items: items.collect(), order: names(target, &new) })
    }

    /// Gives back to `value` what was lost.
    pub(super) fn restore(&self, value: Option<Value>) -> Option<Value> {
        match (self, value) {
            (Self::Value { base, target }, value) => {
                if value == *base {
                    target.clone()
                } else {
                    value
                }
            }
            (Self::Fields(fields), Some(Value::Object(mut object))) => {
                for (field, loss) in fields {
                    if let Some(restored) = loss.restore(object.remove(field)) {
                        object.insert(field.clone(), restored);
                    }
                }
                Some(Value::Object(object))
            }
            (Self::Items { key, items, order }, Some(Value::Array(list))) if by(key, &list).is_some() => {
                Some(Value::Array(restore_items(key, items, order, list)))
            }
            // Somebody has made something else of it.
            (_, value) => value,
        }
    }
}

fn restore_items(
    key: &str,
    items: &BTreeMap<String, Loss>,
    order: &[String],
    list: Vec<Value>,
) -> Vec<Value> {
    let mut restored: Vec<Value> = Vec::with_capacity(list.len());
    let mut seen = BTreeSet::new();
    for item in list {
        let name = item[key].as_str().unwrap_or_default().to_owned();
        match items.get(&name) {
            Some(loss) => restored.extend(loss.restore(Some(item))),
            None => restored.push(item),
        }
        seen.insert(name);
    }
    // Items that the other version could not show at all, each after the one that it stood behind.
    for (place, name) in order.iter().enumerate() {
        let Some(loss) = items.get(name).filter(|_| !seen.contains(name)) else { continue };
        let Some(item) = loss.restore(None) else { continue };
        let before = &order[..place];
        let after = restored.iter().rposition(|item| before.iter().any(|name| item[key] == **name));
        restored.insert(after.map_or(0, |place| place + 1), item);
    }
    restored
}

/// Items by the value of their field `key`, if each has one of its own.
fn by<'a>(key: &str, items: &'a [Value]) -> Option<BTreeMap<&'a str, &'a Value>> {
    let named: Option<BTreeMap<&str, &Value>> =
        items.iter().map(|item| Some((item.get(key)?.as_str()?, item))).collect();
    named.filter(|named| named.len() == items.len())
}

/// `value` without fields that are null, which mean the same as absent ones.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(field, value)| (field, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// `typed`, and the fields of `raw` that its type does not know.
pub(super) fn with_unknown(typed: Value, raw: &Value) -> Value {
    match (typed, raw) {
        (Value::Object(mut typed), Value::Object(raw)) => {
            for (field, raw) in raw {
                let known = match typed.remove(field) {
                    Some(known) => with_unknown(known, raw),
                    None => raw.clone(),
                };
                typed.insert(field.clone(), known);
            }
            Value::Object(typed)
        }
        (Value::Array(typed), Value::Array(raw)) if typed.len() == raw.len() => {
            Value::Array(typed.into_iter().zip(raw).map(|(typed, raw)| with_unknown(typed, raw)).collect())
        }
        (typed, _) => typed,
    }
}

/// The first place at which two values differ, as a path with both sides.
pub(super) fn first_difference(a: &Value, b: &Value) -> Option<(String, Value, Value)> {
    let differ = |a: Option<&Value>, b: Option<&Value>, step: String| {
        let (a, b) = (a.unwrap_or(&Value::Null), b.unwrap_or(&Value::Null));
        first_difference(a, b).map(|(path, a, b)| {
            let path = if path.starts_with('[') || path.is_empty() { path } else { format!(".{path}") };
            (format!("{step}{path}"), a, b)
        })
    };
    match (a, b) {
        _ if a == b => None,
        (Value::Object(x), Value::Object(y)) => {
            let fields: BTreeSet<&String> = x.keys().chain(y.keys()).collect();
            fields.into_iter().find_map(|field| differ(x.get(field), y.get(field), field.clone()))
        }
        (Value::Array(x), Value::Array(y)) => (0..x.len().max(y.len()))
            .find_map(|index| differ(x.get(index), y.get(index), format!("[{index}]"))),
        _ => Some((String::new(), a.clone(), b.clone())),
    }
}

/// What a conversion may change: all of an object but its identity and its metadata.
pub(super) fn content(object: &Value) -> Value {
    let mut content: Map<String, Value> = object.as_object().cloned().unwrap_or_default();
    for field in ["apiVersion", "kind", "metadata"] {
        content.remove(field);
    }
    without_nulls(Value::Object(content))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn loss(base: &Value, target: &Value) -> Loss {
        Loss::between(Some(base), Some(target)).unwrap()
    }

    #[test]
    fn what_was_edited_stays_and_the_rest_comes_back() {
        let target = json!({"size": 3, "mode": "fast", "config": {"a": 1, "b": 2}});
        let base = json!({"size": 3, "mode": "slow", "config": {"a": 1}});
        let loss = loss(&base, &target);
        assert_eq!(loss.restore(Some(base)), Some(target));
        let edited = json!({"size": 5, "mode": "medium", "config": {"a": 7}});
        let expected = json!({"size": 5, "mode": "medium", "config": {"a": 7, "b": 2}});
        assert_eq!(loss.restore(Some(edited)), Some(expected));
    }

    #[test]
    fn items_with_names_keep_their_own_whatever_their_place() {
        let target = json!([{"name": "a", "x": 1}, {"name": "hidden"}, {"name": "b", "x": 2}]);
        let base = json!([{"name": "a"}, {"name": "b"}]);
        let loss = loss(&base, &target);
        assert_eq!(loss.restore(Some(base)), Some(target));
        let edited = json!([{"name": "new"}, {"name": "b"}]);
        let expected = json!([{"name": "hidden"}, {"name": "new"}, {"name": "b", "x": 2}]);
        assert_eq!(loss.restore(Some(edited)), Some(expected), "a is gone, and b has its own x");
    }

    #[test]
    fn a_list_without_names_comes_back_while_nobody_edits_it() {
        let (target, base) = (json!({"l": [{"x": 1}, {"x": 2}]}), json!({"l": [{}, {}]}));
        let loss = loss(&base, &target);
        assert_eq!(loss.restore(Some(base)), Some(target));
        let edited = json!({"l": [{}]});
        assert_eq!(loss.restore(Some(edited.clone())), Some(edited));
    }

    #[test]
    fn differences_are_named_by_their_path() {
        let (a, b) = (json!({"spec": {"l": [{"x": 1}]}}), json!({"spec": {"l": [{"x": 2}]}}));
        assert_eq!(first_difference(&a, &b), Some(("spec.l[0].x".to_owned(), json!(1), json!(2))));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..4).prop_map(Value::from)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let name = "[a-d]";
            let named = prop::collection::btree_map(name, inner.clone(), 0..4).prop_map(|items| {
                let items = items.into_iter().map(|(name, value)| json!({"name": name, "value": value}));
                Value::Array(items.collect())
            });
            prop_oneof![
                named,
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("[ab]{1,2}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_nobody_edits_comes_back_whole(base in value(), target in value()) {
            let Some(loss) = Loss::between(Some(&base), Some(&target)) else {
                prop_assert_eq!(base, target);
                return Ok(());
            };
            let text = serde_json::to_string(&loss).unwrap();
            let kept: Loss = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(kept.restore(Some(base)), Some(target));
        }
    }
}
