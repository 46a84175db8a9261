//! Everything that the scheduler looks at, and what a pod asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity;

/// The cluster as the scheduler sees it.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Nodes by name.
    pub nodes: Vec<Arc<Node>>,
    /// Pods that have a node and have not ended, with the node that each has or is about to get.
    pub placed: Vec<(Arc<Pod>, String)>,
    /// Claims of the pod's namespace by name.
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// Labels of namespaces, for affinity terms that select namespaces.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// Resources in thousandths by name.
pub type Resources = BTreeMap<String, i128>;

/// What a pod asks for: the sum over its containers and sidecars, or its largest init container, whichever is
/// more.
pub fn requests(pod: &Pod) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::new() };
    let mut sum = Resources::new();
    for container in &spec.containers {
        add(&mut sum, container.resources.as_ref().and_then(|resources| resources.requests.as_ref()));
    }
    let mut largest = Resources::new();
    let mut sidecars = Resources::new();
    for container in spec.init_containers.iter().flatten() {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, requests);
        } else {
            let mut own = sidecars.clone();
            add(&mut own, requests);
            for (name, value) in own {
                let most = largest.entry(name).or_default();
                *most = (*most).max(value);
            }
        }
    }
    for (name, value) in sidecars {
        *sum.entry(name).or_default() += value;
    }
    for (name, value) in largest {
        let most = sum.entry(name).or_default();
        *most = (*most).max(value);
    }
    add(&mut sum, spec.overhead.as_ref());
    sum.retain(|_, value| *value > 0);
    sum
}

fn add(sum: &mut Resources, resources: Option<&BTreeMap<String, Quantity>>) {
    for (name, quantity) in resources.into_iter().flatten() {
        *sum.entry(name.clone()).or_default() += quantity::millis(&quantity.0).unwrap_or(0);
    }
}

/// What a node offers.
pub fn allocatable(node: &Node) -> Resources {
    let mut resources = Resources::new();
    let status = node.status.as_ref();
    add(&mut resources, status.and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref())));
    resources
}

impl View {
    /// The pods on a node.
    pub fn pods_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.placed.iter().filter(move |(_, on)| on == node).map(|(pod, _)| pod)
    }

    /// What the pods on a node ask for together.
    pub fn used(&self, node: &str) -> Resources {
        let mut used = Resources::new();
        for pod in self.pods_on(node) {
            for (name, value) in requests(pod) {
                *used.entry(name).or_default() += value;
            }
            *used.entry("pods".into()).or_default() += 1000;
        }
        used
    }

    /// Value of a label on a node, by the node's name.
    pub fn node_label(&self, node: &str, key: &str) -> Option<&str> {
        let node = self.nodes.iter().find(|other| other.metadata.name.as_deref() == Some(node))?;
        label(node, key)
    }
}

/// Value of a node's label.
pub fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Name of a node.
pub fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// A pod's specification; pods always have one once the API server has taken them.
pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}
