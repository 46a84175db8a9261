//! What an object uses of which resources of a quota (`pkg/quota/v1/evaluator/core`, `…/quota/v1/generic`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::builtin::{Amounts, POD_RESOURCES, Quantity, amounts_of_pod};
use crate::catalog::Resource;

/// Where a quota counts these, each container of a pod must say how much it wants.
const STATED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

/// How the objects of a resource are counted.
pub(super) struct Counted<'a> {
    resource: &'a Resource,
    /// `count/plural.group`.
    count: String,
}

impl<'a> Counted<'a> {
    pub(super) fn of(resource: &'a Resource) -> Self {
        let count = if resource.group.is_empty() {
            format!("count/{}", resource.plural)
        } else {
            format!("count/{}.{}", resource.plural, resource.group)
        };
        Self { resource, count }
    }

    fn core(&self) -> &str {
        if self.resource.group.is_empty() { &self.resource.plural } else { "" }
    }

    /// Whether an update can change what an object uses.
    pub(super) fn changes(&self) -> bool {
        matches!(self.core(), "services" | "persistentvolumeclaims")
    }

    /// Whether a resource of a quota is about these objects.
    pub(super) fn has(&self, name: &str) -> bool {
        if name == self.count {
            return true;
        }
        match self.core() {
            "pods" => {
                let extended = name.strip_prefix("requests.").is_some_and(|rest| rest.contains('/'));
                let huge = name.starts_with("hugepages-") || name.starts_with("requests.hugepages-");
                POD_RESOURCES.contains(&name) || extended || huge
            }
            "services" => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
            "persistentvolumeclaims" => {
                matches!(name, "persistentvolumeclaims" | "requests.storage") || name.contains(OF_CLASS)
            }
            "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets" => name == self.core(),
            _ => false,
        }
    }

    /// Why an object cannot be counted: containers that do not say what they want of `names`.
    pub(super) fn constrain(&self, names: &[&str], object: &Value) -> Result<(), String> {
        if self.core() != "pods" || object["spec"]["resources"].is_object() {
            return Ok(());
        }
        let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for list in ["containers", "initContainers"] {
            for container in object["spec"][list].as_array().into_iter().flatten() {
                let of = |key: &str| Amounts::of(&container["resources"][key]);
                let given = compute(&of("requests"), &of("limits"));
                for name in names.iter().filter(|name| STATED.contains(name) && given.get(name).is_none()) {
                    missing.entry(name).or_default().insert(container["name"].as_str().unwrap_or_default());
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = missing
            .into_iter()
            .map(|(name, containers)| {
                format!("{name} for: {}", containers.into_iter().collect::<Vec<_>>().join(","))
            })
            .collect();
        Err(format!("must specify {}", texts.join("; ")))
    }

    /// What an object uses.
    pub(super) fn usage(&self, object: &Value) -> Amounts {
        let mut usage = Amounts::default();
        usage.count(self.count.clone(), 1);
        match self.core() {
            "pods"
                // What has ended uses nothing but its place in the store.
                if !matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) => {
                    let of = |key: &str| amounts_of_pod(object, key);
                    usage.add(&compute(&of("requests"), &of("limits")));
                    usage.count("pods", 1);
                }
            "services" => service(&object["spec"], &mut usage),
            "persistentvolumeclaims" => claim(object, &mut usage),
            "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets" => {
                usage.count(self.core(), 1);
            }
            _ => {}
        }
        usage
    }
}

fn service(spec: &Value, usage: &mut Amounts) {
    let ports = spec["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let count = |wanted: &dyn Fn(&Value) -> bool| ports.iter().filter(|port| wanted(port)).count() as u64;
    usage.count("services", 1);
    let (node_ports, balancers) = match spec["type"].as_str() {
        Some("NodePort") => (count(&|_| true), 0),
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] != false => (count(&|_| true), 1),
        Some("LoadBalancer") => (count(&|port| port["nodePort"].as_u64().unwrap_or_default() != 0), 1),
        _ => (0, 0),
    };
    usage.count("services.nodeports", node_ports);
    usage.count("services.loadbalancers", balancers);
}

fn claim(object: &Value, usage: &mut Amounts) {
    let storage = |list: &Value| Amounts::of(list).get("storage");
    let wanted = storage(&object["spec"]["resources"]["requests"]);
    // One that is growing has what it had at most.
    let allocated = storage(&object["status"]["allocatedResources"]);
    let size = wanted.into_iter().chain(allocated).max_by_key(|size| size.nanos());
    let class = object["spec"]["storageClassName"].as_str().unwrap_or_default();
    usage.count("persistentvolumeclaims", 1);
    if !class.is_empty() {
        usage.count(format!("{class}{OF_CLASS}persistentvolumeclaims"), 1);
    }
    if let Some(size) = size {
        usage.set("requests.storage", size);
        if !class.is_empty() {
            usage.set(format!("{class}{OF_CLASS}requests.storage"), size);
        }
    }
}

/// The names under which quotas count what containers ask for.
fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut usage = Amounts::default();
    let mut set = |name: String, quantity: Quantity| usage.set(name, quantity);
    for (name, quantity) in &requests.0 {
        match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => {
                set(name.clone(), *quantity);
                set(format!("requests.{name}"), *quantity);
            }
            _ if name.starts_with("hugepages-") => {
                set(name.clone(), *quantity);
                set(format!("requests.{name}"), *quantity);
            }
            _ if name.contains('/') => set(format!("requests.{name}"), *quantity),
            _ => {}
        }
    }
    for (name, quantity) in &limits.0 {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            set(format!("limits.{name}"), *quantity);
        }
    }
    usage
}
