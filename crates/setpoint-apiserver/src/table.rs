//! Tables, as kubectl prints them.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::catalog::Resource;
use crate::object::Metadata;

/// A `meta.k8s.io/v1` Table with the name and the creation time of each object.
pub(crate) fn table(
    _resource: &Resource,
    items: &[Arc<Value>],
    meta: Value,
    include: &str,
    _now: Timestamp,
) -> Value {
    let rows: Vec<Value> = items
        .iter()
        .map(|object| {
            let shown = match include {
                "Object" => (**object).clone(),
                "None" => Value::Null,
                _ => json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]}),
            };
            json!({"cells": [object.meta("name"), object.meta("creationTimestamp")], "object": shown})
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
            {"name": "Created At", "type": "date", "format": "", "description": "", "priority": 0},
        ],
        "rows": rows,
    })
}
