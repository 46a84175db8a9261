//! Which requests concern a webhook.

use serde_json::Value;

use super::versions::Versioned;
use super::{Hook, review};
use crate::admission::{Attributes, Operation};
use crate::builtin::selects;
use crate::catalog::Resource;
use crate::registry::Registry;
use crate::status::{Result, Status, Subject};
use crate::store::Key;

/// Requests that no webhook is asked about: changes of what decides about requests, and reviews, which are no objects. Else a
/// wrong webhook could lock everybody out.
pub(super) fn is_exempt(request: &Attributes<'_>) -> bool {
    match request.kind.group {
        "admissionregistration.k8s.io" => matches!(
            request.kind.kind,
            "ValidatingWebhookConfiguration"
                | "MutatingWebhookConfiguration"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
        ),
        "authorization.k8s.io" => true,
        "authentication.k8s.io" => request.subresource.is_empty(),
        _ => false,
    }
}

impl Registry {
    /// What `hook` is to be sent, if the request concerns it; `given` is the request's object as it is now.
    pub(super) async fn concerns(
        &self,
        hook: &Hook,
        request: &Attributes<'_>,
        given: Versioned,
    ) -> Result<Option<Versioned>> {
        let namespace = self.selects_namespace(hook, request, &given.object);
        if matches!(namespace, Ok(false)) {
            return Ok(None);
        }
        let selector = &hook.spec()["objectSelector"];
        let labels = |object: &Value| object.is_object() && selects(selector, &object["metadata"]["labels"]);
        if !is_empty(selector) && !labels(&given.object) && !labels(&given.old) {
            return Ok(None);
        }
        let resource = request.resource();
        let rules = || hook.spec()["rules"].as_array().into_iter().flatten();
        let mut target = rules().any(|rule| fits(rule, request, resource)).then(|| resource.clone());
        if target.is_none() && hook.text("matchPolicy") == "Equivalent" {
            let all = self.catalog.all();
            let others = || {
                all.iter()
                    .filter(|other| other.storage == resource.storage && other.version != resource.version)
            };
            target = rules().find_map(|rule| others().find(|other| fits(rule, request, other)).cloned());
        }
        let Some(target) = target else { return Ok(None) };
        namespace?;
        let versioned = self.in_version_of(given, request, &target).await?;
        let conditions = &hook.spec()["matchConditions"];
        let seen = (&versioned.kind, &review::resource(&versioned.resource));
        match self.meets(conditions, request, seen, &versioned.object, &versioned.old) {
            Ok(holds) => Ok(holds.then_some(versioned)),
            Err(_) if hook.fails_open() => Ok(None),
            Err(why) => {
                Err(Status::forbidden(request.resource().subject(&request.place.name), &why.to_string()))
            }
        }
    }

    /// Whether the labels of the request's namespace are selected. Objects of the whole cluster are, but for namespaces.
    fn selects_namespace(&self, hook: &Hook, request: &Attributes<'_>, object: &Value) -> Result<bool> {
        let (name, selector) = (request.namespace(), &hook.spec()["namespaceSelector"]);
        let itself = request.resource().is("", "namespaces");
        if (name.is_empty() && !itself) || is_empty(selector) {
            return Ok(true);
        }
        if itself
            && request.subresource.is_empty()
            && matches!(request.operation, Operation::Create | Operation::Update)
        {
            return Ok(selects(selector, &object["metadata"]["labels"]));
        }
        match self.store.get("namespaces", &Key::new("", name)) {
            Some(namespace) => Ok(selects(selector, &namespace.value["metadata"]["labels"])),
            None => Err(Status::not_found(Subject { group: "", kind: "namespaces", name })),
        }
    }
}

fn is_empty(selector: &Value) -> bool {
    let filled = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    !filled(&selector["matchLabels"]) && !filled(&selector["matchExpressions"])
}

/// Whether a rule takes the request, made by way of `resource`.
fn fits(rule: &Value, request: &Attributes<'_>, resource: &Resource) -> bool {
    let listed = |key: &str, wanted: &str| {
        rule[key].as_array().into_iter().flatten().any(|item| item == "*" || item == wanted)
    };
    let cluster = resource.is("", "namespaces") || request.namespace().is_empty();
    let scope = match rule["scope"].as_str() {
        None | Some("*") => true,
        Some("Namespaced") => !cluster,
        Some("Cluster") => cluster,
        Some(_) => false,
    };
    let named = |item: &Value| {
        let text = item.as_str().unwrap_or_default();
        let (plural, subresource) = text.split_once('/').unwrap_or((text, ""));
        (plural == "*" || plural == resource.plural)
            && (subresource == "*" || subresource == request.subresource)
    };
    scope
        && listed("operations", request.operation.name())
        && listed("apiGroups", &resource.group)
        && listed("apiVersions", &resource.version)
        && rule["resources"].as_array().into_iter().flatten().any(named)
}
