use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::Kind;

/// What a request does to a resource, in RBAC's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Follow a collection.
    Watch,
    /// Create an object.
    Create,
    /// Replace an object.
    Update,
    /// Change parts of an object; apply is a patch too.
    Patch,
    /// Delete an object.
    Delete,
    /// Delete a collection.
    DeleteCollection,
    /// Grant in a role what one does not hold oneself.
    Escalate,
    /// Bind a role that grants more than one holds oneself.
    Bind,
    /// Act as somebody else.
    Impersonate,
}

impl Verb {
    /// As RBAC writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Escalate => "escalate",
            Self::Bind => "bind",
            Self::Impersonate => "impersonate",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A resource as RBAC names it: group and plural, with a sub-resource after a slash. `*` stands for all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// API group.
    pub group: String,
    /// `pods`, `pods/eviction`, `*`.
    pub resource: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Target {
    /// All objects of a kind.
    pub fn of(kind: &Kind) -> Self {
        Self { group: kind.group.clone(), resource: kind.plural.clone(), namespaced: kind.namespaced }
    }

    /// A sub-resource of a kind.
    pub fn sub(kind: &Kind, subresource: &str) -> Self {
        Self { resource: format!("{}/{subresource}", kind.plural), ..Self::of(kind) }
    }
}

/// Everything that a controller may do: implied by what it watches and owns, or named by `uses`. The
/// context refuses the rest, so that RBAC rules derived from this are complete by construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declarations(BTreeMap<Target, BTreeSet<Verb>>);

/// A request that the controller did not declare.
#[derive(Debug, thiserror::Error)]
#[error("controller {controller} did not declare {verb} on {resource}: add {} to it", self.remedy())]
pub struct Undeclared {
    pub(crate) controller: String,
    pub(crate) verb: Verb,
    pub(crate) resource: String,
    pub(crate) kind: String,
}

impl Undeclared {
    /// The declaration that is missing.
    fn remedy(&self) -> String {
        let (kind, verb) = (&self.kind, self.verb);
        match (self.resource.split_once('/'), verb) {
            (Some((_, subresource)), _) => {
                format!(".uses_subresource::<{kind}>(\"{subresource}\", &[Verb::{verb:?}])")
            }
            // An apply needs both.
            (None, Verb::Create | Verb::Patch) => format!(
                ".owns::<{kind}>() for children that it makes (or .uses::<{kind}>(&[Verb::Create, Verb::Patch]) for what is not its own)"
            ),
            (None, Verb::Get | Verb::List | Verb::Watch) => {
                format!(".owns::<{kind}>() or .watches::<{kind}>(…) (or .uses::<{kind}>(&[Verb::{verb:?}]))")
            }
            (None, _) => format!(".uses::<{kind}>(&[Verb::{verb:?}])"),
        }
    }
}

impl Declarations {
    /// Adds `verbs` on `target`.
    pub fn add(&mut self, target: Target, verbs: &[Verb]) {
        self.0.entry(target).or_default().extend(verbs);
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: &Declarations) {
        for (target, verbs) in &other.0 {
            self.0.entry(target.clone()).or_default().extend(verbs);
        }
    }

    /// Each resource with its verbs, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&Target, &BTreeSet<Verb>)> {
        self.0.iter()
    }

    /// The same, with `kind` outside namespaces.
    pub(crate) fn cluster_scoped(self, kind: &Kind) -> Self {
        let of_kind = |target: &Target| {
            let resource = target.resource.split('/').next().unwrap_or_default();
            target.group == kind.group && resource == kind.plural
        };
        Self(
            self.0
                .into_iter()
                .map(|(target, verbs)| {
                    let namespaced = target.namespaced && !of_kind(&target);
                    (Target { namespaced, ..target }, verbs)
                })
                .collect(),
        )
    }

    /// Whether `verb` on `kind`, or on its sub-resource, was declared.
    pub fn allow(&self, kind: &Kind, subresource: Option<&str>, verb: Verb) -> bool {
        // No text is made of it: each apply asks twice.
        let is_named = |resource: &str| match (subresource, resource.split_once('/')) {
            (Some(wanted), Some((plural, named))) => plural == kind.plural && named == wanted,
            (None, None) => resource == kind.plural,
            _ => false,
        };
        self.0.iter().any(|(target, verbs)| {
            let named = target.group == kind.group && is_named(&target.resource);
            let any = target.group == "*" && target.resource == "*";
            (named || any) && verbs.contains(&verb)
        })
    }
}
