//! Empty values as Go's JSON treats them: some are left out, others always there.

use std::borrow::Cow;

use serde_json::{Map, Value};
use setpoint_kinds::Presence;

use crate::schema::{Schema, Type};

/// Removes the zero values of an object of a built-in kind that Go's types mark `omitempty` and keep by value (`hostNetwork: false`,
/// `nodePort: 0`, `taints: []`): a real server reads them as nothing and never answers with them. Pointers (`replicas: 0`, `emptyDir: {}`), entries
/// of maps and items of lists say something and stay.
pub fn omit_empty(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(below) = schema.field(name) else { return true };
            omit_empty(below, value);
            let omitted = schema.node.presence.get(name.as_str()) == Some(&Presence::Omitted);
            !(omitted && is_zero(below, value))
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| omit_empty(schema.item(), item)),
        _ => {}
    }
}

/// Gives the `null` entries of maps of texts in an object of a built-in kind what Go reads them as: an empty text.
pub fn fill_null_entries(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let Some(below) = schema.field(name) else { continue };
                if value.is_null() && schema.named(name).is_none() && below.node.kind == Some(Type::String) {
                    *value = Value::String(String::new());
                }
                fill_null_entries(below, value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_null_entries(schema.item(), item)),
        _ => {}
    }
}

/// Whether a value is the zero value of its type; one of another type is an error, not nothing.
fn is_zero(schema: &Schema, value: &Value) -> bool {
    match (schema.node.kind, value) {
        (_, Value::Null) | (Some(Type::Boolean), Value::Bool(false)) => true,
        (Some(Type::Integer | Type::Number), Value::Number(number)) => number.as_f64() == Some(0.0),
        (Some(Type::String), Value::String(text)) => text.is_empty(),
        (Some(Type::Array), Value::Array(items)) => items.is_empty(),
        (Some(Type::Object), Value::Object(entries)) => entries.is_empty(),
        _ => false,
    }
}

/// An object of a built-in kind with all the fields that its Go type always has: `status: {}`, `template: {…}`, and `null` for lists and scalars without
/// `omitempty`. Objects of custom resources are what they are.
pub(crate) fn with_structs<'a>(schema: &Schema, value: &'a Value) -> Cow<'a, Value> {
    if !schema.node.builtin || is_complete(schema, value) {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    complete(schema, &mut value);
    Cow::Owned(value)
}

/// Whether [`complete`] would add nothing.
fn is_complete(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            let mut always =
                schema.node.presence.iter().filter(|(_, presence)| **presence == Presence::Always);
            always.all(|(name, _)| fields.contains_key(*name))
                && fields
                    .iter()
                    .all(|(name, value)| schema.field(name).is_none_or(|below| is_complete(below, value)))
        }
        Value::Array(items) => items.iter().all(|item| is_complete(schema.item(), item)),
        _ => true,
    }
}

fn complete(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, presence) in schema.node.presence.iter() {
                if *presence == Presence::Always && !fields.contains_key(*name) {
                    let is_struct = schema.named(name).is_some_and(|below| !below.node.presence.is_empty());
                    let zero = if is_struct { Value::Object(Map::new()) } else { Value::Null };
                    fields.insert((*name).to_owned(), zero);
                }
            }
            for (name, value) in fields {
                if let Some(below) = schema.field(name) {
                    complete(below, value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| complete(schema.item(), item)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn omitted(definition: &str, mut value: Value) -> Value {
        omit_empty(&Schema::builtin(definition).unwrap(), &mut value);
        value
    }

    #[test]
    fn null_entries_of_maps_are_empty_texts() {
        let schema = Schema::builtin("io.k8s.api.core.v1.ConfigMap").unwrap();
        let mut map =
            json!({"data": {"k": null, "l": "v"}, "immutable": null, "metadata": {"labels": {"a": null}}});
        fill_null_entries(&schema, &mut map);
        let filled =
            json!({"data": {"k": "", "l": "v"}, "immutable": null, "metadata": {"labels": {"a": ""}}});
        assert_eq!(map, filled);
    }

    #[test]
    fn empty_lists_and_maps_go_unless_they_say_something() {
        let meta = json!({"name": "a", "labels": {}, "ownerReferences": [], "finalizers": [],
            "managedFields": [{"manager": "x", "fieldsV1": {"f:data": {}}}]});
        let node = json!({"metadata": meta, "spec": {"taints": [], "podCIDRs": ["a"]}});
        assert_eq!(
            omitted("io.k8s.api.core.v1.Node", node),
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "x", "fieldsV1": {"f:data": {}}}]},
                "spec": {"podCIDRs": ["a"]}})
        );
        let pod = json!({"spec": {"containers": [], "nodeSelector": {}, "volumes": [{"name": "v", "emptyDir": {}},
            {"name": "c", "configMap": {"name": "c", "items": []}}]}});
        assert_eq!(
            omitted("io.k8s.api.core.v1.Pod", pod),
            json!({"spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}},
                {"name": "c", "configMap": {"name": "c"}}]}})
        );
        let zeros = json!({"spec": {"hostNetwork": false, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "", "image": "", "stdin": "", "ports": [{"containerPort": 0, "hostPort": 0}]}]}});
        assert_eq!(
            omitted("io.k8s.api.core.v1.Pod", zeros),
            json!({"spec": {"terminationGracePeriodSeconds": 0, "containers": [
                {"name": "", "stdin": "", "ports": [{"containerPort": 0}]}]}}),
            "pointers and values of a wrong type stay"
        );
        let role = json!({"rules": []});
        assert_eq!(omitted("io.k8s.api.rbac.v1.ClusterRole", role.clone()), role);
        let policy = json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}, {}], "egress": []}});
        assert_eq!(
            omitted("io.k8s.api.networking.v1.NetworkPolicy", policy),
            json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}, {}]}})
        );
        let definition = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": {
            "a": {"type": "array", "default": [], "enum": [[], {}]}}}}}]}});
        let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
        assert_eq!(omitted(name, definition.clone()), definition, "JSON in a field is what its writer says");
    }
}
