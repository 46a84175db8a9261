//! The status of ValidatingAdmissionPolicies: where their expressions do not fit the kinds that they are about
//! (`pkg/controller/validatingadmissionpolicystatus`). The API server knows the kinds, and looks.

use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use setpoint::kube::ResourceExt;
use setpoint::{Action, Context, Controller, Reconciler, Result, Verb};
use setpoint_apiserver::ApiServer;

/// Keeps `status.typeChecking` and `status.observedGeneration` of policies.
pub(crate) struct PolicyStatus {
    api: ApiServer,
}

impl PolicyStatus {
    pub(crate) fn controller(api: ApiServer) -> Controller<Self> {
        Controller::new(Self { api })
            .named("validatingadmissionpolicy-status")
            .field_manager("validatingadmissionpolicy-status")
            .uses_subresource::<ValidatingAdmissionPolicy>("status", &[Verb::Patch])
    }
}

impl Reconciler for PolicyStatus {
    type Object = ValidatingAdmissionPolicy;

    async fn reconcile(
        &self,
        policy: Arc<ValidatingAdmissionPolicy>,
        cx: &Context<ValidatingAdmissionPolicy>,
    ) -> Result<Action> {
        // As upstream: a generation is looked at once, also when a kind changes later.
        let seen = policy.status.as_ref().and_then(|status| status.observed_generation);
        if policy.metadata.generation > seen
            && let Some(status) = self.api.policy_status(&policy.name_any())
        {
            cx.status_as(status).await?;
        }
        Ok(Action::await_change())
    }
}
