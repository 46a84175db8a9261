//! The object of a request in the version that a webhook asks for.

use std::sync::Arc;

use serde_json::Value;

use crate::admission::Attributes;
use crate::catalog::Resource;
use crate::registry::Registry;
use crate::status::{Result, Status};

/// An object, and the one that it replaces, in one version of their resource.
#[derive(Clone, Debug)]
pub(super) struct Versioned {
    pub(super) resource: Arc<Resource>,
    /// `{group, version, kind}` of the objects.
    pub(super) kind: Value,
    pub(super) object: Value,
    pub(super) old: Value,
}

impl Versioned {
    /// As the request came.
    pub(super) fn of(request: &Attributes<'_>, object: &Value) -> Self {
        let mut object = object.clone();
        let resource = request.resource();
        // Go writes the status of a built-in kind also when there is nothing in it.
        if resource.custom().is_none()
            && resource.has_subresource("status")
            && request.kind.kind == resource.kind
            && let Value::Object(fields) = &mut object
        {
            fields.entry("status").or_insert_with(|| Value::Object(serde_json::Map::new()));
        }
        Self {
            resource: Arc::clone(resource),
            kind: request.kind.to_value(),
            object,
            old: request.old.cloned().unwrap_or_default(),
        }
    }
}

impl Registry {
    /// The same in the version of `target`.
    pub(super) async fn in_version_of(
        &self,
        given: Versioned,
        request: &Attributes<'_>,
        target: &Arc<Resource>,
    ) -> Result<Versioned> {
        let from = Arc::clone(&given.resource);
        let own =
            request.kind.kind == request.resource().kind && request.kind.group == request.resource().group;
        if from.version == target.version && from.group == target.group || !own {
            return Ok(Versioned { resource: Arc::clone(target), ..given });
        }
        let kind = serde_json::json!({"group": target.group, "version": target.version, "kind": target.kind});
        let convert = async |object: Value| {
            if object.is_null() { Ok(object) } else { self.converted(&from, target, object).await }
        };
        let object = convert(given.object).await.map_err(Status::internal)?;
        let old = convert(given.old).await.map_err(Status::internal)?;
        Ok(Versioned { resource: Arc::clone(target), kind, object, old })
    }
}
