//! Nobody may grant what he doesn't hold: checks for new roles and bindings.

use std::{collections::BTreeMap, ops::ControlFlow};

use serde_json::{Value, json};

use super::{
    Attributes, MASTERS, Policies, authorize,
    rules::{aggregate, array, resource_covers, role_rules, text, url_covers, visit},
};
use crate::identity::Identity;

/// Why a role or binding must not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// 403: the text after `… is forbidden: `.
    Forbidden(String),
    /// 404: the role that a binding refers to doesn't exist; its name.
    NotFound(String),
}

/// Checks a Role, ClusterRole, RoleBinding or ClusterRoleBinding that `user` wants to create or change. Roles may contain what the user holds
/// (or anything with the verb `escalate`); a binding may refer to a role whose rules the user holds (or to any with the verb `bind`).
pub fn check(
    user: &Identity,
    plural: &str,
    namespace: Option<&str>,
    new: &Value,
    old: Option<&Value>,
    policies: &dyn Policies,
) -> Result<(), Refusal> {
    if user.is_in(MASTERS) || old.is_some_and(|old| says_the_same(old, new)) {
        return Ok(());
    }
    match plural {
        "roles" | "clusterroles" => {
            let name = text(&new["metadata"], "name");
            if may(user, "escalate", plural, namespace, name, policies) {
                return Ok(());
            }
            confirm(user, namespace, array(new, "rules"), policies)?;
            let aggregates =
                |role: &Value| !array(&role["aggregationRule"], "clusterRoleSelectors").is_empty();
            if plural == "clusterroles" && (aggregates(new) || old.is_some_and(aggregates)) {
                let everything = [
                    json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
                    json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
                ];
                confirm(user, None, &everything, policies).map_err(|_| {
                    Refusal::Forbidden(
                        "must have cluster-admin privileges to use the aggregationRule".to_owned(),
                    )
                })?;
            }
            Ok(())
        }
        "rolebindings" | "clusterrolebindings" => {
            let reference = &new["roleRef"];
            let name = text(reference, "name");
            let roles = if text(reference, "kind") == "ClusterRole" { "clusterroles" } else { "roles" };
            if may(user, "bind", roles, namespace, name, policies) {
                return Ok(());
            }
            let granted =
                role_rules(reference, namespace, policies).map_err(|_| Refusal::NotFound(name.to_owned()))?;
            let granted: Vec<Value> = granted.iter().flat_map(|role| array(role, "rules")).cloned().collect();
            confirm(user, namespace, &granted, policies)
        }
        _ => Ok(()),
    }
}

/// Whether an update changes only what lets the garbage collector remove the object (upstream: `IsOnlyMutatingGCFields`).
fn says_the_same(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut rest = object.clone();
        if let Some(Value::Object(metadata)) = rest.get_mut("metadata") {
            for key in ["ownerReferences", "finalizers", "managedFields"] {
                metadata.remove(key);
            }
        }
        drop_empty(&mut rest);
        rest
    };
    rest(old) == rest(new)
}

/// Nothing and an empty list or map are the same.
fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(drop_empty);
            fields.retain(|_, field| match field {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty(),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

fn may(
    user: &Identity,
    verb: &str,
    resource: &str,
    namespace: Option<&str>,
    name: &str,
    policies: &dyn Policies,
) -> bool {
    let attributes = Attributes {
        user,
        verb,
        group: "rbac.authorization.k8s.io",
        resource,
        subresource: "",
        namespace,
        name,
        path: None,
    };
    authorize(&attributes, policies).allowed
}

fn confirm(
    user: &Identity,
    namespace: Option<&str>,
    granted: &[Value],
    policies: &dyn Policies,
) -> Result<(), Refusal> {
    let mut held = Vec::new();
    let errors = visit(user, namespace, policies, &mut |_, rule| {
        held.push(rule.clone());
        ControlFlow::Continue(())
    });
    let missing: Vec<_> = granted
        .iter()
        .flat_map(atoms)
        .filter(|atom| !held.iter().any(|rule| atom.is_covered(rule)))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut message = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.user,
        user.groups.iter().map(|group| format!("{group:?}")).collect::<Vec<_>>().join(" "),
        describe(&missing).join("\n"),
    );
    if !errors.is_empty() {
        message.push_str("; resolution errors: ");
        message.push_str(&aggregate(&errors));
    }
    Err(Refusal::Forbidden(message))
}

/// The smallest thing that a rule allows: one verb on one resource, one named object, or one path.
#[derive(Debug, Clone, Copy)]
enum Atom<'a> {
    Resource { group: &'a str, resource: &'a str, verb: &'a str, name: Option<&'a str> },
    Path { url: &'a str, verb: &'a str },
}

fn strings<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    array(rule, key).iter().filter_map(Value::as_str).collect()
}

fn atoms(rule: &Value) -> Vec<Atom<'_>> {
    let verbs = strings(rule, "verbs");
    let names: Vec<_> = match strings(rule, "resourceNames") {
        names if names.is_empty() => vec![None],
        names => names.into_iter().map(Some).collect(),
    };
    let mut atoms = Vec::new();
    for group in strings(rule, "apiGroups") {
        for resource in strings(rule, "resources") {
            for verb in &verbs {
                atoms.extend(names.iter().map(|name| Atom::Resource { group, resource, verb, name: *name }));
            }
        }
    }
    for url in strings(rule, "nonResourceURLs") {
        atoms.extend(verbs.iter().map(|verb| Atom::Path { url, verb }));
    }
    atoms
}

impl Atom<'_> {
    fn is_covered(&self, rule: &Value) -> bool {
        let or_all =
            |key: &str, wanted: &str| strings(rule, key).iter().any(|have| *have == wanted || *have == "*");
        match *self {
            Self::Path { url, verb } => {
                or_all("verbs", verb)
                    && strings(rule, "nonResourceURLs").iter().any(|have| url_covers(have, url))
            }
            Self::Resource { group, resource, verb, name } => {
                let names = strings(rule, "resourceNames");
                let (of, sub) = resource.split_once('/').unwrap_or((resource, ""));
                or_all("verbs", verb)
                    && or_all("apiGroups", group)
                    && strings(rule, "resources")
                        .iter()
                        .any(|have| *have == resource || resource_covers(have, of, sub))
                    && (names.is_empty() || name.is_some_and(|name| names.contains(&name)))
            }
        }
    }
}

/// One line for each resource, path or named object, with the verbs that are missing, sorted.
fn describe(missing: &[Atom<'_>]) -> Vec<String> {
    let mut resources = BTreeMap::<_, Vec<&str>>::new();
    let mut lines = Vec::new();
    for atom in missing {
        match *atom {
            Atom::Resource { group, resource, verb, name } => {
                resources.entry((group, resource, name)).or_default().push(verb);
            }
            Atom::Path { url, verb } => {
                lines.push(format!("{{NonResourceURLs:[{url:?}], Verbs:[{verb:?}]}}"));
            }
        }
    }
    for ((group, resource, name), verbs) in resources {
        let name = name.map(|name| format!("ResourceNames:[{name:?}], ")).unwrap_or_default();
        let verbs: Vec<_> = verbs.iter().map(|verb| format!("{verb:?}")).collect();
        lines.push(format!(
            "{{APIGroups:[{group:?}], Resources:[{resource:?}], {name}Verbs:[{}]}}",
            verbs.join(" ")
        ));
    }
    lines.sort();
    lines.dedup();
    lines
}
