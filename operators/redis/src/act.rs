//! The thin shell that carries one step out.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::json;
use setpoint::{Context, Key, Patch, Propagation, Result};

use crate::api::{RedisCluster, SWITCHOVER};
use crate::decide::{Reason, Step};
use crate::observe::{Command, Instance, Monitors, Observation, OrderError, Target};
use crate::render::ROLE;
use crate::settings::quantity;

/// How long a pod that doesn't answer gets to end.
const GRACE: Duration = Duration::from_secs(1);

/// A step could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The pod is not the one that was observed.
    #[error("pod {0} changed since it was observed")]
    PodChanged(String),
    /// A server did not carry out an order.
    #[error("{command} on {pod}: {source}")]
    Order {
        /// The pod.
        pod: String,
        /// The order in words.
        command: &'static str,
        /// What went wrong.
        source: OrderError,
    },
}

/// Carries `step` out, which was decided from `observation`. Steps that only write the status are the
/// caller's. `stateful_set` makes the StatefulSet with so many replicas.
pub async fn act(
    step: &Step,
    observation: &Observation,
    monitors: &Monitors,
    stateful_set: impl Fn(u32) -> StatefulSet,
    cx: &Context<RedisCluster>,
) -> Result<()> {
    let key = Key::of(&**cx.object());
    let order = async |pod: &str, name: &'static str, command: Command| -> Result<()> {
        // An order takes seconds at most, so that it ends before another replica can lead.
        cx.term().check()?;
        let outcome = monitors.order(&key, pod, command).await;
        outcome.map_err(|source| ActError::Order { pod: pod.to_owned(), command: name, source })?;
        tracing::info!(pod, order = name, "carried out");
        Ok(())
    };
    match step {
        Step::Record(_) | Step::Wait(_) | Step::Settled => {}
        Step::Unlabel { pod } => label(cx, observation, pod, None).await?,
        Step::Label { pod, role } => label(cx, observation, pod, Some(role.as_str())).await?,
        Step::Demote { pod } => {
            same_pod(cx, observation, pod).await?;
            order(pod, "demote", Command::Demote).await?;
        }
        Step::Seal { pod } => order(pod, "seal", Command::Seal).await?,
        Step::HandOver { from, pod, to } => {
            same_pod(cx, observation, from).await?;
            same_pod(cx, observation, pod).await?;
            order(from, "hand over", Command::HandOver { to: to.clone() }).await?;
        }
        Step::AbortHandOver { pod } => {
            same_pod(cx, observation, pod).await?;
            order(pod, "abort the hand-over", Command::AbortHandOver).await?;
        }
        Step::Dismiss => {
            cx.patch::<RedisCluster>(&*key.name, Patch::annotation(SWITCHOVER, None)).await?;
        }
        Step::Detach { pod } => {
            same_pod(cx, observation, pod).await?;
            order(pod, "detach", Command::Follow(Target::Nobody)).await?;
        }
        Step::Attach { pod, to } => {
            same_pod(cx, observation, pod).await?;
            order(pod, "attach", Command::Follow(Target::Server(to.clone()))).await?;
        }
        Step::Promote { pod, quorum } => {
            same_pod(cx, observation, pod).await?;
            order(pod, "promote", Command::Promote { quorum: *quorum }).await?;
        }
        Step::Set { pod, name, value } => {
            order(pod, "set", Command::Set { name, value: value.clone() }).await?;
        }
        Step::Delete { pod, uid } => {
            if let Some(found) = cx.live::<Pod>(pod).await?.filter(|found| found.uid().as_ref() == Some(uid))
            {
                cx.delete(&found).grace(GRACE).await?;
            }
        }
        Step::Restart { pod, uid } => {
            if let Some(found) = cx.live::<Pod>(pod).await?.filter(|found| found.uid().as_ref() == Some(uid))
            {
                cx.delete(&found).await?;
            }
        }
        Step::GrowClaim { claim, bytes } => {
            let requests = json!({ "storage": quantity(*bytes) });
            let patch = Patch::Merge(json!({ "spec": { "resources": { "requests": requests } } }));
            cx.patch::<PersistentVolumeClaim>(claim.as_str(), patch).await?;
        }
        Step::Renew { uid } => {
            let found = cx.live::<StatefulSet>(&*key.name).await?;
            if let Some(set) = found.filter(|set| set.uid().as_ref() == Some(uid)) {
                cx.delete(&set).propagation(Propagation::Orphan).await?;
            }
        }
        Step::Scale(replicas) => {
            cx.apply(stateful_set(*replicas)).await?;
        }
    }
    Ok(())
}

/// Asks the API server whether `pod` still is the one that was observed, before its role is changed.
async fn same_pod(cx: &Context<RedisCluster>, observation: &Observation, pod: &str) -> Result<()> {
    let observed = observation.instance(pod).and_then(|instance| instance.pod.as_ref());
    let live = cx.live::<Pod>(pod).await?;
    let same = observed.zip(live.as_ref()).is_some_and(|(observed, live)| {
        live.uid().as_ref() == Some(&observed.uid)
            && live.metadata.deletion_timestamp.is_some() == observed.terminating
    });
    if same { Ok(()) } else { Err(ActError::PodChanged(pod.to_owned()).into()) }
}

/// Sets or removes the role label of exactly the observed pod.
async fn label(
    cx: &Context<RedisCluster>,
    observation: &Observation,
    pod: &str,
    role: Option<&str>,
) -> Result<()> {
    let uid = observation
        .instance(pod)
        .and_then(|instance: &Instance| instance.pod.as_ref())
        .map(|pod| pod.uid.clone());
    let patch = Patch::Merge(json!({ "metadata": { "uid": uid, "labels": { ROLE: role } } }));
    cx.patch::<Pod>(pod, patch).await?;
    Ok(())
}

/// The Kubernetes event that `reason` deserves once its step was carried out: whether it is a warning, a
/// word, a sentence.
pub fn event(reason: &Reason) -> Option<(bool, &'static str, String)> {
    match reason {
        Reason::Bootstrapping { pod, why } => {
            Some((false, "PrimaryChosen", format!("{pod} becomes the primary: {why}")))
        }
        Reason::FailingOver { from, to, why } => {
            Some((true, "FailingOver", format!("from {from} to {to}: {why}")))
        }
        Reason::SwitchingOver { from, to, why } => {
            Some((false, "SwitchingOver", format!("from {from} to {to}: {why}")))
        }
        Reason::SwitchoverRefused { pod, why } => {
            Some((true, "SwitchoverRefused", format!("{pod} cannot be the primary: {why}")))
        }
        Reason::Promoted { pod, term: 1, .. } => {
            Some((false, "PrimaryPromoted", format!("{pod} is the primary")))
        }
        Reason::Promoted { pod, term, planned } => {
            let word = if *planned { "SwitchedOver" } else { "FailedOver" };
            Some((false, word, format!("{pod} is the primary (term {term})")))
        }
        Reason::Undone { pod, why } => {
            Some((false, "FailoverUndone", format!("{pod} stays the primary: {why}")))
        }
        Reason::SplitBrain { demoted } => {
            Some((true, "SecondPrimaryDemoted", format!("{demoted} accepted writes beside the primary")))
        }
        Reason::Rolling { .. }
        | Reason::Removing { .. }
        | Reason::Growing { .. }
        | Reason::Blocked { .. }
        | Reason::Waiting { .. }
        | Reason::CannotReachPrimary { .. }
        | Reason::ConfigRefused { .. }
        | Reason::Configuring { .. } => None,
    }
}
