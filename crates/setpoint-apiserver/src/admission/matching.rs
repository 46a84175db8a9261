//! Which requests a webhook, a policy or a binding is about: its selectors and rules
//! (`k8s.io/apiserver/pkg/admission/plugin/webhook/predicates`, which policies share).

use std::sync::Arc;

use serde_json::Value;

use super::{Attributes, Operation};
use crate::builtin::{selects, selects_all};
use crate::catalog::Resource;
use crate::registry::Registry;
use crate::status::{Result, Status, Subject};
use crate::store::Key;

impl Registry {
    /// Whether the labels of the request's namespace are selected. Objects of the whole cluster are, but for namespaces.
    ///
    /// # Errors
    /// When there is no such namespace.
    pub(super) fn selects_namespace(
        &self,
        selector: &Value,
        request: &Attributes<'_>,
        object: &Value,
    ) -> Result<bool> {
        let (name, itself) = (request.namespace(), request.resource().is("", "namespaces"));
        if (name.is_empty() && !itself) || selects_all(selector) {
            return Ok(true);
        }
        let written = matches!(request.operation, Operation::Create | Operation::Update);
        if itself && request.subresource.is_empty() && written {
            return Ok(selects(selector, &object["metadata"]["labels"]));
        }
        match self.store.get("namespaces", &Key::new("", name)) {
            Some(namespace) => Ok(selects(selector, &namespace.value["metadata"]["labels"])),
            None => Err(Status::not_found(Subject { group: "", kind: "namespaces", name })),
        }
    }

    /// The resource, in the version that a rule names, by which one of `rules` takes the request: its own before that of another
    /// version, which counts only if `equivalent`.
    pub(super) fn target(
        &self,
        rules: &Value,
        request: &Attributes<'_>,
        equivalent: bool,
    ) -> Option<Arc<Resource>> {
        let own = request.resource();
        let rules = || rules.as_array().into_iter().flatten();
        if rules().any(|rule| fits(rule, request, own)) {
            return Some(Arc::clone(own));
        }
        if !equivalent {
            return None;
        }
        let all = self.catalog.all();
        let others =
            || all.iter().filter(|other| other.storage == own.storage && other.version != own.version);
        rules().find_map(|rule| others().find(|other| fits(rule, request, other)).cloned())
    }
}

/// Whether the labels of the request's object, or of the one before it, are selected.
pub(super) fn selects_object(selector: &Value, request: &Attributes<'_>, object: &Value) -> bool {
    let labels = |object: &Value| object.is_object() && selects(selector, &object["metadata"]["labels"]);
    selects_all(selector) || labels(object) || request.old.is_some_and(labels)
}

/// Whether a rule takes the request, made by way of `resource`. Only rules of policies have `resourceNames`.
fn fits(rule: &Value, request: &Attributes<'_>, resource: &Resource) -> bool {
    let items = |key: &str| rule[key].as_array().into_iter().flatten();
    let listed = |key: &str, wanted: &str| items(key).any(|item| item == "*" || item == wanted);
    let cluster = resource.is("", "namespaces") || request.namespace().is_empty();
    let scope = match rule["scope"].as_str() {
        Some("Namespaced") => !cluster,
        Some("Cluster") => cluster,
        _ => true,
    };
    let named = |item: &Value| {
        let text = item.as_str().unwrap_or_default();
        let (plural, subresource) = text.split_once('/').unwrap_or((text, ""));
        (plural == "*" || plural == resource.plural)
            && (subresource == "*" || subresource == request.subresource)
    };
    let mut names = items("resourceNames").peekable();
    scope
        && listed("operations", request.operation.name())
        && listed("apiGroups", &resource.group)
        && listed("apiVersions", &resource.version)
        && items("resources").any(named)
        && (names.peek().is_none() || names.any(|name| name == request.place.name.as_str()))
}
