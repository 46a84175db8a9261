//! The parameters of a binding (`…/policy/generic/policy_dispatcher.go: CollectParams`).

use std::sync::Arc;

use serde_json::Value;

use crate::admission::Attributes;
use crate::builtin::selects;
use crate::catalog::Resource;
use crate::registry::{Registry, served};
use crate::store::{Key, Stored};

impl Registry {
    /// The resource of a policy's parameters; `None` if it has none.
    ///
    /// # Errors
    /// When no such kind is served.
    pub(super) fn param_kind(&self, policy: &Value) -> Result<Option<Arc<Resource>>, String> {
        let kind = &policy["spec"]["paramKind"];
        if kind.is_null() {
            return Ok(None);
        }
        let text = |key: &str| kind[key].as_str().unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let all = self.catalog.all();
        let found = all.iter().find(|resource| resource.kind == kind && resource.api_version() == version);
        if let Some(resource) = found {
            Ok(Some(Arc::clone(resource)))
        } else {
            let group = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
            Err(format!("failed to find resource referenced by paramKind: '{group}, Kind={kind}'"))
        }
    }

    /// The parameters with which a policy is to be evaluated by way of `binding`; none where that does not concern the request.
    ///
    /// # Errors
    /// When the request cannot be matched, and as of [`params_of`](Self::params_of).
    pub(super) fn params_by(
        &self,
        binding: &Value,
        kind: Option<&Arc<Resource>>,
        request: &Attributes<'_>,
        object: &Value,
    ) -> Result<Vec<Value>, String> {
        match self.concerned(&binding["spec"]["matchResources"], request, object)? {
            Some(_) => self.params_of(binding, kind, request),
            None => Ok(Vec::new()),
        }
    }

    /// The parameters with which a binding's policy is to be evaluated, one after the other; `null` for none at all.
    ///
    /// # Errors
    /// When the binding does not say which, or wants a refusal where there are none.
    fn params_of(
        &self,
        binding: &Value,
        kind: Option<&Arc<Resource>>,
        request: &Attributes<'_>,
    ) -> Result<Vec<Value>, String> {
        let reference = &binding["spec"]["paramRef"];
        let (Some(kind), false) = (kind, reference.is_null()) else { return Ok(vec![Value::Null]) };
        let text = |key: &str| reference[key].as_str().unwrap_or_default();
        let given = text("namespace");
        let namespace = match (kind.namespaced, given) {
            (false, "") => "",
            (false, _) => {
                return Err(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned()
                );
            }
            (true, "") if request.namespace().is_empty() => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .to_owned(),
                );
            }
            (true, "") => request.namespace(),
            (true, given) => given,
        };
        let value = |stored: &Stored| served(kind, stored).into_owned();
        let params: Vec<Value> = match text("name") {
            "" => {
                let selector = &reference["selector"];
                let snapshot = self.store.snapshot(&kind.storage);
                let all = snapshot.range(namespace, None).map(|(_, stored)| stored);
                all.filter(|stored| selects(selector, &stored.value["metadata"]["labels"]))
                    .map(|stored| value(stored))
                    .collect()
            }
            name => {
                let found = self.store.get(&kind.storage, &Key::new(namespace, name));
                found.iter().map(|stored| value(stored)).collect()
            }
        };
        if params.is_empty() && text("parameterNotFoundAction") == "Deny" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(params)
    }
}
