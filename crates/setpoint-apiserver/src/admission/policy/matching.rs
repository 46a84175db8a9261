//! Which requests concern a policy (`…/policy/matching/matching.go`).

use std::sync::Arc;

use serde_json::Value;

use crate::admission::Attributes;
use crate::admission::matching::selects_object;
use crate::catalog::Resource;
use crate::registry::Registry;

impl Registry {
    /// The resource, in the version that a rule names, by which the request concerns a policy or binding with these constraints;
    /// `None` if it does not. Without rules every resource is meant.
    ///
    /// # Errors
    /// When the namespace of the request cannot be looked at.
    pub(super) fn concerned(
        &self,
        constraints: &Value,
        request: &Attributes<'_>,
        object: &Value,
    ) -> Result<Option<Arc<Resource>>, String> {
        if constraints.is_null() {
            return Ok(Some(Arc::clone(request.resource())));
        }
        let namespace = self.selects_namespace(&constraints["namespaceSelector"], request, object);
        if matches!(namespace, Ok(false)) || !selects_object(&constraints["objectSelector"], request, object)
        {
            return Ok(None);
        }
        let equivalent = constraints["matchPolicy"] != "Exact";
        if self.target(&constraints["excludeResourceRules"], request, equivalent).is_some() {
            return Ok(None);
        }
        let rules = &constraints["resourceRules"];
        let found = if rules.as_array().is_none_or(Vec::is_empty) {
            Some(Arc::clone(request.resource()))
        } else {
            self.target(rules, request, equivalent)
        };
        namespace.map(|_| found).map_err(|missing| missing.message)
    }
}
