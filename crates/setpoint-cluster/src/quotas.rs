//! The status of resource quotas: what they allow, and what there is of it. Admission charges what is new; what is gone is given back
//! here.

use std::sync::Arc;

use futures::StreamExt;

use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};
use setpoint::kube::ResourceExt;
use setpoint::kube::api::{Api, PostParams};
use setpoint::{Action, Cause, Context, Controller, Key, Reconciler, Result, Verb};
use setpoint_apiserver::ApiServer;

/// Keeps `status.hard` and `status.used` of quotas.
pub(crate) struct QuotaStatus {
    /// Reckons what there is in a namespace.
    api: ApiServer,
}

impl QuotaStatus {
    pub(crate) fn controller(api: ApiServer) -> Controller<Self> {
        let reckoned = api.clone();
        let written = move || {
            let quotas = reckoned.quotas_to_reckon();
            quotas
                .map(|(namespace, name)| (Key::new(namespace, name), Cause::source("something was written")))
        };
        Controller::new(Self { api })
            .named("resourcequota")
            .source(written)
            .uses_subresource::<ResourceQuota>("status", &[Verb::Update])
    }
}

impl Reconciler for QuotaStatus {
    type Object = ResourceQuota;

    async fn reconcile(&self, quota: Arc<ResourceQuota>, cx: &Context<ResourceQuota>) -> Result<Action> {
        let (namespace, name) = (quota.namespace().unwrap_or_default(), quota.name_any());
        let Some(status) = self.api.quota_status(&namespace, &name) else {
            return Ok(Action::await_change());
        };
        let status: ResourceQuotaStatus = serde_json::from_value(status)?;
        if quota.status.as_ref() != Some(&status) {
            let changed = ResourceQuota { status: Some(status), ..ResourceQuota::clone(&quota) };
            let quotas: Api<ResourceQuota> = Api::namespaced(cx.client(), &namespace);
            match quotas.replace_status(&name, &PostParams::default(), &changed).await {
                Ok(_) => {}
                // Somebody was charged in between, or it is gone.
                Err(setpoint::kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Action::await_change())
    }
}
