//! EndpointSlices and Endpoints of the Services with a selector, and EndpointSlices of the Endpoints that somebody made.

mod desired;
mod mirrored;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use setpoint::kube::ResourceExt;
use setpoint::{Action, Context, Controller, Key, Lookup, Object, Reconciler, Result, Verb};

/// Keeps the EndpointSlices and the Endpoints object of a Service equal to its pods.
pub(crate) struct ServiceEndpoints;

impl ServiceEndpoints {
    pub(crate) fn controller() -> Controller<Self> {
        Controller::new(Self)
            .named("endpoints")
            .field_manager("kube-controller-manager")
            .owns::<EndpointSlice>()
            .owns::<Endpoints>()
            .watches::<Pod>(services_of)
            .uses::<EndpointSlice>(&[Verb::Delete])
    }
}

impl Reconciler for ServiceEndpoints {
    type Object = Service;

    async fn reconcile(&self, service: Arc<Service>, cx: &Context<Service>) -> Result<Action> {
        if !desired::has_endpoints(&service) || service.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let pods = cx.list::<Pod>().await?;
        let pods: Vec<_> =
            pods.iter().map(AsRef::as_ref).filter(|pod| desired::selects(&service, pod)).collect();
        keep(cx, desired::slices(&service, &pods)).await?;
        // What somebody made before the Service had a selector is the controller's from now on.
        cx.apply(desired::endpoints(&service, &pods)).adopt().await?;
        Ok(Action::await_change())
    }
}

/// Gives Endpoints objects of Services without a selector their EndpointSlices: whoever routes reads those only. What
/// upstream's endpointslice-mirroring-controller does.
pub(crate) struct EndpointsMirror;

impl EndpointsMirror {
    pub(crate) fn controller() -> Controller<Self> {
        Controller::new(Self)
            .named("endpoints-mirror")
            .field_manager("kube-controller-manager")
            .owns::<EndpointSlice>()
            // The Endpoints of a Service have its name.
            .watches::<Service>(|old, new, _| new.or(old).map(Key::of).into_iter().collect())
            .uses::<EndpointSlice>(&[Verb::Delete])
    }
}

impl Reconciler for EndpointsMirror {
    type Object = Endpoints;

    async fn reconcile(&self, endpoints: Arc<Endpoints>, cx: &Context<Endpoints>) -> Result<Action> {
        if endpoints.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let service = cx.get::<Service>(Key::of(&*endpoints)).await?;
        let slices = match service {
            Some(service) if mirrored::is_mirrored(&endpoints, &service) => mirrored::slices(&endpoints),
            _ => Vec::new(),
        };
        keep(cx, slices).await?;
        Ok(Action::await_change())
    }
}

/// Makes `slices` the only EndpointSlices of the reconciled object.
async fn keep<O: Object>(cx: &Context<O>, slices: Vec<EndpointSlice>) -> Result<()> {
    let wanted: BTreeSet<_> = slices.iter().map(ResourceExt::name_any).collect();
    for slice in slices {
        cx.apply(slice).await?;
    }
    for stale in cx.children::<EndpointSlice>().await? {
        if !wanted.contains(&stale.name_any()) {
            cx.delete(&*stale).await?;
        }
    }
    Ok(())
}

/// The Services whose selector matches the pod as it was or as it is.
fn services_of(old: Option<&Pod>, new: Option<&Pod>, lookup: &Lookup) -> Vec<Key> {
    let namespace = new.or(old).and_then(ResourceExt::namespace);
    let services = lookup.list::<Service>(namespace.as_deref());
    let selecting = services
        .iter()
        .filter(|service| [old, new].into_iter().flatten().any(|pod| desired::selects(service, pod)));
    selecting.map(|service| Key::of(&**service)).collect()
}
