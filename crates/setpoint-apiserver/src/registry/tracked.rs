//! Who owns which fields after a write: managed fields of updates, and server-side apply.
//!
//! Managers may own fields in other versions than that of the request: objects are converted for them, by a webhook where the definition says so.

use serde_json::Value;
use setpoint_schema::managed::{self, ApplyRequest, Needed, UpdateRequest, Versions};
use setpoint_schema::{FieldSet, Schema};

use super::options::WriteOptions;
use super::patch::{apply_refused, bounded};
use super::shape::reset_fields;
use super::{Place, Registry};
use crate::catalog::Resource;
use crate::object::meta_mut;
use crate::status::{Result, Status};

/// How the managed fields of a write come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracked {
    /// The manager owns what it changed.
    Update,
    /// What is given is an intent, to be applied to the object as it is.
    Intent {
        /// Takes over what others own.
        force: bool,
    },
    /// They are set.
    Done,
}

impl Registry {
    /// Notes in a new object's managed fields who sets them.
    pub(crate) fn own(
        &self,
        resource: &Resource,
        object: &mut Value,
        options: &WriteOptions,
        subresource: &str,
    ) {
        let request = UpdateRequest {
            schema: &resource.schema(),
            live: None,
            manager: &options.manager,
            subresource,
            api_version: &resource.api_version(),
            ignored: &reset_fields(resource, subresource),
            now: self.clock.now(),
        };
        managed::update(&request, object);
    }

    /// Notes that the server itself wrote the status of an object.
    pub(crate) fn own_status_as_server(&self, resource: &Resource, old: &Value, new: &mut Value) {
        let request = UpdateRequest {
            schema: &resource.schema(),
            live: Some(old),
            manager: "kube-apiserver",
            subresource: "status",
            api_version: &resource.api_version(),
            ignored: &FieldSet::of_fields(&[&["spec"]]),
            now: self.clock.now(),
        };
        managed::update(&request, new);
    }

    /// Notes in the body of a request to a subresource who sends it: it is of another kind and never stored: admission sees it.
    pub(crate) fn own_body(
        &self,
        definition: &str,
        api_version: &str,
        body: &mut Value,
        options: &WriteOptions,
        subresource: &str,
    ) {
        let Some(schema) = Schema::builtin(definition) else { return };
        let request = UpdateRequest {
            schema: &schema,
            live: None,
            manager: &options.manager,
            subresource,
            api_version,
            ignored: &FieldSet::default(),
            now: self.clock.now(),
        };
        managed::update(&request, body);
    }

    /// Notes in the managed fields who changes what.
    pub(super) async fn track(
        &self,
        resource: &Resource,
        old: &Value,
        new: &mut Value,
        options: &WriteOptions,
        subresource: &str,
    ) {
        let request = UpdateRequest {
            schema: &resource.schema(),
            live: Some(old),
            manager: &options.manager,
            subresource,
            api_version: &resource.api_version(),
            ignored: &reset_fields(resource, subresource),
            now: self.clock.now(),
        };
        let mut versions = Versions::default();
        while let Err(needed) = managed::update_in_versions(&request, new, &versions) {
            let Ok(converted) = Box::pin(self.needed(resource, &needed)).await else {
                // Upstream rather tracks nothing than something wrong (`UpdateNoErrors`).
                meta_mut(new).remove("managedFields");
                break;
            };
            versions.add(needed, converted);
        }
    }

    /// Applies an intent: to the object as it is, or to nothing.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) async fn applied(
        &self,
        place: &Place,
        subresource: &str,
        live: Option<&Value>,
        intent: &Value,
        force: bool,
        options: &WriteOptions,
    ) -> Result<Value> {
        let resource = &place.resource;
        let request = ApplyRequest {
            schema: &resource.schema(),
            live,
            intent,
            manager: &options.manager,
            force,
            subresource,
            api_version: &resource.api_version(),
            ignored: &reset_fields(resource, subresource),
            now: self.clock.now(),
        };
        let mut versions = Versions::default();
        let applied = loop {
            match managed::apply_in_versions(&request, &versions) {
                Ok(applied) => break applied,
                Err(needed) => {
                    let converted = Box::pin(self.needed(resource, &needed)).await;
                    let converted = converted
                        .map_err(|why| Status::unknown(format!("failed to convert old object: {why}")))?;
                    versions.add(needed, converted);
                }
            }
        };
        let object = applied.map_err(|error| apply_refused(&error))?.object;
        bounded(live, &object)?;
        Ok(object)
    }

    /// Makes a conversion; `None` when the kind has no such version.
    async fn needed(&self, resource: &Resource, needed: &Needed) -> Result<Option<(Schema, Value)>, String> {
        let from = self.version(resource, needed.object["apiVersion"].as_str().unwrap_or_default());
        let to = self.version(resource, &needed.api_version);
        let Some((from, to)) = from.zip(to) else { return Ok(None) };
        let converted = self.converted(&from, &to, needed.object.clone()).await?;
        Ok(Some((to.schema(), converted)))
    }
}
