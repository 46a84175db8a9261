//! The scheduler: gives pods that have none a node.

mod affinity;
mod place;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Binding, Namespace, Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Action, Context, Controller, Event, Key, Lookup, Patch, Reconciler, Result, Verb};

use crate::kubelet::seconds;
use place::{Placement, place};
use view::View;

/// The name by which pods ask for this scheduler.
const NAME: &str = "default-scheduler";
/// Index of the pods that wait for a node.
const WAITING: &str = "waiting";

/// Reconciles pods without a node, one at a time.
#[derive(Default)]
pub struct Scheduler {
    /// Nodes given to pods whose binding the cache does not show yet, by UID.
    assumed: Mutex<BTreeMap<String, String>>,
}

/// The controller.
pub fn controller() -> Controller<Scheduler> {
    Controller::new(Scheduler::default())
        .named(NAME)
        .index(WAITING, |pod: &Pod| if waits(pod) { vec![String::new()] } else { Vec::new() })
        // Room appears when nodes, volumes or claims change, and when placed pods end.
        .watches(|_: Option<&Node>, _: Option<&Node>, lookup: &Lookup| waiting(lookup))
        .watches(|_: Option<&PersistentVolume>, _: Option<&PersistentVolume>, lookup: &Lookup| {
            waiting(lookup)
        })
        .watches(|_: Option<&PersistentVolumeClaim>, _: Option<&PersistentVolumeClaim>, lookup: &Lookup| {
            waiting(lookup)
        })
        .watches(|_: Option<&Namespace>, _: Option<&Namespace>, _: &Lookup| Vec::new())
        .watches(|old: Option<&Pod>, new: Option<&Pod>, lookup: &Lookup| {
            if old.is_some_and(placed) && !new.is_some_and(placed) { waiting(lookup) } else { Vec::new() }
        })
        .uses_subresource::<Pod>("binding", &[Verb::Create])
        .uses_subresource::<Pod>("status", &[Verb::Patch])
        .uses::<Pod>(&[Verb::Patch])
        .concurrency(1)
}

fn waiting(lookup: &Lookup) -> Vec<Key> {
    lookup.by_index::<Pod>(WAITING, "").iter().map(|pod| Key::of(pod.as_ref())).collect()
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Takes room on a node.
fn placed(pod: &Pod) -> bool {
    node_of(pod).is_some() && !ended(pod)
}

/// Waits for a node from this scheduler.
fn waits(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let ours = spec.and_then(|spec| spec.scheduler_name.as_deref()).is_none_or(|name| name == NAME);
    let gated = spec.is_some_and(|spec| spec.scheduling_gates.iter().flatten().next().is_some());
    ours && !gated && node_of(pod).is_none() && !ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

impl Reconciler for Scheduler {
    type Object = Pod;

    async fn reconcile(&self, pod: Arc<Pod>, cx: &Context<Pod>) -> Result<Action> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if !waits(&pod) || self.assumed.lock().contains_key(&uid) {
            return Ok(Action::await_change());
        }
        let view = self.view(&pod, cx).await?;
        match place(&view, &pod) {
            Placement::Node(node) => {
                self.assumed.lock().insert(uid.clone(), node.clone());
                if let Err(error) = bind(&pod, &node, cx).await {
                    self.assumed.lock().remove(&uid);
                    return Err(error);
                }
                let key = Key::of(pod.as_ref());
                cx.event(
                    Event::normal("Scheduled", format!("Successfully assigned {key} to {node}"))
                        .action("Binding"),
                );
            }
            Placement::Nowhere(message) => refuse(&pod, message, cx).await?,
        }
        Ok(Action::await_change())
    }
}

impl Scheduler {
    async fn view(&self, pod: &Pod, cx: &Context<Pod>) -> Result<View> {
        let pods = cx.list_all::<Pod>().await?;
        let mut assumed = self.assumed.lock().clone();
        // The cache has caught up with a binding, or the pod is gone.
        let open = |uid: &String| {
            pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid) && node_of(pod).is_none())
        };
        assumed.retain(|uid, _| open(uid));
        self.assumed.lock().clone_from(&assumed);
        let placed = pods.iter().filter(|pod| !ended(pod)).filter_map(|pod| {
            let node =
                node_of(pod).or_else(|| assumed.get(pod.metadata.uid.as_ref()?).map(String::as_str))?;
            Some((pod.clone(), node.to_owned()))
        });
        let named = |name: Option<&String>| name.cloned().unwrap_or_default();
        let claims = cx.list::<PersistentVolumeClaim>().await?;
        debug_assert!(claims.iter().all(|claim| claim.metadata.namespace == pod.metadata.namespace));
        Ok(View {
            nodes: cx.list_all::<Node>().await?,
            placed: placed.collect(),
            claims: claims.into_iter().map(|claim| (named(claim.metadata.name.as_ref()), claim)).collect(),
            volumes: cx
                .list_all::<PersistentVolume>()
                .await?
                .into_iter()
                .map(|volume| (named(volume.metadata.name.as_ref()), volume))
                .collect(),
            namespaces: cx
                .list_all::<Namespace>()
                .await?
                .iter()
                .map(|space| {
                    (named(space.metadata.name.as_ref()), space.metadata.labels.clone().unwrap_or_default())
                })
                .collect(),
        })
    }
}

async fn bind(pod: &Pod, node: &str, cx: &Context<Pod>) -> Result<()> {
    let (namespace, name) = (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone());
    let binding = Binding {
        metadata: ObjectMeta {
            name: name.clone(),
            namespace: Some(namespace.clone()),
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".into()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    let pods = Api::<Pod>::namespaced(cx.client(), &namespace);
    let _: serde_json::Value = pods
        .create_subresource("binding", &name.unwrap_or_default(), &PostParams::default(), &binding)
        .await?;
    Ok(())
}

/// Says in condition and event why the pod waits; nothing when it already says so.
async fn refuse(pod: &Pod, message: String, cx: &Context<Pod>) -> Result<()> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let old = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
    if old.is_some_and(|old| old.status == "False" && old.message.as_ref() == Some(&message)) {
        return Ok(());
    }
    let since = match old {
        Some(old) if old.status == "False" => old.last_transition_time.clone(),
        _ => Some(seconds(cx.clock().now())),
    };
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": since, "observedGeneration": pod.metadata.generation,
    });
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Pending", "conditions": [condition]}});
    cx.patch::<Pod>(Key::of(pod), Patch::Strategic(patch)).subresource("status").await?;
    cx.event(Event::warning("FailedScheduling", message).action("Scheduling"));
    Ok(())
}

#[cfg(test)]
mod tests;
