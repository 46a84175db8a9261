//! What is refused, or answered with a warning, because nothing here would come of it.

use super::Registry;
use crate::catalog::Resource;
use crate::status::{Result, Status};

/// Refuses kinds that would promise something that nothing here keeps.
pub(super) fn refuse_kind(resource: &Resource) -> Result<()> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("apiregistration.k8s.io", "apiservices") => Err(Status::not_implemented("API aggregation")),
        _ => Ok(()),
    }
}

impl Registry {
    /// Says that nothing will come of a new object.
    pub(super) fn idle_warning(&self, resource: &Resource) -> Option<String> {
        let named = |(group, kind): &(String, String)| *group == resource.group && *kind == resource.kind;
        let kind = &resource.kind;
        self.admission.idle.iter().any(named).then(|| {
            format!("nothing in this cluster processes objects of kind {kind}: this one is only stored")
        })
    }
}
