//! One step of a path through an object.

use std::{cmp::Ordering, fmt};

use serde_json::{Number, Value};

/// One step of a path through an object, as managed fields name it: a field, an item of a list map by its keys, an
/// item of a set by its value, or an item by its index.
///
/// The order is that of structured-merge-diff: fields, keys, values, indices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// A named field of an object or an entry of a map: `f:replicas`, printed `.replicas`.
    Field(Box<str>),
    /// The item of a list map with these key fields, sorted by name: `k:{"name":"web"}`, printed `[name="web"]`.
    Key(Box<[(Box<str>, Literal)]>),
    /// The item of a set with this value: `v:"a"`, printed `[="a"]`.
    Value(Literal),
    /// The item at this index: `i:3`, printed `[3]`.
    Index(i64),
}

impl Element {
    /// The element for a named field.
    pub fn field(name: impl Into<Box<str>>) -> Self {
        Self::Field(name.into())
    }

    /// The element for a list-map item; the key fields may come in any order.
    pub fn key<N: Into<Box<str>>>(fields: impl IntoIterator<Item = (N, Value)>) -> Self {
        let mut fields: Vec<(Box<str>, Literal)> =
            fields.into_iter().map(|(name, value)| (name.into(), Literal(value))).collect();
        fields.sort();
        Self::Key(fields.into())
    }

    /// Parses a key of fieldsV1. `Ok(None)` for a kind of element that this version does not know: upstream skips
    /// those, so that newer servers' entries stay readable.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, serde_json::Error> {
        let Some((kind, rest)) = text.split_once(':') else { return Ok(None) };
        Ok(match kind {
            "f" => Some(Self::Field(rest.into())),
            "k" => match serde_json::from_str(rest)? {
                Value::Object(fields) => Some(Self::key(fields)),
                _ => return Err(serde::de::Error::custom("the keys of a list item must be an object")),
            },
            "v" => Some(Self::Value(Literal(serde_json::from_str(rest)?))),
            "i" => Some(Self::Index(serde_json::from_str(rest)?)),
            _ => None,
        })
    }

    /// The key of fieldsV1 for this element.
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(fields) => {
                let fields: serde_json::Map<String, Value> =
                    fields.iter().map(|(name, value)| (name.to_string(), value.0.clone())).collect();
                format!("k:{}", Value::Object(fields))
            }
            Self::Value(value) => format!("v:{}", value.0),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    /// Whether this element names `item` among the items of its list. Fields name no items.
    pub(crate) fn names(&self, index: usize, item: &Value) -> bool {
        match self {
            Self::Field(_) => false,
            Self::Key(fields) => fields
                .iter()
                .all(|(name, value)| item.get(&**name).is_some_and(|v| compare(v, &value.0).is_eq())),
            Self::Value(value) => compare(item, &value.0).is_eq(),
            Self::Index(at) => usize::try_from(*at).is_ok_and(|at| at == index),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    write!(f, "{name}={}", value.0)?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", value.0),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A JSON value inside an [`Element`], with a total order in which numbers compare by value (`1` equals `1.0`).
#[derive(Clone, Debug)]
pub struct Literal(pub Value);

impl PartialEq for Literal {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Literal {}

impl PartialOrd for Literal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Literal {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

/// A total order over JSON values: numbers by value, then by kind.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Number(_) => 2,
            Value::String(_) => 3,
            Value::Array(_) => 4,
            Value::Object(_) => 5,
        }
    }
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let pairs = a.iter().zip(b).map(|(a, b)| compare(a, b));
            pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a.iter().zip(b).map(|((ka, va), (kb, vb))| ka.cmp(kb).then_with(|| compare(va, vb)));
            pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    if let (Some(a), Some(b)) = (a.as_i128(), b.as_i128()) {
        return a.cmp(&b);
    }
    let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
    // `-0.0 + 0.0` is `0.0`: both zeros are one value, as `0` is.
    (a + 0.0).total_cmp(&(b + 0.0))
}

/// Equality by value: `1` equals `1.0`.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b).is_eq(),
        _ => a == b,
    }
}
