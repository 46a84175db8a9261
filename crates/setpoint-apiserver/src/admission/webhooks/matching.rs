//! Which requests concern a webhook.

use serde_json::Value;

use super::Hook;
use crate::admission::Attributes;
use crate::admission::matching::selects_object;
use crate::admission::versions::Versioned;
use crate::registry::Registry;
use crate::status::{Result, Status};

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
    /// What `hook` is to be sent, if the request concerns it; `object` is the request's as it is now.
    pub(super) async fn concerns(
        &self,
        hook: &Hook,
        request: &Attributes<'_>,
        object: &Value,
    ) -> Result<Option<Versioned>> {
        let spec = hook.spec();
        let namespace = self.selects_namespace(&spec["namespaceSelector"], request, object);
        if matches!(namespace, Ok(false)) || !selects_object(&spec["objectSelector"], request, object) {
            return Ok(None);
        }
        let equivalent = hook.text("matchPolicy") == "Equivalent";
        let Some(target) = self.target(&spec["rules"], request, equivalent) else { return Ok(None) };
        namespace?;
        let versioned = self.in_version_of(request, object, &target).await.map_err(Status::internal)?;
        match self.meets(&spec["matchConditions"], request, &versioned) {
            Ok(holds) => Ok(holds.then_some(versioned)),
            Err(_) if hook.fails_open() => Ok(None),
            Err(why) => {
                Err(Status::forbidden(request.resource().subject(&request.place.name), &why.to_string()))
            }
        }
    }
}
