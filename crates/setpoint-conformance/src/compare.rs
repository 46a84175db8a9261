//! What differs between two answers.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

/// One place where an answer is not as recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// A JSON pointer.
    pub path: String,
    /// What was recorded; `None`: nothing.
    pub expected: Option<Value>,
    /// What came; `None`: nothing.
    pub got: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "/" } else { &self.path };
        write!(
            f,
            "{path}\n  expected {}\n  got      {}",
            Shown(self.expected.as_ref()),
            Shown(self.got.as_ref())
        )
    }
}

struct Shown<'a>(Option<&'a Value>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(value) = self.0 else { return f.write_str("nothing") };
        let text = value.to_string();
        match text.char_indices().nth(1500) {
            Some((end, _)) => write!(f, "{}…", &text[..end]),
            None => f.write_str(&text),
        }
    }
}

/// Where `got` is not `expected`.
pub fn differences(expected: &Value, got: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk(String::new(), Some(expected), Some(got), &mut found);
    found
}

/// Entries of managed fields, those of one operation in the order of their owners. A server orders them by their times,
/// which have whole seconds: two that were written one after the other are in either order.
fn by_owner(entries: &[Value]) -> Vec<&Value> {
    let key = |entry: &&Value| {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        (text("manager"), text("subresource"), text("apiVersion"), entry["fieldsV1"].to_string())
    };
    let mut ordered = Vec::new();
    for entries in entries.chunk_by(|one, next| one["operation"] == next["operation"]) {
        let mut entries: Vec<&Value> = entries.iter().collect();
        entries.sort_by_key(key);
        ordered.extend(entries);
    }
    ordered
}

fn walk(path: String, expected: Option<&Value>, got: Option<&Value>, found: &mut Vec<Difference>) {
    match (expected, got) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let segment = key.replace('~', "~0").replace('/', "~1");
                walk(format!("{path}/{segment}"), left.get(key), right.get(key), found);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            let owners = path.ends_with("managedFields");
            let [left, right] =
                [left, right].map(|items| if owners { by_owner(items) } else { items.iter().collect() });
            for index in 0..left.len().max(right.len()) {
                walk(format!("{path}/{index}"), left.get(index).copied(), right.get(index).copied(), found);
            }
        }
        (left, right) if left == right => {}
        (left, right) => {
            found.push(Difference { path, expected: left.cloned(), got: right.cloned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn owners_of_one_second_are_in_any_order_but_those_who_applied_come_first() {
        let entry = |operation, manager| json!({"operation": operation, "manager": manager});
        let (applied, one, other) = (entry("Apply", "z"), entry("Update", "a"), entry("Update", "b"));
        let object = |entries: [&Value; 3]| json!({"metadata": {"managedFields": entries}});
        let recorded = object([&applied, &one, &other]);
        assert_eq!(differences(&recorded, &object([&applied, &other, &one])), []);
        assert_ne!(differences(&recorded, &object([&one, &applied, &other])), []);
        assert_ne!(differences(&recorded, &object([&applied, &one, &one])), []);
    }
}
