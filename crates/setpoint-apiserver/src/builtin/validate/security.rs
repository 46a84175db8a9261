//! Security contexts of pods and containers.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::builtin::edit::{list, text};
use crate::object_meta::NameRule;

const SYSCTL: &str = r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// Checks the security context of a pod.
pub fn pod(errors: &mut Errors, context: &Value, path: &FieldPath) {
    common(errors, context, path);
    errors.in_range(context, path, "fsGroup", 0, i64::from(i32::MAX));
    for (index, group) in list(context, "supplementalGroups").iter().enumerate() {
        if let Some(group) = group.as_i64().filter(|group| !(0..=i64::from(i32::MAX)).contains(group)) {
            let path = path.child("supplementalGroups").index(index);
            errors.invalid(&path, group, format!("must be between 0 and {}, inclusive", i32::MAX));
        }
    }
    errors.one_of(context, path, "fsGroupChangePolicy", &["Always", "OnRootMismatch"]);
    errors.one_of(context, path, "seLinuxChangePolicy", &["MountOption", "Recursive"]);
    errors.one_of(context, path, "supplementalGroupsPolicy", &["Merge", "Strict"]);
    let mut names = std::collections::BTreeSet::new();
    for (index, sysctl) in list(context, "sysctls").iter().enumerate() {
        let (name, path) = (text(sysctl, "name"), path.child("sysctls").index(index));
        if !errors.present(sysctl, &path, "name") {
            continue;
        }
        if name.len() > 253 || !is_sysctl(name) {
            errors.invalid(&path.child("name"), name, SYSCTL);
        }
        if !names.insert(name.replace('/', ".")) {
            errors.duplicate(&path.child("name"), name);
        }
    }
}

/// Checks the security context of a container.
pub fn container(errors: &mut Errors, context: &Value, path: &FieldPath) {
    common(errors, context, path);
    errors.one_of(context, path, "procMount", &["Default", "Unmasked"]);
    if context["allowPrivilegeEscalation"] != false {
        return;
    }
    if context["privileged"] == true {
        let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.invalid(path, context.clone(), detail);
    }
    // Under the name that Docker gives it, as upstream has it.
    if list(&context["capabilities"], "add").iter().any(|one| one == "CAP_SYS_ADMIN") {
        let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
        errors.invalid(path, context.clone(), detail);
    }
}

fn common(errors: &mut Errors, context: &Value, path: &FieldPath) {
    for key in ["runAsUser", "runAsGroup"] {
        errors.in_range(context, path, key, 0, i64::from(i32::MAX));
    }
    profile(errors, context, path, "seccompProfile", "seccomp");
    profile(errors, context, path, "appArmorProfile", "AppArmor");
    if let Some(name) = context["windowsOptions"]["gmsaCredentialSpecName"].as_str() {
        errors.name(&path.child("windowsOptions.gmsaCredentialSpecName"), name, NameRule::Subdomain);
    }
}

/// A profile of `seccomp` or `AppArmor`: a file on the node is named where one is used.
fn profile(errors: &mut Errors, context: &Value, path: &FieldPath, key: &str, what: &str) {
    let (profile, path) = (&context[key], path.child(key));
    if profile.is_null() {
        return;
    }
    let (kind, file) = (text(profile, "type"), profile["localhostProfile"].as_str());
    let at = path.child("localhostProfile");
    let seccomp = what == "seccomp";
    match kind {
        "Localhost" if file.is_none_or(|file| !seccomp && file.trim().is_empty()) => {
            errors.required(&at, &format!("must be set when {what} type is Localhost"));
        }
        "Localhost" => {}
        // As upstream, which shows more in one of the two, whatever else is wrong.
        _ if seccomp && file.is_some() => {
            errors.invalid_at(&at, &path, profile, "can only be set when seccomp type is Localhost");
        }
        "RuntimeDefault" | "Unconfined" => {
            if let Some(file) = file {
                errors.invalid(&at, file, "can only be set when AppArmor type is Localhost");
            }
        }
        _ => {}
    }
    match kind {
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => errors.required(&path.child("type"), &format!("type is required when {key} is set")),
        other => {
            errors.unsupported(&path.child("type"), other, &["Localhost", "RuntimeDefault", "Unconfined"]);
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.split(['.', '/']).all(|part| {
        let bytes = part.as_bytes();
        matches!((bytes.first(), bytes.last()), (Some(&a), Some(&b)) if edge(a) && edge(b))
            && bytes.iter().all(|&c| edge(c) || b"-_".contains(&c))
    })
}
