//! The plugin `PodResizeValidator`: a pod cannot grow beyond its node.

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::builtin::{Amounts, Quantity, amounts_of_pod, text};
use crate::object::Metadata;
use crate::registry::Registry;
use crate::status::Result;
use crate::store::Key;

impl Registry {
    pub(super) fn check_resize(&self, request: &Attributes<'_>, pod: &Value) -> Result<()> {
        let resized = request.operation == Operation::Update
            && request.resource().is("", "pods")
            && request.subresource == "resize"
            && request.old.is_some_and(|old| old.generation() != pod.generation());
        let name = text(&pod["spec"], "nodeName");
        if !resized || name.is_empty() {
            return Ok(());
        }
        let Some(node) = self.store.get("nodes", &Key::new("", name)) else {
            return Err(request.forbidden(pod, &format!("node {name:?} not found")));
        };
        let os = node.value["metadata"]["labels"]["kubernetes.io/os"].as_str();
        let refuse = |why: &str, cause: &str| {
            let status = request.forbidden(pod, why);
            Err(status.answering(403, "Forbidden", vec![json!({"reason": cause})]))
        };
        if let Some(os) = os.filter(|os| *os != "linux") {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
            return refuse(&why, "UnsupportedPlatform");
        }
        let allocatable = Amounts::of(&node.value["status"]["allocatable"]);
        let requested = amounts_of_pod(pod, "requests");
        let of = |amounts: &Amounts, name: &str| amounts.get(name).map_or(0, Quantity::nanos);
        let mut beyond = Vec::new();
        for (name, unit) in [("cpu", 1_000_000), ("memory", 1_000_000_000)] {
            let (wanted, there) = (of(&requested, name), of(&allocatable, name));
            if wanted > there {
                // As Go rounds it: up.
                let whole = |nanos: i128| (nanos + unit - 1) / unit;
                let (wanted, there) = (whole(wanted), whole(there));
                beyond.push(format!("{name}, requested: {wanted}, allocatable: {there}"));
            }
        }
        if beyond.is_empty() {
            return Ok(());
        }
        let why = format!("node didn't have enough allocatable resources: {}", beyond.join("; "));
        refuse(&why, "NodeCapacity")
    }
}
