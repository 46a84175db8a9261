//! What a write to a subresource of an object may change.

use serde_json::Value;
use setpoint_schema::{ErrorKind, FieldPath};

use super::{certificate, config, errors::Errors, network, pod, rules, service, storage, tables};
use crate::builtin::{
    edit::{list, text},
    go::GoValue,
};

/// Checks a write to a subresource.
pub fn check(errors: &mut Errors, group: &str, kind: &str, subresource: &str, new: &Value, old: &Value) {
    match (group, kind, subresource) {
        ("", "Pod", "ephemeralcontainers") => return pod::ephemeral_containers(errors, new, old),
        ("", "Pod", "resize") => return pod::resize(errors, new, old),
        ("", "Namespace", "finalize") => return config::namespace(errors, new, true),
        ("certificates.k8s.io", "CertificateSigningRequest", "approval") => {
            return certificate::conditions(errors, new, old);
        }
        (_, _, "status") => {}
        _ => return,
    }
    rules::check(errors, new, Some(old), tables::status(group, kind));
    match (group, kind) {
        ("", "Namespace") => config::namespace_status(errors, new),
        ("", "Pod") => pod::status(errors, new, old),
        ("", "Service") => service::status(errors, new),
        ("", "PersistentVolumeClaim") => storage::claim_status(errors, new),
        ("networking.k8s.io", "Ingress") => network::ingress_status(errors, new),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificate::conditions(errors, new, old),
        ("batch", "Job") => job(errors, &new["status"], &old["status"]),
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet") => {
            let count = |object: &Value| object["status"]["collisionCount"].as_i64();
            if let Some(before) = count(old)
                && count(new).unwrap_or(0) < before
            {
                let path = FieldPath::from("status.collisionCount");
                errors.invalid(&path, count(new).unwrap_or(0), "cannot be decremented");
            }
        }
        _ => {}
    }
}

/// The status of a job tells a story that cannot run backwards.
fn job(errors: &mut Errors, new: &Value, old: &Value) {
    let path = FieldPath::from("status");
    let count = |status: &Value, key: &str| status[key].as_i64().unwrap_or(0);
    for key in ["succeeded", "failed"] {
        if count(new, key) < count(old, key) {
            errors.invalid(&path.child(key), count(new, key), format!("cannot decrease the {key} counter"));
        }
    }
    let holds = |status: &Value, kind: &str| {
        list(status, "conditions")
            .iter()
            .any(|one| text(one, "type") == kind && text(one, "status") == "True")
    };
    let (complete, failed) = (holds(new, "Complete"), holds(new, "Failed"));
    if !complete && !new["completionTime"].is_null() {
        let detail = "cannot set completionTime when there is no Complete=True condition";
        errors.invalid(&path.child("completionTime"), new["completionTime"].clone(), detail);
    }
    if complete && new["completionTime"].is_null() {
        errors.required(&path.child("completionTime"), "completionTime is required for Complete jobs");
    }
    let mut conditions = |detail: &str| {
        // Upstream shows no value here.
        errors.bare_invalid(&path.child("conditions"), detail);
    };
    if complete && !holds(new, "SuccessCriteriaMet") {
        conditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
    if failed && !holds(new, "FailureTarget") {
        conditions("cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if complete && failed {
        conditions("cannot set Complete=True and Failed=true conditions");
    }
    for kind in ["Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"] {
        if holds(old, kind) && !holds(new, kind) {
            conditions(&format!("cannot disable the terminal {kind}=True condition"));
        }
    }
    if complete || failed {
        if count(new, "active") > 0 {
            errors.invalid(
                &path.child("active"),
                count(new, "active"),
                "active>0 is invalid for finished job",
            );
        }
        let uncounted = &new["uncountedTerminatedPods"];
        let some = |key: &str| !list(uncounted, key).is_empty();
        if some("succeeded") || some("failed") {
            let names = |key: &str| GoValue::Plain(uncounted[key].clone());
            let shown = GoValue::fields([("Succeeded", names("succeeded")), ("Failed", names("failed"))]);
            let path = path.child("uncountedTerminatedPods");
            errors.push_shown(ErrorKind::Invalid, &path, &shown, "must be empty for finished job");
        }
    }
    if !old["startTime"].is_null()
        && !new["startTime"].is_null()
        && new["startTime"] != old["startTime"]
        && !holds(old, "Suspended")
    {
        errors.required(&path.child("startTime"), "startTime cannot be modified for unsuspended job");
    }
}
