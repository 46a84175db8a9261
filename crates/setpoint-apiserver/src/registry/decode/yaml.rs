//! YAML as Kubernetes reads it: of a key that is given more than once the last one counts, and the lines of the others are named.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, Options, Spanned};

use super::json::whole_numbers;

/// How many keys are named at most.
const NAMED: usize = 100;

/// Parses a document; names the keys that it gives again, by line.
pub(super) fn parse(text: &str) -> Result<(Value, Vec<String>), String> {
    let mut options = Options::default();
    options.duplicate_keys = DuplicateKeyPolicy::PassThrough;
    let repeated = RefCell::default();
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        Node { repeated: &repeated }.deserialize(deserializer)
    });
    let mut value = parsed.map_err(|error| said(text, &error))?;
    whole_numbers(&mut value);
    Ok((value, repeated.into_inner()))
}

/// An error in the words of Go's parser, where it is one of those that people make.
fn said(text: &str, error: &serde_saphyr::Error) -> String {
    let line = error.location().map_or(1, |location| location.line());
    let why = error.to_string();
    let open = |open: char, close: char| text.matches(open).count() > text.matches(close).count();
    let known = if open('[', ']') {
        "did not find expected ',' or ']'"
    } else if open('{', '}') {
        "did not find expected ',' or '}'"
    } else if why.contains("mapping values") {
        "mapping values are not allowed in this context"
    } else {
        return why;
    };
    format!("yaml: line {line}: {known}")
}

#[derive(Clone, Copy)]
struct Node<'a> {
    repeated: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(Spanned { value: name, referenced, .. }) = access.next_key::<Spanned<String>>()? {
            let value = access.next_value_seed(self)?;
            if fields.contains_key(&name) && self.repeated.borrow().len() < NAMED {
                let text = format!("line {}: key {name:?} already set in map", referenced.line());
                self.repeated.borrow_mut().push(text);
            }
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_a_key_counts_and_its_line_is_named() {
        let (value, repeated) = parse("a: 1\nb:\n  c: x\n  c: z\na: 2.0\n").unwrap();
        assert_eq!(value, json!({"a": 2, "b": {"c": "z"}}));
        assert_eq!(
            repeated,
            ["line 4: key \"c\" already set in map", "line 5: key \"a\" already set in map"]
        );
    }

    #[test]
    fn common_faults_are_said_as_go_says_them() {
        assert_eq!(parse("a: [b").unwrap_err(), "yaml: line 1: did not find expected ',' or ']'");
        assert!(parse("").unwrap().0.is_null());
    }

    #[test]
    fn scalars_and_nesting() {
        let (value, _) = parse("- 1\n- ~\n- true\n- 'x'\n- {a: [1.5]}\n- 2026-01-01\n").unwrap();
        assert_eq!(value, json!([1, null, true, "x", {"a": [1.5]}, "2026-01-01"]));
    }
}
