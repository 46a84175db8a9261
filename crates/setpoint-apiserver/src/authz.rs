//! Authorization by RBAC: pure functions over the current roles and bindings.
//!
//! ```text
//! request ─▶ Attributes ─▶ authorize ─▶ Decision        roles and bindings ─▶ Policies
//! new role or binding ─▶ escalation::check              SubjectAccessReview ─▶ review::answer
//! ```

pub mod bootstrap;
pub mod escalation;
pub mod review;
mod rules;

use std::{ops::ControlFlow, sync::Arc};

use serde_json::Value;

use crate::identity::Identity;

/// The group whose members may do everything, whatever the roles say.
pub const MASTERS: &str = "system:masters";

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    /// Who asks.
    pub user: &'a Identity,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for paths the lower-case HTTP method.
    pub verb: &'a str,
    /// API group, empty for core and for paths.
    pub group: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace; `None` at the cluster scope and for all namespaces.
    pub namespace: Option<&'a str>,
    /// Name of the object, or empty.
    pub name: &'a str,
    /// The URL's path if the request is for no resource, such as `/healthz`.
    pub path: Option<&'a str>,
}

/// Whether a request may go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether some rule allows it.
    pub allowed: bool,
    /// Which binding allowed it, or what went wrong while looking; often empty for a denial.
    pub reason: String,
}

/// The roles and bindings that exist now.
pub trait Policies {
    /// The objects of `roles`, `rolebindings` (in one namespace), `clusterroles` or `clusterrolebindings`, sorted by name.
    fn list(&self, plural: &str, namespace: Option<&str>) -> Vec<Arc<Value>>;
    /// One object of these.
    fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Arc<Value>>;
}

/// Decides by the rules of every binding that names the user or one of its groups.
pub fn authorize(attributes: &Attributes<'_>, policies: &dyn Policies) -> Decision {
    if attributes.user.is_in(MASTERS) {
        return Decision { allowed: true, reason: String::new() };
    }
    let mut allowed = None;
    let errors = rules::visit(attributes.user, attributes.namespace, policies, &mut |source, rule| {
        if rules::allows(rule, attributes) {
            allowed = Some(source.to_string());
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    match allowed {
        Some(source) => Decision { allowed: true, reason: format!("RBAC: allowed by {source}") },
        None if errors.is_empty() => Decision { allowed: false, reason: String::new() },
        None => Decision { allowed: false, reason: format!("RBAC: {}", rules::aggregate(&errors)) },
    }
}

/// What a denied request is told after a decision: upstream puts the name of the authorizer before its reason.
pub fn denial_of(attributes: &Attributes<'_>, decision: &Decision) -> String {
    match decision.reason.as_str() {
        "" => denial(attributes, ""),
        reason => denial(attributes, &format!("rbac: {reason}")),
    }
}

/// What a denied request is told, without the `… is forbidden: ` that names the object: `User "x" cannot list resource "pods" in API group ""
/// in the namespace "default"`, and the reason if there is one.
pub fn denial(attributes: &Attributes<'_>, reason: &str) -> String {
    let Attributes { user, verb, group, resource, subresource, namespace, path, .. } = attributes;
    let user = &user.user;
    let mut text = if let Some(path) = path {
        format!("User {user:?} cannot {verb} path {path:?}")
    } else {
        let resource =
            if subresource.is_empty() { (*resource).to_owned() } else { format!("{resource}/{subresource}") };
        let scope = namespace.map_or_else(
            || "at the cluster scope".to_owned(),
            |namespace| format!("in the namespace {namespace:?}"),
        );
        format!("User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}")
    };
    if !reason.is_empty() {
        text.push_str(": ");
        text.push_str(reason);
    }
    text
}

#[cfg(test)]
mod tests;
