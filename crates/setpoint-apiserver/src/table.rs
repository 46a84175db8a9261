//! Tables: what `kubectl get` prints (`meta.k8s.io/v1 Table`), for built-in kinds as kubernetes' own printers do, for custom resources by their
//! `additionalPrinterColumns`.

mod age;
mod custom;
mod json_path;
mod metrics;
mod others;
mod pods;
mod printers;
mod sources;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::catalog::{Resource, Shape};

/// A table of one object. `list_metadata` is the table's; `include` is the query parameter `includeObject`: `None`, `Metadata` (the default) or
/// `Object`.
pub(crate) fn of_one(
    resource: &Resource,
    object: &Value,
    list_metadata: &Value,
    include: &str,
    now: Timestamp,
) -> Value {
    let mut table = head(resource, list_metadata);
    table["rows"] = json!([row(resource, object, include, now)]);
    table
}

/// A table without its `rows`; `list_metadata` is the metadata of the list.
pub(crate) fn head(resource: &Resource, list_metadata: &Value) -> Value {
    let metadata: Map<_, _> = ["resourceVersion", "continue", "remainingItemCount"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), list_metadata.get(key)?.clone())))
        .collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns(resource)})
}

/// The table of an `autoscaling/v1 Scale`, which has one row.
pub(crate) fn scale(scale: &Value, include: &str, now: Timestamp) -> Value {
    let columns = setpoint_kinds::columns("autoscaling", "v1", "scales").unwrap_or_default();
    let metadata = &scale["metadata"];
    let cells = json!([
        metadata["name"],
        sources::count(&scale["spec"], "replicas"),
        sources::count(&scale["status"], "replicas"),
        age::since(&metadata["creationTimestamp"], now),
    ]);
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": metadata["resourceVersion"]},
        "columnDefinitions": columns, "rows": [{"cells": cells, "object": shown(scale, include)}],
    })
}

/// The column definitions of a resource.
fn columns(resource: &Resource) -> Vec<Value> {
    match &resource.shape {
        Shape::Custom(custom) => custom::columns(&custom.columns),
        Shape::BuiltIn { .. } => {
            let known = |group, version, plural| setpoint_kinds::columns(group, version, plural);
            known(&resource.group, &resource.version, &resource.plural)
                // What cannot be listed has a name and a time, as roles have.
                .or_else(|| known("rbac.authorization.k8s.io", "v1", "roles"))
                .unwrap_or_default()
        }
    }
}

/// One row: `{cells, conditions, object}`.
pub(crate) fn row(resource: &Resource, object: &Value, include: &str, now: Timestamp) -> Value {
    let cells = match &resource.shape {
        Shape::Custom(shape) => custom::cells(&shape.columns, object, now),
        Shape::BuiltIn { .. } => printers::cells(&resource.group, &resource.kind, object, now),
    };
    let mut row = json!({"cells": cells, "object": shown(object, include)});
    if resource.is("", "pods")
        && let Some(conditions) = pods::conditions(object)
    {
        row["conditions"] = conditions;
    }
    row
}

/// What a row carries of its object.
fn shown(object: &Value, include: &str) -> Value {
    match include {
        "None" => Value::Null,
        "Object" => object.clone(),
        _ => {
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
        }
    }
}
