//! What happens to a node that is not heard from, and to its pods: the part of upstream's node life cycle and
//! taint eviction controllers that operators meet.
//!
//! Nodes here send no heartbeats, so that nothing moves at rest; the cluster knows which of them it has cut off.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use setpoint_clock::Clock;

use crate::kubelet::seconds;

/// How long a silent node counts as ready (`--node-monitor-grace-period` upstream).
const MONITOR_GRACE: Duration = Duration::from_secs(50);
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];

/// Follows a node that was cut off: after a while it is Unknown and tainted and its pods are not ready; later
/// those go that do not tolerate it any longer. Ends when none is left that would ever go.
pub(crate) async fn follow(client: Client, clock: Clock, node: String) {
    tokio::time::sleep(MONITOR_GRACE).await;
    let since = clock.now();
    retry(|| mark(&client, &node, since, false)).await;
    retry(|| unready(&client, &node, since)).await;
    loop {
        let Some(wait) = retry(|| evict(&client, &node, since, clock.now())).await else {
            return;
        };
        tokio::time::sleep(wait).await;
    }
}

/// Takes back what [`follow`] has done to a node that is heard from again; its kubelet does the rest.
pub(crate) async fn back(client: Client, clock: Clock, node: String) {
    retry(|| mark(&client, &node, clock.now(), true)).await;
}

/// Tries until it works: the API server is in this process, and what it refuses now may be a conflict.
async fn retry<T, F>(attempt: impl Fn() -> F) -> T
where
    F: Future<Output = kube::Result<T>>,
{
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => tracing::warn!(%error, "a silent node is not followed; trying again"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Sets the node's conditions and taints. A node that is gone needs neither.
async fn mark(client: &Client, name: &str, now: Timestamp, reachable: bool) -> kube::Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    let Some(node) = nodes.get_opt(name).await? else { return Ok(()) };
    let conditions = CONDITIONS.map(|type_| {
        let (status, reason, message) = match (reachable, type_) {
            (false, _) => ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
            (true, "Ready") => ("True", "KubeletReady", "kubelet is posting ready status"),
            (true, _) => ("False", "KubeletHasEnough", "kubelet has sufficient resources"),
        };
        json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": seconds(now)})
    });
    let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.retain(|taint| taint.key != UNREACHABLE);
    if !reachable {
        taints.extend(["NoSchedule", "NoExecute"].map(|effect| Taint {
            key: UNREACHABLE.into(),
            effect: effect.into(),
            time_added: (effect == "NoExecute").then(|| seconds(now)),
            value: None,
        }));
    }
    let version = node.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let patch = json!({"status": {"conditions": conditions}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Says of the node's pods that they are not ready, so that Services leave them.
async fn unready(client: &Client, node: &str, now: Timestamp) -> kube::Result<()> {
    for pod in pods_of(client, node).await? {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        if !conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            continue;
        }
        let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": seconds(now)});
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
        let pods =
            Api::<Pod>::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        unless_gone(pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await)?;
    }
    Ok(())
}

/// Deletes pods whose toleration is over; gives the time until the next one's is.
async fn evict(
    client: &Client,
    node: &str,
    since: Timestamp,
    now: Timestamp,
) -> kube::Result<Option<Duration>> {
    let silent: Duration = now.duration_since(since).try_into().unwrap_or(Duration::ZERO);
    let mut next: Option<Duration> = None;
    for pod in pods_of(client, node).await? {
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let Some(tolerated) = tolerated(&pod) else { continue };
        if let Some(wait) = tolerated.checked_sub(silent).filter(|wait| !wait.is_zero()) {
            next = Some(next.map_or(wait, |next| next.min(wait)));
            continue;
        }
        let pods =
            Api::<Pod>::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
        let preconditions = Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        unless_gone(pods.delete(pod.metadata.name.as_deref().unwrap_or_default(), &params).await)?;
    }
    Ok(next)
}

async fn pods_of(client: &Client, node: &str) -> kube::Result<Vec<Pod>> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    Ok(Api::<Pod>::all(client.clone()).list(&params).await?.items)
}

/// How long a pod stays on an unreachable node; none = for ever.
fn tolerated(pod: &Pod) -> Option<Duration> {
    let covers = |toleration: &&Toleration| {
        let (key, effect) =
            (toleration.key.as_deref().unwrap_or_default(), toleration.effect.as_deref().unwrap_or_default());
        let exists = toleration.operator.as_deref() == Some("Exists");
        let key = key == UNREACHABLE || (key.is_empty() && exists);
        key && matches!(effect, "" | "NoExecute")
            && (exists || toleration.value.as_deref().unwrap_or_default().is_empty())
    };
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    let times: Vec<_> =
        tolerations.into_iter().filter(covers).map(|toleration| toleration.toleration_seconds).collect();
    if times.is_empty() {
        return Some(Duration::ZERO);
    }
    // The shortest time counts; a toleration without one is for ever.
    let shortest = times.into_iter().flatten().min()?;
    Some(Duration::from_secs(u64::try_from(shortest).unwrap_or(0)))
}

fn unless_gone<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_tell_how_long_a_pod_stays() {
        let stays = |tolerations: serde_json::Value| {
            let spec = json!({"spec": {"containers": [], "tolerations": tolerations}});
            tolerated(&serde_json::from_value(spec).unwrap()).map(|time| time.as_secs())
        };
        let unreachable = |seconds| json!({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        assert_eq!(stays(json!([])), Some(0));
        assert_eq!(stays(json!([unreachable(300)])), Some(300));
        assert_eq!(stays(json!([unreachable(300), {"operator": "Exists", "tolerationSeconds": 5}])), Some(5));
        assert_eq!(stays(json!([{"operator": "Exists"}])), None);
        assert_eq!(
            stays(json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}])),
            Some(0)
        );
    }
}
