//! The object of a request in the version that a webhook or policy asks for.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::admission::Attributes;
use crate::catalog::Resource;
use crate::registry::Registry;

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
    /// `{group, version, resource}` of the objects.
    pub(super) fn resource_value(&self) -> Value {
        let resource = &self.resource;
        json!({"group": resource.group, "version": resource.version, "resource": resource.plural})
    }
}

/// Whether the objects of a request are of its resource, not of a subresource with a kind of its own.
pub(super) fn is_own(request: &Attributes<'_>) -> bool {
    let resource = request.resource();
    request.kind.kind == resource.kind && request.kind.group == resource.group
}

/// The object of a request as others are shown it.
pub(super) fn shown(request: &Attributes<'_>, mut object: Value) -> Value {
    let resource = request.resource();
    // Go writes the status of a built-in kind also when there is nothing in it.
    if resource.custom().is_none()
        && resource.has_subresource("status")
        && request.kind.kind == resource.kind
        && let Value::Object(fields) = &mut object
    {
        fields.entry("status").or_insert_with(|| Value::Object(Map::new()));
    }
    object
}

impl Registry {
    /// The objects of a request, of which `object` is the new one as it is now, in the version of `target`.
    ///
    /// # Errors
    /// Why a webhook did not convert one.
    pub(super) async fn in_version_of(
        &self,
        request: &Attributes<'_>,
        object: &Value,
        target: &Arc<Resource>,
    ) -> Result<Versioned, String> {
        let from = request.resource();
        let same = from.version == target.version && from.group == target.group;
        let convert = async |object: Value| {
            if same || object.is_null() || !is_own(request) {
                Ok(object)
            } else {
                self.converted(from, target, object).await
            }
        };
        let kind = if is_own(request) {
            json!({"group": target.group, "version": target.version, "kind": target.kind})
        } else {
            request.kind.to_value()
        };
        // Upstream converts the old one first.
        let old = convert(request.old.cloned().unwrap_or_default()).await?;
        let object = convert(shown(request, object.clone())).await?;
        Ok(Versioned { resource: Arc::clone(target), kind, object, old })
    }
}
