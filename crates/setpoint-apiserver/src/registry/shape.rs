//! Where objects meet their schemas: versions, unknown fields, defaults, validation and managed fields.

use std::borrow::Cow;

use serde_json::Value;
use setpoint_schema::{
    ErrorKind, FieldPath, FieldSet, Schema, UnknownField, fill_nulls, forget_empty, has_empty_texts,
    keep_empty_texts, omit_empty, prune, validate, write_zeros,
};

use super::decode::another_kind;
use super::decode::go::{self, Decoder};
use super::mismade::{Mismade, keep_kind, misfit_of_metadata};
use super::options::{FieldValidation, WriteOptions};
use crate::autoscaling;
use crate::builtin;
use crate::catalog::Resource;
use crate::custom;
use crate::events;
use crate::status::{Cause, Result, Status};
use crate::store::Stored;

/// Whether readers of `resource` get the stored bytes as they are.
pub(crate) fn is_served_as_stored(resource: &Resource, stored: &Stored) -> bool {
    match resource.custom() {
        // Written in another version or under an older schema: what is read has today's shape.
        Some(custom) => stored.revision >= custom.since && stored.is_in(&custom.api_version),
        None => resource.group != events::GROUP && stored.is_in(&resource.api_version()),
    }
}

/// The object in the version of `resource`, as every reader gets it.
pub(crate) fn served<'a>(resource: &Resource, stored: &'a Stored) -> Cow<'a, Value> {
    if is_served_as_stored(resource, stored) {
        return stored.tree();
    }
    let by_webhook = resource.custom().filter(|custom| custom.conversion.is_some());
    if by_webhook.is_some_and(|custom| !stored.is_in(&custom.api_version)) {
        // What a webhook has to convert comes here converted, or stays in the version in which it is stored.
        return stored.tree();
    }
    Cow::Owned(served_value(resource, stored.decode()))
}

/// An object in the form in which it is stored, in the version of `resource`.
pub(super) fn served_value(resource: &Resource, mut value: Value) -> Value {
    if let Some(custom) = resource.custom() {
        custom.serve(&mut value);
    } else if resource.group == events::GROUP {
        events::from_core(&mut value);
        omit_empty(&resource.schema(), &mut value);
        complete(resource, &mut value);
    } else if autoscaling::is_first(resource) {
        autoscaling::from_second(&mut value);
        complete(resource, &mut value);
    } else {
        value["apiVersion"] = resource.api_version().into();
    }
    value
}

/// The object in the version in which it is stored.
pub(super) fn storage_form(resource: &Resource, mut object: Value) -> Value {
    if let Some(custom) = resource.custom() {
        debug_assert!(
            custom.conversion.is_none() || object["apiVersion"] == custom.storage_version.as_str(),
            "{} is stored without conversion",
            resource.kind
        );
        custom.to_storage(&mut object);
    } else if resource.group == events::GROUP {
        events::to_core(&mut object);
    } else if autoscaling::is_first(resource) {
        autoscaling::to_second(&mut object);
        if let Some(schema) = Schema::builtin("io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler") {
            write_zeros(&schema, &mut object);
        }
    }
    object
}

/// Drops the nulls that an apply left where the schema says nothing: they change the object, and are not kept.
pub(super) fn forget_nulls(resource: &Resource, object: &mut Value) {
    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Object(fields) => fields.values().any(has_null),
            Value::Array(items) => items.iter().any(has_null),
            _ => false,
        }
    }
    if let Some(custom) = resource.custom().filter(|_| has_null(object)) {
        custom.complete(object);
    }
}

/// What a dry run answers: the object as it would be read after it was stored.
pub(super) fn drafted(resource: &Resource, object: Value) -> Value {
    match resource.custom() {
        Some(custom) if custom.conversion.is_none() && custom.api_version != custom.storage_version => {
            served_value(resource, storage_form(resource, object))
        }
        _ => object,
    }
}

/// Drops what the schema does not know, with a warning or an error, and fills in defaults. `applied`: what was applied to make the object.
pub(super) fn clean(
    resource: &Resource,
    object: &mut Value,
    options: &WriteOptions,
    applied: Option<&Value>,
) -> Result<Vec<String>> {
    let unknown = if let Some(custom) = resource.custom() {
        let unknown = match applied {
            Some(intent) => custom.complete_applied(object, intent),
            None => custom.complete(object),
        };
        check_metadata(resource, object)?;
        unknown
    } else {
        decode_built_in(resource, object).map_err(|words| undecodable(resource, &words))?
    };
    let texts = || options.duplicates.iter().cloned().chain(unknown.iter().map(ToString::to_string));
    match options.validation {
        FieldValidation::Strict if texts().next().is_some() => Err(Status::bad_request(format!(
            "{0} in version \"{1}\" cannot be handled as a {0}: strict decoding error: {2}",
            resource.kind,
            resource.version,
            strictly(&options.duplicates, &unknown)
        ))),
        FieldValidation::Warn => Ok(texts().collect()),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// Gives a body of `kind` (group, version, kind), which is no object of its resource, the form that it has after decoding; answers warnings about what
/// it had besides.
///
/// # Errors
/// When it is of another kind, or a value does not fit its type.
pub(crate) fn read_posted(
    (group, version, kind): (&str, &str, &str),
    definition: &str,
    body: &mut Value,
    options: &WriteOptions,
) -> Result<Vec<String>> {
    let own_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let text =
        |key: &str, own: &str| body[key].as_str().filter(|text| !text.is_empty()).unwrap_or(own).to_owned();
    let (given_version, given) = (text("apiVersion", &own_version), text("kind", kind));
    if given != kind || given_version != own_version {
        return Err(another_kind(group, kind, &given_version, &given));
    }
    let handled = |why: &str| {
        Status::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
    };
    let Some(schema) = Schema::builtin(definition) else { return Ok(Vec::new()) };
    let unknown = prune(&schema, body);
    if let Some(words) = go::misfit(Decoder::Json, definition, body) {
        return Err(handled(&words));
    }
    omit_empty(&schema, body);
    match options.validation {
        FieldValidation::Strict if !unknown.is_empty() => {
            Err(handled(&format!("strict decoding error: {}", strictly(&[], &unknown))))
        }
        FieldValidation::Warn => Ok(unknown.iter().map(ToString::to_string).collect()),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// What strict decoding complains about. The parser of YAML has all its complaints in one.
fn strictly(duplicates: &[String], unknown: &[UnknownField]) -> String {
    let of_yaml = duplicates.iter().any(|text| text.starts_with("line "));
    let mut texts: Vec<String> = if of_yaml {
        vec![format!("yaml: unmarshal errors:\n  {}", duplicates.join("\n  "))]
    } else {
        duplicates.to_vec()
    };
    texts.extend(unknown.iter().map(ToString::to_string));
    texts.join(", ")
}

/// Gives an object that a webhook patched the form that it has after decoding: no unknown fields, and defaults.
///
/// # Errors
/// When it is no object of its resource any more.
pub(crate) fn redecode(resource: &Resource, object: &mut Value) -> Result<(), Mismade> {
    keep_kind(resource, object)?;
    if let Some(custom) = resource.custom() {
        custom.complete(object);
        return Ok(());
    }
    decode_built_in(resource, object).map(drop).map_err(Mismade::Undecodable)
}

/// Gives an object of a built-in kind the form that it has after decoding, and answers what it had besides.
///
/// # Errors
/// Why it cannot be decoded, in Go's words.
fn decode_built_in(resource: &Resource, object: &mut Value) -> Result<Vec<UnknownField>, String> {
    let schema = resource.schema();
    fill_nulls(&schema, object);
    drop_nulls(object);
    let unknown = prune(&schema, object);
    // Before anything is made of it: defaults rely on the types.
    if let Some(words) = misfit(resource, object) {
        return Err(words);
    }
    omit_empty(&schema, object);
    let given = has_empty_texts(&schema, object).then(|| object.clone());
    builtin::default(&resource.group, &resource.kind, object);
    if let Some(given) = given {
        keep_empty_texts(&schema, &given, object);
    }
    // Some defaults are what Go writes for an empty list.
    drop_nulls(object);
    write_zeros(&schema, object);
    Ok(unknown)
}

/// Gives an object of a built-in kind the form in which it is stored: without lists and maps that were given empty, and with what Go's types
/// write even where nothing is set.
pub(super) fn complete(resource: &Resource, object: &mut Value) {
    if resource.custom().is_none() {
        let schema = resource.schema();
        forget_empty(&schema, object);
        write_zeros(&schema, object);
    }
}

/// `null` is nothing, as in the Go types of built-in kinds.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The metadata of custom resources has the types of everybody's.
fn check_metadata(resource: &Resource, object: &Value) -> Result<()> {
    metadata_fault(object).map_or(Ok(()), |fault| Err(undecodable(resource, &fault)))
}

/// What is wrong with the types in an object's metadata.
pub(super) fn metadata_fault(object: &Value) -> Option<String> {
    const DEFINITION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let metadata = &object["metadata"];
    metadata.is_object().then(|| go::misfit(Decoder::Json, DEFINITION, metadata)).flatten()
}

/// The first value of a built-in object that does not fit its type, in Go's words.
fn misfit(resource: &Resource, object: &Value) -> Option<String> {
    go::misfit(Decoder::Json, resource.definition()?, object)
}

/// Refuses an object of a built-in kind with a value of the wrong type before anything else is said about it.
pub(super) fn refuse_misfit(resource: &Resource, object: &Value) -> Result<()> {
    misfit(resource, object).map_or(Ok(()), |words| Err(undecodable(resource, &words)))
}

/// A value of the wrong type cannot even be decoded: 400, not 422.
fn undecodable(resource: &Resource, why: &str) -> Status {
    let (kind, version) = (&resource.kind, &resource.version);
    Status::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
}

/// Everything that is wrong with an object, beside its metadata; `warnings` gets what may stay as it was.
pub(crate) fn check(
    resource: &Resource,
    new: &Value,
    old: Option<&Value>,
    subresource: &str,
    warnings: &mut Vec<String>,
) -> Vec<Cause> {
    if let Some(custom) = resource.custom() {
        let mut causes: Vec<Cause> = custom.validate(new, old, warnings).iter().map(Cause::of).collect();
        causes.extend(misfit_of_metadata(new));
        if custom.has_status && subresource.is_empty() {
            // The status is as it was, whatever a newer schema says about it.
            causes.retain(|cause| !cause.field.starts_with("status"));
        }
        if subresource == "status" {
            // Upstream checks the status by itself: messages name fields from there.
            for cause in causes.iter_mut().filter(|cause| cause.field.starts_with("status")) {
                cause.message = cause
                    .message
                    .replace("status. in body", " in body")
                    .replace("status in body", " in body");
                cause.message = cause.message.replacen(": status.", ": ", 1);
            }
        }
        // A write to the status is checked for what it may change.
        causes.extend(custom.validate_scale(new, [subresource != "status", true]));
        return causes;
    }
    let of = (!subresource.is_empty()).then_some(subresource);
    if autoscaling::is_first(resource) {
        let second = |object: &Value| {
            let mut object = object.clone();
            autoscaling::to_second(&mut object);
            object
        };
        let (new, old) = (second(new), old.map(second));
        return builtin::validate(&resource.group, &resource.kind, &new, old.as_ref(), of)
            .iter()
            .map(Cause::of)
            .collect();
    }
    let wrong = builtin::validate(&resource.group, &resource.kind, new, old, of);
    let mut causes: Vec<Cause> = wrong.iter().map(Cause::of).collect();
    if resource.is(custom::GROUP, custom::PLURAL) {
        // Its rules look at every field that the schema could say something about.
        causes.extend(custom::check(new, old));
        return causes;
    }
    if builtin::is_whole(&resource.group) {
        return causes;
    }
    for error in validate(&resource.schema(), &without_empty(new), &FieldPath::root()) {
        // Go writes a zero where a status lacks a required field, and metadata has checks of its own.
        let path = error.path.to_string();
        let checked = !path.starts_with("status") && !path.starts_with("metadata");
        // Upstream says of scopes which is wrong, but not where it stands.
        let checked = checked && !path.starts_with("spec.scopeSelector");
        // What the kind's own rules said about a field, or about its parent or parts, is enough.
        let known = causes.iter().any(|c: &Cause| path.starts_with(&c.field) || c.field.starts_with(&path));
        if checked && !known && matches!(error.kind, ErrorKind::Required | ErrorKind::NotSupported) {
            causes.push(Cause::of(&error));
        }
    }
    causes
}

/// The object without fields that are `null` or an empty text: what Go calls zero is missing.
fn without_empty(object: &Value) -> Cow<'_, Value> {
    fn empty(value: &Value) -> bool {
        value.is_null() || value == ""
    }
    fn is_clean(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields.values().all(|value| !empty(value) && is_clean(value)),
            Value::Array(items) => items.iter().all(is_clean),
            _ => true,
        }
    }
    fn clean(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|_, value| !empty(value));
                fields.values_mut().for_each(clean);
            }
            Value::Array(items) => items.iter_mut().for_each(clean),
            _ => {}
        }
    }
    if is_clean(object) {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    clean(&mut object);
    Cow::Owned(object)
}

/// The fields that a write to the object or to one of its subresources cannot change (upstream: `GetResetFields`).
pub(super) fn reset_fields(resource: &Resource, subresource: &str) -> FieldSet {
    match subresource {
        "status" if resource.custom().is_some() => FieldSet::of_fields(&[&["metadata"], &["spec"]]),
        "status" if matches!(resource.plural.as_str(), "pods" | "nodes") => FieldSet::of_fields(&[&["spec"]]),
        "status" | "approval" if resource.plural == "certificatesigningrequests" => {
            FieldSet::of_fields(&[&["spec"]])
        }
        _ if resource.plural == "certificatesigningrequests" => {
            FieldSet::of_fields(&[&["spec"], &["status"]])
        }
        "status" => FieldSet::of_fields(&[&["spec"], &["metadata", "labels"]]),
        _ if resource.has_subresource("status") => FieldSet::of_fields(&[&["status"]]),
        _ => FieldSet::default(),
    }
}
