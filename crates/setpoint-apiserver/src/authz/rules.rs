//! Which rules apply to a user, and what a rule allows.

use std::{fmt, ops::ControlFlow, sync::Arc};

use serde_json::Value;

use super::{Attributes, Policies};
use crate::{builtin::selects, identity::Identity};

/// The binding that brought a rule, worded as Kubernetes words it in the reason of a decision.
pub struct Source<'a> {
    binding: &'a Value,
    subject: &'a Value,
    namespace: Option<&'a str>,
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = text(&self.binding["metadata"], "name");
        match self.namespace {
            None => write!(out, "ClusterRoleBinding {name:?}")?,
            Some(namespace) => write!(out, "RoleBinding {:?}", format!("{name}/{namespace}"))?,
        }
        let role = &self.binding["roleRef"];
        write!(out, " of {} {:?} to ", text(role, "kind"), text(role, "name"))?;
        let (kind, name) = (text(self.subject, "kind"), text(self.subject, "name"));
        if kind == "ServiceAccount" {
            let namespace = match text(self.subject, "namespace") {
                "" => self.namespace.unwrap_or_default(),
                namespace => namespace,
            };
            return write!(out, "{kind} {:?}", format!("{name}/{namespace}"));
        }
        write!(out, "{kind} {name:?}")
    }
}

/// Shows every rule that applies to the user at the cluster scope and in the namespace, until `see` breaks off. Answers with what could not be
/// resolved, such as a binding to a role that doesn't exist.
pub fn visit(
    user: &Identity,
    namespace: Option<&str>,
    policies: &dyn Policies,
    see: &mut dyn FnMut(&Source<'_>, &Value) -> ControlFlow<()>,
) -> Vec<String> {
    let mut errors = Vec::new();
    let scopes = [("clusterrolebindings", None)]
        .into_iter()
        .chain(namespace.filter(|n| !n.is_empty()).map(|n| ("rolebindings", Some(n))));
    for (plural, namespace) in scopes {
        for binding in policies.list(plural, namespace) {
            let subjects = binding["subjects"].as_array().map_or(&[][..], Vec::as_slice);
            let Some(subject) = subjects.iter().find(|subject| is_subject(user, subject, namespace)) else {
                continue;
            };
            match role_rules(&binding["roleRef"], namespace, policies) {
                Ok(rules) => {
                    let source = Source { binding: &binding, subject, namespace };
                    for rule in rules.iter().flat_map(|rules| array(rules, "rules")) {
                        if see(&source, rule).is_break() {
                            return errors;
                        }
                    }
                }
                Err(error) => errors.push(error),
            }
        }
    }
    errors
}

/// The roles whose rules a reference stands for: the role itself, or those that an aggregated cluster role selects.
pub fn role_rules(
    reference: &Value,
    namespace: Option<&str>,
    policies: &dyn Policies,
) -> Result<Vec<Arc<Value>>, String> {
    let name = text(reference, "name");
    match text(reference, "kind") {
        "Role" => match policies.get("roles", namespace, name) {
            Some(role) => Ok(vec![role]),
            None => Err(format!("role.rbac.authorization.k8s.io {name:?} not found")),
        },
        "ClusterRole" => {
            let role = policies
                .get("clusterroles", None, name)
                .ok_or_else(|| format!("clusterrole.rbac.authorization.k8s.io {name:?} not found"))?;
            let mut roles = Vec::new();
            aggregate_roles(role, policies, &mut roles);
            Ok(roles)
        }
        kind => Err(format!("unsupported role reference kind: {kind:?}")),
    }
}

/// Follows aggregation rules at once, where Kubernetes leaves it to a controller to copy the rules.
fn aggregate_roles(role: Arc<Value>, policies: &dyn Policies, roles: &mut Vec<Arc<Value>>) {
    if roles.iter().any(|known| known["metadata"]["name"] == role["metadata"]["name"]) {
        return;
    }
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].clone();
    roles.push(role);
    let selectors = selectors.as_array().map_or(&[][..], Vec::as_slice);
    if selectors.is_empty() {
        return;
    }
    for other in policies.list("clusterroles", None) {
        if selectors.iter().any(|selector| selects(selector, &other["metadata"]["labels"])) {
            aggregate_roles(other, policies, roles);
        }
    }
}

fn is_subject(user: &Identity, subject: &Value, namespace: Option<&str>) -> bool {
    let name = text(subject, "name");
    match text(subject, "kind") {
        "User" => user.user == name,
        "Group" => user.is_in(name),
        "ServiceAccount" => {
            let namespace = match text(subject, "namespace") {
                "" => namespace.unwrap_or_default(),
                namespace => namespace,
            };
            user.user
                .strip_prefix("system:serviceaccount:")
                .and_then(|rest| rest.split_once(':'))
                .is_some_and(|account| !namespace.is_empty() && account == (namespace, name))
        }
        _ => false,
    }
}

/// Whether the rule allows the request.
pub fn allows(rule: &Value, attributes: &Attributes<'_>) -> bool {
    if !has_or_all(rule, "verbs", attributes.verb) {
        return false;
    }
    if let Some(path) = attributes.path {
        return array(rule, "nonResourceURLs")
            .iter()
            .filter_map(Value::as_str)
            .any(|url| url_covers(url, path));
    }
    has_or_all(rule, "apiGroups", attributes.group)
        && array(rule, "resources")
            .iter()
            .filter_map(Value::as_str)
            .any(|resource| resource_covers(resource, attributes.resource, attributes.subresource))
        && (array(rule, "resourceNames").is_empty() || has(rule, "resourceNames", attributes.name))
}

/// Whether `*`, `pods`, `pods/log` or `*/log` of a rule stands for this resource.
pub fn resource_covers(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    match rule.split_once('/') {
        None => rule == resource && subresource.is_empty(),
        Some((of, sub)) => (of == resource || of == "*") && sub == subresource && !sub.is_empty(),
    }
}

/// Whether `/healthz` or `/healthz/*` of a rule stands for this path.
pub fn url_covers(rule: &str, path: &str) -> bool {
    rule == path || rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*'))
}

/// Several errors as one, as Kubernetes prints them.
pub fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn has(rule: &Value, key: &str, wanted: &str) -> bool {
    array(rule, key).iter().any(|value| value == wanted)
}

fn has_or_all(rule: &Value, key: &str, wanted: &str) -> bool {
    array(rule, key).iter().any(|value| value == wanted || value == "*")
}
