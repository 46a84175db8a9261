//! What Kubernetes says, as facts for an observation: pure functions over its objects.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node as NodeObject, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::json;
use setpoint::Patch;

use crate::api::{Reclaim, RedisCluster, RedisClusterStatus, Storage};
use crate::observe::{Claim, Ledger, Node, PodFacts, Process};
use crate::render::{Identity, ON_DELETE, Role, TEMPLATE_HASH};
use crate::settings::quantity_in_bytes;

/// What `pod` says of itself at `now`, on a node in state `node` that takes no new pods if `cordoned`.
pub fn pod(pod: &Pod, node: Node, cordoned: bool, now: Timestamp) -> PodFacts {
    let status = pod.status.as_ref();
    let conditions = || status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let container = status.and_then(|status| status.container_statuses.as_ref()).and_then(|all| all.first());
    let state = container.and_then(|container| container.state.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let process = match state {
        Some(state) if state.running.is_some() => Process::Running,
        Some(state) if state.terminated.is_some() => Process::Terminated,
        Some(state) if state.waiting.is_some() => Process::Waiting,
        _ => Process::Unknown,
    };
    let text = |reason: Option<&String>, message: Option<&String>| match (reason, message) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
        (reason, message) => reason.or(message).cloned(),
    };
    let unscheduled =
        conditions().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let trouble = unscheduled
        .and_then(|condition| text(condition.reason.as_ref(), condition.message.as_ref()))
        .or_else(|| waiting.and_then(|waiting| text(waiting.reason.as_ref(), waiting.message.as_ref())));
    PodFacts {
        uid: pod.uid().unwrap_or_default(),
        ip: ip(pod),
        node,
        cordoned,
        age: pod
            .creation_timestamp()
            .and_then(|created| Duration::try_from(now.duration_since(created.0)).ok())
            .unwrap_or_default(),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        ready: conditions().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        process,
        role: Role::of(pod.labels()),
        template_hash: pod.annotations().get(TEMPLATE_HASH).cloned(),
        trouble,
    }
}

/// The address of `pod`, once it has one.
pub fn ip(pod: &Pod) -> Option<String> {
    pod.status.as_ref().and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty())
}

/// The name of the node that `pod` runs on.
pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// State of a node that a pod runs on; none if the object is gone.
pub fn node(node: Option<&NodeObject>) -> Node {
    let Some(node) = node else { return Node::Gone };
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    if taints.into_iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service") {
        return Node::Gone;
    }
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let ready =
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if ready { Node::Ready } else { Node::Unknown }
}

/// Whether `node` takes no new pods, as before it is emptied.
pub fn cordoned(node: &NodeObject) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

/// Whether `claim` has a volume, which may hold data.
pub fn has_volume(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()).is_some_and(|name| !name.is_empty())
}

/// The storage that a StatefulSet was made with: its volume claims can't be changed afterwards.
pub fn storage(claim: &PersistentVolumeClaim) -> Option<Storage> {
    let spec = claim.spec.as_ref()?;
    let size = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?.0.clone();
    Some(Storage { size, storage_class: spec.storage_class_name.clone(), reclaim: Reclaim::default() })
}

/// What `object` says of the size of its volume.
pub fn claim(object: &PersistentVolumeClaim) -> Option<Claim> {
    let asked = object.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let status = object.status.as_ref();
    let has = status.and_then(|status| status.capacity.as_ref()).and_then(|capacity| capacity.get("storage"));
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let asked = quantity_in_bytes(&asked.0)?;
    Some(Claim {
        name: object.name_any(),
        asked,
        has: has.and_then(|has| quantity_in_bytes(&has.0)).unwrap_or(0),
        pending: conditions
            .into_iter()
            .any(|condition| condition.type_ == "FileSystemResizePending" && condition.status == "True"),
    })
}

/// Number of servers that `status` speaks of: one more than the highest ordinal.
pub fn recorded(identity: &Identity, status: Option<&RedisClusterStatus>) -> u32 {
    let ledger = ledger(status);
    let names = ledger.members.iter().chain(&ledger.current).chain(&ledger.target);
    names
        .filter_map(|name| identity.ordinal(name))
        .map(|ordinal| ordinal.saturating_add(1))
        .max()
        .unwrap_or(0)
}

/// Whether `pod`, which has a name of the cluster `identity`, was made by its StatefulSet.
pub fn is_of(pod: &Pod, identity: &Identity) -> bool {
    let owned =
        pod.owner_references().iter().any(|owner| owner.kind == "StatefulSet" && owner.name == identity.name);
    owned || pod.annotations().contains_key(TEMPLATE_HASH)
}

/// Puts those labels back that `object` should have as a child of the cluster `identity`; none if it has them.
pub fn missing_labels(object: &impl kube::Resource, identity: &Identity) -> Option<Patch> {
    let wanted = identity.labels();
    let missing = wanted.iter().any(|(name, value)| object.labels().get(name) != Some(value));
    missing.then(|| {
        let uid = object.meta().uid.clone();
        Patch::Merge(json!({ "metadata": { "uid": uid, "labels": wanted } }))
    })
}

/// Takes an update strategy back that somebody gave `set`, with its options, which applying does not remove.
pub fn foreign_strategy(set: &StatefulSet) -> Option<Patch> {
    let strategy = set.spec.update_strategy.as_ref()?;
    (strategy.type_.as_deref() != Some(ON_DELETE)).then(|| {
        let uid = set.metadata.uid.clone();
        let strategy = json!({ "type": ON_DELETE, "rollingUpdate": null });
        Patch::Merge(json!({ "metadata": { "uid": uid }, "spec": { "updateStrategy": strategy } }))
    })
}

/// What the operator remembers in `status`.
pub fn ledger(status: Option<&RedisClusterStatus>) -> Ledger {
    let Some(status) = status else { return Ledger::default() };
    Ledger {
        current: status.current_primary.clone(),
        target: status.target_primary.clone(),
        term: status.term,
        members: status.members.iter().cloned().collect(),
        quorum: u32::try_from(status.write_quorum).unwrap_or(0),
        holds_data: status.holds_data,
        leaving: status.leaving.clone(),
    }
}

/// Whether the annotation `name` says `true`.
pub fn flag(cluster: &RedisCluster, name: &str) -> bool {
    cluster.annotations().get(name).is_some_and(|value| value == "true")
}
