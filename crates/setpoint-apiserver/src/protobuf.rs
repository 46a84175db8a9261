//! Bodies in Kubernetes' protobuf form, which clients written in Go use for built-in kinds: to JSON and from it, by the field numbers of the facts.
//!
//! ```text
//! setpoint_kinds::{message, presence} ──▶ plan ──▶ decode (here), encode
//! ```
//!
//! The form is `k8s\0` and a `runtime.Unknown` message around the object's own (`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`). Go writes
//! the zero values of fields without a pointer too; they are left out again where its JSON does.

mod encode;
mod plan;
pub(crate) mod wire;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value};
use setpoint_kinds::{Label, Presence, message};

pub(crate) use self::encode::{EncodeError, ListEncoder, encode, watch_frame};
use self::plan::{Field, Kind, Plan, Special, plan};

/// The media type.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

const SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
/// How many characters of a body an error may repeat.
const ECHO: usize = 100;
/// How deep messages may lie in one another (upstream's decoders stop at 10,000 levels of JSON; no kind comes near).
const DEPTH: usize = 256;

/// Why a body is no object in protobuf form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("the body does not start as Kubernetes' protobuf form does")]
    Magic,
    #[error("the protobuf message ends in the middle of a field")]
    Truncated,
    #[error("the protobuf message has a field of an unknown wire type {0}")]
    WireType(u64),
    #[error("{api_version} {kind} is no built-in kind: send it as JSON")]
    Kind { api_version: String, kind: String },
    #[error("{0} cannot be read from protobuf: send the object as JSON")]
    Message(String),
    #[error("the protobuf messages lie too deep in one another")]
    Depth,
}

/// Decodes a body.
pub(crate) fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    let mut unknown = Reader(body.strip_prefix(MAGIC).ok_or(DecodeError::Magic)?);
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    while let Some((number, wire)) = unknown.field()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let mut meta = Reader(bytes);
                while let Some((number, wire)) = meta.field()? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => api_version = utf8(text),
                        (2, Wire::Bytes(text)) => kind = utf8(text),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let name = message_name(&api_version, &kind)
        .ok_or_else(|| DecodeError::Kind { api_version: shortened(&api_version), kind: shortened(&kind) })?;
    let plan = plan(&name).ok_or_else(|| DecodeError::Message(name.clone()))?;
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    fields(plan, raw, &mut object, DEPTH)?;
    Ok(object.into())
}

/// A text of the body as an error may repeat it.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(ECHO) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The message of a kind, which is named as its definition is.
fn message_name(api_version: &str, kind: &str) -> Option<String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if let Some(known) = setpoint_kinds::by_kind(group, version, kind) {
        return Some(known.definition.to_owned());
    }
    // A list of them.
    if let Some(known) =
        kind.strip_suffix("List").and_then(|kind| setpoint_kinds::by_kind(group, version, kind))
    {
        return Some(format!("{}List", known.definition));
    }
    // Kinds of subresources and options.
    let package = group.split('.').next().filter(|package| !package.is_empty()).unwrap_or("core");
    [format!("io.k8s.api.{package}.{version}.{kind}"), format!("{META}{kind}")]
        .into_iter()
        .find(|name| message(name).is_some())
}

/// Adds the fields of a message to an object.
fn fields(
    plan: &Plan,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    let depth = depth.checked_sub(1).ok_or(DecodeError::Depth)?;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        // A field of a newer version is unknown here, as it is in JSON.
        let Some(field) = plan.fields.iter().find(|field| field.number == number) else { continue };
        let Some(key) = field.name else {
            if let (Wire::Bytes(embedded), Kind::Embedded(plan)) = (wire, field.kind) {
                fields(plan, embedded, object, depth)?;
            }
            continue;
        };
        match field.label {
            Label::Map => {
                let (entry, value) = map_entry(field, &wire, depth)?;
                let map = object.entry(key).or_insert_with(|| Map::new().into());
                if let Value::Object(map) = map {
                    map.insert(entry, value);
                }
            }
            Label::Repeated => {
                let list = object.entry(key).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    list.push(value(field.kind, &wire, depth)?);
                }
            }
            Label::Single => {
                let value = value(field.kind, &wire, depth)?;
                let zero = value == "" || value == false || value == 0 || value == 0.0;
                if !(value.is_null() || zero && field.presence == Some(Presence::Omitted)) {
                    object.insert(key.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

fn map_entry(field: &Field, wire: &Wire<'_>, depth: usize) -> Result<(String, Value), DecodeError> {
    let Wire::Bytes(bytes) = wire else { return Err(DecodeError::Truncated) };
    let (mut key, mut found) = (String::new(), None);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match (number, &wire) {
            (1, Wire::Bytes(text)) => key = utf8(text),
            (2, _) => found = Some(value(field.kind, &wire, depth)?),
            _ => {}
        }
    }
    let found = match found {
        Some(found) => found,
        None => value(field.kind, &Wire::Bytes(&[]), depth)?,
    };
    Ok((key, found))
}

fn value(kind: Kind, wire: &Wire<'_>, depth: usize) -> Result<Value, DecodeError> {
    let value = match (kind, wire) {
        (Kind::Text, Wire::Bytes(bytes)) => utf8(bytes).into(),
        (Kind::Bytes, Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Kind::Bool, Wire::Number(number)) => (*number != 0).into(),
        // Two's complement, whatever the width.
        (Kind::Int, Wire::Number(number)) => (*number as i64).into(),
        (Kind::Double, Wire::Fixed(bits)) => f64::from_bits(*bits).into(),
        (Kind::Message(name, special), Wire::Bytes(bytes)) => {
            return message_value(name, special, bytes, depth);
        }
        _ => return Err(DecodeError::Message(format!("{kind:?}"))),
    };
    Ok(value)
}

/// A message as JSON shows it; some types have a form of their own there.
fn message_value(name: &str, special: Special, bytes: &[u8], depth: usize) -> Result<Value, DecodeError> {
    let depth = depth.checked_sub(1).ok_or(DecodeError::Depth)?;
    let unread = || DecodeError::Message(name.to_owned());
    let schema = |wire: &Wire<'_>| value(Kind::Message(SCHEMA, Special::None), wire, depth);
    let mut reader = Reader(bytes);
    match special {
        Special::None => {
            let mut object = Map::new();
            fields(plan(name).ok_or_else(unread)?, bytes, &mut object, depth)?;
            Ok(object.into())
        }
        Special::Time | Special::MicroTime => time(bytes, special == Special::MicroTime),
        Special::Quantity => text_of(bytes, 1),
        Special::IntOrString => {
            let (mut is_text, mut number, mut text) = (false, 0, String::new());
            while let Some((field, wire)) = reader.field()? {
                match (field, wire) {
                    (1, Wire::Number(kind)) => is_text = kind != 0,
                    (2, Wire::Number(value)) => number = value as i64,
                    (3, Wire::Bytes(value)) => text = utf8(value),
                    _ => {}
                }
            }
            Ok(if is_text { text.into() } else { number.into() })
        }
        Special::Raw => {
            while let Some((number, wire)) = reader.field()? {
                if let (1, Wire::Bytes(json)) = (number, wire) {
                    return serde_json::from_slice(json).map_err(|_| unread());
                }
            }
            Ok(Value::Null)
        }
        Special::Items => {
            let mut items = Vec::new();
            while let Some((_, wire)) = reader.field()? {
                if let Wire::Bytes(text) = wire {
                    items.push(utf8(text).into());
                }
            }
            Ok(Value::Array(items))
        }
        Special::SchemaOrBool => {
            let mut found = Value::Bool(false);
            while let Some((number, wire)) = reader.field()? {
                match (number, &wire) {
                    (1, Wire::Number(allows)) if !found.is_object() => found = (*allows != 0).into(),
                    (2, _) => found = schema(&wire)?,
                    _ => {}
                }
            }
            Ok(found)
        }
        Special::SchemaOrArray | Special::SchemaOrStrings => {
            let mut items = Vec::new();
            while let Some((number, wire)) = reader.field()? {
                match (number, &wire) {
                    (1, _) => return schema(&wire),
                    (2, Wire::Bytes(text)) if special == Special::SchemaOrStrings => {
                        items.push(utf8(text).into());
                    }
                    (2, _) => items.push(schema(&wire)?),
                    _ => {}
                }
            }
            Ok(Value::Array(items))
        }
    }
}

fn text_of(bytes: &[u8], wanted: u32) -> Result<Value, DecodeError> {
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        if let (true, Wire::Bytes(text)) = (number == wanted, wire) {
            return Ok(utf8(text).into());
        }
    }
    Ok("0".into())
}

/// An RFC 3339 time; the zero time of Go is no time.
fn time(bytes: &[u8], micro: bool) -> Result<Value, DecodeError> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match (number, wire) {
            (1, Wire::Number(value)) => seconds = value as i64,
            (2, Wire::Number(value)) => nanos = value as i32,
            _ => {}
        }
    }
    let zero = bytes.is_empty();
    let time = Timestamp::new(seconds, if micro { nanos / 1000 * 1000 } else { 0 });
    Ok(match time {
        Ok(time) if !zero && micro => format!("{time:.6}").into(),
        Ok(time) if !zero => time.to_string().into(),
        _ => Value::Null,
    })
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The content of one field on the wire.
enum Wire<'a> {
    Number(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next field and its number; `None` at the end.
    fn field(&mut self) -> Result<Option<(u32, Wire<'a>)>, DecodeError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Fixed(self.fixed(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(self.fixed(4)?),
            other => return Err(DecodeError::WireType(other)),
        };
        Ok(Some(((tag >> 3) as u32, wire)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed(&mut self, length: usize) -> Result<u64, DecodeError> {
        Ok(self.take(length)?.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Truncated)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A body and the same object as JSON, both answers of kube-apiserver v1.37.2 to one GET.
    #[test]
    fn recorded_bodies_are_the_objects_that_json_shows() {
        let mut count = 0;
        for line in include_str!("protobuf/recorded.txt").lines() {
            let (body, wanted) = line.split_once('\t').expect("a body and JSON");
            let wanted: Value = serde_json::from_str(wanted).expect("JSON");
            let decoded = decode(&STANDARD.decode(body).expect("base64")).expect("a body");
            let missing = first_difference(&wanted, &decoded, "");
            assert_eq!(missing, None, "{}", wanted["kind"]);
            count += 1;
        }
        assert!(count >= 10, "only {count} bodies");
    }

    /// Where `decoded` lacks something of `wanted` or differs from it; more zero values of fields that are always there are no difference.
    fn first_difference(wanted: &Value, decoded: &Value, path: &str) -> Option<String> {
        match (wanted, decoded) {
            (Value::Object(wanted), Value::Object(decoded)) => {
                let additional = decoded.iter().find(|(key, value)| {
                    let zero = matches!(value, Value::Bool(false))
                        || **value == 0
                        || **value == "0"
                        || **value == json!({});
                    !wanted.contains_key(*key) && !zero
                });
                let lacking = wanted
                    .iter()
                    .filter(|(_, value)| !value.is_null() && *value != "")
                    // Protobuf has no type of an embedded object; the defaults set it again.
                    .filter(|(key, _)| {
                        !(path.ends_with("Templates[0]") && matches!(key.as_str(), "apiVersion" | "kind"))
                    })
                    .find_map(|(key, value)| {
                        first_difference(
                            value,
                            decoded.get(key).unwrap_or(&Value::Null),
                            &format!("{path}.{key}"),
                        )
                    });
                lacking.or(additional.map(|(key, value)| format!("{path}.{key} is {value}")))
            }
            (Value::Array(wanted), Value::Array(decoded)) if wanted.len() == decoded.len() => {
                wanted.iter().zip(decoded).enumerate().find_map(|(index, (wanted, decoded))| {
                    first_difference(wanted, decoded, &format!("{path}[{index}]"))
                })
            }
            _ => (wanted != decoded).then(|| format!("{path}: wanted {wanted}, decoded {decoded}")),
        }
    }

    #[test]
    fn broken_bodies_are_refused() {
        assert_eq!(decode(b"{}"), Err(DecodeError::Magic));
        assert_eq!(decode(b"k8s\0\x0a\xff"), Err(DecodeError::Truncated));
        assert_eq!(decode(b"k8s\0\x0b"), Err(DecodeError::WireType(3)));
        let unknown = DecodeError::Kind { api_version: "v9".to_owned(), kind: "Foo".to_owned() };
        assert_eq!(decode(b"k8s\0\x0a\x09\x0a\x02v9\x12\x03Foo"), Err(unknown));
        let long = [&b"k8s\0\x0a\xd3\x0f\x12\xd0\x0f"[..], &[b'x'; 2000]].concat();
        let Err(DecodeError::Kind { kind, .. }) = decode(&long) else { panic!("an unknown kind") };
        assert_eq!(kind, format!("{}…", "x".repeat(ECHO)), "an error does not repeat the whole body");
    }
}
