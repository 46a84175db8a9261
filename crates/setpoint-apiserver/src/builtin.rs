//! What Kubernetes' own code knows about its kinds and the OpenAPI documents don't say: defaults, initial status, what an update may change.
//!
//! ```text
//! create: default ─▶ prepare_create ─▶ validate ─▶ store
//! update: default ─▶ prepare_update ─▶ validate ─▶ store
//! ```
//!
//! Everything here is a pure function over one object (and the one that it replaces). The defaults are those of `pkg/apis/*/*/defaults.go` of
//! kubernetes, the rest is from its strategies and admission plugins; `recorded/` has what a real kube-apiserver made of the same objects.

mod amounts;
mod defaults;
mod edit;
mod go;
mod pod;
mod pod_resources;
mod prepare;
mod profiles;
mod quantity;
mod service;
mod service_account;
mod validate;
mod warnings;

use serde_json::Value;
use setpoint_kinds::{Presence, presence};

pub(crate) use amounts::{Amounts, of_pod as amounts_of_pod};
pub(crate) use edit::{list, text};
pub(crate) use go::{GoValue, of as shown};
use pod_resources::class_of;
pub(crate) use profiles::take_annotated;
pub(crate) use quantity::Quantity;
pub(crate) use service_account::{account_name, admit_pod};
pub(crate) use validate::{
    POD_RESOURCES, is_whole, requested_certificate, selects, selects_all, validate, validate_conversion,
    validate_review_versions,
};
pub(crate) use warnings::warnings;

/// Fills in what a client may leave out, and writes quantities in their canonical form. Idempotent; used for every write.
pub(crate) fn default(group: &str, kind: &str, object: &mut Value) {
    if !object.is_object() {
        return;
    }
    let known = setpoint_kinds::kinds().iter().find(|known| known.kind == kind && known.group == group);
    if let Some(definition) = known.map(|known| known.definition) {
        let always = |(name, presence)| name == "spec" && presence == Presence::Always;
        // Hardly an object comes without: it is not worth its while to keep for which kinds it is always there.
        if object.get("spec").is_none_or(edit::is_empty)
            && setpoint_kinds::definition(definition)
                .is_some_and(|schema| !schema["properties"]["spec"].is_null())
            && presence(definition).any(always)
        {
            edit::fill(object, "spec", serde_json::Map::new());
        }
        quantity::canonicalise(definition, object);
    }
    defaults::default(group, kind, object);
}

/// Sets what a new object starts with whatever the client says, such as its status. `metadata.uid` must be set already.
pub(crate) fn prepare_create(group: &str, kind: &str, object: &mut Value) {
    if object.is_object() {
        prepare::create(group, kind, object);
    }
}

/// Restores from the `old` object what an update of the kind, or of its subresource, may not change or may leave out.
pub(crate) fn prepare_update(
    group: &str,
    kind: &str,
    subresource: Option<&str>,
    new: &mut Value,
    old: &Value,
) {
    if new.is_object() {
        prepare::update(group, kind, subresource, new, old);
    }
}

/// Values for field selectors, beyond `metadata.name` and `metadata.namespace` which every kind has.
pub(crate) fn fields(group: &str, plural: &str, object: &Value) -> Vec<(&'static str, String)> {
    let names: &[&'static str] = match (group, plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", "certificatesigningrequests") => &["spec.signerName"],
        ("" | "events.k8s.io", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &[],
    };
    names.iter().map(|name| (*name, field(object, name))).collect()
}

fn field(object: &Value, path: &str) -> String {
    let found = |path: &str| path.split('.').try_fold(object, |value, key| value.get(key));
    let value = match path {
        "source" => {
            found("source.component").filter(|v| !edit::is_empty(v)).or_else(|| found("reportingComponent"))
        }
        "status.successful" => found("status.succeeded"),
        // Upstream lets it be asked for, and has no value.
        "status.podIPs" => None,
        // An event of events.k8s.io carries the same under another name.
        _ => found(path).or_else(|| found(&path.replace("involvedObject", "regarding"))),
    };
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => match path {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.replicas" | "status.successful" => "0".to_owned(),
            _ => String::new(),
        },
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
