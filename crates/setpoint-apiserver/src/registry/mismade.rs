//! What a webhook or policy made of an object that is none of its resource any more
//! (upstream: the decoding after a patch, and the strategies' checks of kind and version).

use serde_json::Value;

use super::decode::go::{self, Decoder};
use super::decode::{unknown_conversion, unregistered};
use super::shape::metadata_fault;
use crate::catalog::Resource;
use crate::object::go_type;
use crate::status::{Cause, Status, Subject};
use crate::webhooks::{TYPE_META, type_of};

/// Why a mutated object cannot be taken.
#[derive(Debug)]
pub(crate) enum Mismade {
    /// It cannot be decoded: why, in Go's words.
    Undecodable(String),
    /// It is an object of another kind or version.
    Refused(Status),
}

/// Refuses another kind or version than that of `resource`, and gives back to a built-in object what it lacks of them.
pub(super) fn keep_kind(resource: &Resource, object: &mut Value) -> Result<(), Mismade> {
    let unread = |why: String| {
        Err(Mismade::Undecodable(format!("couldn't get version/kind; json parse error: json: {why}")))
    };
    let Value::Object(fields) = &mut *object else {
        if object.is_array() {
            return unread(format!("cannot unmarshal array into Go value of type {TYPE_META}"));
        }
        let why = "replace operation value must be object or array: %!w(<nil>)";
        return Err(Mismade::Undecodable(why.to_owned()));
    };
    let expected = [("apiVersion", resource.api_version()), ("kind", resource.kind.clone())];
    for (key, value) in expected {
        let found = fields.get(key).unwrap_or(&Value::Null);
        if !matches!(found, Value::Null | Value::String(_)) {
            let found = type_of(found);
            return unread(format!("cannot unmarshal {found} into Go struct field .{key} of type string"));
        }
        if resource.custom().is_none() && found.as_str().is_none_or(str::is_empty) {
            fields.insert(key.to_owned(), value.into());
        }
    }
    if resource.custom().is_some() { keep_custom(resource, object) } else { keep_built_in(resource, object) }
}

fn keep_custom(resource: &Resource, object: &Value) -> Result<(), Mismade> {
    let (api_version, kind) = said(object);
    if kind.is_empty() {
        return Err(Mismade::Undecodable(format!("Object 'Kind' is missing in '{object}'")));
    }
    let wanted = resource.api_version();
    if api_version != wanted {
        let shown =
            if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
        return Err(Mismade::Refused(Status::unknown(format!(
            "{shown}, Kind={kind} is unstructured and is not suitable for converting to {wanted:?}"
        ))));
    }
    if kind != resource.kind {
        let cause = Cause::invalid("kind", &kind.into(), &format!("must be {}", resource.kind));
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let subject = Subject { group: &resource.group, kind, name };
        return Err(Mismade::Refused(Status::invalid(subject, vec![cause])));
    }
    Ok(())
}

fn keep_built_in(resource: &Resource, object: &Value) -> Result<(), Mismade> {
    let (api_version, kind) = said(object);
    if api_version == resource.api_version() && kind == resource.kind {
        return Ok(());
    }
    // It is decoded as what it says it is.
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let Some(other) = setpoint_kinds::by_kind(group, version, kind) else {
        return Err(Mismade::Undecodable(unregistered(api_version, kind)));
    };
    if let Some(words) = go::misfit(Decoder::Json, other.definition, object) {
        return Err(Mismade::Undecodable(words));
    }
    let why = unknown_conversion(version, kind, &resource.group, &resource.kind);
    Err(Mismade::Refused(Status::unknown(why)))
}

fn said(object: &Value) -> (&str, &str) {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    (text("apiVersion"), text("kind"))
}

/// What is wrong with the types in a custom resource's metadata, which a mutation may have changed.
pub(super) fn misfit_of_metadata(object: &Value) -> Option<Cause> {
    let fault = metadata_fault(object)?;
    let metadata = &object["metadata"];
    let texts = ["labels", "annotations"].into_iter().filter_map(|field| metadata[field].as_object());
    let wrong = texts.flat_map(|texts| texts.values()).find(|value| !value.is_string());
    let why = wrong.map_or(fault, |value| match value {
        Value::Number(_) => format!("cannot convert {} to string", go_type(value)),
        _ => "unrecognized type: string".to_owned(),
    });
    Some(Cause::invalid("metadata", metadata, &why))
}
