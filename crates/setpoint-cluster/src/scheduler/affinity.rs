//! Rules about nodes and about pods near each other.

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, Taint, Toleration,
    TopologySpreadConstraint,
};

use super::view::{View, label, name, spec};
use crate::labels;

/// Whether a node meets a pod's `nodeSelector` and required node affinity.
pub fn node_matches(pod: &Pod, node: &Node) -> bool {
    let spec = spec(pod);
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| label(node, key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|required| terms_match(&required.node_selector_terms, node))
}

/// Whether one of the terms is met; a term without requirements is met by nothing.
pub fn terms_match(terms: &[NodeSelectorTerm], node: &Node) -> bool {
    terms.iter().any(|term| term_matches(term, node))
}

/// Whether one term is met.
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let meets = |requirement: &NodeSelectorRequirement, value: Option<&str>| {
        labels::meets(value, &requirement.operator, requirement.values.as_deref().unwrap_or_default())
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|requirement| meets(requirement, label(node, &requirement.key)))
        && fields
            .iter()
            .all(|requirement| meets(requirement, (requirement.key == "metadata.name").then(|| name(node))))
}

/// The first taint that keeps the pod away.
pub fn untolerated<'a>(pod: &Pod, node: &'a Node) -> Option<&'a Taint> {
    taints(node)
        .find(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") && !tolerates(pod, taint))
}

/// How many taints say that the pod had better go elsewhere.
pub fn unwelcome(pod: &Pod, node: &Node) -> i64 {
    taints(node).filter(|taint| taint.effect == "PreferNoSchedule" && !tolerates(pod, taint)).count() as i64
}

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten())
}

/// Whether one of the pod's tolerations covers a taint.
pub fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    spec(pod).tolerations.iter().flatten().any(|toleration| covers(toleration, taint))
}

fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    let effect = empty(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect);
    let key = empty(&toleration.key) || toleration.key.as_deref() == Some(&taint.key);
    let value = match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        // An empty key means all taints, but only with Exists.
        "Equal" => {
            !empty(&toleration.key)
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    };
    effect && key && value
}

/// Required terms of a pod about the pods near it.
pub fn required(pod: &Pod, anti: bool) -> Vec<&PodAffinityTerm> {
    let Some(affinity) = &spec(pod).affinity else { return Vec::new() };
    let terms = if anti {
        affinity.pod_anti_affinity.as_ref().map(|a| &a.required_during_scheduling_ignored_during_execution)
    } else {
        affinity.pod_affinity.as_ref().map(|a| &a.required_during_scheduling_ignored_during_execution)
    };
    terms.into_iter().flatten().flatten().collect()
}

/// Preferred terms of a pod about the pods near it, with their weights; negative ones keep away.
pub fn preferred(pod: &Pod) -> Vec<(&PodAffinityTerm, i64)> {
    let Some(affinity) = &spec(pod).affinity else { return Vec::new() };
    let near = affinity
        .pod_affinity
        .iter()
        .flat_map(|a| a.preferred_during_scheduling_ignored_during_execution.iter().flatten());
    let far = affinity
        .pod_anti_affinity
        .iter()
        .flat_map(|a| a.preferred_during_scheduling_ignored_during_execution.iter().flatten());
    let near = near.map(|term| (&term.pod_affinity_term, i64::from(term.weight)));
    near.chain(far.map(|term| (&term.pod_affinity_term, -i64::from(term.weight)))).collect()
}

/// Whether a term of `of` means the pod `other`.
pub fn means(view: &View, of: &Pod, term: &PodAffinityTerm, other: &Pod) -> bool {
    let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
    let named = term.namespaces.as_deref().unwrap_or_default();
    let by_labels = term
        .namespace_selector
        .as_ref()
        .is_some_and(|selector| labels::matches(selector, view.namespaces.get(namespace)));
    let own = named.is_empty()
        && term.namespace_selector.is_none()
        && of.metadata.namespace == other.metadata.namespace;
    let labels_of = other.metadata.labels.as_ref();
    let own_value = |key: &String| of.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let other_value = |key: &String| labels_of.and_then(|labels| labels.get(key));
    (own || by_labels || named.iter().any(|name| name == namespace))
        && term.label_selector.as_ref().is_some_and(|selector| labels::matches(selector, labels_of))
        && term
            .match_label_keys
            .iter()
            .flatten()
            .all(|key| own_value(key).is_none() || own_value(key) == other_value(key))
        && term
            .mismatch_label_keys
            .iter()
            .flatten()
            .all(|key| own_value(key).is_none() || own_value(key) != other_value(key))
}

/// How many placed pods that a term of `pod` means are in the topology domain of `node`.
pub fn near(view: &View, pod: &Pod, term: &PodAffinityTerm, node: &Node) -> usize {
    let Some(domain) = label(node, &term.topology_key) else { return 0 };
    let in_domain =
        view.placed.iter().filter(|(_, on)| view.node_label(on, &term.topology_key) == Some(domain));
    in_domain.filter(|(other, _)| means(view, pod, term, other)).count()
}

/// Whether a placed pod's required anti-affinity keeps `pod` off `node`.
pub fn kept_away(view: &View, pod: &Pod, node: &Node) -> bool {
    view.placed.iter().any(|(other, on)| {
        required(other, true).iter().any(|term| {
            let domain = label(node, &term.topology_key);
            domain.is_some()
                && view.node_label(on, &term.topology_key) == domain
                && means(view, other, term, pod)
        })
    })
}

/// By how much `node` would exceed a spread constraint's skew; 0 = it fits, none = the node has no such
/// domain.
pub fn excess(view: &View, pod: &Pod, constraint: &TopologySpreadConstraint, node: &Node) -> Option<i64> {
    let key = &constraint.topology_key;
    let own = label(node, key)?;
    let counts = |other: &Pod| {
        other.metadata.namespace == pod.metadata.namespace
            && other.metadata.deletion_timestamp.is_none()
            && constraint
                .label_selector
                .as_ref()
                .is_some_and(|selector| labels::matches(selector, other.metadata.labels.as_ref()))
    };
    let count = |domain: &str| {
        let in_domain = view.placed.iter().filter(|(_, on)| view.node_label(on, key) == Some(domain));
        in_domain.filter(|(other, _)| counts(other)).count() as i64
    };
    let honours_affinity = constraint.node_affinity_policy.as_deref() != Some("Ignore");
    let eligible = view.nodes.iter().filter(|node| !honours_affinity || node_matches(pod, node));
    let mut domains: Vec<&str> = eligible.filter_map(|node| label(node, key)).collect();
    domains.sort_unstable();
    domains.dedup();
    let few = constraint.min_domains.is_some_and(|minimum| (domains.len() as i64) < i64::from(minimum));
    let least = if few { 0 } else { domains.iter().map(|domain| count(domain)).min().unwrap_or(0) };
    let itself = i64::from(counts(pod));
    Some((count(own) + itself - least - i64::from(constraint.max_skew)).max(0))
}
