//! The plugin `NamespaceLifecycle`: nothing new in a namespace that is missing or going away, and namespaces that stay.

use serde_json::Value;

use super::{Attributes, Operation};
use crate::object::Metadata;
use crate::registry::{Place, Registry};
use crate::status::{Result, Status, Subject};
use crate::store::Key;

/// Namespaces that a cluster cannot be without.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Registry {
    pub(super) fn check_lifecycle(&self, request: &Attributes<'_>) -> Result<()> {
        let resource = request.resource();
        let name = request.place.name.as_str();
        if request.operation == Operation::Delete {
            let kept = request.is("", "namespaces") && IMMORTAL.contains(&name);
            return if kept {
                Err(request.forbidden(&Value::Null, "this namespace may not be deleted"))
            } else {
                Ok(())
            };
        }
        // Whether one may do something can be asked of any namespace.
        let asks = resource.is("authorization.k8s.io", "localsubjectaccessreviews");
        if !resource.namespaced || asks || request.operation == Operation::Connect {
            return Ok(());
        }
        self.check_namespace_of(request.place, request.operation == Operation::Create)
    }

    /// Refuses new objects in a namespace that is missing or going away.
    pub(crate) fn check_namespace(&self, place: &Place) -> Result<()> {
        if place.resource.namespaced { self.check_namespace_of(place, true) } else { Ok(()) }
    }

    fn check_namespace_of(&self, place: &Place, creates: bool) -> Result<()> {
        let namespace = place.namespace.as_str();
        let Some(found) = self.store.get("namespaces", &Key::new("", namespace)) else {
            return Err(Status::not_found(Subject { group: "", kind: "namespaces", name: namespace }));
        };
        if creates && found.value.is_deleting() {
            return Err(Status::terminating_namespace(place.resource.subject(&place.name), namespace));
        }
        Ok(())
    }
}
