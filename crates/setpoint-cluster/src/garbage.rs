//! Garbage collection: objects go with their last owner.
//!
//! One controller for each kind that is used, over metadata only; all of them share a [`Graph`] of who owns
//! whom. What happens to one object wakes those that it concerns through the graph's wakers.

mod decide;
mod graph;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;
use setpoint::kube::api::{ApiResource, DynamicObject};
use setpoint::kube::core::{GroupVersionKind, PartialObjectMeta};
use setpoint::kube::{ResourceExt, discovery};
use setpoint::{Action, Context, Controller, Event, Key, Kind, Patch, Reconciler, Result, Target, Verb};
use setpoint_apiserver::ResourceName;

use decide::{Owner, Propagation, Step};
pub(crate) use graph::Graph;

/// When to ask again for an owner whose kind is not watched yet.
const UNSEEN: Duration = Duration::from_secs(1);

/// An object of any kind, as far as garbage collection knows it.
type Metadata = PartialObjectMeta<DynamicObject>;

/// Collects the objects of one kind.
pub(crate) struct GarbageCollector {
    kind: Kind,
    resource: ApiResource,
    graph: Arc<Graph>,
}

impl GarbageCollector {
    /// The collector of a kind that is in use; none for kinds whose objects come and go by themselves, as upstream.
    pub(crate) fn for_kind(used: &ResourceName, graph: &Arc<Graph>) -> Option<Controller<Self>> {
        if used.plural == "events" {
            return None;
        }
        let kind = Kind {
            group: used.group.clone(),
            version: used.version.clone(),
            kind: used.kind.clone(),
            plural: used.plural.clone(),
            namespaced: used.namespaced,
        };
        graph.leave_other_versions(&kind);
        Some(Self::controller(&kind, graph))
    }

    fn controller(kind: &Kind, graph: &Arc<Graph>) -> Controller<Self> {
        let resource = api_resource(kind);
        let everything = Target { group: "*".to_owned(), resource: "*".to_owned(), namespaced: true };
        let source = {
            let (graph, kind) = (Arc::clone(graph), kind.clone());
            move || graph.wakeups(&kind)
        };
        let gone = {
            let (graph, kind) = (Arc::clone(graph), kind.clone());
            move |key: &Key| graph.remove(&kind, key)
        };
        Controller::with(
            Self { kind: kind.clone(), resource: resource.clone(), graph: Arc::clone(graph) },
            &resource,
        )
        .named(format!("garbage-collector-{kind}"))
        .uses_target(everything, &[Verb::Get, Verb::Patch, Verb::Delete])
        .source(source)
        .gone(gone)
    }

    async fn owner(
        &self,
        object: &ObjectMeta,
        reference: &OwnerReference,
        cx: &Context<Metadata>,
    ) -> Result<Owner> {
        if let Some(owner) = self.graph.get(&reference.uid) {
            let elsewhere = owner.namespace.is_some()
                && object.namespace.is_some()
                && owner.namespace != object.namespace;
            if !elsewhere {
                return Ok(state(&owner));
            }
            // An owner is looked for in the namespace of the object. Its UID would be there if it were.
            cx.event(Event::warning("OwnerRefInvalidNamespace", missing_here(object, reference)));
            return Ok(Owner::Absent);
        }
        if self.graph.is_absent(&reference.uid) {
            return Ok(Owner::Absent);
        }
        // Not seen yet, or of a kind that nobody used: only the API server knows that it is absent.
        let (group, version) = reference.api_version.rsplit_once('/').unwrap_or(("", &reference.api_version));
        let gvk = GroupVersionKind::gvk(group, version, &reference.kind);
        let (resource, capabilities) = match discovery::pinned_kind(&cx.client(), &gvk).await {
            Ok(found) => found,
            // Also where the kind is not served (now): then nobody knows, and nothing is deleted.
            Err(error) => return Err(error.into()),
        };
        let namespaced = capabilities.scope == discovery::Scope::Namespaced;
        let namespace = object.namespace.clone().filter(|_| namespaced);
        let key = Key { namespace, name: reference.name.clone() };
        let owner = cx.resource::<Metadata>(&resource).live(key).await?;
        let owner = owner.filter(|owner| owner.uid().as_deref() == Some(&reference.uid));
        if owner.is_none() {
            self.graph.note_absent(&reference.uid);
        }
        Ok(owner.map_or(Owner::Absent, |owner| state(&owner.metadata)))
    }

    /// Drops the references to `owners` from an object. The version that was decided on is a precondition.
    async fn drop_owners(
        &self,
        resource: &ApiResource,
        key: &Key,
        meta: &ObjectMeta,
        owners: &[String],
        cx: &Context<Metadata>,
    ) -> Result<()> {
        let references = meta.owner_references.iter().flatten();
        let kept: Vec<_> = references.filter(|reference| !owners.contains(&reference.uid)).collect();
        let patch = json!({"metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": kept,
        }});
        cx.resource::<Metadata>(resource).patch(key, Patch::Merge(patch)).await?;
        Ok(())
    }
}

/// What upstream's garbage collector says of a reference to another namespace.
fn missing_here(object: &ObjectMeta, reference: &OwnerReference) -> String {
    let OwnerReference { api_version, kind, name, uid, .. } = reference;
    let namespace = object.namespace.as_deref().unwrap_or_default();
    format!(
        "ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace {namespace:?}"
    )
}

fn api_resource(kind: &Kind) -> ApiResource {
    let gvk = GroupVersionKind::gvk(&kind.group, &kind.version, &kind.kind);
    ApiResource::from_gvk_with_plural(&gvk, &kind.plural)
}

fn state(owner: &ObjectMeta) -> Owner {
    if decide::waits_for_dependents(owner) { Owner::WaitingForDependents } else { Owner::Solid }
}

impl Reconciler for GarbageCollector {
    type Object = Metadata;

    async fn reconcile(&self, object: Arc<Metadata>, cx: &Context<Metadata>) -> Result<Action> {
        let meta = &object.metadata;
        let key = Key::of(&*object);
        let dependents = self.graph.observe(&self.kind, &key, meta);
        let mut owners = Vec::new();
        if meta.deletion_timestamp.is_none() {
            for reference in meta.owner_references.iter().flatten() {
                owners.push(self.owner(meta, reference, cx).await?);
            }
        }
        let dependents_meta: Vec<_> = dependents.iter().map(|dependent| &*dependent.meta).collect();
        let step = decide::decide(meta, &owners, &dependents_meta);
        if step != Step::Keep {
            tracing::debug!(object = %key, kind = %self.kind, ?step, "garbage collection");
        }
        // An owner that no watch has shown yet can go without telling anybody.
        let unseen = step == Step::Keep && self.graph.lacks_owner_of(meta);
        // Our own writes to this object are no news to its controller, but they are to the graph: look again.
        let again = matches!(step, Step::Delete(_) | Step::DropOwners(_) | Step::Unblock);
        match step {
            Step::Keep | Step::AwaitDependents => {}
            Step::Delete(propagation) => {
                let propagation = match propagation {
                    Propagation::Background => setpoint::Propagation::Background,
                    Propagation::Foreground => setpoint::Propagation::Foreground,
                    Propagation::Orphan => setpoint::Propagation::Orphan,
                };
                let itself = cx.resource::<Metadata>(&self.resource);
                itself.delete(&*object).if_unchanged().propagation(propagation).await?;
            }
            Step::DropOwners(uids) => self.drop_owners(&self.resource, &key, meta, &uids, cx).await?,
            Step::Unblock => {
                let mut references = meta.owner_references.clone().unwrap_or_default();
                for reference in &mut references {
                    reference.block_owner_deletion = Some(false);
                }
                let patch = json!({"metadata": {
                    "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": references,
                }});
                cx.resource::<Metadata>(&self.resource).patch(&key, Patch::Merge(patch)).await?;
            }
            Step::OrphanDependents => {
                let uid = [meta.uid.clone().unwrap_or_default()];
                for dependent in &dependents {
                    let resource = api_resource(&dependent.kind);
                    self.drop_owners(&resource, &dependent.key, &dependent.meta, &uid, cx).await?;
                }
            }
            Step::RemoveFinalizer(finalizer) => {
                let kept: Vec<_> = object.finalizers().iter().filter(|name| *name != finalizer).collect();
                let patch = json!({"metadata": {
                    "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": kept,
                }});
                cx.resource::<Metadata>(&self.resource).patch(&key, Patch::Merge(patch)).await?;
            }
        }
        Ok(match (again, unseen) {
            (true, _) => Action::requeue(Duration::ZERO),
            (_, true) => Action::requeue(UNSEEN),
            _ => Action::await_change(),
        })
    }
}
