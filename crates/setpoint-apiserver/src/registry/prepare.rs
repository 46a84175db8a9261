//! What the server decides about an object before it is validated: metadata, status, generation
//! (`k8s.io/apiserver/pkg/registry/rest/{create,update}.go` and the strategies of the kinds).

use serde_json::Value;

use super::definitions::begin_status;
use super::{Place, Registry};
use crate::builtin;
use crate::catalog::Resource;
use crate::custom;
use crate::object::{Metadata, copy_field, copy_meta, fields, meta_mut, set_meta};
use crate::object_meta::is_standard_finalizer;
use crate::status::{Cause, Result, Status};

/// The length of the random part of a generated name, and how long the given part may be.
const SUFFIX: usize = 5;
const GENERATED_BASE: usize = 63 - SUFFIX;

impl Registry {
    /// Fills in what only the server may set on a new object.
    pub(super) fn prepare_create(&self, place: &mut Place, object: &mut Value) {
        let resource = std::sync::Arc::clone(&place.resource);
        if object.meta("name").is_empty() && !object.meta("generateName").is_empty() {
            let prefix: String = object.meta("generateName").chars().take(GENERATED_BASE).collect();
            let name = format!("{prefix}{}", self.entropy.name_suffix(SUFFIX));
            set_meta(object, "name", &name);
        }
        object.meta("name").clone_into(&mut place.name);
        let meta = meta_mut(object);
        meta.remove("resourceVersion");
        meta.insert("uid".to_owned(), self.entropy.uuid().into());
        meta.insert("creationTimestamp".to_owned(), self.now().into());
        // Kinds that count no generations keep what their writer said.
        if resource.has_generation() {
            meta.insert("generation".to_owned(), 1.into());
        }
        if resource.custom().is_some() {
            if resource.has_subresource("status") {
                fields(object).remove("status");
            }
        } else {
            builtin::prepare_create(&resource.group, &resource.kind, object);
        }
        if resource.is(custom::GROUP, custom::PLURAL) {
            begin_status(object);
        }
    }
}

/// Takes out of a new object what only the server may say of it (`WipeObjectMetaSystemFields`).
pub(super) fn wipe(object: &mut Value) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        for field in
            ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"]
        {
            meta.remove(field);
        }
    }
}

/// Sets the namespace of the URL, and refuses another one.
pub(super) fn set_namespace(place: &Place, object: &mut Value) -> Result<()> {
    if !place.resource.namespaced {
        return Ok(());
    }
    let given = object.meta("namespace");
    if given.is_empty() {
        set_meta(object, "namespace", &place.namespace);
    } else if given != place.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Carries over from the `old` object what an update of `subresource` may not change, and counts the generation.
pub(super) fn prepare_update(resource: &Resource, subresource: &str, new: &mut Value, old: &Value) {
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        // Absent means "as it was": clients may leave these out, nobody may remove them.
        if new["metadata"][field].is_null() {
            copy_meta(new, old, field);
        }
    }
    for field in ["generation", "selfLink", "creationTimestamp"] {
        copy_meta(new, old, field);
    }
    // The store sets the next one.
    copy_meta(new, old, "resourceVersion");
    let has_status = resource.has_subresource("status");
    if matches!(subresource, "status" | "approval") {
        keep_all_but_status(resource, new, old);
    } else if has_status && subresource != "binding" {
        // A binding also says in the status that the pod is scheduled.
        copy_field(new, old, "status");
    }
    if resource.custom().is_none() {
        let subresource = (!subresource.is_empty()).then_some(subresource);
        builtin::prepare_update(&resource.group, &resource.kind, subresource, new, old);
    }
    // A binding is no change of what the pod should be.
    // Upstream counts a Deployment's annotations too, since its replica sets copy them.
    let noted = resource.is("apps", "deployments")
        && subresource.is_empty()
        && new["metadata"]["annotations"] != old["metadata"]["annotations"];
    // Slices are what kube-proxy reads, labels included; nothing of a priority class that counts can change.
    let noted = noted
        || resource.is("discovery.k8s.io", "endpointslices")
            && new["metadata"]["labels"] != old["metadata"]["labels"];
    let fixed = resource.is("scheduling.k8s.io", "priorityclasses");
    let differs = !fixed && (noted || content_differs(new, old, has_status));
    if subresource != "binding" && resource.has_generation() && differs {
        meta_mut(new).insert("generation".to_owned(), (old.generation() + 1).into());
    }
}

/// A write to /status changes nothing else. Nodes and pods keep their agents' labels and annotations; custom
/// resources keep all of their metadata.
fn keep_all_but_status(resource: &Resource, new: &mut Value, old: &Value) {
    let mut kept = old.clone();
    copy_field(&mut kept, new, "status");
    if resource.custom().is_some() {
        copy_meta(&mut kept, new, "managedFields");
    } else {
        copy_field(&mut kept, new, "metadata");
        copy_meta(&mut kept, old, "ownerReferences");
        copy_meta(&mut kept, old, "deletionTimestamp");
        if !matches!(resource.plural.as_str(), "pods" | "nodes") {
            copy_meta(&mut kept, old, "labels");
        }
    }
    *new = kept;
}

fn content_differs(new: &Value, old: &Value, has_status: bool) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new != old };
    let counts =
        |key: &str| !matches!(key, "apiVersion" | "kind" | "metadata") && (!has_status || key != "status");
    new.iter().any(|(key, value)| counts(key) && old.get(key) != Some(value))
        || old.keys().any(|key| counts(key) && !new.contains_key(key))
}

/// What whoever writes an object should know.
pub(super) fn write_warnings(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<String> {
    if resource.is(custom::GROUP, custom::PLURAL) {
        return custom::warnings(object, old);
    }
    if resource.is("discovery.k8s.io", "endpointslices") && object["addressType"] == "FQDN" && old.is_none() {
        return vec!["spec.addressType: FQDN endpoints are deprecated".to_owned()];
    }
    let mut warnings = if old.is_none() { finalizer_warnings(resource, object) } else { Vec::new() };
    if resource.custom().is_none() {
        warnings.extend(builtin::warnings(&resource.group, &resource.kind, object, old));
    }
    warnings
}

/// Custom resources may have any finalizer, but those of nobody's domain may clash.
fn finalizer_warnings(resource: &Resource, object: &Value) -> Vec<String> {
    let custom = resource.custom().is_some();
    let bare = |name: &&str| custom && !name.contains('/') && !is_standard_finalizer(name);
    object.finalizers().into_iter().filter(bare).map(|name| {
        format!("metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers")
    }).collect()
}

/// Fails with every wrong field, if there are any.
pub(super) fn refuse_invalid(resource: &Resource, name: &str, causes: Vec<Cause>) -> Result<()> {
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(resource.invalid_subject(name), causes)) }
}
