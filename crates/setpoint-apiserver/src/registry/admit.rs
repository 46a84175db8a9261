//! What the admission plugins of a default kube-apiserver do that operators notice.

use std::sync::Arc;

use serde_json::Value;

use super::{Place, Registry};
use crate::authz::escalation::{self, Refusal};
use crate::builtin;
use crate::catalog::Resource;
use crate::custom;
use crate::identity::Identity;
use crate::object::{Metadata, fields};
use crate::policies::StoredPolicies;
use crate::status::{Result, Status, Subject};
use crate::store::Key;

const CLASSES: &str = "priorityclasses.scheduling.k8s.io";

/// Kinds that would promise something that nothing here keeps: refused rather than ignored.
fn unsupported(resource: &Resource) -> Option<&'static str> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("admissionregistration.k8s.io", _) => Some("admission by webhooks or policies"),
        ("", "resourcequotas") => Some("resource quota"),
        ("", "limitranges") => Some("limit ranges"),
        ("apiregistration.k8s.io", "apiservices") => Some("API aggregation"),
        _ => None,
    }
}

/// Refuses a valid object that asks for what nothing here does.
pub(super) fn refuse_unsupported(resource: &Resource, object: &Value) -> Result<()> {
    if resource.is(custom::GROUP, custom::PLURAL) && object["spec"]["conversion"]["strategy"] == "Webhook" {
        return Err(Status::not_implemented("conversion of custom resources by webhook"));
    }
    Ok(())
}

impl Registry {
    pub(super) fn admit_create(&self, resource: &Resource, object: &mut Value) -> Result<()> {
        if let Some(what) = unsupported(resource) {
            return Err(Status::not_implemented(what));
        }
        match (resource.group.as_str(), resource.plural.as_str()) {
            ("", "pods") => {
                self.set_priority(resource, object)?;
                self.set_service_account(resource, object)
            }
            _ => Ok(()),
        }
    }

    /// Says that nothing will come of a new object.
    pub(super) fn idle_warning(&self, resource: &Resource) -> Option<String> {
        let named = |(group, kind): &(String, String)| *group == resource.group && *kind == resource.kind;
        let kind = &resource.kind;
        self.admission.idle.iter().any(named).then(|| {
            format!("nothing in this cluster processes objects of kind {kind}: this one is only stored")
        })
    }

    /// Upstream: the admission plugin `ServiceAccount`.
    fn set_service_account(&self, resource: &Resource, pod: &mut Value) -> Result<()> {
        // Mirror pods are their node's own.
        let mirror = &pod["metadata"]["annotations"]["kubernetes.io/config.mirror"];
        if !self.admission.service_accounts || !mirror.is_null() {
            return Ok(());
        }
        let (namespace, name) = (pod.meta("namespace"), builtin::account_name(pod));
        let Some(account) = self.store.get("serviceaccounts", &Key::new(namespace, name)) else {
            let why = format!(
                "error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found"
            );
            return Err(Status::forbidden(resource.subject(pod.meta("name")), &why));
        };
        builtin::admit_pod(pod, &account.value, &self.entropy.name_suffix(5));
        Ok(())
    }

    /// Nobody may grant by a role or binding what he does not hold.
    pub(super) fn check_escalation(
        &self,
        resource: &Resource,
        user: &Identity,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<()> {
        if resource.group != "rbac.authorization.k8s.io" {
            return Ok(());
        }
        let namespace = resource.namespaced.then(|| new.meta("namespace"));
        let policies = StoredPolicies(&self.store);
        match escalation::check(user, &resource.plural, namespace, new, old, &policies) {
            Ok(()) => Ok(()),
            Err(Refusal::Forbidden(why)) => Err(Status::forbidden(resource.subject(new.meta("name")), &why)),
            Err(Refusal::NotFound(plural, name)) => {
                Err(Status::not_found(Subject { group: &resource.group, kind: plural, name: &name }))
            }
        }
    }

    pub(super) fn admit_delete(place: &Place) -> Result<()> {
        let immortal = matches!(place.name.as_str(), "default" | "kube-system" | "kube-public");
        if immortal && place.resource.is("", "namespaces") {
            return Err(Status::forbidden(
                place.resource.subject(&place.name),
                "this namespace may not be deleted",
            ));
        }
        Ok(())
    }

    /// Upstream: the admission plugin `Priority`.
    fn set_priority(&self, resource: &Resource, pod: &mut Value) -> Result<()> {
        let name = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
        let class = if name.is_empty() {
            let classes = self.store.snapshot(CLASSES);
            classes.objects.values().find(|class| class.value["globalDefault"] == true).cloned()
        } else {
            let found = self.store.get(CLASSES, &Key::new("", name.as_str()));
            if found.is_none() {
                let detail = format!("no PriorityClass with name {name} was found");
                return Err(Status::forbidden(resource.subject(pod.meta("name")), &detail));
            }
            found
        };
        let class = class.map(|class| Arc::clone(&class.value));
        let policy = class.as_ref().and_then(|class| class["preemptionPolicy"].as_str());
        let policy = policy.unwrap_or("PreemptLowerPriority").to_owned();
        let priority = class.as_ref().and_then(|class| class["value"].as_i64()).unwrap_or_default();
        if let Some(given) = pod["spec"]["priority"].as_i64().filter(|given| *given != priority) {
            let why = format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
            );
            return Err(Status::forbidden(resource.subject(pod.meta("name")), &why));
        }
        let spec = fields(&mut pod["spec"]);
        if let Some(class) = &class {
            spec.insert("priorityClassName".to_owned(), class.meta("name").into());
        }
        spec.insert("priority".to_owned(), priority.into());
        spec.entry("preemptionPolicy").or_insert_with(|| policy.into());
        Ok(())
    }
}
