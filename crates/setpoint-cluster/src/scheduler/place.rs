//! Chooses a node for a pod, as a pure function: filters, then scores, as upstream's default plugins do.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use super::affinity::{
    excess, kept_away, near, node_matches, preferred, required, term_matches, terms_match, tolerates,
    untolerated, unwelcome,
};
use super::view::{Resources, View, allocatable, name, requests, spec};

/// What became of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It fits here best.
    Node(String),
    /// It fits nowhere now; the message is for its condition and event.
    Nowhere(String),
}

/// Places a pod.
pub fn place(view: &View, pod: &Pod) -> Placement {
    if let Some(message) = unbound_claims(view, pod) {
        let all = view.nodes.len();
        return Placement::Nowhere(format!("0/{all} nodes are available: {message}."));
    }
    if view.nodes.is_empty() {
        return Placement::Nowhere("no nodes available to schedule pods".into());
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut fitting = Vec::new();
    for node in &view.nodes {
        let against = against(view, pod, node);
        if against.is_empty() {
            fitting.push(node.as_ref());
        }
        for reason in against {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    if let Some(best) = best(view, pod, &fitting) {
        return Placement::Node(best);
    }
    let mut reasons: Vec<_> =
        reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    Placement::Nowhere(format!("0/{} nodes are available: {}.", view.nodes.len(), reasons.join(", ")))
}

/// Why claims keep the pod from every node.
fn unbound_claims(view: &View, pod: &Pod) -> Option<String> {
    for source in
        spec(pod).volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref())
    {
        let name = &source.claim_name;
        let Some(claim) = view.claims.get(name) else {
            return Some(format!("persistentvolumeclaim \"{name}\" not found"));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Some(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
            return Some("pod has unbound immediate PersistentVolumeClaims".into());
        }
    }
    None
}

/// Why the pod cannot run on a node; the first kind of reason only, as upstream's filters stop at it.
fn against(view: &View, pod: &Pod, node: &Node) -> Vec<String> {
    let one = |reason: &str| vec![reason.to_owned()];
    let unschedulable = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) && !tolerates(pod, &unschedulable)
    {
        return one("node(s) were unschedulable");
    }
    if untolerated(pod, node).is_some() {
        return one("node(s) had untolerated taint(s)");
    }
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    if conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status != "True") {
        return one("node(s) were not ready");
    }
    if !node_matches(pod, node) {
        return one("node(s) didn't match Pod's node affinity/selector");
    }
    if ports_taken(view, pod, name(node)) {
        return one("node(s) didn't have free ports for the requested pod ports");
    }
    let lacking = lacking(view, pod, node);
    if !lacking.is_empty() {
        return lacking;
    }
    if !volumes_reach(view, pod, node) {
        return one("node(s) didn't match PersistentVolume's node affinity");
    }
    let hard = spec(pod).topology_spread_constraints.iter().flatten();
    let mut hard = hard.filter(|constraint| constraint.when_unsatisfiable != "ScheduleAnyway");
    if hard.any(|constraint| excess(view, pod, constraint, node) != Some(0)) {
        return one("node(s) didn't match pod topology spread constraints");
    }
    if !required_affinity(view, pod, node) {
        return one("node(s) didn't match pod affinity rules");
    }
    if required(pod, true).iter().any(|term| near(view, pod, term, node) > 0) {
        return one("node(s) didn't match pod anti-affinity rules");
    }
    if kept_away(view, pod, node) {
        return one("node(s) didn't satisfy existing pods anti-affinity rules");
    }
    Vec::new()
}

/// The first pod of a group that wants to be near itself may go anywhere that has the topology.
fn required_affinity(view: &View, pod: &Pod, node: &Node) -> bool {
    let terms = required(pod, false);
    let met = terms.iter().all(|term| near(view, pod, term, node) > 0);
    met || (terms.iter().all(|term| super::view::label(node, &term.topology_key).is_some())
        && terms.iter().all(|term| super::affinity::means(view, pod, term, pod))
        && !terms
            .iter()
            .any(|term| view.placed.iter().any(|(other, _)| super::affinity::means(view, pod, term, other))))
}

fn lacking(view: &View, pod: &Pod, node: &Node) -> Vec<String> {
    let (offered, used) = (allocatable(node), view.used(name(node)));
    let free = |resource: &str| {
        offered.get(resource).copied().unwrap_or(0) - used.get(resource).copied().unwrap_or(0)
    };
    let mut lacking = Vec::new();
    if offered.contains_key("pods") && free("pods") < 1000 {
        lacking.push("Too many pods".to_owned());
    }
    let wanted = requests(pod);
    let short = wanted.iter().filter(|(resource, wanted)| free(resource) < **wanted);
    lacking.extend(short.map(|(resource, _)| format!("Insufficient {resource}")));
    lacking
}

fn ports_taken(view: &View, pod: &Pod, node: &str) -> bool {
    let ports = |pod: &Pod| -> Vec<(i32, String, String)> {
        let ports = spec(pod).containers.iter().flat_map(|container| container.ports.iter().flatten());
        ports
            .filter_map(|port| {
                let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
                let address = port.host_ip.clone().unwrap_or_else(|| "0.0.0.0".into());
                Some((port.host_port.filter(|port| *port > 0)?, protocol, address))
            })
            .collect()
    };
    let wanted = ports(pod);
    !wanted.is_empty()
        && view.pods_on(node).flat_map(|other| ports(other)).any(|(port, protocol, address)| {
            wanted.iter().any(|(p, other_protocol, a)| {
                *p == port
                    && *other_protocol == protocol
                    && (*a == address || a == "0.0.0.0" || address == "0.0.0.0")
            })
        })
}

/// Whether the node can reach the volumes that the pod's claims are bound to.
fn volumes_reach(view: &View, pod: &Pod, node: &Node) -> bool {
    let claims =
        spec(pod).volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let mut volumes = claims.filter_map(|source| {
        let claim = view.claims.get(&source.claim_name)?;
        view.volumes.get(claim.spec.as_ref()?.volume_name.as_ref()?)
    });
    volumes.all(|volume| {
        let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
        let required = affinity.and_then(|affinity| affinity.required.as_ref());
        required.is_none_or(|required| terms_match(&required.node_selector_terms, node))
    })
}

/// Weights of the scores, as in upstream's default profile.
const WEIGHTS: [i64; 6] = [3, 2, 2, 2, 1, 1];

/// The node with the highest score; among equals the one with the fewest pods, then the first by name.
fn best(view: &View, pod: &Pod, fitting: &[&Node]) -> Option<String> {
    let soft: Vec<_> = spec(pod)
        .topology_spread_constraints
        .iter()
        .flatten()
        .filter(|constraint| constraint.when_unsatisfiable == "ScheduleAnyway")
        .collect();
    let wishes = spec(pod)
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
    let mut columns: [Vec<i64>; 6] = Default::default();
    for node in fitting {
        let wish = wishes.into_iter().flatten().filter(|wish| term_matches(&wish.preference, node));
        let pods =
            preferred(pod).into_iter().map(|(term, weight)| weight * near(view, pod, term, node) as i64);
        let spread =
            soft.iter().map(|constraint| excess(view, pod, constraint, node).unwrap_or(i64::from(u16::MAX)));
        let (free, balance) = room(view, pod, node);
        columns[0].push(-unwelcome(pod, node));
        columns[1].push(wish.map(|wish| i64::from(wish.weight)).sum());
        columns[2].push(-(spread.sum::<i64>() * 100) - siblings(view, pod, name(node)));
        columns[3].push(pods.sum());
        columns[4].push(free);
        columns[5].push(balance);
    }
    for column in &mut columns {
        normalise(column);
    }
    let score = |index: usize| -> i64 {
        columns.iter().zip(WEIGHTS).map(|(column, weight)| column[index] * weight).sum()
    };
    let pods = |node: &Node| view.pods_on(name(node)).count();
    (0..fitting.len())
        .min_by_key(|index| (-score(*index), pods(fitting[*index]), name(fitting[*index]).to_owned()))
        .map(|index| name(fitting[index]).to_owned())
}

/// Spreads values over 0..=100; equal ones all become 0.
fn normalise(values: &mut [i64]) {
    let (Some(least), Some(most)) = (values.iter().min().copied(), values.iter().max().copied()) else {
        return;
    };
    for value in values {
        *value = if most == least { 0 } else { (*value - least) * 100 / (most - least) };
    }
}

/// Pods of the same controller on a node: they spread by default.
fn siblings(view: &View, pod: &Pod, node: &str) -> i64 {
    let controller = |pod: &Pod| {
        let owners = pod.metadata.owner_references.iter().flatten();
        owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
    };
    let own = controller(pod);
    view.pods_on(node).filter(|other| own.is_some() && controller(other) == own).count() as i64
}

/// How much of the node's CPU and memory stays free with the pod, and how even that is; 0 to 100 each.
fn room(view: &View, pod: &Pod, node: &Node) -> (i64, i64) {
    let (offered, used, wanted): (Resources, Resources, Resources) =
        (allocatable(node), view.used(name(node)), requests(pod));
    let free = |resource: &str| {
        let of = |map: &Resources| map.get(resource).copied().unwrap_or(0);
        let total = of(&offered);
        if total == 0 { 0 } else { ((total - of(&used) - of(&wanted)).max(0) * 100 / total) as i64 }
    };
    let (cpu, memory) = (free("cpu"), free("memory"));
    (i64::midpoint(cpu, memory), 100 - (cpu - memory).abs())
}
