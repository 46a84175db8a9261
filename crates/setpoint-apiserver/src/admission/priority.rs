//! The plugin `Priority`: the priority of a pod comes from its class.

use serde_json::Value;

use super::Attributes;
use crate::object::{Metadata, fields};
use crate::registry::Registry;
use crate::status::Result;
use crate::store::Key;

const CLASSES: &str = "priorityclasses.scheduling.k8s.io";

impl Registry {
    /// Gives a new pod the priority of the class that it names, or of the default one.
    pub(super) fn set_priority(&self, request: &Attributes<'_>, pod: &mut Value) -> Result<()> {
        let name = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
        let class = if name.is_empty() {
            let classes = self.store.snapshot(CLASSES);
            classes.objects.values().find(|class| class.value["globalDefault"] == true).cloned()
        } else {
            let found = self.store.get(CLASSES, &Key::new("", name.as_str()));
            if found.is_none() {
                return Err(request.forbidden(pod, &format!("no PriorityClass with name {name} was found")));
            }
            found
        };
        let class = class.map(|class| class.value.shared());
        let policy = class.as_ref().and_then(|class| class["preemptionPolicy"].as_str());
        let policy = policy.unwrap_or("PreemptLowerPriority").to_owned();
        let priority = class.as_ref().and_then(|class| class["value"].as_i64()).unwrap_or_default();
        if let Some(given) = pod["spec"]["priority"].as_i64().filter(|given| *given != priority) {
            let why = format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
            );
            return Err(request.forbidden(pod, &why));
        }
        let spec = fields(&mut pod["spec"]);
        if let Some(class) = &class {
            spec.insert("priorityClassName".to_owned(), class.meta("name").into());
        }
        spec.insert("priority".to_owned(), priority.into());
        spec.entry("preemptionPolicy").or_insert_with(|| policy.into());
        Ok(())
    }
}
