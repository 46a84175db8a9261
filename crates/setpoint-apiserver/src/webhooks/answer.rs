//! What a webhook answered, as Go's client reads it (`k8s.io/client-go/rest.Request.transformResponse`).

use std::time::Duration;

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine};
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::response::Parts;
use serde_json::Value;

/// How Go's decoder names the object that it looks for kind and version in.
pub(crate) const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
/// The fields of answers that have a type to be wrong: path, Go's names for the struct and the type.
const TYPES: [(&str, &str, &str, Type); 16] = [
    ("/response/uid", "AdmissionResponse.response.uid", "types.UID", Type::Text),
    ("/response/allowed", "AdmissionResponse.response.allowed", "bool", Type::Bool),
    ("/response/patch", "AdmissionResponse.response.patch", "[]uint8", Type::Text),
    ("/response/patchType", "AdmissionResponse.response.patchType", "v1.PatchType", Type::Text),
    ("/response/warnings", "AdmissionResponse.response.warnings", "[]string", Type::List),
    (
        "/response/auditAnnotations",
        "AdmissionResponse.response.auditAnnotations",
        "map[string]string",
        Type::Map,
    ),
    ("/response/status", "AdmissionResponse.response.status", "v1.Status", Type::Map),
    ("/response/status/message", "Status.response.status.message", "string", Type::Text),
    ("/response/status/reason", "Status.response.status.reason", "v1.StatusReason", Type::Text),
    ("/response/status/status", "Status.response.status.status", "string", Type::Text),
    ("/response/status/code", "Status.response.status.code", "int32", Type::Number),
    (
        "/response/convertedObjects",
        "ConversionResponse.response.convertedObjects",
        "[]runtime.RawExtension",
        Type::List,
    ),
    ("/response/result", "ConversionResponse.response.result", "v1.Status", Type::Map),
    ("/response/result/message", "Status.response.result.message", "string", Type::Text),
    ("/response/result/status", "Status.response.result.status", "string", Type::Text),
    ("/response", "AdmissionReview.response", "v1.AdmissionResponse", Type::Map),
];

#[derive(Clone, Copy)]
enum Type {
    Text,
    Bool,
    Number,
    List,
    Map,
}

/// How long a server that cannot answer now wants to be left alone (upstream: `rest.checkWait`).
pub(super) fn retry_after(parts: &Parts) -> Option<Duration> {
    let busy = parts.status == StatusCode::TOO_MANY_REQUESTS || parts.status.is_server_error();
    let seconds = parts.headers.get(RETRY_AFTER).filter(|_| busy)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The review in an answer to `asked`.
///
/// # Errors
/// Why it is none, in Go's words.
pub(super) fn review(parts: &Parts, body: &[u8], asked: &Value) -> Result<Value, String> {
    let code = parts.status.as_u16();
    if !(200..=206).contains(&code) {
        return Err(refusal(code, body));
    }
    if body.is_empty() {
        let media = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media = media.unwrap_or("application/json");
        return Err(format!("0-length response with status code: {code} and content type: {media}"));
    }
    let unread = |why: &str| format!("couldn't get version/kind; json parse error: {why}");
    // Go's decoder reads YAML where it is no JSON.
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => {
            let text = std::str::from_utf8(body).map_err(|error| unread(&error.to_string()))?;
            serde_saphyr::from_str(text).map_err(|_| unread(&error.to_string()))?
        }
    };
    if !value.is_object() && !value.is_null() {
        return Err(unread(&format!(
            "json: cannot unmarshal {} into Go value of type {TYPE_META}",
            type_of(&value)
        )));
    }
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let (wanted, of) = (text(asked, "apiVersion"), text(asked, "kind"));
    // What is left out is what was asked for.
    let or = |given: String, wanted: &String| if given.is_empty() { wanted.clone() } else { given };
    let (version, kind) = (or(text(&value, "apiVersion"), &wanted), or(text(&value, "kind"), &of));
    if kind != of || version != wanted {
        let (group, short) = version.rsplit_once('/').unwrap_or(("", &version));
        let (asked_group, asked_version) = wanted.rsplit_once('/').unwrap_or_default();
        let known = kind == of && group == asked_group && matches!(short, "v1" | "v1beta1");
        if known || kind == "Status" && version == "v1" {
            return Err(format!("converting ({short}.{kind}) to ({asked_version}.{of}): unknown conversion"));
        }
        return Err(format!(
            "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\""
        ));
    }
    for (path, field, go, wanted) in TYPES {
        let found = value.pointer(path).unwrap_or(&Value::Null);
        let fits = match (wanted, found) {
            (_, Value::Null)
            | (Type::Text, Value::String(_))
            | (Type::Bool, Value::Bool(_))
            | (Type::List, Value::Array(_))
            | (Type::Map, Value::Object(_)) => true,
            (Type::Number, found) => found.is_i64(),
            _ => false,
        };
        if !fits {
            return Err(format!(
                "json: cannot unmarshal {} into Go struct field {field} of type {go}",
                type_of(found)
            ));
        }
    }
    let warnings = value["response"]["warnings"].as_array().into_iter().flatten();
    if let Some(wrong) =
        warnings.into_iter().find(|warning| !matches!(warning, Value::String(_) | Value::Null))
    {
        return Err(format!(
            "json: cannot unmarshal {} into Go struct field AdmissionResponse.response.warnings of type string",
            type_of(wrong)
        ));
    }
    match value["response"]["patch"].as_str().map(|patch| STANDARD.decode(patch)) {
        Some(Err(error)) => Err(illegal(&error)),
        _ => Ok(value),
    }
}

/// Why a text is no base64, as Go says it.
fn illegal(error: &DecodeError) -> String {
    let at = match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => *at,
        DecodeError::InvalidLength(at) => at / 4 * 4,
        DecodeError::InvalidPadding => 0,
    };
    format!("illegal base64 data at input byte {at}")
}

/// Why an answer that does not say what it is does not count.
pub(crate) fn unexpected(review: &Value, group: &str, kind: &str) -> String {
    let text = |key: &str| review[key].as_str().unwrap_or_default();
    let version = text("apiVersion");
    let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
    format!("expected webhook response of {group}/v1, Kind={kind}, got {version}, Kind={}", text("kind"))
}

/// A JSON type as Go's decoder names it.
pub(crate) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// An error of the server: the message of a `Status`, or what is known of the code.
fn refusal(code: u16, body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    if status["kind"] == "Status" && status["apiVersion"] == "v1" {
        return status["message"].as_str().unwrap_or_default().to_owned();
    }
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    let said = if text.is_empty() { "unknown" } else { text };
    match code {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        406 if said == "unknown" => {
            "the server was unable to respond with a content type that the client supports".to_owned()
        }
        403 | 406 | 415 => said.to_owned(),
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".to_owned(),
        500.. => format!("an error on the server ({said:?}) has prevented the request from succeeding"),
        _ => format!("the server responded with the status code {code} but did not return more information"),
    }
}
