//! Deletion: preconditions, grace, propagation, finalizers
//! (`k8s.io/apiserver/pkg/registry/rest/delete.go`, `…/generic/registry/store.go`).

mod options;

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};

pub(crate) use self::options::DeleteOptions;
use self::options::Propagation;
use super::definitions::{CLEANUP, set_condition};
use super::list::ListOptions;
use super::modify::{holds_namespace, is_finished};
use super::shape::{served, storage_form};
use super::{Answer, Place, Registry, Written};
use crate::admission::Attributes;
use crate::catalog::Resource;
use crate::identity::Identity;
use crate::object::{Metadata, meta_mut, timestamp};
use crate::status::{Result, Status, success};
use crate::store::Stored;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Seconds that a pod gets when neither it nor the request says.
const DEFAULT_GRACE: i64 = 30;

/// The most seconds that a deletion timestamp lies in the future: a hundred years, after which dates may be written that no
/// client can read.
const LONGEST_GRACE: i64 = 100 * 366 * 24 * 3600;

impl Registry {
    /// Deletes an object, or marks it so that its finalizers or its grace period decide when it goes.
    pub(crate) async fn delete(
        &self,
        place: &Place,
        options: &DeleteOptions,
        user: &Identity,
    ) -> Result<Written> {
        self.delete_requested(place, place, options, user).await
    }

    /// Deletes the object at `place`, which the request named as in `requested`.
    async fn delete_requested(
        &self,
        place: &Place,
        requested: &Place,
        options: &DeleteOptions,
        user: &Identity,
    ) -> Result<Written> {
        loop {
            let stored = self.get(place)?;
            let mut warnings = {
                let read = self.in_version(&place.resource, Arc::clone(&stored)).await;
                let read = read.map_err(|error| error.on_read(&place.resource))?;
                let live = served(&place.resource, &read);
                check_preconditions(place, &live, options)?;
                refuse_unsafe(place, options)?;
                let request = Attributes::delete(requested, &live, options, user);
                self.admit_body(&request, &mut Value::Null).await?
            };
            if let Some(mut written) = self.delete_stored(place, &stored, options) {
                warnings.append(&mut written.warnings);
                let object = self.answer_in_version(&place.resource, written.object).await?;
                return Ok(Written { warnings, object, code: written.code });
            }
        }
    }

    /// Deletes an object without asking admission: for what the server itself does.
    pub(super) fn delete_unasked(&self, place: &Place, options: &DeleteOptions) -> Result<Written> {
        loop {
            let stored = self.get(place)?;
            check_preconditions(place, &served(&place.resource, &stored), options)?;
            if let Some(written) = self.delete_stored(place, &stored, options) {
                return Ok(written);
            }
        }
    }

    /// Deletes an object as it was read; `None` when somebody else wrote to it in between.
    fn delete_stored(&self, place: &Place, stored: &Arc<Stored>, options: &DeleteOptions) -> Option<Written> {
        let resource = &place.resource;
        let live = served(resource, stored);
        let old = live.as_ref();
        let mut new = old.clone();
        set_finalizers(&mut new, options.propagation.or_else(|| default_propagation(resource)));
        let grace = grace_period(resource, old, options);
        mark(self, &mut new, old, grace);
        let finished = is_finished(&new);
        if finished && !old.is_deleting() && !resource.is("", "pods") {
            // It goes at once: nobody ever sees it marked. Pods, which could be given time, are marked first.
            new = old.clone();
        }
        let mut warnings = Vec::new();
        if options.propagation.is_none() && resource.is("batch", "jobs") {
            warnings.push(
                    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"
                        .to_owned(),
                );
        }
        let answer = |object: Answer| {
            if finished && !returns_deleted(resource) {
                let uid = old.meta("uid");
                Answer::Other(success(resource.subject(&place.name), Some(uid)))
            } else {
                object
            }
        };
        if options.dry_run {
            return Some(Written { code: 200, object: answer(Answer::Draft(new)), warnings });
        }
        if !finished && new == *old {
            return Some(Written { code: 200, object: Answer::Stored(Arc::clone(stored)), warnings });
        }
        let Ok(written) = self.commit(place, stored, storage_form(resource, new), finished) else {
            return None;
        };
        Some(Written { code: 200, object: answer(Answer::Stored(written)), warnings })
    }

    /// Deletes everything that a list would give. Objects that are gone in the meantime are fine.
    pub(crate) async fn delete_collection(
        &self,
        place: &Place,
        list: &ListOptions,
        options: &DeleteOptions,
        user: &Identity,
    ) -> Result<(Vec<Arc<Stored>>, u64)> {
        let page = self.list(&place.resource, &place.namespace, list).await?;
        let mut deleted = Vec::new();
        for stored in page.items {
            let target = Place {
                namespace: stored.value.meta("namespace").to_owned(),
                name: stored.value.meta("name").to_owned(),
                ..place.clone()
            };
            match self.delete_requested(&target, place, options, user).await {
                Ok(_) => deleted.push(stored),
                Err(gone) if gone.reason == "NotFound" => {}
                Err(error) => return Err(error),
            }
        }
        Ok((deleted, self.store.revision()))
    }
}

pub(super) fn check_preconditions(place: &Place, live: &Value, options: &DeleteOptions) -> Result<()> {
    let subject = place.resource.invalid_subject(&place.name);
    if let Some(uid) = &options.uid
        && uid != live.meta("uid")
    {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            live.meta("uid")
        );
        return Err(Status::conflict(subject, &why));
    }
    if let Some(version) = &options.version
        && version != live.meta("resourceVersion")
    {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            live.meta("resourceVersion")
        );
        return Err(Status::conflict(subject, &why));
    }
    Ok(())
}

/// Refuses to delete what can be read as if it could not be.
fn refuse_unsafe(place: &Place, options: &DeleteOptions) -> Result<()> {
    if !options.despite_errors {
        return Ok(());
    }
    let resource = &place.resource;
    let group = if resource.custom().is_some() { format!("{}/", resource.group) } else { String::new() };
    let namespace = if resource.namespaced { format!("{}/", place.namespace) } else { String::new() };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{namespace}{}, ResourceVersion: 0, AdditionalErrorMsg: \
         unsafe deletion is not allowed because the object is decodable from storage",
        resource.plural, place.name
    );
    Err(Status::conflict(resource.subject(&place.name), &why))
}

/// What happens to dependents when a deletion does not say. Jobs of this version orphan their pods, as they always did.
fn default_propagation(resource: &Resource) -> Option<Propagation> {
    resource.is("batch", "jobs").then_some(Propagation::Orphan)
}

/// The garbage collector's finalizers follow the propagation policy; without one they stay as they are.
fn set_finalizers(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    let before: Vec<String> = object.finalizers().into_iter().map(str::to_owned).collect();
    let mut finalizers: Vec<String> = before
        .iter()
        .filter(|name| !matches!(name.as_str(), FOREGROUND | ORPHAN) || Some(name.as_str()) == wanted)
        .cloned()
        .collect();
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|name| name == wanted)
    {
        finalizers.push(wanted.to_owned());
    }
    if finalizers == before {
        return;
    }
    let meta = meta_mut(object);
    if finalizers.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".to_owned(), json!(finalizers));
    }
}

/// Only pods that run somewhere are given time (upstream: `podStrategy.CheckGracefulDelete`).
fn grace_period(resource: &Resource, pod: &Value, options: &DeleteOptions) -> i64 {
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let scheduled = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    if !resource.is("", "pods") || ended || !scheduled {
        return 0;
    }
    let own = || pod["spec"]["terminationGracePeriodSeconds"].as_i64();
    options.grace.or_else(own).unwrap_or(DEFAULT_GRACE).max(0)
}

/// Sets the deletion timestamp. A second deletion may only shorten the grace period.
fn mark(registry: &Registry, new: &mut Value, old: &Value, grace: i64) {
    if old.is_deleting() {
        let running = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default();
        if grace >= running {
            return;
        }
        // The clock of the first deletion goes on: its time minus what is cut off.
        let at = old.meta("deletionTimestamp").parse::<jiff::Timestamp>().unwrap_or(registry.clock.now());
        let cut = running.min(LONGEST_GRACE) - grace.min(LONGEST_GRACE);
        let at = at.saturating_sub(SignedDuration::from_secs(cut)).unwrap_or(at);
        let meta = meta_mut(new);
        meta.insert("deletionTimestamp".to_owned(), timestamp(at).into());
        meta.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
        return;
    }
    let now = registry.clock.now();
    let seconds = grace.min(LONGEST_GRACE);
    let at = now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
    let generation = old.generation();
    let meta = meta_mut(new);
    meta.insert("deletionTimestamp".to_owned(), timestamp(at).into());
    meta.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
    if generation > 0 {
        meta.insert("generation".to_owned(), (generation + 1).into());
    }
    if new["kind"] == "CustomResourceDefinition" {
        terminate_definition(new, &timestamp(now));
        let meta = meta_mut(new);
        meta.remove("deletionGracePeriodSeconds");
        meta.insert("generation".to_owned(), generation.into());
    }
    if holds_namespace(new) {
        new["status"]["phase"] = "Terminating".into();
        meta_mut(new).remove("deletionGracePeriodSeconds");
    }
}

/// A definition waits until its objects are gone.
fn terminate_definition(definition: &mut Value, now: &str) {
    let mut finalizers: Vec<String> = definition.finalizers().into_iter().map(str::to_owned).collect();
    if !finalizers.iter().any(|name| name == CLEANUP) {
        finalizers.push(CLEANUP.to_owned());
    }
    meta_mut(definition).insert("finalizers".to_owned(), json!(finalizers));
    set_condition(
        definition,
        &json!({"type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon", "lastTransitionTime": now}),
    );
}

/// The kinds that answer a deletion with the object (upstream: `ReturnDeletedObject`).
fn returns_deleted(resource: &Resource) -> bool {
    let storage =
        ["csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses"];
    resource.group == "storage.k8s.io" && storage.contains(&resource.plural.as_str())
        || resource.group.is_empty()
            && matches!(
                resource.plural.as_str(),
                "pods"
                    | "services"
                    | "persistentvolumes"
                    | "persistentvolumeclaims"
                    | "podtemplates"
                    | "resourcequotas"
                    | "serviceaccounts"
            )
}
