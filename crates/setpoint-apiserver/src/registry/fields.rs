//! Which fields can be selected by (`pkg/registry/*/strategy.go`: `SelectableFields`, `…ToSelectableFields`).

use serde_json::Value;

use crate::catalog::Resource;
use crate::object::Metadata;
use crate::selector::FieldSelector;
use crate::status::{Result, Status};

/// The selectable fields of built-in kinds beyond `metadata.name` and `metadata.namespace`.
fn built_in(group: &str, plural: &str) -> &'static [&'static str] {
    match (group, plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("" | crate::events::GROUP, "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingComponent",
            "reportingController",
            "source",
            "type",
        ],
        ("", "secrets") => &["type"],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") | ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", "certificatesigningrequests") => &["spec.signerName"],
        _ => &[],
    }
}

/// Refuses a selector on a field that the resource cannot be selected by.
pub(super) fn check_fields(resource: &Resource, selector: &FieldSelector) -> Result<()> {
    for field in selector.fields() {
        let known = field == "metadata.name"
            || (field == "metadata.namespace" && resource.namespaced)
            || match resource.custom() {
                Some(custom) => custom.selectable.iter().any(|path| path == field),
                None => built_in(&resource.group, &resource.plural).contains(&field),
            };
        if !known {
            return Err(Status::bad_request(match resource.custom() {
                Some(_) => format!("field label not supported: {field}"),
                None => format!(
                    "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                ),
            }));
        }
    }
    Ok(())
}

/// The value of a selectable field of a stored object, as text; empty when it is absent.
pub(super) fn field_of(resource: &Resource, object: &Value, field: &str) -> String {
    match field {
        "metadata.name" => return object.meta("name").to_owned(),
        "metadata.namespace" => return object.meta("namespace").to_owned(),
        _ => {}
    }
    if resource.plural == "events" && resource.custom().is_none() {
        return event_field(object, field);
    }
    let mut value = object;
    for part in field.split('.') {
        value = &value[part];
    }
    match value {
        Value::String(text) => text.clone(),
        // Absent flags read as false, absent counts as 0.
        Value::Null => match field {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.replicas" | "status.successful" => "0".to_owned(),
            _ => String::new(),
        },
        other => other.to_string(),
    }
}

/// Events are stored as `v1` and selected by the names of either version.
fn event_field(event: &Value, field: &str) -> String {
    let value = match field.split_once('.') {
        Some(("involvedObject" | "regarding", part)) => &event["involvedObject"][part],
        None if matches!(field, "reportingComponent" | "reportingController") => &event["reportingComponent"],
        None if field == "source" => match &event["source"]["component"] {
            Value::Null => &event["reportingComponent"],
            component => component,
        },
        _ => &event[field],
    };
    value.as_str().unwrap_or_default().to_owned()
}
