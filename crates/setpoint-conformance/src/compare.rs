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
            for index in 0..left.len().max(right.len()) {
                walk(format!("{path}/{index}"), left.get(index), right.get(index), found);
            }
        }
        (left, right) if left == right => {}
        (left, right) => {
            found.push(Difference { path, expected: left.cloned(), got: right.cloned() });
        }
    }
}
