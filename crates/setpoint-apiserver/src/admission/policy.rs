//! Admission policies: rules in CEL, bound to resources and parameters
//! (`k8s.io/apiserver/pkg/admission/plugin/policy`).
//!
//! ```text
//! request ─▶ policy: rules, selectors ─▶ each binding: its own rules, parameters ─▶ match conditions ─▶ validations │ mutations
//! ```

mod compiled;
mod matching;
mod mutating;
mod params;
mod types;
mod validating;

use std::sync::Arc;

use serde_json::Value;

pub(crate) use self::compiled::Cache;
pub(super) use self::mutating::PolicyRounds;
use super::Attributes;
use crate::registry::Registry;

/// A policy with its bindings, in the order of their names.
struct Bound {
    policy: Arc<Value>,
    bindings: Vec<Arc<Value>>,
}

impl Registry {
    /// The policies that have bindings.
    fn bound_policies(&self, policies: &str, bindings: &str) -> Vec<Bound> {
        let policies = self.store.snapshot(policies);
        if policies.objects.is_empty() {
            return Vec::new();
        }
        let bindings = self.store.snapshot(bindings);
        let of = |name: &str| {
            let bindings = bindings.objects.values().map(|binding| binding.value.shared());
            bindings.filter(|binding| binding["spec"]["policyName"] == name).collect::<Vec<_>>()
        };
        let bound = policies
            .objects
            .iter()
            .map(|(key, policy)| Bound { policy: policy.value.shared(), bindings: of(&key.name) });
        bound.filter(|bound| !bound.bindings.is_empty()).collect()
    }
}

/// Requests that no policy is asked about: policies themselves, so that a wrong one can be taken back, and reviews, which are no
/// objects.
fn is_exempt(request: &Attributes<'_>) -> bool {
    let resource = request.resource();
    match resource.group.as_str() {
        "admissionregistration.k8s.io" => matches!(
            resource.plural.as_str(),
            "validatingadmissionpolicies"
                | "validatingadmissionpolicybindings"
                | "mutatingadmissionpolicies"
                | "mutatingadmissionpolicybindings"
        ),
        "authorization.k8s.io" => true,
        "authentication.k8s.io" => matches!(resource.plural.as_str(), "tokenreviews" | "selfsubjectreviews"),
        _ => false,
    }
}
