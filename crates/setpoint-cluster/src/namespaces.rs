//! The end of a namespace: everything in it is deleted, then its finalizer is released.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition, NamespaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use setpoint::kube::ResourceExt;
use setpoint::kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use setpoint::kube::core::GroupVersionKind;
use setpoint::{Action, Context, Controller, Reconciler, Result, Target, Verb};
use setpoint_apiserver::ApiServer;

/// How often to look whether what was deleted is gone: upstream asks again after what the longest grace
/// period leaves, at most 15 s; in one process looking is cheap.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Empties namespaces that are being deleted.
pub(crate) struct NamespaceLifecycle {
    /// Tells which resources still have objects in a namespace.
    api: ApiServer,
}

impl NamespaceLifecycle {
    pub(crate) fn controller(api: ApiServer) -> Controller<Self> {
        Controller::new(Self { api })
            .named("namespace")
            .uses_target(
                Target { group: "*".to_owned(), resource: "*".to_owned(), namespaced: true },
                &[Verb::List, Verb::DeleteCollection],
            )
            .uses_subresource::<Namespace>("finalize", &[Verb::Update])
    }
}

impl Reconciler for NamespaceLifecycle {
    type Object = Namespace;

    async fn reconcile(&self, namespace: Arc<Namespace>, cx: &Context<Namespace>) -> Result<Action> {
        let held = namespace.spec.iter().flat_map(|spec| spec.finalizers.iter().flatten());
        if namespace.metadata.deletion_timestamp.is_none() || !held.clone().any(|name| name == "kubernetes") {
            return Ok(Action::await_change());
        }
        let name = namespace.name_any();
        let kinds = self.api.namespace_contents(&name);
        if kinds.is_empty() {
            finalize(&namespace, cx).await?;
            return Ok(Action::await_change());
        }
        for used in &kinds {
            let kind = GroupVersionKind::gvk(&used.group, &used.version, &used.kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, &used.plural);
            let objects: Api<DynamicObject> = Api::namespaced_with(cx.client(), &name, &resource);
            objects.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
        }
        let left = self.api.namespace_contents(&name);
        if left.is_empty() {
            finalize(&namespace, cx).await?;
            return Ok(Action::await_change());
        }
        let kinds: Vec<_> = left.iter().map(|used| format!("{}.{}", used.plural, used.group)).collect();
        cx.status_as(remaining(&namespace, &kinds.join(", "), cx)).await?;
        Ok(Action::requeue(LOOK_AGAIN))
    }
}

/// The condition by which `kubectl describe` says what a terminating namespace waits for.
fn remaining(namespace: &Namespace, kinds: &str, cx: &Context<Namespace>) -> NamespaceStatus {
    const TYPE: &str = "NamespaceContentRemaining";
    let message = format!("Some resources are remaining: {kinds}");
    let conditions = namespace.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let since = conditions
        .filter(|condition| condition.type_ == TYPE && condition.status == "True")
        .find_map(|condition| condition.last_transition_time.clone());
    let condition = NamespaceCondition {
        type_: TYPE.to_owned(),
        status: "True".to_owned(),
        reason: Some("SomeResourcesRemain".to_owned()),
        message: Some(message),
        last_transition_time: Some(since.unwrap_or_else(|| Time(cx.clock().now()))),
    };
    NamespaceStatus { conditions: Some(vec![condition]), phase: Some("Terminating".to_owned()) }
}

async fn finalize(namespace: &Namespace, cx: &Context<Namespace>) -> Result<()> {
    let mut finalized = namespace.clone();
    if let Some(spec) = &mut finalized.spec {
        spec.finalizers.iter_mut().for_each(|finalizers| finalizers.retain(|name| name != "kubernetes"));
    }
    let namespaces: Api<Namespace> = Api::all(cx.client());
    match namespaces
        .replace_subresource("finalize", &namespace.name_any(), &PostParams::default(), &finalized)
        .await
    {
        Ok(_) => Ok(()),
        Err(setpoint::kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}
