//! Strategic merge patch: a merge patch that knows from the schema which lists merge, and by which key.
//!
//! Directives: `$patch: replace | delete` in an object or an item, `$retainKeys`, `$setElementOrder/<list>` and
//! `$deleteFromPrimitiveList/<list>` (Kubernetes: sig-api-machinery/strategic-merge-patch.md).

use serde_json::{Map, Value};

use super::PatchError;
use crate::{element::equal, printed::printed, schema::Schema};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";

/// Applies a strategic merge patch. Lists merge where the schema has `x-kubernetes-patch-strategy: merge`, items of
/// objects by `x-kubernetes-patch-merge-key`; all other lists are replaced.
///
/// # Errors
/// [`PatchError::Malformed`] when the patch is no object, a directive is malformed or unknown, or an item lacks the
/// merge key of its list.
pub fn strategic(schema: &Schema, target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(malformed(
            "invalid JSON document: a strategic merge patch and its target must be objects",
        ));
    };
    merge_map(schema, target, patch.clone())
}

fn merge_map(
    schema: &Schema,
    target: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
) -> Result<(), PatchError> {
    if let Some(directive) = patch.remove(PATCH) {
        match directive.as_str() {
            Some("replace") => *target = patch,
            Some("delete") => target.clear(),
            _ => {
                patch.insert(PATCH.to_owned(), directive.clone());
                return Err(unknown_directive(&directive, patch));
            }
        }
        return Ok(());
    }
    if let Some(keys) = patch.remove(RETAIN_KEYS) {
        retain_keys(target, &patch, &keys)?;
    }
    let (orders, rest): (Vec<_>, Vec<_>) =
        patch.into_iter().partition(|(key, _)| key.starts_with(SET_ELEMENT_ORDER));
    let (deletions, mut fields): (Vec<_>, Map<_, _>) = {
        let (deletions, fields): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|(key, _)| key.starts_with(DELETE_FROM_PRIMITIVE_LIST));
        (deletions, fields.into_iter().collect())
    };
    for (key, values) in deletions {
        let values = list(values, "$deleteFromPrimitiveList")?;
        if let Some(Value::Array(items)) = target.get_mut(&key[DELETE_FROM_PRIMITIVE_LIST.len()..]) {
            items.retain(|item| !values.iter().any(|value| equal(item, value)));
        }
    }
    for (key, order) in orders {
        let name = &key[SET_ELEMENT_ORDER.len()..];
        let order = list(order, "$setElementOrder")?;
        set_element_order(
            schema.field(name).unwrap_or(Schema::untyped_ref()),
            target,
            name,
            fields.remove(name),
            &order,
        )?;
    }
    for (key, value) in fields {
        let field = schema.field(&key).unwrap_or(Schema::untyped_ref());
        merge_field(field, target, key, value)?;
    }
    Ok(())
}

fn merge_field(
    schema: &Schema,
    target: &mut Map<String, Value>,
    key: String,
    patch: Value,
) -> Result<(), PatchError> {
    match (target.get_mut(&key), patch) {
        (_, Value::Null) => {
            target.remove(&key);
        }
        (Some(Value::Object(there)), Value::Object(patch)) if !schema.node.patch.replace => {
            merge_map(schema, there, patch)?;
        }
        (Some(Value::Array(there)), Value::Array(patch)) if schema.node.patch.merge => {
            *there = merge_list(schema, there, patch)?;
        }
        (_, patch) => match without_directives(patch) {
            Some(value) => {
                target.insert(key, value);
            }
            None => {
                target.remove(&key);
            }
        },
    }
    Ok(())
}

/// `$retainKeys`: fields that the list does not name go; every field that the patch sets must be named.
fn retain_keys(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    keys: &Value,
) -> Result<(), PatchError> {
    let invalid = || malformed("invalid patch format of retainKeys");
    let keys: Vec<&str> = keys.as_array().ok_or_else(invalid)?.iter().filter_map(Value::as_str).collect();
    let named = |key: &str| keys.contains(&key);
    let directive =
        |key: &str| key.starts_with(SET_ELEMENT_ORDER) || key.starts_with(DELETE_FROM_PRIMITIVE_LIST);
    if patch.iter().any(|(key, value)| !value.is_null() && !directive(key) && !named(key)) {
        return Err(invalid());
    }
    target.retain(|key, _| named(key));
    Ok(())
}

/// `$setElementOrder/<name>`: merges the list, then brings its items into the order that the directive gives.
fn set_element_order(
    schema: &Schema,
    target: &mut Map<String, Value>,
    name: &str,
    patch: Option<Value>,
    order: &[Value],
) -> Result<(), PatchError> {
    let key = schema.node.patch.merge_key.as_deref();
    let patch = patch.map(|patch| list(patch, "$setElementOrder's list")).transpose()?;
    if let Some(patch) = &patch {
        check_order(patch, order, key)?;
    }
    let there = match target.get(name) {
        None | Some(Value::Null) => None,
        Some(Value::Array(items)) => Some(items.clone()),
        Some(other) => return Err(malformed(format!("expected a list in {name}, but received {other}"))),
    };
    let merged = match (&there, patch) {
        (None, None) => return Ok(()),
        (Some(there), None) => there.clone(),
        (None, Some(patch)) => patch.into_iter().filter_map(without_directives).collect(),
        (Some(there), Some(patch)) if schema.node.patch.merge => merge_list(schema, there, patch)?,
        (Some(_), Some(patch)) => patch,
    };
    let ordered = in_order(merged, order, &there.unwrap_or_default(), key)?;
    target.insert(name.to_owned(), Value::Array(ordered));
    Ok(())
}

/// The patch's items must come in the order that `$setElementOrder` gives.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut order_left = order.iter();
    for item in patch.iter().filter(|item| item.get(PATCH).is_none()) {
        if !order_left.any(|ordered| same(item, ordered, key)) {
            return Err(failed(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                printed(&Value::from(patch)),
                printed(&Value::from(order))
            )));
        }
    }
    Ok(())
}

/// Merges two lists: scalars as a set, objects by the merge key.
fn merge_list(schema: &Schema, original: &[Value], patch: Vec<Value>) -> Result<Vec<Value>, PatchError> {
    if original.iter().chain(&patch).any(Value::is_array) {
        return Err(PatchError::Unprocessable("lists of lists are not supported".to_owned()));
    }
    if !original.iter().chain(&patch).any(Value::is_object) {
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        for item in original.iter().chain(&patch) {
            if !merged.iter().any(|there| equal(there, item)) {
                merged.push(item.clone());
            }
        }
        return in_order(merged, &patch, original, None);
    }
    let Some(key) = schema.node.patch.merge_key.as_deref() else {
        return Err(failed("cannot merge lists without merge key".to_owned()));
    };
    let mut merged = original.to_vec();
    let mut plain = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        match item.get(PATCH).map(|directive| directive.as_str().unwrap_or_default().to_owned()).as_deref() {
            None => plain.push(item),
            Some("delete") => {
                merge_key(&item, key)?;
                merged.retain(|there| !same(there, &item, Some(key)));
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(failed("merging lists cannot yet be specified in the patch".to_owned()));
            }
            Some(other) => return Err(unknown_directive(&Value::from(other), item)),
        }
    }
    if replace {
        return Ok(plain);
    }
    let order = plain.clone();
    for item in plain {
        merge_key(&item, key)?;
        match (merged.iter_mut().find(|there| same(there, &item, Some(key))), item) {
            (Some(Value::Object(there)), Value::Object(item)) => merge_map(schema.item(), there, item)?,
            (_, item) => merged.extend(without_directives(item)),
        }
    }
    in_order(merged, &order, original, Some(key))
}

/// Brings the items that `order` names into its order, and leaves the others where they were relative to those.
fn in_order(
    merged: Vec<Value>,
    order: &[Value],
    original: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, PatchError> {
    let position = |list: &[Value], item: &Value| list.iter().position(|other| same(item, other, key));
    if let Some(key) = key {
        merged.iter().try_for_each(|item| merge_key(item, key).map(drop))?;
    }
    let (mut ordered, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| position(order, item).is_some());
    ordered.sort_by_key(|item| position(order, item));
    // Items that the original lacks come last.
    others.sort_by_key(|item| position(original, item).unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(ordered.len() + others.len());
    let (mut ordered, mut others) = (ordered.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(patched), Some(other)) = (ordered.peek(), others.peek()) {
        let before = match (position(original, other), position(original, patched)) {
            (Some(other), Some(patched)) => other < patched,
            _ => false,
        };
        out.extend(if before { others.next() } else { ordered.next() });
    }
    out.extend(others);
    out.extend(ordered);
    Ok(out)
}

fn merge_key<'a>(item: &'a Value, key: &str) -> Result<&'a Value, PatchError> {
    item.get(key)
        .ok_or_else(|| failed(format!("map: {} does not contain declared merge key: {key}", printed(item))))
}

/// Whether two items of a list are one: equal scalars, or objects with the same merge key. Upstream compares keys as
/// text, so that `8080` and `"8080"` are one.
fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    let Some(key) = key else { return equal(a, b) };
    match (a.get(key), b.get(key)) {
        (Some(a), Some(b)) => equal(a, b) || text(a) == text(b),
        _ => false,
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The value to keep of a patch where the target has none: without `null` fields and directives; nothing when it is
/// itself a directive.
fn without_directives(patch: Value) -> Option<Value> {
    match patch {
        Value::Object(fields) => {
            if fields.contains_key(PATCH) {
                return None;
            }
            let kept = fields
                .into_iter()
                .filter(|(key, value)| !value.is_null() && !is_directive(key))
                .filter_map(|(key, value)| Some((key, without_directives(value)?)))
                .collect();
            Some(Value::Object(kept))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(SET_ELEMENT_ORDER) || key.starts_with(DELETE_FROM_PRIMITIVE_LIST)
}

fn list(value: Value, directive: &str) -> Result<Vec<Value>, PatchError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(malformed(format!("expected a list for {directive}, but received {other}"))),
    }
}

fn unknown_directive(directive: &Value, within: impl Into<Value>) -> PatchError {
    failed(format!("unknown patch type: {} in map: {}", text(directive), printed(&within.into())))
}

fn failed(problem: String) -> PatchError {
    PatchError::Failed(problem)
}

fn malformed(problem: impl Into<String>) -> PatchError {
    PatchError::Malformed(problem.into())
}
