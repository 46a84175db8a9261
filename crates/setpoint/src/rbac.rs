//! The RBAC rules of an operator, derived from what its controllers declare.
//!
//! A controller's own [`Rights`](crate::Rights) hold what its watches imply and what it `uses`; added here is what every
//! operator does. What was not declared is in no rule, and the context refuses it before the API server has to.

use setpoint_manifests as manifests;

use crate::{AnyController, Scope, Verb};

/// Everything that the operator of these `controllers` may do.
pub(crate) fn rights<'a>(controllers: impl IntoIterator<Item = &'a AnyController>) -> manifests::Rights {
    let mut rights = manifests::Rights::new();
    // Events are created, and patched when they repeat.
    rights.allow("events.k8s.io", "events", true, ["create", "patch"]);
    for controller in controllers {
        for (target, verbs) in controller.rights().iter() {
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

/// What it takes to be elected: the lease by its name, and its creation, which RBAC cannot restrict by name.
pub(crate) fn lease(name: &str) -> manifests::Rights {
    let (group, resource) = ("coordination.k8s.io", "leases");
    let mut rights = manifests::Rights::new();
    rights.allow(group, resource, true, ["create"]);
    for verb in ["get", "update", "watch"] {
        rights.insert(manifests::Rule {
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: Some(name.to_owned()),
            verb: verb.to_owned(),
            namespaced: true,
        });
    }
    rights
}

/// The operator's scope in the words of the manifests.
pub(crate) fn scope(scope: &Scope) -> manifests::Scope {
    match scope {
        Scope::All => manifests::Scope::All,
        Scope::Namespaces(names) => manifests::Scope::Namespaces(names.clone()),
    }
}
