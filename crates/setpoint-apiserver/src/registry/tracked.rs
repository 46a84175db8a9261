//! Who owns which fields after a write: managed fields of updates, and server-side apply.
//!
//! Managers may own fields in other versions than that of the request: objects are converted for them, by a webhook where the definition says so.

use serde_json::Value;
use setpoint_schema::Schema;
use setpoint_schema::managed::{self, ApplyRequest, Needed, UpdateRequest, Versions};

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
            match Box::pin(self.needed(resource, &needed)).await {
                Ok(converted) => versions.add(needed, converted),
                Err(_) => {
                    // Upstream rather tracks nothing than something wrong (`UpdateNoErrors`).
                    meta_mut(new).remove("managedFields");
                    break;
                }
            }
        }
        if subresource == "scale" {
            forget_times_of_scale(new);
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
        let mut object = applied.map_err(|error| apply_refused(&error))?.object;
        bounded(live, &object)?;
        if subresource == "scale" {
            forget_times_of_scale(&mut object);
        }
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

/// What was scaled is noted without a time (upstream: `ScaleHandler`), and so comes first.
fn forget_times_of_scale(object: &mut Value) {
    let Some(entries) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) else {
        return;
    };
    for entry in entries.iter_mut().filter(|entry| entry["subresource"] == "scale") {
        entry.as_object_mut().map(|entry| entry.remove("time"));
    }
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    entries.sort_by_key(|entry| (text(entry, "operation"), text(entry, "time")));
}
