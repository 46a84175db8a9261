//! Leaving out what is empty, as Go's JSON does.

use serde_json::Value;

use crate::schema::{Additional, Schema, Type};

/// Lists that Go's types of built-in kinds show when they are empty though they are optional: no `omitempty` in their tags
/// (`k8s.io/api/rbac/v1`, `k8s.io/api/core/v1`, `k8s.io/api/autoscaling/v2`, `k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1`). `conditions` is one in one kind only,
/// and always filled there.
const SHOWN: [&str; 4] = ["currentMetrics", "names", "rules", "storedVersions"];

/// Removes the empty lists and maps of an object of a built-in kind, unless they are required: Go's types mark them
/// `omitempty`, so that a real server never answers with them. Entries of maps and lists, and objects with named fields (`emptyDir: {}`),
/// say something and stay.
pub fn omit_empty(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(below) = schema.field(name) else { return true };
            omit_empty(below, value);
            let listed = schema.named(name).is_some();
            let shown = schema.node.checks.required.iter().any(|required| required == name)
                || SHOWN.contains(&name.as_str());
            let empty = match value {
                Value::Array(items) => items.is_empty() && below.node.kind == Some(Type::Array),
                Value::Object(entries) => {
                    entries.is_empty() && matches!(below.node.additional, Additional::Schema(_))
                }
                _ => false,
            };
            !listed || shown || !empty
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| omit_empty(schema.item(), item)),
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
