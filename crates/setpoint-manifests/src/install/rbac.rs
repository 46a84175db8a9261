use serde_json::{Value, json};

use super::Install;
use crate::{Rights, Scope};

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
        objects.extend(granted(install, &install.name, None, &cluster));
    }
    if let Scope::Namespaces(namespaces) = &install.scope {
        let rules = install.rights.namespaced_rules();
        for namespace in namespaces.iter().filter(|_| !rules.is_empty()) {
            objects.extend(granted(install, &install.name, Some(namespace), &rules));
        }
    }
    for (namespace, rights) in &install.local {
        let name = format!("{}-local", install.name);
        objects.extend(granted(install, &name, Some(namespace), &rights.namespaced_rules()));
    }
    if install.metrics_secure {
        objects.extend(metrics(install));
    }
    objects
}

/// What it takes to ask who scrapes and whether they may, and the role to bind to who may: under the names of kubebuilder's projects.
fn metrics(install: &Install) -> [Value; 3] {
    let mut rights = Rights::new();
    rights.allow("authentication.k8s.io", "tokenreviews", false, ["create"]);
    rights.allow("authorization.k8s.io", "subjectaccessreviews", false, ["create"]);
    let [role, binding] =
        granted(install, &format!("{}-metrics-auth", install.name), None, &rights.cluster_rules());
    let reader = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "ClusterRole",
        "metadata": install.metadata(&format!("{}-metrics-reader", install.name), None),
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    });
    [role, binding, reader]
}

/// A role and its binding to the operator's account; cluster-wide without a namespace.
fn granted(install: &Install, name: &str, namespace: Option<&str>, rules: &[Value]) -> [Value; 2] {
    let kind = role_kind(namespace);
    let role = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": install.metadata(name, namespace),
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": format!("{kind}Binding"),
        "metadata": install.metadata(name, namespace),
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": install.name, "namespace": install.namespace}],
    });
    [role, binding]
}

fn role_kind(namespace: Option<&str>) -> &'static str {
    if namespace.is_some() { "Role" } else { "ClusterRole" }
}
