//! From JSON to Kubernetes' protobuf form, byte for byte as Go's generated code writes it: fields by number, maps by key, and the zero values of
//! fields that are no pointers too.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use setpoint_kinds::Label;

use super::plan::{Field, Kind, Plan, Special, plan};
use super::wire::{bytes, tag, varint, varint_field};
use super::{MAGIC, message_name};

const SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
static NOTHING: Value = Value::Null;

/// Why an object has no protobuf form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error("{api_version} {kind} has no protobuf form: ask for JSON")]
    Kind { api_version: String, kind: String },
    #[error("the field {0} has a value that its protobuf form cannot carry")]
    Value(String),
}

/// An object of a built-in kind, a list, a `Status` or another of the API's own messages.
pub(crate) fn encode(object: &Value) -> Result<Bytes, EncodeError> {
    // Those of the oldest documents are of no version.
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let plan = message_name(api_version, kind).and_then(|name| plan(&name));
    let plan =
        plan.ok_or_else(|| EncodeError::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() })?;
    let mut raw = Vec::new();
    fields(&mut raw, plan, object)?;
    Ok(wrapped(api_version, kind, &raw))
}

/// The message of a list, of which the pieces are made one by one: a head, the items, a tail.
pub(crate) struct ListEncoder {
    meta: Vec<u8>,
    list_meta: Vec<u8>,
    item: &'static Field,
}

impl ListEncoder {
    /// For a list of a kind; `metadata` is the list's.
    pub(crate) fn new(api_version: &str, kind: &str, metadata: &Value) -> Result<Self, EncodeError> {
        let plan = message_name(api_version, kind).and_then(|name| plan(&name));
        let field =
            |name: &str| plan.and_then(|plan| plan.fields.iter().find(|field| field.name == Some(name)));
        let (Some(meta), Some(item)) = (field("metadata"), field("items")) else {
            return Err(EncodeError::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() });
        };
        let mut list_meta = Vec::new();
        one(&mut list_meta, meta, metadata)?;
        Ok(Self { meta: type_meta(api_version, kind), list_meta, item })
    }

    /// Adds an item.
    pub(crate) fn item(&self, out: &mut Vec<u8>, object: &Value) -> Result<(), EncodeError> {
        value(out, self.item.number, self.item.kind, object)
    }

    /// What comes before items that are `length` bytes together.
    pub(crate) fn head(&self, length: usize) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        bytes(&mut out, 1, &self.meta);
        tag(&mut out, 2, 2);
        varint(&mut out, (self.list_meta.len() + length) as u64);
        out.extend(&self.list_meta);
        out
    }

    /// What comes after the items.
    pub(crate) fn tail() -> Vec<u8> {
        let mut out = Vec::new();
        no_encoding(&mut out);
        out
    }
}

/// A message as an object says what it is.
fn wrapped(api_version: &str, kind: &str, raw: &[u8]) -> Bytes {
    let meta = type_meta(api_version, kind);
    let mut out = MAGIC.to_vec();
    out.reserve(meta.len() + raw.len() + 16);
    bytes(&mut out, 1, &meta);
    bytes(&mut out, 2, raw);
    no_encoding(&mut out);
    out.into()
}

fn type_meta(api_version: &str, kind: &str) -> Vec<u8> {
    let mut meta = Vec::new();
    bytes(&mut meta, 1, api_version.as_bytes());
    bytes(&mut meta, 2, kind.as_bytes());
    meta
}

/// Encoding and content type of what is inside: none.
fn no_encoding(out: &mut Vec<u8>) {
    bytes(out, 3, &[]);
    bytes(out, 4, &[]);
}

/// One event of a watch with the length before it, as `;stream=watch` frames them.
pub(crate) fn watch_frame(event: &str, object: &[u8]) -> Bytes {
    let (mut inner, mut frame) = (Vec::with_capacity(object.len() + 8), Vec::new());
    bytes(&mut inner, 1, object);
    bytes(&mut frame, 1, event.as_bytes());
    bytes(&mut frame, 2, &inner);
    let mut out = Vec::with_capacity(frame.len() + 4);
    out.extend((frame.len() as u32).to_be_bytes());
    out.extend(frame);
    out.into()
}

/// The fields of a message.
fn fields(out: &mut Vec<u8>, plan: &Plan, object: &Value) -> Result<(), EncodeError> {
    for field in &plan.fields {
        let value = match field.name {
            Some(name) => object.get(name).unwrap_or(&NOTHING),
            None => object,
        };
        one(out, field, value)?;
    }
    Ok(())
}

fn one(out: &mut Vec<u8>, field: &Field, given: &Value) -> Result<(), EncodeError> {
    let number = field.number;
    let wrong = || EncodeError::Value(field.name.unwrap_or_default().to_owned());
    match (field.label, given) {
        (Label::Repeated | Label::Map, Value::Null) => Ok(()),
        (Label::Repeated, Value::Array(items)) => {
            items.iter().try_for_each(|item| value(out, number, field.kind, item).map_err(|_| wrong()))
        }
        (Label::Map, Value::Object(entries)) => entries.iter().try_for_each(|(key, item)| {
            let mut entry = Vec::new();
            bytes(&mut entry, 1, key.as_bytes());
            value(&mut entry, 2, field.kind, item).map_err(|_| wrong())?;
            bytes(out, number, &entry);
            Ok(())
        }),
        (Label::Repeated | Label::Map, _) => Err(wrong()),
        // A pointer to nothing, or a slice.
        (Label::Single, Value::Null)
            if field.presence.is_none()
                || matches!(field.kind, Kind::Bytes | Kind::Message(_, Special::Items)) =>
        {
            Ok(())
        }
        (Label::Single, given) => value(out, number, field.kind, given).map_err(|error| match error {
            // The innermost field says most.
            EncodeError::Value(name) if name.is_empty() => wrong(),
            error => error,
        }),
    }
}

/// A value with its tag; `null` is the zero of its kind.
fn value(out: &mut Vec<u8>, number: u32, kind: Kind, given: &Value) -> Result<(), EncodeError> {
    let wrong = || EncodeError::Value(String::new());
    let null = given.is_null();
    match kind {
        Kind::Text => {
            let text = if null { "" } else { given.as_str().ok_or_else(wrong)? };
            bytes(out, number, text.as_bytes());
        }
        Kind::Bytes => {
            let text = if null { "" } else { given.as_str().ok_or_else(wrong)? };
            bytes(out, number, &STANDARD.decode(text).map_err(|_| wrong())?);
        }
        Kind::Bool => {
            let set = if null { false } else { given.as_bool().ok_or_else(wrong)? };
            varint_field(out, number, u64::from(set));
        }
        Kind::Int => varint_field(out, number, whole(given).ok_or_else(wrong)? as u64),
        Kind::Double => {
            tag(out, number, 1);
            out.extend(if null { 0.0 } else { given.as_f64().ok_or_else(wrong)? }.to_le_bytes());
        }
        Kind::Embedded(plan) => {
            let mut inner = Vec::new();
            fields(&mut inner, plan, given)?;
            bytes(out, number, &inner);
        }
        Kind::Message(name, special) => {
            let mut inner = Vec::new();
            message(&mut inner, name, special, given)?;
            bytes(out, number, &inner);
        }
    }
    Ok(())
}

fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Null => Some(0),
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)),
        _ => None,
    }
}

/// The content of a message.
fn message(out: &mut Vec<u8>, name: &str, special: Special, given: &Value) -> Result<(), EncodeError> {
    let wrong = || EncodeError::Value(String::new());
    match special {
        Special::None => {
            if !(given.is_null() || given.is_object()) {
                return Err(wrong());
            }
            fields(out, plan(name).ok_or_else(wrong)?, given)?;
        }
        // The zero time of Go has no content, and nothing is in a `null`.
        Special::Time | Special::MicroTime | Special::Raw if given.is_null() => {}
        Special::Time | Special::MicroTime => {
            let time: Timestamp = given.as_str().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
            let nanos = i64::from(time.subsec_nanosecond());
            // Nanoseconds count forwards, also before 1970.
            let (seconds, nanos) = if nanos < 0 {
                (time.as_second() - 1, nanos + 1_000_000_000)
            } else {
                (time.as_second(), nanos)
            };
            varint_field(out, 1, seconds as u64);
            varint_field(
                out,
                2,
                if special == Special::MicroTime { (nanos / 1000 * 1000) as u64 } else { 0 },
            );
        }
        Special::Quantity => {
            let text = match given {
                Value::Null => "0".to_owned(),
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Err(wrong()),
            };
            bytes(out, 1, text.as_bytes());
        }
        Special::IntOrString => {
            let text = given.as_str();
            varint_field(out, 1, u64::from(text.is_some()));
            varint_field(out, 2, if text.is_some() { 0 } else { whole(given).ok_or_else(wrong)? as u64 });
            bytes(out, 3, text.unwrap_or_default().as_bytes());
        }
        Special::Raw => bytes(out, 1, given.to_string().as_bytes()),
        Special::Items => {
            for item in given.as_array().into_iter().flatten() {
                bytes(out, 1, item.as_str().ok_or_else(wrong)?.as_bytes());
            }
        }
        Special::SchemaOrBool => match given {
            Value::Bool(allows) => varint_field(out, 1, u64::from(*allows)),
            schema => {
                varint_field(out, 1, 1);
                value(out, 2, Kind::Message(SCHEMA, Special::None), schema)?;
            }
        },
        Special::SchemaOrArray => match given {
            Value::Array(schemas) => {
                for schema in schemas {
                    value(out, 2, Kind::Message(SCHEMA, Special::None), schema)?;
                }
            }
            schema => value(out, 1, Kind::Message(SCHEMA, Special::None), schema)?,
        },
        Special::SchemaOrStrings => match given {
            Value::Array(names) => {
                for name in names {
                    value(out, 2, Kind::Text, name)?;
                }
            }
            schema => value(out, 1, Kind::Message(SCHEMA, Special::None), schema)?,
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;

    /// Bodies and the same objects as JSON, both answers of kube-apiserver v1.37.2 to one GET: encoding the JSON gives the body.
    #[test]
    fn recorded_objects_are_encoded_byte_for_byte() {
        let mut wrong = Vec::new();
        for line in include_str!("recorded.txt").lines() {
            let (body, object) = line.split_once('\t').expect("a body and JSON");
            let object: Value = serde_json::from_str(object).expect("JSON");
            // It has raw JSON in it, whose fields stand as its writer wrote them.
            if object["kind"] == "ControllerRevision" {
                continue;
            }
            let body = STANDARD.decode(body).expect("base64");
            let encoded = encode(&object).unwrap_or_else(|error| panic!("{}: {error}", object["kind"]));
            if encoded != body {
                let at = encoded.iter().zip(&body).position(|(a, b)| a != b);
                wrong.push(format!(
                    "{} differs at {at:?} of {}/{}: {:?} instead of {:?}",
                    object["kind"],
                    encoded.len(),
                    body.len(),
                    at.map(|at| String::from_utf8_lossy(
                        &encoded[at.saturating_sub(20)..(at + 20).min(encoded.len())]
                    )),
                    at.map(|at| String::from_utf8_lossy(
                        &body[at.saturating_sub(20)..(at + 20).min(body.len())]
                    )),
                ));
            }
            assert!(decode(&encoded).is_ok(), "{} is not read again", object["kind"]);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn what_has_no_protobuf_form_is_named() {
        let object = serde_json::json!({"apiVersion": "example.com/v1", "kind": "Site"});
        let error = EncodeError::Kind { api_version: "example.com/v1".to_owned(), kind: "Site".to_owned() };
        assert_eq!(encode(&object), Err(error));
        let object = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "data": [1]});
        assert_eq!(encode(&object), Err(EncodeError::Value("data".to_owned())));
    }
}
