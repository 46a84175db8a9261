//! What an applied configuration must be before it can be merged: fields that exist, of the right kind, with keys.

use std::collections::BTreeSet;

use serde_json::Value;

use super::shape::item_element;
use crate::schema::{ListType, Schema, Type};

/// Every reason why `intent` is no configuration of this schema, in upstream's words: `.spec.foo: field not declared
/// in schema`.
pub(super) fn problems(schema: &Schema, intent: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    walk(schema, intent, &mut String::new(), &mut problems);
    problems
}

fn walk(schema: &Schema, value: &Value, path: &mut String, problems: &mut Vec<String>) {
    let mut report = |problem: &str| problems.push(format!("{path}: {problem}"));
    match (schema.node.kind, value) {
        (_, Value::Null) => {}
        (Some(Type::Object) | None, Value::Object(_)) if schema.node.atomic_map => {}
        (Some(Type::Object) | None, Value::Object(_)) => walk_fields(schema, value, path, problems),
        (Some(Type::Array) | None, Value::Array(_)) => walk_items(schema, value, path, problems),
        (Some(Type::Object), _) if schema.is_free_form() => {}
        (Some(Type::Object), _) => report(&format!("expected map, got {}", printed(value))),
        (Some(Type::Array), _) => report(&format!("expected list, got {}", printed(value))),
        (Some(Type::Integer | Type::Number), _) if !value.is_number() => {
            report(&format!("expected numeric (int or float), got {}", kind_of(value)));
        }
        (Some(Type::Boolean), _) if !value.is_boolean() => {
            report(&format!("expected boolean, got {}", printed(value)));
        }
        (Some(Type::String), _) if schema.node.format.is_none() && !value.is_string() => {
            report(&format!("expected string, got &value.valueUnstructured{{Value:{}}}", text(value)));
        }
        _ => {}
    }
}

fn walk_fields(schema: &Schema, value: &Value, path: &mut String, problems: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let length = path.len();
        path.push('.');
        path.push_str(name);
        match schema.field(name) {
            Some(field) => walk(field, value, path, problems),
            None => problems.push(format!("{path}: field not declared in schema")),
        }
        path.truncate(length);
    }
}

fn walk_items(schema: &Schema, value: &Value, path: &mut String, problems: &mut Vec<String>) {
    if schema.node.list == ListType::Atomic {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        match item_element(schema, item) {
            Ok(element) => {
                let length = path.len();
                path.push_str(&element.to_string());
                walk(schema.item(), item, path, problems);
                path.truncate(length);
                if !seen.insert(element.clone()) {
                    problems.push(format!("{path}: duplicate entries for key {element}"));
                }
            }
            Err(problem) => problems.push(format!("{path}: element {index}: {problem}")),
        }
    }
}

/// As Go's `%v` prints upstream's value.
fn printed(value: &Value) -> String {
    format!("&{{{}}}", text(value))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(string) => string.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(" ")),
        Value::Object(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|(key, value)| format!("{key}:{}", text(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        other => other.to_string(),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}
