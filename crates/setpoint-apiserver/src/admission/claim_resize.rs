//! Growing of claims (upstream: the admission plugin `PersistentVolumeClaimResize`).

use serde_json::Value;

use super::{Attributes, Operation};
use crate::builtin::Quantity;
use crate::registry::Registry;
use crate::status::Result;
use crate::store::Key;

const CLASSES: &str = "storageclasses.storage.k8s.io";

impl Registry {
    /// A bound claim may ask for more only where its class lets volumes grow.
    pub(super) fn check_claim_resize(&self, request: &Attributes<'_>, new: &Value) -> Result<()> {
        let claim = request.operation == Operation::Update && request.is("", "persistentvolumeclaims");
        let Some(old) = request.old.filter(|_| claim && request.subresource.is_empty()) else {
            return Ok(());
        };
        let size = |claim: &Value| {
            let text = claim["spec"]["resources"]["requests"]["storage"].as_str().map(str::to_owned);
            text.and_then(|text| Quantity::parse(&text)).map(Quantity::nanos)
        };
        if size(new) <= size(old) {
            return Ok(());
        }
        if old["status"]["phase"] != "Bound" {
            return Ok(());
        }
        let class = new["spec"]["storageClassName"].as_str().unwrap_or_default();
        let found = self.store.get(CLASSES, &Key::new("", class));
        if !class.is_empty() && found.is_some_and(|class| class.value["allowVolumeExpansion"] == true) {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        Err(request.forbidden(new, why))
    }
}
