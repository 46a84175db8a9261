//! From the bytes of a request to an object.

pub(super) mod go;
mod json;
mod yaml;

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use crate::catalog::Resource;
use crate::headers::text;
use crate::protobuf;
use crate::status::{Cause, Result, Status, Subject};

/// The media type of a request, without parameters; JSON when it is missing.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let given = text(headers, CONTENT_TYPE);
    let media = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media.is_empty() { "application/json".to_owned() } else { media }
}

/// Parses a JSON, YAML or protobuf body.
pub(crate) fn parse_body(headers: &HeaderMap, body: &[u8]) -> Result<Value> {
    match media_type(headers).as_str() {
        "application/json" | "*/*" => parse_json(body),
        "application/yaml" => yaml_with_repeated(body)
            .map(|(value, _)| value)
            .map_err(|error| Status::bad_request(format!("error decoding the body as YAML: {error}"))),
        protobuf::MEDIA_TYPE => protobuf::decode(body).map_err(|error| {
            Status::bad_request(format!("error decoding the body as protobuf: {}", said(body, &error)))
        }),
        _ => Err(Status::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

pub(super) fn parse_json(body: &[u8]) -> Result<Value> {
    parse_json_naming(body).map(|(value, _)| value)
}

/// As [`parse_json`], and the fields that the document gives more than once.
pub(super) fn parse_json_naming(body: &[u8]) -> Result<(Value, Vec<String>)> {
    json::parse(body)
        .map_err(|error| Status::bad_request(format!("error decoding the body as JSON: {error}")))
}

/// As [`parse_body`], for an object of `resource`, and the fields that a JSON body gives more than once: the last one counts,
/// and the writer is told.
pub(crate) fn parse_object(
    resource: &Resource,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(Value, Vec<String>)> {
    let media = media_type(headers);
    if media == protobuf::MEDIA_TYPE && resource.custom().is_none() {
        return protobuf::decode(body).map(|object| (object, Vec::new())).map_err(|error| match error {
            protobuf::DecodeError::Kind { api_version, kind } => {
                another_kind(&resource.group, &resource.kind, &api_version, &kind)
            }
            error => unrecognized(resource, &said(body, &error), body),
        });
    }
    let yaml = media == "application/yaml";
    if !yaml && !matches!(media.as_str(), "application/json" | "*/*") {
        return Ok((parse_body(headers, body)?, Vec::new()));
    }
    let unread = |why: &str| {
        unrecognized(resource, &format!("couldn't get version/kind; json parse error: {why}"), body)
    };
    let parsed = if yaml {
        yaml_with_repeated(body).map_err(|error| unrecognized(resource, &error, body))
    } else {
        json::parse(body).map_err(|error| {
            if error.is_eof() {
                return unread("unexpected end of JSON input");
            }
            Status::bad_request(format!("error decoding the body as JSON: {error}"))
        })
    };
    let (value, duplicates) = parsed?;
    if let Value::Object(fields) = &value {
        let kind = fields.get("kind").and_then(Value::as_str).unwrap_or_default();
        if kind.is_empty() && resource.custom().is_some() {
            let text = if yaml { value.to_string().into() } else { String::from_utf8_lossy(body) };
            return Err(unrecognized(resource, &format!("Object 'Kind' is missing in '{text}'"), body));
        }
        return Ok((value, duplicates));
    }
    match no_object(&value) {
        Some(why) => Err(unread(&why)),
        None => Ok((Value::Object(Map::new()), duplicates)),
    }
}

/// Why a document cannot say its kind; `null` says nothing.
fn no_object(value: &Value) -> Option<String> {
    let kind = match value {
        Value::Object(_) | Value::Null => return None,
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    Some(format!(
        r#"json: cannot unmarshal {kind} into Go value of type struct {{ APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }}"#
    ))
}

/// As [`parse_body`], for options, which are of a type that the path does not name.
pub(super) fn parse_options(headers: &HeaderMap, body: &[u8]) -> Result<Value> {
    let media = media_type(headers);
    if media == protobuf::MEDIA_TYPE {
        return protobuf::decode(body).map_err(|error| Status::bad_request(said(body, &error)));
    }
    let unread =
        |why: &str| Status::bad_request(format!("couldn't get version/kind; json parse error: {why}"));
    let value = if matches!(media.as_str(), "application/json" | "*/*") {
        let parsed = json::parse(body).map(|(value, _)| value);
        parsed.map_err(|error| {
            if error.is_eof() { unread("unexpected end of JSON input") } else { unread(&error.to_string()) }
        })?
    } else {
        parse_body(headers, body)?
    };
    if let Some(why) = no_object(&value) {
        return Err(unread(&why));
    }
    for key in ["apiVersion", "kind"] {
        let kind = match &value[key] {
            Value::Null | Value::String(_) => continue,
            Value::Object(_) => "object",
            Value::Array(_) => "array",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
        };
        return Err(unread(&format!(
            "json: cannot unmarshal {kind} into Go struct field .{key} of type string"
        )));
    }
    Ok(value)
}

/// What is wrong with a protobuf body, as Go's decoders word it.
fn said(body: &[u8], error: &protobuf::DecodeError) -> String {
    match error {
        protobuf::DecodeError::Magic if body.is_empty() => "empty data".to_owned(),
        protobuf::DecodeError::Magic => {
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
                .to_owned()
        }
        protobuf::DecodeError::Truncated => "unexpected EOF".to_owned(),
        other => other.to_string(),
    }
}

/// The body is no object of the resource; worded as Go's codecs do, with the beginning of the body: as text where it looks like an
/// object, else as bytes (`summarizeData`).
fn unrecognized(resource: &Resource, why: &str, body: &[u8]) -> Status {
    // Characters of a text, or bytes of anything else.
    let most = if body.first() == Some(&b'{') { 128 } else { 30 };
    let start = &body[..body.len().min(most)];
    let more = if body.len() > most { " ..." } else { "" };
    let shown = match body {
        [] => "<empty>".to_owned(),
        [b'{', ..] => String::from_utf8_lossy(start).into_owned(),
        _ => start.iter().fold(String::new(), |mut text, byte| {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        }),
    };
    let kind = &resource.kind;
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({shown}{more})"
    ))
}

pub(super) fn parse_yaml(body: &[u8]) -> Result<Value> {
    parse_yaml_naming(body).map(|(value, _)| value)
}

/// As [`parse_yaml`], and the lines of keys that the document gives again.
pub(super) fn parse_yaml_naming(body: &[u8]) -> Result<(Value, Vec<String>)> {
    yaml_with_repeated(body).map_err(|error| Status::bad_request(format!("error encoding patch: {error}")))
}

fn yaml_with_repeated(body: &[u8]) -> Result<(Value, Vec<String>), String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    yaml::parse(text)
}

/// Checks `apiVersion` and `kind` against the resource; built-in kinds may leave them out.
pub(super) fn check_kind(resource: &Resource, object: &mut Value) -> Result<()> {
    let Value::Object(map) = object else {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): the body is no JSON object",
            resource.kind
        )));
    };
    let api_version = resource.api_version();
    let text = |map: &Map<String, Value>, key: &str| {
        map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    if resource.custom().is_none() {
        for (key, value) in [("apiVersion", &api_version), ("kind", &resource.kind)] {
            if text(map, key).is_empty() {
                map.insert(key.to_owned(), value.clone().into());
            }
        }
    }
    let (version, kind) = (text(map, "apiVersion"), text(map, "kind"));
    if resource.custom().is_none() && (version != api_version || kind != resource.kind) {
        return Err(another_kind(&resource.group, &resource.kind, &version, &kind));
    }
    if kind.is_empty() {
        return Err(Status::bad_request("Object 'Kind' is missing in the body of the request"));
    }
    if version != api_version {
        return Err(Status::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({api_version})"
        )));
    }
    if kind != resource.kind {
        let cause = Cause::invalid("kind", &kind.as_str().into(), &format!("must be {}", resource.kind));
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return Err(Status::invalid(Subject { group: &resource.group, kind: &kind, name }, vec![cause]));
    }
    Ok(())
}

/// Refuses a body that an update does not begin with: one of another built-in kind, or of another version of a custom resource.
pub(super) fn check_decoded(resource: &Resource, object: &Value) -> Result<()> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let mut own = json!({"apiVersion": text("apiVersion"), "kind": text("kind")});
    if resource.custom().is_some() && !text("kind").is_empty() {
        own["kind"] = resource.kind.as_str().into();
    }
    check_kind(resource, &mut own)
}

/// Says that a body is not of the built-in kind that its path names, as Go's scheme words it.
pub(crate) fn another_kind(wanted_group: &str, wanted: &str, api_version: &str, kind: &str) -> Status {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let why = if is_registered(group, version, kind) {
        unknown_conversion(version, kind, wanted_group, wanted)
    } else {
        unregistered(api_version, kind)
    };
    Status::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {wanted}: {why}"))
}

/// Whether Go's scheme has a kind: those of resources and of their lists, options and events in each group version, and some others.
fn is_registered(group: &str, version: &str, kind: &str) -> bool {
    let known = |kind: &str| setpoint_kinds::by_kind(group, version, kind).is_some();
    if known(kind) || kind.strip_suffix("List").is_some_and(known) {
        return true;
    }
    match kind {
        "CreateOptions" | "DeleteOptions" | "GetOptions" | "ListOptions" | "PatchOptions"
        | "UpdateOptions" | "WatchEvent" => {
            setpoint_kinds::kinds().iter().any(|kind| kind.group == group && kind.version == version)
        }
        "APIGroup"
        | "APIGroupList"
        | "APIResourceList"
        | "APIVersions"
        | "Binding"
        | "List"
        | "NodeProxyOptions"
        | "PodAttachOptions"
        | "PodExecOptions"
        | "PodLogOptions"
        | "PodPortForwardOptions"
        | "PodProxyOptions"
        | "PodStatusResult"
        | "RangeAllocation"
        | "SerializedReference"
        | "ServiceProxyOptions"
        | "Status" => (group, version) == ("", "v1"),
        "Scale" => (group, version) == ("autoscaling", "v1"),
        "Eviction" => (group, version) == ("policy", "v1"),
        "TokenRequest" => (group, version) == ("authentication.k8s.io", "v1"),
        _ => false,
    }
}

/// Why an object of one built-in kind is not taken as one of another.
pub(super) fn unknown_conversion(version: &str, kind: &str, wanted_group: &str, wanted: &str) -> String {
    let package = wanted_group.split('.').next().filter(|name| !name.is_empty()).unwrap_or("core");
    format!("converting ({version}.{kind}) to ({package}.{wanted}): unknown conversion")
}

/// Why an object of a kind that nobody knows cannot be decoded.
pub(super) fn unregistered(api_version: &str, kind: &str) -> String {
    format!(
        "no kind \"{kind}\" is registered for version \"{api_version}\" in scheme \"pkg/runtime/scheme.go:111\""
    )
}
