//! Updates: whole objects by PUT, and the loop that patches share.

use std::sync::Arc;

use serde_json::Value;
use setpoint_schema::managed::keep_times;

use super::conversion::by_webhook;
use super::decode::{check_decoded, check_kind};
use super::definitions::note_storage_version;
use super::list::parse_version;
use super::prepare::{prepare_update, refuse_invalid, set_namespace, write_warnings};
use super::shape::{check, clean, complete, drafted, forget_nulls, refuse_misfit, served, storage_form};
use super::tracked::Tracked;
use super::{Answer, Place, Registry, WriteOptions, Written};
use crate::admission::Attributes;
use crate::catalog::Resource;
use crate::custom;
use crate::object::Metadata;
use crate::object_meta;
use crate::status::{Cause, Result, Status};
use crate::store::{Change, Expect, Raced, Stored};

/// An object as a request wants it to be.
pub(super) struct Wanted {
    pub(super) object: Value,
    pub(super) tracked: Tracked,
    pub(super) warnings: Vec<String>,
}

impl Registry {
    /// Replaces an object, or its status, by the body of a PUT.
    pub(crate) async fn update(
        &self,
        place: &Place,
        subresource: &str,
        body: Value,
        options: &WriteOptions,
    ) -> Result<Written> {
        if matches!(subresource, "" | "status") {
            check_decoded(&place.resource, &body)?;
        }
        if subresource.is_empty() {
            refuse_misfit(&place.resource, &body)?;
        }
        let name = body.meta("name");
        if name.is_empty() {
            return Err(Status::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                place.name
            )));
        }
        if name != place.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                place.name
            )));
        }
        let exists = self.get(place).is_ok();
        if !exists && subresource.is_empty() && may_create_on_update(&place.resource) {
            return self.create_missing(place, body, options, Tracked::Update).await;
        }
        self.modify(place, subresource, options, |live| {
            let (uid, live_uid) = (body.meta("uid"), live.meta("uid"));
            if !uid.is_empty() && uid != live_uid && subresource.is_empty() {
                return Err(uid_precondition(place, uid, live_uid));
            }
            Ok(Wanted { object: body.clone(), tracked: Tracked::Update, warnings: Vec::new() })
        })
        .await
    }

    /// Changes an object that exists: `want` makes the new object from the live one (in the resource's version) and is asked again
    /// when somebody else wrote in between.
    pub(super) async fn modify(
        &self,
        place: &Place,
        subresource: &str,
        options: &WriteOptions,
        want: impl FnMut(&Value) -> Result<Wanted> + Send,
    ) -> Result<Written> {
        let mut warnings = Vec::new();
        match self.modify_admitted(place, subresource, options, want, &mut warnings).await {
            Ok(object) => Ok(Written { code: 200, object, warnings }),
            Err(status) => Err(status.with_warnings(warnings)),
        }
    }

    async fn modify_admitted(
        &self,
        place: &Place,
        subresource: &str,
        options: &WriteOptions,
        mut want: impl FnMut(&Value) -> Result<Wanted> + Send,
        warnings: &mut Vec<String>,
    ) -> Result<Answer> {
        let resource = &place.resource;
        loop {
            warnings.clear();
            let stored = self.get(place)?;
            let read = self.in_version(resource, Arc::clone(&stored)).await;
            let read = read.map_err(|error| error.on_update())?;
            let live = served(resource, &read);
            let old = live.as_ref();
            let Wanted { object: mut new, tracked, warnings: wanted } = want(old)?;
            warnings.extend(wanted);
            let mut applied = None;
            if let Tracked::Intent { force } = tracked {
                let intent = new.clone();
                new = Box::pin(self.applied(place, subresource, Some(old), &new, force, options)).await?;
                applied = Some(intent);
            }
            if resource.custom().is_some() && new["kind"] != resource.kind.as_str() {
                // Upstream looks at the kind of a custom resource when it validates it.
                check_version(place, &new, old)?;
            }
            check_kind(resource, &mut new)?;
            set_namespace(place, &mut new)?;
            warnings.extend(clean(resource, &mut new, options, applied.as_ref())?);
            warnings.extend(object_meta::drop_repeated_owners(&mut new, false));
            // What the server changes from here on belongs to nobody.
            if tracked == Tracked::Update {
                self.track(resource, old, &mut new, options, subresource).await;
            }
            let request = Attributes::write(place, subresource, Some(old), options);
            if !has_own_object(subresource) {
                self.mutate(&request, &mut new, warnings).await?;
                warnings.extend(object_meta::drop_repeated_owners(&mut new, true));
            }
            set_namespace(place, &mut new)?;
            self.check_escalation(resource, &options.user, &new, Some(old))?;
            check_version(place, &new, old)?;
            prepare_update(resource, subresource, &mut new, old);
            if resource.is(custom::GROUP, custom::PLURAL) && subresource.is_empty() {
                note_storage_version(&mut new);
            }
            if resource.is("certificates.k8s.io", "certificatesigningrequests") {
                date_conditions(&mut new, old, &self.now());
            }
            let _reserved = self.allocate(resource, &mut new, Some(old))?;
            complete(resource, &mut new);
            let mut causes = object_meta::validate(&new, resource);
            causes.extend(object_meta::validate_update(&new, old));
            causes.extend(check(resource, &new, Some(old), subresource, warnings));
            refuse_invalid(resource, new.meta("name"), causes)?;
            warnings.extend(write_warnings(resource, &new, Some(old)));
            if !has_own_object(subresource) {
                self.validate(&request, &new, warnings).await?;
            }

            let changed = keep_times(old, &mut new);
            let finished = is_finished(&new);
            // What is stored in an old version is written again, whatever changed: storage migrations live on it.
            let stale = resource.custom().is_some_and(|custom| !stored.is_in(&custom.storage_version));
            if !finished && !changed && !stale {
                return Ok(Answer::Stored(Arc::clone(&read)));
            }
            forget_nulls(resource, &mut new);
            if options.dry_run {
                return Ok(Answer::Draft(drafted(resource, new)));
            }
            if finished {
                // Upstream's store deletes what it has, so watchers see the last version; the writer sees what he wrote, which
                // never got a version of its own (`deleteWithoutFinalizers`).
                let last = match by_webhook(resource) {
                    Some(_) => stored.decode(),
                    None => storage_form(resource, old.clone()),
                };
                let Ok(_) = self.commit(place, &stored, last, true) else { continue };
                return Ok(Answer::Draft(new));
            }
            let new = self.to_storage(resource, new).await?;
            let Ok(written) = self.commit(place, &stored, new, false) else { continue };
            return self.answer_in_version(resource, Answer::Stored(written)).await;
        }
    }

    /// Replaces `stored` by `new`, which is in the form in which it is stored, or removes it when nothing holds it any more, and follows the write up.
    ///
    /// # Errors
    /// When the object has changed since it was read: decide again.
    pub(super) fn commit(
        &self,
        place: &Place,
        stored: &Stored,
        new: Value,
        finished: bool,
    ) -> Result<Arc<Stored>, Raced> {
        let resource = &place.resource;
        let _defining = self.defining(resource);
        let change = if finished { Change::Remove(new) } else { Change::Put(new) };
        let expect = Expect::Revision(stored.revision);
        let written = self.store.write(&resource.storage, &place.key(), expect, change)?;
        if finished {
            self.after_removal(resource);
        } else {
            self.after_write(resource, &written);
        }
        Ok(written)
    }
}

/// Subresources whose requests carry an object of another kind: it has been admitted before it was written into this one.
fn has_own_object(subresource: &str) -> bool {
    matches!(subresource, "scale" | "binding")
}

/// Gives the conditions of a request for a certificate the times that they lack (upstream: `populateConditionTimestamps`).
fn date_conditions(request: &mut Value, old: &Value, now: &str) {
    let before = old["status"]["conditions"].clone();
    for condition in
        request.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
    {
        let known = before.as_array().into_iter().flatten().find(|known| known["type"] == condition["type"]);
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = now.into();
        }
        if condition["lastTransitionTime"].is_null() {
            let kept = known.filter(|known| known["status"] == condition["status"]);
            let kept = kept.map(|known| known["lastTransitionTime"].clone()).filter(|time| !time.is_null());
            condition["lastTransitionTime"] = kept.unwrap_or_else(|| now.into());
        }
    }
}

/// The kinds whose strategies upstream let a PUT create.
fn may_create_on_update(resource: &Resource) -> bool {
    matches!(
        (resource.group.as_str(), resource.plural.as_str()),
        ("", "endpoints" | "events" | "services" | "limitranges")
            | ("coordination.k8s.io", "leases")
            | ("events.k8s.io", "events")
            | ("rbac.authorization.k8s.io", _)
    )
}

/// The kinds whose strategies upstream let an update leave out the resourceVersion: most built-in ones.
fn may_update_unconditionally(resource: &Resource) -> bool {
    resource.custom().is_none()
        && !matches!(
            (resource.group.as_str(), resource.plural.as_str()),
            ("admissionregistration.k8s.io", _)
                | ("coordination.k8s.io", "leases")
                | ("policy", "poddisruptionbudgets")
                | ("apiextensions.k8s.io", "customresourcedefinitions")
                | ("node.k8s.io", "runtimeclasses")
                | ("storage.k8s.io", "csidrivers" | "csinodes" | "volumeattachments")
        )
}

/// The resourceVersion in the object must be that of the live one; custom resources must carry one.
fn check_version(place: &Place, new: &Value, old: &Value) -> Result<()> {
    let version = new.meta("resourceVersion");
    if version.is_empty() || version == "0" {
        if may_update_unconditionally(&place.resource) {
            return Ok(());
        }
        let detail = "must be specified for an update";
        let cause = Cause::invalid("metadata.resourceVersion", &0.into(), detail);
        return Err(Status::invalid(place.resource.subject(&place.name), vec![cause]));
    }
    if let Err(why) = parse_version(version) {
        return Err(Status::unknown(format!("strconv.ParseUint: parsing {version:?}: {why}")));
    }
    if version == old.meta("resourceVersion") {
        Ok(())
    } else {
        Err(Status::modified(place.resource.subject(&place.name)))
    }
}

/// The request is about another object of the same name; worded as the storage layer upstream words it.
pub(super) fn uid_precondition(place: &Place, wanted: &str, live: &str) -> Status {
    let resource = &place.resource;
    let group = if resource.custom().is_some() { format!("{}/", resource.group) } else { String::new() };
    let namespace = if resource.namespaced { format!("{}/", place.namespace) } else { String::new() };
    let key = format!("/registry/{group}{}/{namespace}{}", resource.plural, place.name);
    Status::conflict(
        resource.subject(&place.name),
        &format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {live}"
        ),
    )
}

/// Whether an object that is being deleted has nothing left that holds it.
pub(super) fn is_finished(object: &Value) -> bool {
    object.is_deleting()
        && object.finalizers().is_empty()
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() == 0
        && !holds_namespace(object)
}

/// A namespace stays until its `spec.finalizers` are gone as well.
pub(super) fn holds_namespace(object: &Value) -> bool {
    object["kind"] == "Namespace"
        && object["apiVersion"] == "v1"
        && object["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}
