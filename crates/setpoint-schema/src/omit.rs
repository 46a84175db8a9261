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
            match schema.node.presence.get(name.as_str()) {
                Some(Presence::Omitted) => !is_zero(below, value),
                _ => true,
            }
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| omit_empty(schema.item(), item)),
        _ => {}
    }
}

/// Leaves out the empty lists and maps that Go's JSON writes: the protobuf of the store has none, and they come back as `null`.
pub fn forget_empty(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(below) = schema.field(name) else { return true };
            forget_empty(below, value);
            let always = schema.node.presence.get(name.as_str()) == Some(&Presence::Always);
            !(always && is_zero(below, value) && is_collection(below))
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| forget_empty(schema.item(), item)),
        _ => {}
    }
}

/// Whether an object of a built-in kind has an empty text in a field that Go has a pointer for: it was given, where others count as absent.
pub fn has_empty_texts(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(name, value)| {
            let below = schema.field(name);
            value == "" && is_pointer(schema, name)
                || below.is_some_and(|below| has_empty_texts(below, value))
        }),
        Value::Array(items) => items.iter().any(|item| has_empty_texts(schema.item(), item)),
        _ => false,
    }
}

/// Gives `after`, which was made of `before`, its empty texts back that Go has pointers for.
pub fn keep_empty_texts(schema: &Schema, before: &Value, after: &mut Value) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (name, value) in before {
                if value == "" && is_pointer(schema, name) {
                    after.insert(name.clone(), value.clone());
                } else if let (Some(below), Some(after)) = (schema.field(name), after.get_mut(name)) {
                    keep_empty_texts(below, value, after);
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for (before, after) in before.iter().zip(after) {
                keep_empty_texts(schema.item(), before, after);
            }
        }
        _ => {}
    }
}

/// Whether Go has a pointer for a field of a struct.
fn is_pointer(schema: &Schema, name: &str) -> bool {
    schema.named(name).is_some()
        && !schema.node.presence.contains_key(name)
        && !schema.node.presence.is_empty()
}

/// Gives the `null` items of lists and entries of maps in an object of a built-in kind what Go reads them as: the zero value of their type.
pub fn fill_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let Some(below) = schema.field(name) else { continue };
                if value.is_null() && schema.named(name).is_none() {
                    *value = zero(below);
                }
                fill_nulls(below, value);
            }
        }
        Value::Array(items) => {
            for item in items {
                if item.is_null() && schema.node.kind == Some(Type::Array) {
                    *item = zero(schema.item());
                }
                fill_nulls(schema.item(), item);
            }
        }
        _ => {}
    }
}

/// Whether the type is a list or a map.
fn is_collection(schema: &Schema) -> bool {
    match schema.node.kind {
        Some(Type::Array) => true,
        Some(Type::Object) => schema.node.properties.is_empty(),
        _ => false,
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

/// An object of a built-in kind with all the fields that its Go type always writes, see [`write_zeros`]. Objects of custom resources are what they are.
pub(crate) fn with_zeros<'a>(schema: &Schema, value: &'a Value) -> Cow<'a, Value> {
    if !schema.node.builtin || is_complete(schema, value) {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    write_zeros(schema, &mut value);
    Cow::Owned(value)
}

/// Whether [`write_zeros`] would add nothing.
fn is_complete(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            let mut always =
                schema.node.presence.iter().filter(|(_, presence)| **presence != Presence::Omitted);
            always.all(|(name, _)| fields.contains_key(*name))
                && fields
                    .iter()
                    .all(|(name, value)| schema.field(name).is_none_or(|below| is_complete(below, value)))
        }
        Value::Array(items) => items.iter().all(|item| is_complete(schema.item(), item)),
        _ => true,
    }
}

/// Adds to an object of a built-in kind the fields that its Go types write whatever is in them: structs (`status: {}`), and the zero value of what has no
/// `omitempty` (`lastProbeTime: null`, `replicas: 0`, `serviceName: ""`).
pub fn write_zeros(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, presence) in schema.node.presence.iter() {
                if *presence != Presence::Omitted && !fields.contains_key(*name) {
                    let zero = match schema.named(name) {
                        Some(below) if *presence == Presence::Always => zero(below),
                        _ => Value::Null,
                    };
                    fields.insert((*name).to_owned(), zero);
                }
            }
            for (name, value) in fields {
                if let Some(below) = schema.field(name) {
                    write_zeros(below, value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| write_zeros(schema.item(), item)),
        _ => {}
    }
}

/// The zero value of a Go type.
fn zero(schema: &Schema) -> Value {
    let node = &schema.node;
    match (node.kind, node.format.as_deref()) {
        (Some(Type::String), None | Some("byte")) => "".into(),
        (Some(Type::Integer | Type::Number), _) | (None, Some("int-or-string")) => 0.into(),
        (Some(Type::Boolean), _) => false.into(),
        // The one definition that is a text or a number is the quantity.
        (None, None) if !node.checks.one_of.is_empty() => "0".into(),
        _ if !node.properties.is_empty() => Value::Object(Map::new()),
        // Lists, maps and times.
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn omitted(definition: &str, mut value: Value) -> Value {
        let schema = Schema::builtin(definition).unwrap();
        omit_empty(&schema, &mut value);
        forget_empty(&schema, &mut value);
        value
    }

    #[test]
    fn null_items_and_entries_are_zeros() {
        let schema = Schema::builtin("io.k8s.api.core.v1.Pod").unwrap();
        let mut pod =
            json!({"spec": {"containers": [null, {"args": [null], "resources": {"limits": {"cpu": null}}}]}});
        fill_nulls(&schema, &mut pod);
        let filled =
            json!({"spec": {"containers": [{}, {"args": [""], "resources": {"limits": {"cpu": "0"}}}]}});
        assert_eq!(pod, filled);
        let schema = Schema::builtin("io.k8s.api.core.v1.ConfigMap").unwrap();
        let mut map =
            json!({"data": {"k": null, "l": "v"}, "immutable": null, "metadata": {"labels": {"a": null}}});
        fill_nulls(&schema, &mut map);
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
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}},
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
        assert_eq!(omitted("io.k8s.api.rbac.v1.ClusterRole", role), json!({}), "written as null again");
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

    #[test]
    fn what_go_always_writes_is_there() {
        let written = |definition: &str, mut value: Value| {
            write_zeros(&Schema::builtin(definition).unwrap(), &mut value);
            value
        };
        assert_eq!(
            written("io.k8s.api.core.v1.PodCondition", json!({"type": "Ready", "status": "True"})),
            json!({"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null})
        );
        assert_eq!(
            written("io.k8s.api.core.v1.ResourceFieldSelector", json!({"resource": "limits.cpu"})),
            json!({"resource": "limits.cpu", "divisor": "0"})
        );
        assert_eq!(
            written("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerStatus", json!({})),
            json!({"currentMetrics": null, "desiredReplicas": 0})
        );
        assert_eq!(
            written("io.k8s.api.authentication.v1.TokenRequestSpec", json!({})),
            json!({"audiences": null, "boundObjectRef": null, "expirationSeconds": null})
        );
        let list = written("io.k8s.api.core.v1.SecretList", json!({"items": [{"data": null}]}));
        assert_eq!(list, json!({"items": [{"data": null, "metadata": {}}], "metadata": {}}));
    }
}
