//! Bodies in Kubernetes' protobuf form, as they stand on the wire: every field that is there, by its name, in the structure of its messages.
//!
//! Nothing is left out or filled in, so that a recording tells also which zero values a server writes. Times are written as JSON has them, for
//! they differ from run to run.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use setpoint_kinds::{Label, MessageField, by_kind, message};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// The media type.
pub(crate) const MEDIA: &str = "application/vnd.kubernetes.protobuf";

/// A body; `None` if it is not of the form.
pub(crate) fn body(bytes: &[u8]) -> Option<Value> {
    let mut envelope = Map::new();
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for (number, wire) in fields(bytes.strip_prefix(b"k8s\0")?)? {
        match (number, wire) {
            (1, Wire::Bytes(meta)) => {
                for (number, wire) in fields(meta)? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => api_version = text_of(text)?,
                        (2, Wire::Bytes(text)) => kind = text_of(text)?,
                        _ => return None,
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (number, Wire::Bytes(bytes)) => {
                drop(envelope.insert(format!("#{number}"), text_of(bytes)?.into()));
            }
            _ => return None,
        }
    }
    let content = object(&message_name(&api_version, &kind)?, raw)?;
    envelope.insert("apiVersion".to_owned(), api_version.into());
    envelope.insert("kind".to_owned(), kind.into());
    if let Value::Object(content) = content {
        envelope.extend(content);
    }
    Some(json!({ "$protobuf": envelope }))
}

/// An event of a watch, without the length before it.
pub(crate) fn event(frame: &[u8]) -> Option<Value> {
    let mut event = Map::new();
    for (number, wire) in fields(frame)? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => drop(event.insert("type".to_owned(), text_of(text)?.into())),
            (2, Wire::Bytes(raw)) => {
                let [(1, Wire::Bytes(inner))] = fields(raw)?[..] else { return None };
                event.insert("object".to_owned(), body(inner)?);
            }
            _ => return None,
        }
    }
    Some(event.into())
}

fn message_name(api_version: &str, kind: &str) -> Option<String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if let Some(known) = by_kind(group, version, kind) {
        return Some(known.definition.to_owned());
    }
    let listed = kind.strip_suffix("List").and_then(|kind| by_kind(group, version, kind));
    if let Some(known) = listed {
        return Some(format!("{}List", known.definition));
    }
    let package = group.split('.').next()?;
    [format!("io.k8s.api.{package}.{version}.{kind}"), format!("{META}{kind}")]
        .into_iter()
        .find(|name| message(name).is_some())
}

/// A message by its fields; those without a name in JSON are called by their numbers.
fn object(name: &str, bytes: &[u8]) -> Option<Value> {
    let known = message(name).unwrap_or_default();
    let mut object = Map::new();
    let mut last = 0;
    for (number, wire) in fields(bytes)? {
        if number < last {
            // Go writes fields in order.
            object.insert("#unordered".to_owned(), number.into());
        }
        last = number;
        let field = known.iter().find(|field| field.number == number);
        let key = field.and_then(|field| field.name).map_or_else(|| format!("#{number}"), str::to_owned);
        let value = field.map_or_else(|| Some(unknown(&wire)), |field| one(field, &wire))?;
        match field.map(|field| field.label) {
            Some(Label::Repeated) => match object.entry(key).or_insert_with(|| json!([])) {
                Value::Array(items) => items.push(value),
                _ => return None,
            },
            Some(Label::Map) => match (object.entry(key).or_insert_with(|| json!({})), value) {
                (Value::Object(entries), Value::Object(entry)) => entries.extend(entry),
                _ => return None,
            },
            _ => drop(object.insert(key, value)),
        }
    }
    Some(object.into())
}

fn unknown(wire: &Wire<'_>) -> Value {
    match wire {
        Wire::Number(number) => (*number as i64).into(),
        Wire::Bytes(bytes) => STANDARD.encode(bytes).into(),
    }
}

fn one(field: &MessageField, wire: &Wire<'_>) -> Option<Value> {
    if field.label != Label::Map {
        return value(field.kind, wire);
    }
    let Wire::Bytes(entry) = wire else { return None };
    let (mut key, mut found) = (String::new(), Value::Null);
    for (number, wire) in fields(entry)? {
        match (number, &wire) {
            (1, Wire::Bytes(text)) => key = text_of(text)?,
            _ => found = value(field.kind, &wire)?,
        }
    }
    Some(Map::from_iter([(key, found)]).into())
}

fn value(kind: &str, wire: &Wire<'_>) -> Option<Value> {
    Some(match (kind, wire) {
        ("string", Wire::Bytes(bytes)) => text_of(bytes)?.into(),
        ("bytes", Wire::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) if text.starts_with(['{', '[', '"']) => serde_json::from_str(text).ok()?,
            _ => STANDARD.encode(bytes).into(),
        },
        ("bool", Wire::Number(number)) => (*number != 0).into(),
        ("int", Wire::Number(number)) => (*number as i64).into(),
        ("double", Wire::Number(bits)) => f64::from_bits(*bits).into(),
        (name, Wire::Bytes(bytes)) => {
            let content = object(name, bytes)?;
            let time = name.strip_prefix(META).is_some_and(|name| name == "Time" || name == "MicroTime");
            match content["seconds"].as_i64().filter(|_| time) {
                Some(seconds) => {
                    json!({"time": utc(seconds), "nanos": content["nanos"]})
                }
                None => content,
            }
        }
        _ => return None,
    })
}

/// RFC 3339 of seconds since 1970 (days to a date: the civil calendar in 400-year eras).
fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (date, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

fn text_of(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message in their order; `None` if it is cut off.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u32, Wire<'_>)>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let wire = match tag & 7 {
            0 => Wire::Number(varint(&mut bytes)?),
            1 => Wire::Number(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Wire::Bytes(take(&mut bytes, length)?)
            }
            _ => return None,
        };
        all.push((u32::try_from(tag >> 3).ok()?, wire));
    }
    Some(all)
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_shows_what_is_on_the_wire() {
        // Status{metadata{selfLink "", resourceVersion "", continue ""}, status "Failure", …, code 404}, as kube-apiserver v1.37.2 writes it.
        let bytes = STANDARD
            .decode("azhzAAoMCgJ2MRIGU3RhdHVzEh8KBgoAEgAaABIHRmFpbHVyZTDMAxoAIgA=")
            .ok()
            .map(|bytes| body(&bytes));
        // Cut off: the length of the content is wrong.
        assert_eq!(bytes, Some(None));
        let bytes = [&b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x13\x0a\x06\x0a\x00\x12\x00\x1a\x00\x12\x07Failure\x30\x05\x1a\x00\x22\x00"[..]].concat();
        let shown = json!({"$protobuf": {
            "apiVersion": "v1", "kind": "Status", "#3": "", "#4": "", "status": "Failure", "code": 5,
            "metadata": {"selfLink": "", "resourceVersion": "", "continue": ""},
        }});
        assert_eq!(body(&bytes), Some(shown));
    }

    #[test]
    fn times_are_those_of_json() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(1_709_210_096), "2024-02-29T12:34:56Z");
        assert_eq!(utc(-1), "1969-12-31T23:59:59Z");
    }
}
