//! Which requests concern a policy (`…/policy/matching/matching.go`).

use std::sync::Arc;

use serde_json::Value;

use crate::admission::{Attributes, Operation};
use crate::builtin::selects;
use crate::catalog::Resource;
use crate::registry::Registry;
use crate::store::Key;

impl Registry {
    /// The resource, in the version that a rule names, by which the request concerns a policy or binding with these constraints;
    /// `None` if it does not. Without rules every resource is meant.
    ///
    /// # Errors
    /// When the namespace of the request cannot be looked at.
    pub(super) fn concerned(
        &self,
        constraints: &Value,
        request: &Attributes<'_>,
        object: &Value,
    ) -> Result<Option<Arc<Resource>>, String> {
        let own = request.resource();
        if constraints.is_null() {
            return Ok(Some(Arc::clone(own)));
        }
        let namespace = self.in_selected_namespace(&constraints["namespaceSelector"], request, object);
        if namespace == Ok(false) {
            return Ok(None);
        }
        let selector = &constraints["objectSelector"];
        let labels = |object: &Value| object.is_object() && selects(selector, &object["metadata"]["labels"]);
        let old = request.old.unwrap_or(&Value::Null);
        if !selects_all(selector) && !labels(object) && !labels(old) {
            return Ok(None);
        }
        let equivalent = constraints["matchPolicy"] != "Exact";
        let find = |rules: &Value| {
            let rules = || rules.as_array().into_iter().flatten();
            if let Some(rule) = rules().find(|rule| fits(rule, request, own)) {
                return Some((rule.clone(), Arc::clone(own)));
            }
            if !equivalent {
                return None;
            }
            let all = self.catalog.all();
            let others =
                || all.iter().filter(|other| other.storage == own.storage && other.version != own.version);
            rules().find_map(|rule| {
                let other = others().find(|other| fits(rule, request, other))?;
                Some((rule.clone(), Arc::clone(other)))
            })
        };
        if find(&constraints["excludeResourceRules"]).is_some() {
            return Ok(None);
        }
        let rules = &constraints["resourceRules"];
        let found = if rules.as_array().is_none_or(Vec::is_empty) {
            Some(Arc::clone(own))
        } else {
            find(rules).map(|(_, resource)| resource)
        };
        namespace.map(|_| found)
    }

    /// Whether the labels of the request's namespace are selected. Objects of the whole cluster are, but for namespaces.
    fn in_selected_namespace(
        &self,
        selector: &Value,
        request: &Attributes<'_>,
        object: &Value,
    ) -> Result<bool, String> {
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
            None => Err(format!("namespaces {name:?} not found")),
        }
    }
}

fn selects_all(selector: &Value) -> bool {
    let filled = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    !filled(&selector["matchLabels"]) && !filled(&selector["matchExpressions"])
}

/// Whether a rule takes the request, made by way of `resource`.
fn fits(rule: &Value, request: &Attributes<'_>, resource: &Resource) -> bool {
    let texts =
        |key: &str| rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
    let listed = |key: &str, wanted: &str| texts(key).iter().any(|item| *item == "*" || *item == wanted);
    let cluster = resource.is("", "namespaces") || request.namespace().is_empty();
    let scope = match rule["scope"].as_str() {
        Some("Namespaced") => !cluster,
        Some("Cluster") => cluster,
        _ => true,
    };
    let named = |item: &&str| {
        let (plural, subresource) = item.split_once('/').unwrap_or((item, ""));
        (plural == "*" || plural == resource.plural)
            && (subresource == "*" || subresource == request.subresource)
    };
    let names = texts("resourceNames");
    scope
        && listed("operations", request.operation.name())
        && listed("apiGroups", &resource.group)
        && listed("apiVersions", &resource.version)
        && texts("resources").iter().any(named)
        && (names.is_empty() || names.contains(&request.place.name.as_str()))
}
