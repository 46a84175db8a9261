//! How OpenAPI documents become messages of gnostic, of either version: tables of fields, and what both have in common.

use serde_json::{Map, Value};

use crate::protobuf::wire::{bytes, tag, varint_field};

/// A field: its name in JSON, its number, its content.
pub(super) type Field = (&'static str, u32, Kind);

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    Texts,
    Bool,
    Integer,
    Double,
    /// Any value, as YAML.
    Any,
    Anys,
    One(Write),
    Each(Write),
    /// A message that has a list of names with values, in the field of this number.
    Named(u32, Write),
}

pub(super) type Write = fn(&Value) -> Vec<u8>;

use Kind::{Any, Anys, Bool, Double, Each, Integer, Named, One, Text, Texts};

/// The fields of `value` by their numbers; those whose names begin with `x-` go into field `extensions`.
pub(super) fn message(value: &Value, fields: &[Field], extensions: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, number, kind) in fields {
        if let Some(content) = value.get(name) {
            field(&mut out, *number, *kind, content);
        }
    }
    for (name, content) in members(value).filter(|(name, _)| name.starts_with("x-")) {
        bytes(&mut out, extensions, &entry(name, &any(content)));
    }
    out
}

fn field(out: &mut Vec<u8>, at: u32, kind: Kind, content: &Value) {
    match kind {
        Text => {
            if let Some(text) = content.as_str().filter(|text| !text.is_empty()) {
                bytes(out, at, text.as_bytes());
            }
        }
        Texts => out.extend(texts(at, content)),
        Bool if content == true => varint_field(out, at, 1),
        Bool => {}
        Integer => {
            let content = content.as_i64().unwrap_or_default();
            if content != 0 {
                varint_field(out, at, content.cast_unsigned());
            }
        }
        Double => {
            let content = content.as_f64().unwrap_or_default();
            if content != 0.0 {
                tag(out, at, 1);
                out.extend(content.to_le_bytes());
            }
        }
        Any => bytes(out, at, &any(content)),
        Anys => each(content).for_each(|content| bytes(out, at, &any(content))),
        One(write) => bytes(out, at, &write(content)),
        Each(write) => each(content).for_each(|content| bytes(out, at, &write(content))),
        Named(inner, write) => bytes(out, at, &named(inner, content, write)),
    }
}

fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// Texts, or one alone.
pub(super) fn texts(at: u32, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for text in each(value).chain([value]).filter_map(Value::as_str) {
        bytes(&mut out, at, text.as_bytes());
    }
    out
}

fn named(at: u32, value: &Value, write: Write) -> Vec<u8> {
    let mut out = Vec::new();
    members(value).for_each(|(name, content)| bytes(&mut out, at, &entry(name, &write(content))));
    out
}

/// `NamedAny`, `NamedSchema` and others: a name and a value.
fn entry(name: &str, content: &[u8]) -> Vec<u8> {
    let mut out = wrapped(1, name.as_bytes());
    bytes(&mut out, 2, content);
    out
}

/// `Any`, whose second field is YAML.
fn any(value: &Value) -> Vec<u8> {
    wrapped(2, serde_saphyr::to_string(value).unwrap_or_default().as_bytes())
}

pub(super) fn wrapped(at: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 4);
    bytes(&mut out, at, content);
    out
}

/// A schema, or whether there may be more.
pub(super) fn additional(value: &Value, schema: Write) -> Vec<u8> {
    match value {
        Value::Bool(allowed) => {
            let mut out = Vec::new();
            varint_field(&mut out, 2, u64::from(*allowed));
            out
        }
        value => wrapped(1, &schema(value)),
    }
}

/// Which security schemes a request needs, each with its scopes.
pub(super) fn security(value: &Value) -> Vec<u8> {
    named(1, value, |scopes| texts(1, scopes))
}

/// Of a recorded line, the document as JSON is encoded to the bytes before the tab.
#[cfg(test)]
pub(super) fn assert_recorded(line: &str, encode: fn(&Value) -> Vec<u8>) {
    use base64::{Engine, engine::general_purpose::STANDARD};

    let (wanted, document) = line.split_once('\t').unwrap();
    let wanted = STANDARD.decode(wanted).unwrap();
    let encoded = encode(&serde_json::from_str(document).unwrap());
    let at = encoded.iter().zip(&wanted).position(|(one, other)| one != other);
    let near = |bytes: &[u8]| {
        let at = at.unwrap_or_default();
        String::from_utf8_lossy(&bytes[at.saturating_sub(80)..(at + 80).min(bytes.len())]).into_owned()
    };
    assert!(encoded == wanted, "differs at {at:?}:\n{:?}\nwanted\n{:?}", near(&encoded), near(&wanted));
}
