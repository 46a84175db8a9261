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

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::catalog::{Resource, Shape};

/// A table with a row for each object. `list_metadata` is the metadata of the list, or of the one object; `include` is the query parameter
/// `includeObject`: `None`, `Metadata` (the default) or `Object`.
pub(crate) fn table(
    resource: &Resource,
    items: &[Arc<Value>],
    list_metadata: Value,
    include: &str,
    now: Timestamp,
) -> Value {
    let columns = columns(resource);
    let rows: Vec<_> = items.iter().map(|item| row(resource, item, include, now)).collect();
    let mut metadata = Map::new();
    if let Value::Object(fields) = list_metadata {
        let of_lists = |key: &str| matches!(key, "resourceVersion" | "continue" | "remainingItemCount");
        metadata = fields.into_iter().filter(|(key, _)| of_lists(key)).collect();
    }
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows})
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
fn row(resource: &Resource, object: &Value, include: &str, now: Timestamp) -> Value {
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
