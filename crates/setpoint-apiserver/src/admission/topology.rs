//! The plugin `PodTopologyLabels`: a pod has the zone and region of its node as labels.

use serde_json::{Value, json};

use super::{Attributes, Operation};
use crate::builtin::text;
use crate::object::fields;
use crate::registry::Registry;
use crate::store::Key;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

impl Registry {
    /// Labels a binding, whose labels go to the pod, or a pod that is made on a node.
    pub(super) fn set_topology(&self, request: &Attributes<'_>, object: &mut Value) {
        if request.operation != Operation::Create || !request.resource().is("", "pods") {
            return;
        }
        let node = match request.subresource {
            "" => text(&object["spec"], "nodeName"),
            "binding" if object["target"]["kind"] == "Node" => text(&object["target"], "name"),
            _ => return,
        };
        let node = Some(node).filter(|node| !node.is_empty());
        let Some(node) = node.and_then(|name| self.store.get("nodes", &Key::new("", name))) else { return };
        for label in LABELS {
            if let Some(value) = node.value["metadata"]["labels"][label].as_str() {
                let labels = fields(&mut object["metadata"]).entry("labels").or_insert_with(|| json!({}));
                fields(labels).insert(label.to_owned(), value.into());
            }
        }
    }
}
