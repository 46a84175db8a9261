//! What is wrong with a value that does not fit its Go type, in the words of Go's decoders.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use setpoint_kinds::{GoMember, REF_PREFIX, go_members};

use crate::builtin::Quantity;

/// Which of Go's decoders reads the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::registry) enum Decoder {
    /// `sigs.k8s.io/json`, for bodies and patched objects.
    Json,
    /// `runtime.DefaultUnstructuredConverter`, for what a strategic merge patch made.
    Unstructured,
}

/// The first value of an object of a built-in definition (`io.k8s.api.core.v1.ConfigMap`) that does not fit its type, in the decoder's words. Of several
/// the first by name, where Go's is the first of the text.
pub(in crate::registry) fn misfit(decoder: Decoder, definition: &str, object: &Value) -> Option<String> {
    let node = setpoint_kinds::definition(definition)?;
    if fits(node, object) {
        return None;
    }
    let kind = format!("v1.{}", short(definition));
    Walk { decoder, of: short(definition), fields: Vec::new() }.value(node, definition, &kind, object)
}

/// Whether a value surely fits. Most do, and then nobody needs the names that words are made of.
fn fits(node: &'static Value, value: &Value) -> bool {
    if value.is_null() {
        return true;
    }
    if let Some(target) = reference(node) {
        let in_time = |micro| value.as_str().is_some_and(|text| unread_time(text, micro).is_none());
        return match target {
            "io.k8s.apimachinery.pkg.api.resource.Quantity" => quantity(value).is_none(),
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => value.is_string() || is_small(value),
            "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => in_time(false),
            "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime" => in_time(true),
            _ => setpoint_kinds::definition(target).is_none_or(|node| fits(node, value)),
        };
    }
    let kind = node.get("type").and_then(Value::as_str).unwrap_or_default();
    match (kind, value) {
        ("object", Value::Object(entries)) => {
            let (properties, additional) = (node.get("properties"), node.get("additionalProperties"));
            match properties.filter(|properties| properties.is_object()) {
                Some(known) => {
                    entries.iter().all(|(name, value)| known.get(name).is_none_or(|below| fits(below, value)))
                }
                None => additional
                    .filter(|below| below.is_object())
                    .is_none_or(|below| entries.values().all(|value| fits(below, value))),
            }
        }
        ("array", Value::Array(items)) => {
            node.get("items").is_none_or(|below| items.iter().all(|item| fits(below, item)))
        }
        ("string", Value::String(text)) => node["format"] != "byte" || STANDARD.decode(text).is_ok(),
        ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => true,
        ("integer", _) => is_small(value),
        ("object" | "array" | "string" | "boolean" | "number", _) => false,
        _ => true,
    }
}

/// Whether a value is a number that fits every integer type.
fn is_small(value: &Value) -> bool {
    value.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

/// Go's name for the type of a field.
fn type_of(node: &'static Value) -> String {
    if let Some(target) = reference(node) {
        return format!("v1.{}", short(target));
    }
    match node["type"].as_str().unwrap_or_default() {
        "array" => format!("[]{}", type_of(&node["items"])),
        "object" if node["additionalProperties"].is_object() => {
            format!("map[string]{}", type_of(&node["additionalProperties"]))
        }
        "boolean" => "bool".to_owned(),
        "integer" => text_or(&node["format"], "int64"),
        "number" => "float64".to_owned(),
        other => other.to_owned(),
    }
}

fn text_or(value: &Value, other: &str) -> String {
    value.as_str().unwrap_or(other).to_owned()
}

fn short(definition: &str) -> &str {
    definition.rsplit('.').next().unwrap_or_default()
}

/// Where the walk is.
#[derive(Clone)]
struct Walk<'a> {
    decoder: Decoder,
    /// The innermost struct.
    of: &'a str,
    /// The fields that lead there from the object; items and entries of maps have no names.
    fields: Vec<&'a str>,
}

impl<'a> Walk<'a> {
    /// `kind` is the Go type, `definition` the last definition on the way to `node`.
    fn value(&self, node: &'static Value, definition: &'a str, kind: &str, value: &Value) -> Option<String> {
        if value.is_null() {
            return None;
        }
        if let Some(target) = reference(node) {
            return match target {
                "io.k8s.apimachinery.pkg.api.resource.Quantity" => quantity(value),
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString" if value.is_string() => None,
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => self.integer("int32", value),
                "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => self.time(value, false),
                "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime" => self.time(value, true),
                _ => self.value(setpoint_kinds::definition(target)?, target, kind, value),
            };
        }
        match node["type"].as_str().unwrap_or_default() {
            "object" if node["properties"].is_object() => {
                let Value::Object(entries) = value else { return Some(self.wrong(value, kind, "struct")) };
                entries.iter().find_map(|(name, value)| self.field(node, definition, name, value))
            }
            "object" if node["additionalProperties"].is_object() => {
                let Value::Object(entries) = value else { return Some(self.wrong(value, kind, "map")) };
                let inner = kind.strip_prefix("map[string]").unwrap_or_default();
                entries
                    .values()
                    .find_map(|value| self.value(&node["additionalProperties"], definition, inner, value))
            }
            "array" => {
                let Value::Array(items) = value else { return Some(self.wrong(value, kind, "slice")) };
                let inner = kind.strip_prefix("[]").unwrap_or_default();
                items.iter().find_map(|item| self.value(&node["items"], definition, inner, item))
            }
            "string" if node["format"] == "byte" => match value.as_str() {
                Some(text) => self.bytes(text),
                None => Some(self.wrong(value, "[]uint8", "slice")),
            },
            "string" if !value.is_string() => Some(self.wrong(value, kind, "string")),
            "boolean" if !value.is_boolean() => Some(self.wrong(value, kind, "bool")),
            "integer" => self.integer(kind, value),
            "number" if !value.is_number() => Some(self.wrong(value, kind, "float64")),
            _ => None,
        }
    }

    fn field(&self, node: &'static Value, definition: &'a str, name: &str, value: &Value) -> Option<String> {
        let (name, below) = node["properties"].as_object()?.get_key_value(name)?;
        let name = name.as_str();
        let mut members = go_members(definition).peekable();
        if members.peek().is_none() {
            // A struct of the extensions' API: Go's names for its types follow from the schema.
            let (kind, fields) = (type_of(below), self.fields.iter().copied().chain([name]).collect());
            let walk = Walk { decoder: self.decoder, of: short(definition), fields };
            return walk.value(below, definition, &kind, value);
        }
        let GoMember { name, embedded, kind } = members.find(|member| member.name == name)?;
        let fields = self.fields.iter().copied().chain(embedded).chain([name]).collect();
        Walk { decoder: self.decoder, of: short(definition), fields }.value(below, definition, kind, value)
    }

    /// A value of another type; `group` is Go's name for what the type is made of.
    fn wrong(&self, value: &Value, kind: &str, group: &str) -> String {
        let found = match value {
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::Null => "null",
        };
        match self.decoder {
            Decoder::Json => self.cannot(found, kind),
            Decoder::Unstructured => {
                let found = match value {
                    Value::Array(_) => "slice",
                    Value::Object(_) => "map",
                    Value::Number(number) if number.is_f64() => "float64",
                    Value::Number(_) => "int64",
                    _ => found,
                };
                match group {
                    "struct" => format!("cannot restore struct from: {found}"),
                    "map" | "slice" => format!("cannot restore {group} from {found}"),
                    // Go converts integers to texts, and numbers to one another.
                    "string" if found == "int64" => format!("cannot convert int64 to {kind}"),
                    "int32" | "int64" if found == "float64" => format!("cannot convert float64 to {kind}"),
                    _ => format!("unrecognized type: {group}"),
                }
            }
        }
    }

    fn cannot(&self, found: &str, kind: &str) -> String {
        let Self { of, fields, .. } = self;
        format!(
            "json: cannot unmarshal {found} into Go struct field {of}.{} of type {kind}",
            fields.join(".")
        )
    }

    fn integer(&self, kind: &str, value: &Value) -> Option<String> {
        let Value::Number(number) = value else { return Some(self.wrong(value, kind, kind)) };
        let fits = match kind {
            "int32" => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            _ => number.is_i64(),
        };
        match self.decoder {
            _ if fits => None,
            Decoder::Json => Some(self.cannot(&format!("number {number}"), kind)),
            Decoder::Unstructured if number.is_f64() => Some(self.wrong(value, kind, kind)),
            // Go's conversion wraps.
            Decoder::Unstructured => None,
        }
    }

    fn bytes(&self, text: &str) -> Option<String> {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(&byte);
        let compact: Vec<u8> = text.bytes().filter(|byte| !b"\r\n".contains(byte)).collect();
        if STANDARD.decode(&compact).is_ok() {
            return None;
        }
        let at = text.bytes().position(|byte| !fine(byte)).unwrap_or(text.len() / 4 * 4);
        let why = format!("illegal base64 data at input byte {at}");
        Some(match self.decoder {
            Decoder::Json => why,
            Decoder::Unstructured => format!("error decoding string from base64: {why}"),
        })
    }

    fn time(&self, value: &Value, micro: bool) -> Option<String> {
        let Some(text) = value.as_str() else {
            return Some(match self.decoder {
                Decoder::Json => self.wrong(value, "string", "string"),
                Decoder::Unstructured => {
                    "json: cannot unmarshal number into Go value of type string".to_owned()
                }
            });
        };
        unread_time(text, micro)
    }
}

/// The definition that a field's schema refers to.
fn reference(node: &'static Value) -> Option<&'static str> {
    let target = node.get("$ref").or_else(|| node.get("allOf")?.get(0)?.get("$ref"))?;
    target.as_str()?.strip_prefix(REF_PREFIX)
}

fn quantity(value: &Value) -> Option<String> {
    const SYNTAX: &str =
        r"quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    let sound = match value {
        Value::String(text) => Quantity::parse(text).is_some(),
        Value::Number(_) => true,
        _ => false,
    };
    (!sound).then(|| SYNTAX.to_owned())
}

/// Why Go's `time.Parse` does not read a time of RFC 3339; `micro` is one with the six digits of a `MicroTime`.
fn unread_time(text: &str, micro: bool) -> Option<String> {
    let layout = if micro { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    let unread = |rest: &str, expected: &str| {
        Some(format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {expected:?}"))
    };
    let parts = [
        (4, "2006", ""),
        (1, "-", ""),
        (2, "01", "month"),
        (1, "-", ""),
        (2, "02", "day"),
        (1, "T", ""),
        (2, "15", "hour"),
        (1, ":", ""),
        (2, "04", "minute"),
        (1, ":", ""),
        (2, "05", "second"),
    ];
    let mut rest = text;
    for (length, expected, range) in parts {
        let Some((part, after)) = rest.split_at_checked(length) else { return unread(rest, expected) };
        let reads =
            if length == 1 { part == expected } else { part.bytes().all(|digit| digit.is_ascii_digit()) };
        if !reads {
            return unread(rest, expected);
        }
        let number = part.parse().unwrap_or(0_u32);
        let fits = match range {
            "month" => (1..=12).contains(&number),
            "day" => (1..=31).contains(&number),
            "hour" => number < 24,
            "minute" | "second" => number < 60,
            _ => true,
        };
        if !fits {
            return Some(format!("parsing time {text:?}: {range} out of range"));
        }
        rest = after;
    }
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    if micro && digits != 6 {
        return unread(rest, ".000000");
    }
    let zone = if digits > 0 { &rest[digits + 1..] } else { rest };
    if !zone.starts_with(['Z', '+', '-']) {
        return unread(zone, "Z07:00");
    }
    text.parse::<jiff::Timestamp>().is_err().then(|| format!("parsing time {text:?}: day out of range"))
}

/// Why Go does not read the time in a query.
pub(crate) fn unread_query_time(text: &str) -> Option<String> {
    unread_time(text, false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_innermost_struct_and_all_fields_are_named() {
        let of = |definition: &str, object: &Value| misfit(Decoder::Json, definition, object);
        let said = |text: &str| Some(format!("json: cannot unmarshal {text}"));
        assert_eq!(
            of("io.k8s.api.core.v1.ConfigMap", &json!({"data": {"k": true}})),
            said("bool into Go struct field ConfigMap.data of type string")
        );
        let pod = |spec: Value| of("io.k8s.api.core.v1.Pod", &json!({"spec": spec}));
        assert_eq!(
            pod(json!({"containers": [{"name": "a", "image": 5}]})),
            said("number into Go struct field Container.spec.containers.image of type string")
        );
        assert_eq!(
            pod(json!({"containers": [{"livenessProbe": {"httpGet": {"port": true}}}]})),
            said(
                "bool into Go struct field HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port of type int32"
            )
        );
        assert_eq!(
            pod(json!({"priority": 5_000_000_000_i64})),
            said("number 5000000000 into Go struct field PodSpec.spec.priority of type int32")
        );
        assert_eq!(
            of("io.k8s.api.core.v1.Pod", &json!({"metadata": {"labels": {"a.b": 5}}})),
            said("number into Go struct field ObjectMeta.metadata.labels of type string")
        );
        assert_eq!(
            of("io.k8s.api.core.v1.Secret", &json!({"data": {"k": "ab*"}})),
            Some("illegal base64 data at input byte 2".to_owned())
        );
        assert_eq!(of("io.k8s.api.core.v1.Secret", &json!({"data": {"k": "eA=="}, "type": null})), None);
    }

    #[test]
    fn times_are_refused_in_the_words_of_go() {
        for (text, words) in [
            ("x", Some(r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#)),
            ("2026-13-01T00:00:00Z", Some(r#"parsing time "2026-13-01T00:00:00Z": month out of range"#)),
            ("2026-02-30T00:00:00Z", Some(r#"parsing time "2026-02-30T00:00:00Z": day out of range"#)),
            ("2026-01-01T00:00:00.5Z", None),
            ("2026-01-01T02:00:00+02:00", None),
        ] {
            assert_eq!(unread_time(text, false).as_deref(), words, "{text}");
        }
    }

    #[test]
    fn what_a_strategic_patch_made_has_another_decoder() {
        let of =
            |object: Value| misfit(Decoder::Unstructured, "io.k8s.api.core.v1.ConfigMap", &object).unwrap();
        assert_eq!(of(json!({"data": {"k": 5}})), "cannot convert int64 to string");
        assert_eq!(of(json!({"data": "x"})), "cannot restore map from string");
        assert_eq!(of(json!({"immutable": "yes"})), "unrecognized type: bool");
        assert_eq!(of(json!({"metadata": "yes"})), "cannot restore struct from: string");
    }
}
