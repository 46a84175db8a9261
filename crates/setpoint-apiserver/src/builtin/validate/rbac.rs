//! Roles and bindings.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{
    errors::{Errors, IMMUTABLE},
    selector,
};
use crate::{
    builtin::edit::{list, text},
    object_meta::NameRule,
};

const GROUP: &str = "rbac.authorization.k8s.io";

pub fn role(errors: &mut Errors, kind: &str, new: &Value) {
    for (index, rule) in list(new, "rules").iter().enumerate() {
        let path = FieldPath::from("rules").index(index);
        if list(rule, "verbs").is_empty() {
            errors.required(&path.child("verbs"), "");
        }
        let urls = list(rule, "nonResourceURLs");
        let (groups, resources) = (list(rule, "apiGroups"), list(rule, "resources"));
        if !urls.is_empty() {
            let path = path.child("nonResourceURLs");
            if kind == "Role" {
                errors.invalid(&path, urls, "namespaced rules cannot apply to non-resource URLs");
            } else if !(groups.is_empty() && resources.is_empty() && list(rule, "resourceNames").is_empty()) {
                errors.invalid(
                    &path,
                    urls,
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if groups.is_empty() {
            errors.required(&path.child("apiGroups"), "resource rules must supply at least one api group");
        }
        if resources.is_empty() {
            errors.required(&path.child("resources"), "resource rules must supply at least one resource");
        }
    }
    let aggregation = &new["aggregationRule"];
    if aggregation.is_object() {
        let path = FieldPath::from("aggregationRule.clusterRoleSelectors");
        let selectors = list(aggregation, "clusterRoleSelectors");
        if selectors.is_empty() {
            errors.required(&path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for (index, one) in selectors.iter().enumerate() {
            let before = errors.len();
            selector::check(errors, one, &path.index(index));
            if errors.len() > before {
                // Upstream shows no value here.
                errors.invalid(&path.index(index), Value::Null, "invalid label selector.");
            }
        }
    }
}

pub fn binding(errors: &mut Errors, kind: &str, new: &Value, old: Option<&Value>) {
    let (reference, path) = (&new["roleRef"], FieldPath::from("roleRef"));
    let group = text(reference, "apiGroup");
    if group != GROUP {
        errors.unsupported(&path.child("apiGroup"), group, &[GROUP]);
    }
    let kinds: &[&str] = if kind == "RoleBinding" { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&text(reference, "kind")) {
        errors.unsupported(&path.child("kind"), text(reference, "kind"), kinds);
    }
    if errors.present(reference, &path, "name") {
        errors.name(&path.child("name"), text(reference, "name"), NameRule::PathSegment);
    }
    for (index, subject) in list(new, "subjects").iter().enumerate() {
        let path = FieldPath::from("subjects").index(index);
        let name = text(subject, "name");
        let named = errors.present(subject, &path, "name");
        match text(subject, "kind") {
            "ServiceAccount" => {
                if named {
                    errors.name(&path.child("name"), name, NameRule::Subdomain);
                }
                let group = text(subject, "apiGroup");
                if !group.is_empty() {
                    errors.unsupported(&path.child("apiGroup"), group, &[""]);
                }
                if kind == "ClusterRoleBinding" {
                    errors.present(subject, &path, "namespace");
                }
            }
            "User" | "Group" => {
                let group = text(subject, "apiGroup");
                if group != GROUP {
                    errors.unsupported(&path.child("apiGroup"), group, &[GROUP]);
                }
            }
            other => errors.unsupported(&path.child("kind"), other, &["ServiceAccount", "User", "Group"]),
        }
    }
    if old.is_some_and(|old| old["roleRef"] != *reference) {
        errors.invalid(&path, reference.clone(), IMMUTABLE);
    }
}
