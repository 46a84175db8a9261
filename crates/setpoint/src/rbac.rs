//! The RBAC rules of an operator, derived from what its controllers declare.
//!
//! A controller's own [`Declarations`](crate::Declarations) hold what its watches imply and what it `uses`; added here is what every
//! operator does. What was not declared is in no rule, and the context refuses it before the API server has to.

use crate::webhook::AnyVersions;
use crate::webhook::certificates::TargetKind;
use crate::{AnyController, Election, Rights, Rule, Verb};

/// Everything that the operator of these `controllers` may do.
pub(crate) fn rights<'a>(controllers: impl IntoIterator<Item = &'a AnyController>) -> Rights {
    let mut rights = Rights::new();
    // Events are created, and patched when they repeat.
    rights.allow("events.k8s.io", "events", true, ["create", "patch"]);
    for controller in controllers {
        for (target, verbs) in controller.declared().iter() {
            rights.allow(
                &target.group,
                &target.resource,
                target.namespaced,
                verbs.iter().copied().map(Verb::as_str),
            );
        }
    }
    rights
}

/// What it takes to be elected: the lock by its name, and its creation, which RBAC cannot restrict by name.
pub(crate) fn lock(election: &Election) -> Rights {
    let kind = election.lock.kind();
    let (group, resource) = (kind.group.as_str(), kind.plural.as_str());
    let mut rights = Rights::new();
    rights.allow(group, resource, true, ["create"]);
    named(&mut rights, (group, resource, true), &election.name, &["get", "update", "watch"]);
    rights
}

/// What it takes to have the API server trust the webhooks: each configuration and definition by its name.
pub(crate) fn webhooks(objects: &[(TargetKind, String)]) -> Rights {
    let mut rights = Rights::new();
    for (kind, name) in objects {
        let (group, resource) = kind.target();
        named(&mut rights, (group, resource, false), name, &["list", "watch", "patch"]);
    }
    rights
}

/// What it takes to have every object stored in the present version: all are read and patched, and the definition's
/// status says so.
pub(crate) fn migration(versions: &AnyVersions) -> Rights {
    let kind = versions.kind();
    let mut rights = Rights::new();
    rights.allow(&kind.group, &kind.plural, kind.namespaced, ["list", "patch"]);
    let (group, resource) = TargetKind::Definition.target();
    named(&mut rights, (group, resource, false), &versions.crd_name(), &["get"]);
    named(&mut rights, (group, &format!("{resource}/status"), false), &versions.crd_name(), &["patch"]);
    rights
}

/// What it takes to keep the webhooks' certificates in a Secret: its creation cannot be restricted by name.
pub(crate) fn certificates(secret: &str) -> Rights {
    let mut rights = Rights::new();
    rights.allow("", "secrets", true, ["create"]);
    named(&mut rights, ("", "secrets", true), secret, &["list", "watch", "update"]);
    rights
}

/// Adds `verbs` on the one object `name` of a resource.
fn named(rights: &mut Rights, (group, resource, namespaced): (&str, &str, bool), name: &str, verbs: &[&str]) {
    for verb in verbs {
        rights.insert(Rule {
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: Some(name.to_owned()),
            verb: (*verb).to_owned(),
            namespaced,
        });
    }
}
