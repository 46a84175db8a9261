//! The StatefulSet controller: a pure decision and a thin shell that carries it out.

mod decide;
mod identity;
mod revision;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;
use setpoint::{Action, Context, Controller, Event, Key, Lookup, Patch, Reconciler, Result, Verb};

use crate::labels;
use decide::{Observed, Reason, Step, decide};

/// Reconciles StatefulSets.
pub struct StatefulSets;

/// The controller.
pub fn controller() -> Controller<StatefulSets> {
    Controller::new(StatefulSets)
        .named("statefulset-controller")
        .owns::<Pod>()
        .owns::<ControllerRevision>()
        .index("namespace", |set: &StatefulSet| set.metadata.namespace.iter().cloned().collect())
        .watches(orphans)
        .watches(|_: Option<&PersistentVolumeClaim>, _: Option<&PersistentVolumeClaim>, _: &Lookup| {
            Vec::new()
        })
        .uses::<Pod>(&[Verb::Create, Verb::Delete, Verb::Patch])
        .uses::<PersistentVolumeClaim>(&[Verb::Create, Verb::Patch])
        .uses::<ControllerRevision>(&[Verb::Create, Verb::Delete, Verb::Patch])
}

/// Pods that nobody controls and that a set's selector means.
fn orphans(_old: Option<&Pod>, new: Option<&Pod>, lookup: &Lookup) -> Vec<Key> {
    let Some(pod) = new else { return Vec::new() };
    let owned = pod.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
    let Some(namespace) = pod.metadata.namespace.as_deref().filter(|_| !owned) else { return Vec::new() };
    let sets = lookup.by_index::<StatefulSet>("namespace", namespace);
    let meant = sets.iter().filter(|set| labels::matches(&set.spec.selector, pod.metadata.labels.as_ref()));
    meant.map(|set| Key::of(set.as_ref())).collect()
}

impl Reconciler for StatefulSets {
    type Object = StatefulSet;

    async fn reconcile(&self, set: Arc<StatefulSet>, cx: &Context<StatefulSet>) -> Result<Action> {
        let decision = decide(&Observed {
            set: &set,
            pods: &cx.list::<Pod>().await?,
            claims: &cx.list::<PersistentVolumeClaim>().await?,
            revisions: &cx.list::<ControllerRevision>().await?,
            now: cx.clock().now(),
        });
        let mut failure = None;
        for step in decision.steps {
            // One failed step must not hide what was seen: status is written before the error is returned.
            if let Err(error) = carry_out(&set, step, cx).await {
                failure = Some(error);
                break;
            }
        }
        cx.status_as(decision.status).await?;
        match (failure, decision.again) {
            (Some(error), _) => Err(error),
            (None, Some(again)) => Ok(Action::requeue(again)),
            (None, None) => Ok(Action::await_change()),
        }
    }
}

async fn carry_out(set: &StatefulSet, step: Step, cx: &Context<StatefulSet>) -> Result<()> {
    let set_name = set.metadata.name.as_deref().unwrap_or_default();
    match step {
        Step::Adopt(pod) => {
            let mut owners = pod.metadata.owner_references.clone().unwrap_or_default();
            owners.push(owner_reference(set));
            cx.patch::<Pod>(Key::of(pod.as_ref()), owners_patch(pod.metadata.uid.as_deref(), &owners))
                .await?;
        }
        Step::Release(pod) => {
            let mut owners = pod.metadata.owner_references.clone().unwrap_or_default();
            owners.retain(|owner| Some(&owner.uid) != set.metadata.uid.as_ref());
            cx.patch::<Pod>(Key::of(pod.as_ref()), owners_patch(pod.metadata.uid.as_deref(), &owners))
                .await?;
        }
        Step::AdoptRevision(revision) => {
            let mut owners = revision.metadata.owner_references.clone().unwrap_or_default();
            owners.push(owner_reference(set));
            let patch = owners_patch(revision.metadata.uid.as_deref(), &owners);
            cx.patch::<ControllerRevision>(Key::of(revision.as_ref()), patch).await?;
        }
        Step::CreateRevision(revision) => {
            cx.create(*revision).await?;
        }
        Step::Renumber(name, number) => {
            cx.patch::<ControllerRevision>(name, Patch::Merge(json!({"revision": number}))).await?;
        }
        Step::DeleteRevision(revision) => cx.delete(revision.as_ref()).await?,
        Step::CreateClaim(claim) => {
            let name = claim.metadata.name.clone().unwrap_or_default();
            // Claims outlive the set unless its retention policy says otherwise; the decision gave the owners.
            match cx.create(*claim).unowned().await {
                Ok(_) => cx.event(Event::normal(
                    "SuccessfulCreate",
                    format!("create Claim {name} in StatefulSet {set_name} success"),
                )),
                Err(error) => return Err(failed(cx, "create", "Claim", &name, set_name, error)),
            }
        }
        Step::OwnClaim(claim, owners) => {
            let patch = owners_patch(claim.metadata.uid.as_deref(), &owners);
            cx.patch::<PersistentVolumeClaim>(Key::of(claim.as_ref()), patch).await?;
        }
        Step::CreatePod(pod) => {
            let name = pod.metadata.name.clone().unwrap_or_default();
            match cx.create(*pod).await {
                Ok(_) => cx.event(Event::normal(
                    "SuccessfulCreate",
                    format!("create Pod {name} in StatefulSet {set_name} successful"),
                )),
                Err(error) => return Err(failed(cx, "create", "Pod", &name, set_name, error)),
            }
        }
        Step::Label(pod, labels) => {
            let labels: BTreeMap<_, _> = labels.into_iter().collect();
            let patch = json!({"metadata": {"uid": pod.metadata.uid, "labels": labels}});
            cx.patch::<Pod>(Key::of(pod.as_ref()), Patch::Merge(patch)).await?;
        }
        Step::DeletePod(pod, reason) => {
            let name = pod.metadata.name.clone().unwrap_or_default();
            if reason == Reason::Ended {
                let note = format!("StatefulSet {set_name} is recreating failed Pod {name}");
                cx.event(Event::warning("RecreatingFailedPod", note));
            }
            match cx.delete(pod.as_ref()).await {
                Ok(()) => cx.event(Event::normal(
                    "SuccessfulDelete",
                    format!("delete Pod {name} in StatefulSet {set_name} successful"),
                )),
                Err(error) => return Err(failed(cx, "delete", "Pod", &name, set_name, error)),
            }
        }
    }
    Ok(())
}

fn failed(
    cx: &Context<StatefulSet>,
    verb: &str,
    what: &str,
    name: &str,
    set: &str,
    error: setpoint::Error,
) -> setpoint::Error {
    let reason = if verb == "create" { "FailedCreate" } else { "FailedDelete" };
    cx.event(Event::warning(
        reason,
        format!("{verb} {what} {name} in StatefulSet {set} failed error: {error}"),
    ));
    error
}

/// Sets all owners of exactly this object.
fn owners_patch(uid: Option<&str>, owners: &[OwnerReference]) -> Patch {
    Patch::Merge(json!({"metadata": {"uid": uid, "ownerReferences": owners}}))
}

/// A reference to the set as controller.
fn owner_reference(set: &StatefulSet) -> OwnerReference {
    OwnerReference {
        api_version: "apps/v1".into(),
        kind: "StatefulSet".into(),
        name: set.metadata.name.clone().unwrap_or_default(),
        uid: set.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests;
