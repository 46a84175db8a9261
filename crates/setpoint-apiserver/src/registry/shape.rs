//! Where objects meet their schemas: versions, unknown fields, defaults, validation and managed fields.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;
use setpoint_schema::FieldSet;
use setpoint_schema::managed::{self, UpdateRequest};

use super::options::{FieldValidation, WriteOptions};
use crate::builtin;
use crate::catalog::Resource;
use crate::events;
use crate::status::{Cause, Result};
use crate::store::Stored;

/// How the managed fields of a write come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracked {
    /// The manager owns what it changed.
    Update,
    /// Server-side apply has already set them.
    Apply,
}

/// The object in the version of `resource`, as every reader gets it.
pub(crate) fn served<'a>(resource: &Resource, stored: &'a Stored) -> Cow<'a, Value> {
    let value: &Value = &stored.value;
    if let Some(custom) = resource.custom() {
        let same_version = value["apiVersion"] == custom.api_version.as_str();
        if same_version && stored.revision >= custom.since {
            return Cow::Borrowed(value);
        }
        // Written in another version or under an older schema: what is read has today's shape.
        let mut value = value.clone();
        value["apiVersion"] = custom.api_version.as_str().into();
        custom.complete(&mut value);
        return Cow::Owned(value);
    }
    if resource.group == events::GROUP {
        let mut value = value.clone();
        events::from_core(&mut value);
        return Cow::Owned(value);
    }
    if value["apiVersion"] != resource.api_version() {
        let mut value = value.clone();
        value["apiVersion"] = resource.api_version().into();
        return Cow::Owned(value);
    }
    Cow::Borrowed(value)
}

/// The object in the version in which it is stored.
pub(super) fn storage_form(resource: &Resource, mut object: Value) -> Value {
    if let Some(custom) = resource.custom() {
        object["apiVersion"] = custom.storage_version.as_str().into();
    } else if resource.group == events::GROUP {
        events::to_core(&mut object);
    }
    object
}

/// Drops what the schema does not know, with a warning or an error, and fills in defaults.
pub(super) fn clean(
    resource: &Resource,
    object: &mut Value,
    validation: FieldValidation,
) -> Result<Vec<String>> {
    let _ = validation;
    if resource.custom().is_none() {
        builtin::default(&resource.group, &resource.kind, object);
    }
    Ok(Vec::new())
}

/// Everything that is wrong with an object, beside its metadata.
pub(super) fn check(resource: &Resource, new: &Value, old: Option<&Value>, subresource: &str) -> Vec<Cause> {
    let _ = (resource, new, old, subresource);
    Vec::new()
}

/// Sets `metadata.managedFields`.
pub(super) fn track(
    resource: &Resource,
    old: Option<&Value>,
    new: &mut Value,
    options: &WriteOptions,
    subresource: &str,
    tracked: Tracked,
    now: Timestamp,
) {
    if tracked == Tracked::Apply {
        return;
    }
    *new = managed::update(&UpdateRequest {
        schema: &resource.schema(),
        live: old,
        new,
        manager: &options.manager,
        subresource,
        api_version: &resource.api_version(),
        ignored: &reset_fields(resource, subresource),
        now,
    });
}

/// The fields that a write to the object or to one of its subresources cannot change (upstream: `GetResetFields`).
pub(super) fn reset_fields(resource: &Resource, subresource: &str) -> FieldSet {
    match subresource {
        "status" if resource.custom().is_some() => FieldSet::of_fields(&[&["metadata"], &["spec"]]),
        "status" => FieldSet::of_fields(&[&["spec"], &["metadata", "labels"]]),
        _ if resource.has_subresource("status") => FieldSet::of_fields(&[&["status"]]),
        _ => FieldSet::default(),
    }
}
