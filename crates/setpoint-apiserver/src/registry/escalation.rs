//! What a write needs beyond the right to its verb: nobody may grant by a role or binding what he does not hold
//! (`pkg/registry/rbac/*/policybased`), nor create by an update what he may not create
//! (`withAuthorization` in `k8s.io/apiserver/pkg/endpoints/handlers/create.go`).

use serde_json::Value;

use super::{Place, Registry};
use crate::authz::escalation::{self, Refusal};
use crate::authz::{Attributes, authorize, denial_of};
use crate::catalog::Resource;
use crate::identity::Identity;
use crate::object::Metadata;
use crate::policies::StoredPolicies;
use crate::status::{Result, Status};

impl Registry {
    /// Whether a user may create the object that an update or apply of his did not find.
    pub(super) fn check_may_create(&self, place: &Place, user: &Identity) -> Result<()> {
        let resource = &*place.resource;
        let attributes = Attributes {
            user,
            verb: "create",
            group: &resource.group,
            resource: &resource.plural,
            subresource: "",
            namespace: resource.namespaced.then_some(place.namespace.as_str()),
            name: &place.name,
            path: None,
        };
        let decision = authorize(&attributes, &StoredPolicies(&self.store));
        if decision.allowed {
            return Ok(());
        }
        Err(Status::forbidden(resource.subject(&place.name), &denial_of(&attributes, &decision)))
    }

    pub(super) fn check_escalation(
        &self,
        resource: &Resource,
        user: &Identity,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<()> {
        if resource.group != "rbac.authorization.k8s.io" {
            return Ok(());
        }
        let namespace = resource.namespaced.then(|| new.meta("namespace"));
        let policies = StoredPolicies(&self.store);
        match escalation::check(user, &resource.plural, namespace, new, old, &policies) {
            Ok(()) => Ok(()),
            Err(Refusal::Forbidden(why)) => Err(Status::forbidden(resource.subject(new.meta("name")), &why)),
            // Upstream names the binding's resource and the role's name.
            Err(Refusal::NotFound(name)) => Err(Status::not_found(resource.subject(&name))),
        }
    }
}
