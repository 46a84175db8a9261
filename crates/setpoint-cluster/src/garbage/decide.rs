//! What garbage collection does with one object, as a pure function of the object, its owners and its
//! dependents. The rules are those of upstream's garbage collector (`pkg/controller/garbagecollector`).

use setpoint::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Deleting waits until the dependents that block it are gone.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Deleting waits until the dependents no longer name this owner.
pub(super) const ORPHAN: &str = "orphan";

/// What is known of the owner that a reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It exists, under the UID of the reference.
    Solid,
    /// It exists and is being deleted in the foreground: it waits for its dependents.
    WaitingForDependents,
    /// A live read found no object of that name, or one with another UID.
    Absent,
}

/// How the dependents of a deleted object fare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This object stays as it is.
    Keep,
    /// Delete this object, which no owner needs any more.
    Delete(Propagation),
    /// Some owners are gone, others stay: drop the references with these UIDs.
    DropOwners(Vec<String>),
    /// This object and its owners wait for one another: let its references no longer hold up their owners' deletion.
    Unblock,
    /// Drop the reference to this object from each of its dependents.
    OrphanDependents,
    /// The dependents that this deletion waits for are there: look at each of them.
    AwaitDependents,
    /// What the finalizer waited for has happened.
    RemoveFinalizer(&'static str),
}

/// Decides about the object with `meta`. `owners` has an answer for each of its owner references, in their
/// order; `dependents` are the objects that name it as an owner.
pub(super) fn decide(meta: &ObjectMeta, owners: &[Owner], dependents: &[&ObjectMeta]) -> Step {
    if meta.deletion_timestamp.is_some() {
        return decide_deleting(meta, dependents);
    }
    let references = meta.owner_references.as_deref().unwrap_or_default();
    if references.is_empty() {
        return Step::Keep;
    }
    let solid = owners.contains(&Owner::Solid);
    let waiting = owners.contains(&Owner::WaitingForDependents);
    let useless: Vec<_> = references
        .iter()
        .zip(owners)
        .filter(|(_, owner)| **owner != Owner::Solid)
        .map(|(reference, _)| reference.uid.clone())
        .collect();
    if solid {
        return if useless.is_empty() { Step::Keep } else { Step::DropOwners(useless) };
    }
    // An owner waits for this one: what depends on this one has to go first, too.
    if waiting && !dependents.is_empty() {
        // A dependent that itself is being deleted this way may be an owner of this one's owners: a circle, which one
        // of its members has to open (upstream does so on the same suspicion).
        let circle = dependents.iter().any(|dependent| waits_for_dependents(dependent));
        let blocking = references.iter().any(|reference| reference.block_owner_deletion == Some(true));
        return if circle && blocking { Step::Unblock } else { Step::Delete(Propagation::Foreground) };
    }
    Step::Delete(propagation(meta))
}

fn decide_deleting(meta: &ObjectMeta, dependents: &[&ObjectMeta]) -> Step {
    if has_finalizer(meta, ORPHAN) {
        return if dependents.is_empty() { Step::RemoveFinalizer(ORPHAN) } else { Step::OrphanDependents };
    }
    if has_finalizer(meta, FOREGROUND) {
        let uid = meta.uid.as_deref().unwrap_or_default();
        // What owns itself does not wait for itself.
        let blocked = dependents
            .iter()
            .any(|dependent| blocks(dependent, uid) && dependent.uid.as_deref() != Some(uid));
        return if blocked { Step::AwaitDependents } else { Step::RemoveFinalizer(FOREGROUND) };
    }
    Step::Keep
}

/// The policy that the object's own finalizers ask for; in the background by default.
fn propagation(meta: &ObjectMeta) -> Propagation {
    if has_finalizer(meta, ORPHAN) {
        Propagation::Orphan
    } else if has_finalizer(meta, FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    }
}

/// Whether an object is being deleted in the foreground.
pub(super) fn waits_for_dependents(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some() && has_finalizer(meta, FOREGROUND)
}

fn blocks(dependent: &ObjectMeta, owner: &str) -> bool {
    owner_reference(dependent, owner).is_some_and(|reference| reference.block_owner_deletion == Some(true))
}

/// The reference by which `dependent` names the owner with UID `owner`.
pub(super) fn owner_reference<'a>(dependent: &'a ObjectMeta, owner: &str) -> Option<&'a OwnerReference> {
    dependent.owner_references.iter().flatten().find(|reference| reference.uid == owner)
}

fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|name| name == finalizer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meta(value: serde_json::Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn owned_by(owners: &[&str]) -> ObjectMeta {
        let references: Vec<_> = owners
            .iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid, "blockOwnerDeletion": true}))
            .collect();
        meta(json!({"name": "child", "uid": "child", "ownerReferences": references}))
    }

    #[test]
    fn an_object_goes_with_its_last_owner() {
        use Owner::{Absent, Solid, WaitingForDependents};
        let one = owned_by(&["a"]);
        let two = owned_by(&["a", "b"]);
        let leaf = owned_by(&["child"]);
        let dependents = [&leaf];
        let cases: Vec<(&ObjectMeta, Vec<Owner>, &[&ObjectMeta], Step)> = vec![
            (&one, vec![Solid], &[], Step::Keep),
            (&one, vec![Absent], &[], Step::Delete(Propagation::Background)),
            (&one, vec![WaitingForDependents], &[], Step::Delete(Propagation::Background)),
            (&one, vec![WaitingForDependents], &dependents, Step::Delete(Propagation::Foreground)),
            (&two, vec![Solid, Absent], &[], Step::DropOwners(vec!["b".to_owned()])),
            (&two, vec![WaitingForDependents, Solid], &[], Step::DropOwners(vec!["a".to_owned()])),
            (&two, vec![Absent, Absent], &[], Step::Delete(Propagation::Background)),
            (&two, vec![Absent, WaitingForDependents], &[], Step::Delete(Propagation::Background)),
        ];
        for (object, owners, dependents, step) in cases {
            assert_eq!(decide(object, &owners, dependents), step, "{owners:?}");
        }
    }

    #[test]
    fn an_object_without_owners_is_never_collected() {
        assert_eq!(decide(&meta(json!({"name": "a", "uid": "a"})), &[], &[]), Step::Keep);
    }

    #[test]
    fn foreground_deletion_waits_for_what_blocks_it() {
        let owner = meta(
            json!({"uid": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FOREGROUND]}),
        );
        let blocking = owned_by(&["a"]);
        let mut free = owned_by(&["a"]);
        free.owner_references.as_mut().unwrap()[0].block_owner_deletion = None;
        assert_eq!(decide(&owner, &[], &[&free, &blocking]), Step::AwaitDependents);
        assert_eq!(decide(&owner, &[], &[&free]), Step::RemoveFinalizer(FOREGROUND));
    }

    #[test]
    fn a_circle_of_owners_is_opened_once() {
        let mut child = owned_by(&["a"]);
        let deleting =
            json!({"uid": "b", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FOREGROUND]});
        let waiting = [Owner::WaitingForDependents];
        assert_eq!(decide(&child, &waiting, &[&meta(deleting.clone())]), Step::Unblock);
        child.owner_references.as_mut().unwrap()[0].block_owner_deletion = Some(false);
        let step = Step::Delete(Propagation::Foreground);
        assert_eq!(decide(&child, &waiting, &[&meta(deleting)]), step);
    }

    #[test]
    fn what_owns_itself_does_not_wait_for_itself() {
        let mut own = owned_by(&["child"]);
        own.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        own.finalizers = Some(vec![FOREGROUND.to_owned()]);
        assert_eq!(decide(&own, &[], &[&own]), Step::RemoveFinalizer(FOREGROUND));
    }

    #[test]
    fn orphaning_lets_the_dependents_go_first() {
        let owner =
            meta(json!({"uid": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [ORPHAN]}));
        let child = owned_by(&["a"]);
        assert_eq!(decide(&owner, &[], &[&child]), Step::OrphanDependents);
        assert_eq!(decide(&owner, &[], &[]), Step::RemoveFinalizer(ORPHAN));
    }

    #[test]
    fn a_deletion_that_others_finalize_is_left_alone() {
        let owner = meta(
            json!({"uid": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/f"]}),
        );
        assert_eq!(decide(&owner, &[], &[&owned_by(&["a"])]), Step::Keep);
    }
}
