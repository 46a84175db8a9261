//! Nobody may grant by a role or binding what he does not hold (`pkg/registry/rbac/*/policybased`).

use serde_json::Value;

use super::Registry;
use crate::authz::escalation::{self, Refusal};
use crate::catalog::Resource;
use crate::identity::Identity;
use crate::object::Metadata;
use crate::policies::StoredPolicies;
use crate::status::{Result, Status};

impl Registry {
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
