use serde_json::{Value, json};

use super::Install;
use crate::Scope;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The ServiceAccount, and roles with bindings by the operator's scope. A role without rules is left out.
pub(super) fn objects(install: &Install) -> Vec<Value> {
    let mut objects = vec![json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": install.metadata(&install.name, Some(&install.namespace)),
    })];
    let cluster = match &install.scope {
        Scope::All => install.rights.cluster_rules(),
        Scope::Namespaces(_) => install.rights.cluster_scoped_rules(),
    };
    if !cluster.is_empty() {
        objects.push(role(install, None, &cluster));
        objects.push(binding(install, None));
    }
    if let Scope::Namespaces(namespaces) = &install.scope {
        let rules = install.rights.namespaced_rules();
        for namespace in namespaces.iter().filter(|_| !rules.is_empty()) {
            objects.push(role(install, Some(namespace), &rules));
            objects.push(binding(install, Some(namespace)));
        }
    }
    objects
}

fn role(install: &Install, namespace: Option<&str>, rules: &[Value]) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": role_kind(namespace),
        "metadata": install.metadata(&install.name, namespace),
        "rules": rules,
    })
}

fn binding(install: &Install, namespace: Option<&str>) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": format!("{}Binding", role_kind(namespace)),
        "metadata": install.metadata(&install.name, namespace),
        "roleRef": {"apiGroup": GROUP, "kind": role_kind(namespace), "name": install.name},
        "subjects": [{"kind": "ServiceAccount", "name": install.name, "namespace": install.namespace}],
    })
}

fn role_kind(namespace: Option<&str>) -> &'static str {
    if namespace.is_some() { "Role" } else { "ClusterRole" }
}
