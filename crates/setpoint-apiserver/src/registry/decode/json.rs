//! JSON as Kubernetes reads it: of a field that is given more than once the last one counts, and they are named; a number
//! without a fraction is an integer however it is written (`1.0`, `1e3`, `-0`), as Go would write it back.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// How many fields are named at most.
const NAMED: usize = 100;
/// Every integer up to here has a `f64` of its own.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Parses a document, and names the fields that it gives more than once (`spec.ports[0].name`).
pub(super) fn parse(body: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    let duplicates = RefCell::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Node { path: &Path::Root, duplicates: &duplicates }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, duplicates.into_inner()))
}

/// Turns numbers without a fraction into integers, everywhere in `value`.
pub(super) fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *number = whole;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

fn whole(number: f64) -> Option<Number> {
    #[expect(clippy::cast_possible_truncation, reason = "no fraction, and within the exact integers")]
    (number.fract() == 0.0 && number.abs() <= EXACT).then(|| Number::from(number as i64))
}

/// Where a value is.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[derive(Clone, Copy)]
struct Node<'a> {
    path: &'a Path<'a>,
    duplicates: &'a RefCell<Vec<String>>,
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
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
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
        Ok(whole(value).map_or_else(|| value.into(), Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = Path::Item(self.path, items.len());
            match access.next_element_seed(Node { path: &path, ..self })? {
                Some(item) => items.push(item),
                None => return Ok(items.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let path = Path::Field(self.path, &name);
            let value = access.next_value_seed(Node { path: &path, ..self })?;
            if fields.contains_key(&name) && self.duplicates.borrow().len() < NAMED {
                let text = format!("duplicate field \"{path}\"");
                self.duplicates.borrow_mut().push(text);
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
    fn the_last_of_a_field_counts_and_is_named() {
        let (value, duplicates) =
            parse(br#"{"a": 1, "b": [{"c": 1, "c": 2, "c": 3}], "a": {"d": null, "d": "x"}}"#).unwrap();
        assert_eq!(value, json!({"a": {"d": "x"}, "b": [{"c": 3}]}));
        let named = ["b[0].c", "b[0].c", "a.d", "a"].map(|path| format!("duplicate field \"{path}\""));
        assert_eq!(duplicates, named);
        let many = format!("{{{}\"a\":1}}", "\"a\":1,".repeat(1000));
        assert_eq!(parse(many.as_bytes()).unwrap().1.len(), NAMED);
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let (value, _) =
            parse(b"[1.0, 1e3, -0, -2.0, 1.5, 1e300, 9223372036854775807, 18446744073709551615]").unwrap();
        let expected = "[1,1000,0,-2,1.5,1e+300,9223372036854775807,18446744073709551615]";
        assert_eq!(value.to_string(), expected);
        let mut value = json!({"a": [1.0], "b": 0.5});
        whole_numbers(&mut value);
        assert_eq!(value.to_string(), r#"{"a":[1],"b":0.5}"#);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["", "{", "[1,]", "{\"a\"}", "1 2", "NaN", "1e400", "\"\\ud800\""] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(b"\"\xff\"").is_err());
        assert!(parse("[".repeat(100_000).as_bytes()).unwrap_err().to_string().contains("recursion limit"));
    }
}
