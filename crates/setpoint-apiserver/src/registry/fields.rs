//! Selecting by fields (`pkg/registry/*/strategy.go`: `SelectableFields`).

use std::borrow::Cow;

use serde_json::Value;

use crate::builtin;
use crate::catalog::Resource;
use crate::events;
use crate::object::Metadata;
use crate::selector::FieldSelector;
use crate::status::{Result, Status};

/// Refuses a selector on a field that the resource cannot be selected by.
pub(super) fn check_fields(resource: &Resource, selector: &FieldSelector) -> Result<()> {
    if selector.is_empty() {
        return Ok(());
    }
    let built_in = match resource.custom() {
        Some(_) => Vec::new(),
        None => builtin::fields(&resource.group, &resource.plural, &Value::Null),
    };
    for given in selector.fields() {
        let field = &*stored_name(resource, given);
        // The names of the old form are not those of the new one.
        let foreign = resource.group == events::GROUP
            && (given.starts_with("involvedObject.") || matches!(given, "reportingComponent" | "source"));
        // Volumes of the whole cluster have been taken for ones of namespaces since ever.
        let namespaced = resource.namespaced || resource.is("", "persistentvolumes");
        let known = field == "metadata.name"
            || (field == "metadata.namespace" && namespaced)
            || !foreign && built_in.iter().any(|(name, _)| *name == field)
            || resource.custom().is_some_and(|custom| custom.selectable.iter().any(|path| path == field));
        if !known {
            return Err(Status::bad_request(if resource.is("batch", "jobs") {
                format!("field label \"{field}\" not supported for Job")
            } else if resource.custom().is_none() && built_in.is_empty() {
                format!(
                    "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            } else {
                format!("field label not supported: {given}")
            }));
        }
    }
    Ok(())
}

/// The fields of `events.k8s.io` have other names in the stored form.
fn stored_name<'a>(resource: &Resource, field: &'a str) -> Cow<'a, str> {
    match field.split_once('.') {
        _ if resource.group != events::GROUP => Cow::Borrowed(field),
        Some(("regarding", part)) => Cow::Owned(format!("involvedObject.{part}")),
        None if field == "reportingController" => Cow::Borrowed("reportingComponent"),
        _ => Cow::Borrowed(field),
    }
}

/// The value of a selectable field of a stored object, as text; empty when it is absent.
pub(super) fn field_of(resource: &Resource, object: &Value, field: &str) -> String {
    match field {
        "metadata.name" => return object.meta("name").to_owned(),
        "metadata.namespace" => return object.meta("namespace").to_owned(),
        _ => {}
    }
    if resource.custom().is_none() {
        let field = &*stored_name(resource, field);
        let fields = builtin::fields(&resource.group, &resource.plural, object);
        return fields
            .into_iter()
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value)
            .unwrap_or_default();
    }
    match field.split('.').fold(object, |value, part| &value[part]) {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
