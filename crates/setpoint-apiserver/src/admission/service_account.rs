//! The plugin `ServiceAccount`: every pod runs as an account that exists.

use serde_json::Value;

use super::Attributes;
use crate::builtin;
use crate::registry::Registry;
use crate::status::Result;
use crate::store::Key;

impl Registry {
    pub(super) fn set_service_account(&self, request: &Attributes<'_>, pod: &mut Value) -> Result<()> {
        // Mirror pods are their node's own.
        let mirror = &pod["metadata"]["annotations"]["kubernetes.io/config.mirror"];
        if !self.admission.service_accounts || !mirror.is_null() {
            return Ok(());
        }
        let (namespace, name) = (request.place.namespace.as_str(), builtin::account_name(pod));
        let Some(account) = self.store.get("serviceaccounts", &Key::new(namespace, name)) else {
            let why = format!(
                "error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found"
            );
            return Err(request.forbidden(pod, &why));
        };
        builtin::admit_pod(pod, &account.value, &self.entropy.name_suffix(5));
        Ok(())
    }
}
