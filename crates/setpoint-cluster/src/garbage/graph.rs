//! Who owns whom, over all kinds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures::Stream;
use futures::channel::mpsc::{self, UnboundedSender};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use setpoint::{Cause, Key, Kind};

/// One object as the graph has it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) kind: Kind,
    pub(super) key: Key,
    pub(super) meta: Arc<ObjectMeta>,
}

/// All seen objects by UID, and for each owner's UID those that name it. Says to the controllers of the kinds
/// concerned when something happened to an owner or to a dependent.
#[derive(Default)]
pub(crate) struct Graph(Mutex<State>);

#[derive(Default)]
struct State {
    members: BTreeMap<String, Member>,
    uids: BTreeMap<(Kind, Key), String>,
    dependents: BTreeMap<String, BTreeSet<String>>,
    wakers: BTreeMap<Kind, UnboundedSender<(Key, Cause)>>,
    /// UIDs that the API server said are gone, the oldest first.
    absent: VecDeque<String>,
}

/// How many of them are remembered (upstream: the garbage collector's `absentOwnerCache`).
const ABSENT: usize = 500;

impl Graph {
    /// Remembers that there is no object of this UID: none will ever get it, so that its other dependents need not ask again.
    pub(super) fn note_absent(&self, uid: &str) {
        self.0.lock().note_absent(uid);
    }

    /// Whether it is known that there is no object of this UID.
    pub(super) fn is_absent(&self, uid: &str) -> bool {
        self.0.lock().absent.iter().any(|known| known == uid)
    }

    /// Whether an owner of this object has not been seen.
    pub(super) fn lacks_owner_of(&self, meta: &ObjectMeta) -> bool {
        let state = self.0.lock();
        owners(meta).iter().any(|owner| !state.members.contains_key(owner))
    }

    /// What is known of the object with this UID.
    pub(super) fn get(&self, uid: &str) -> Option<Arc<ObjectMeta>> {
        self.0.lock().members.get(uid).map(|member| Arc::clone(&member.meta))
    }

    /// Takes in an object as it is now, wakes those that its change concerns, and gives its dependents.
    pub(super) fn observe(&self, kind: &Kind, key: &Key, meta: &ObjectMeta) -> Vec<Member> {
        let mut state = self.0.lock();
        let uid = meta.uid.clone().unwrap_or_default();
        // An object that was made again under the same name has another UID: the old one is gone.
        if let Some(old) = state.uids.insert((kind.clone(), key.clone()), uid.clone())
            && old != uid
        {
            state.forget(&old);
        }
        let member = Member { kind: kind.clone(), key: key.clone(), meta: Arc::new(meta.clone()) };
        let before = state.members.insert(uid.clone(), member);
        let owners_before = before.as_ref().map(|member| owners(&member.meta)).unwrap_or_default();
        let owners_now = owners(meta);
        for lost in owners_before.difference(&owners_now) {
            if let Some(dependents) = state.dependents.get_mut(lost) {
                dependents.remove(&uid);
            }
            state.wake(lost, "a dependent no longer names it");
        }
        // An owner that is being deleted may have waited for the reference to let go.
        let blocked_before = before.as_ref().map(|member| blocked(&member.meta)).unwrap_or_default();
        for freed in blocked_before.difference(&blocked(meta)).filter(|owner| owners_now.contains(*owner)) {
            state.wake(freed, "a dependent no longer holds it up");
        }
        for owner in &owners_now {
            state.dependents.entry(owner.clone()).or_default().insert(uid.clone());
        }
        let was_deleting = before.is_some_and(|member| member.meta.deletion_timestamp.is_some());
        if meta.deletion_timestamp.is_some() && !was_deleting {
            state.wake_dependents(&uid, "its owner is being deleted");
        }
        let dependents = state.dependents.get(&uid).into_iter().flatten();
        dependents.filter_map(|dependent| state.members.get(dependent).cloned()).collect()
    }

    /// Takes out an object that is gone, and wakes its owners and dependents.
    pub(super) fn remove(&self, kind: &Kind, key: &Key) {
        let mut state = self.0.lock();
        if let Some(uid) = state.uids.remove(&(kind.clone(), key.clone())) {
            // Its dependents need not ask, and could not if its kind is gone, too.
            if state.dependents.contains_key(&uid) {
                state.note_absent(&uid);
            }
            state.forget(&uid);
        }
    }

    /// Forgets what was seen in other versions of `kind`, which nobody watches any more.
    pub(super) fn leave_other_versions(&self, kind: &Kind) {
        let mut state = self.0.lock();
        let other = |known: &Kind| {
            known.group == kind.group && known.plural == kind.plural && known.version != kind.version
        };
        state.wakers.retain(|known, _| !other(known));
        let (old, kept) =
            std::mem::take(&mut state.uids).into_iter().partition(|((known, _), _)| other(known));
        state.uids = kept;
        let old: BTreeMap<(Kind, Key), String> = old;
        for uid in old.values() {
            state.forget(uid);
        }
    }

    /// The keys of `kind` to look at again. A later call ends the earlier stream.
    pub(super) fn wakeups(&self, kind: &Kind) -> impl Stream<Item = (Key, Cause)> + Send + use<> {
        let (sender, receiver) = mpsc::unbounded();
        self.0.lock().wakers.insert(kind.clone(), sender);
        receiver
    }
}

impl State {
    fn note_absent(&mut self, uid: &str) {
        if self.absent.iter().any(|known| known == uid) {
            return;
        }
        if self.absent.len() == ABSENT {
            self.absent.pop_front();
        }
        self.absent.push_back(uid.to_owned());
    }

    fn forget(&mut self, uid: &str) {
        let Some(member) = self.members.remove(uid) else { return };
        for owner in owners(&member.meta) {
            if let Some(dependents) = self.dependents.get_mut(&owner) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
            self.wake(&owner, "a dependent is gone");
        }
        self.wake_dependents(uid, "its owner is gone");
    }

    fn wake_dependents(&self, owner: &str, why: &str) {
        for dependent in self.dependents.get(owner).into_iter().flatten() {
            self.wake(dependent, why);
        }
    }

    fn wake(&self, uid: &str, why: &str) {
        if let Some(member) = self.members.get(uid)
            && let Some(waker) = self.wakers.get(&member.kind)
        {
            // A closed receiver is a controller that has stopped: nobody is left to tell.
            drop(waker.unbounded_send((member.key.clone(), Cause::source(why))));
        }
    }
}

/// The owners whose deletion in the foreground waits for this object.
fn blocked(meta: &ObjectMeta) -> BTreeSet<String> {
    let references = meta.owner_references.iter().flatten();
    let blocking = references.filter(|reference| reference.block_owner_deletion == Some(true));
    blocking.map(|reference| reference.uid.clone()).collect()
}

fn owners(meta: &ObjectMeta) -> BTreeSet<String> {
    meta.owner_references.iter().flatten().map(|reference| reference.uid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use serde_json::json;
    use setpoint::k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn meta(uid: &str, owners: &[&str]) -> ObjectMeta {
        let references: Vec<_> = owners
            .iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid}))
            .collect();
        serde_json::from_value(json!({"name": uid, "uid": uid, "ownerReferences": references})).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::new("shop", name)
    }

    #[tokio::test]
    async fn dependents_are_woken_when_their_owner_goes() {
        let graph = Graph::default();
        let kind = Kind::of::<ConfigMap>();
        let mut woken = Box::pin(graph.wakeups(&kind));
        // The dependent may be seen before its owner.
        graph.observe(&kind, &key("child"), &meta("child", &["owner"]));
        let dependents = graph.observe(&kind, &key("owner"), &meta("owner", &[]));
        assert_eq!(dependents.iter().map(|member| member.key.name.as_str()).collect::<Vec<_>>(), ["child"]);
        graph.remove(&kind, &key("owner"));
        let (woken_key, _) = woken.next().await.unwrap();
        assert_eq!(woken_key, key("child"));
        assert!(graph.get("owner").is_none());
    }

    #[test]
    fn the_newest_absent_owners_are_remembered() {
        let graph = Graph::default();
        for n in 0..=ABSENT {
            graph.note_absent(&n.to_string());
            graph.note_absent(&n.to_string());
        }
        assert!(!graph.is_absent("0") && graph.is_absent("1") && graph.is_absent(&ABSENT.to_string()));
    }

    #[test]
    fn an_object_made_again_is_another_one() {
        let graph = Graph::default();
        let kind = Kind::of::<ConfigMap>();
        graph.observe(&kind, &key("a"), &meta("first", &[]));
        graph.observe(&kind, &key("a"), &meta("second", &[]));
        assert!(graph.get("first").is_none() && graph.get("second").is_some());
    }

    #[tokio::test]
    async fn an_owner_is_woken_when_its_last_dependent_goes() {
        let graph = Graph::default();
        let kind = Kind::of::<ConfigMap>();
        let mut woken = Box::pin(graph.wakeups(&kind));
        graph.observe(&kind, &key("owner"), &meta("owner", &[]));
        graph.observe(&kind, &key("child"), &meta("child", &["owner"]));
        graph.remove(&kind, &key("child"));
        let (woken_key, _) = woken.next().await.unwrap();
        assert_eq!(woken_key, key("owner"));
        assert!(graph.observe(&kind, &key("owner"), &meta("owner", &[])).is_empty());
    }
}
