use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::{Identity, Passwords, Scripts, TEMPLATE_HASH};
use crate::api::Storage;
use crate::settings::Settings;

/// One way to make what pods are made of and what they read. A build of the operator that makes any byte of it
/// otherwise does so in a new revision and keeps the older ones, so that its own upgrade restarts no server.
pub trait Revision: Send + Sync + 'static {
    /// Its number; a later one is higher.
    fn number(&self) -> i32;

    /// The pods' scripts.
    fn scripts(&self, identity: &Identity) -> Scripts {
        super::scripts(identity)
    }

    /// The servers' configuration, with so many bytes of memory for data.
    fn config_map(&self, identity: &Identity, settings: &Settings, maxmemory: u64) -> ConfigMap {
        super::config_map(identity, settings, maxmemory)
    }

    /// The servers' users and passwords.
    fn system_secret(&self, identity: &Identity, passwords: &Passwords) -> Secret {
        super::system_secret(identity, passwords)
    }

    /// The StatefulSet with so many replicas.
    fn stateful_set(
        &self,
        identity: &Identity,
        settings: &Settings,
        storage: Option<&Storage>,
        replicas: u32,
    ) -> StatefulSet {
        super::stateful_set(identity, settings, storage, &self.scripts(identity), replicas)
    }
}

/// The revision that this module's functions are.
#[derive(Clone, Copy, Debug, Default)]
pub struct First;

impl Revision for First {
    fn number(&self) -> i32 {
        1
    }
}

/// The revisions that this build of the operator knows, oldest first.
#[derive(Clone)]
pub struct Revisions(Vec<Arc<dyn Revision>>);

/// A cluster was last rendered by a build that this one knows nothing of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this cluster's servers were made by a newer operator (revision {pinned}, this one knows {known}): they are kept alive, but nothing of them is changed; run that operator again"
)]
pub struct UnknownRevision {
    pinned: i32,
    known: String,
}

impl Default for Revisions {
    fn default() -> Self {
        Self::of(First, [])
    }
}

impl Revisions {
    /// `oldest` and those after it.
    pub fn of(oldest: impl Revision, later: impl IntoIterator<Item = Arc<dyn Revision>>) -> Self {
        Self(std::iter::once(Arc::new(oldest) as Arc<dyn Revision>).chain(later).collect())
    }

    /// The revision by which a cluster is to be rendered whose status says `pinned`. `made` are the template hashes of
    /// its pods and its StatefulSet, and `hash` is the one that a revision would give them now.
    ///
    /// The pinned revision stays as long as any of them is as it would make it. Where none is, the user's change
    /// replaces all pods anyway and they get the newest, or the revision that they were made by before a change that
    /// was taken back. `newest`: the user wants the newest in any case.
    ///
    /// # Errors
    /// If the pinned revision is unknown.
    pub fn choose(
        &self,
        pinned: Option<i32>,
        made: &BTreeSet<String>,
        newest: bool,
        hash: impl Fn(&dyn Revision) -> String,
    ) -> Result<&Arc<dyn Revision>, UnknownRevision> {
        let find = |number: i32| self.0.iter().find(|revision| revision.number() == number);
        let pinned = match pinned {
            None => None,
            Some(number) => Some(find(number).ok_or_else(|| UnknownRevision {
                pinned: number,
                known: self.0.iter().map(|known| known.number().to_string()).collect::<Vec<_>>().join(", "),
            })?),
        };
        let last = &self.0[self.0.len() - 1];
        if newest {
            return Ok(last);
        }
        if made.is_empty() {
            return Ok(pinned.unwrap_or(last));
        }
        let fits = |revision: &&Arc<dyn Revision>| made.contains(&hash(&***revision));
        Ok(pinned.into_iter().chain(self.0.iter().rev()).find(fits).unwrap_or(last))
    }

    /// The newest.
    pub fn newest(&self) -> &Arc<dyn Revision> {
        &self.0[self.0.len() - 1]
    }
}

/// The hash of the pod template in `set`, as its annotation says.
pub fn template_hash(set: &StatefulSet) -> String {
    let annotations = set.spec.template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    annotations.and_then(|all| all.get(TEMPLATE_HASH)).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbered(i32);

    impl Revision for Numbered {
        fn number(&self) -> i32 {
            self.0
        }
    }

    fn known() -> Revisions {
        Revisions::of(Numbered(1), [Arc::new(Numbered(2)) as Arc<dyn Revision>, Arc::new(Numbered(3))])
    }

    /// The number of the chosen revision, where a template's hash is its spec and the revision's number.
    fn chosen(pinned: Option<i32>, made: &[&str], spec: &str) -> Result<i32, UnknownRevision> {
        let made = made.iter().map(|hash| (*hash).to_owned()).collect();
        known()
            .choose(pinned, &made, false, |revision| format!("{spec}{}", revision.number()))
            .map(|revision| revision.number())
    }

    #[test]
    fn pods_keep_the_revision_that_they_were_made_by() {
        for (pinned, made, spec, wanted, why) in [
            (None, &[][..], "a", 3, "a new cluster gets the newest"),
            (Some(1), &[], "a", 1, "no pod at this moment"),
            (Some(1), &["a1"], "a", 1, "a new operator, nothing else"),
            (Some(1), &["a1"], "b", 3, "the user's change replaces all pods"),
            (Some(3), &["a1", "b3"], "b", 3, "in the middle of that"),
            (Some(3), &["a1", "b3"], "a", 1, "the change was taken back"),
            (Some(3), &["b3"], "a", 3, "taken back when all were replaced"),
            (None, &["a2"], "a", 2, "the status was lost"),
            (Some(2), &["a1", "a2", "a3"], "a", 2, "the pinned one first"),
            (Some(1), &["", "a1"], "a", 1, "somebody took an annotation off a pod"),
        ] {
            assert_eq!(chosen(pinned, made, spec), Ok(wanted), "{why}");
        }
    }

    #[test]
    fn the_newest_on_request_and_never_an_unknown_one() {
        let made = BTreeSet::from(["a1".to_owned()]);
        let hash = |revision: &dyn Revision| format!("a{}", revision.number());
        assert_eq!(known().choose(Some(1), &made, true, hash).unwrap().number(), 3);
        for newest in [false, true] {
            let error = known().choose(Some(9), &made, newest, hash).err().unwrap();
            assert!(error.to_string().contains("revision 9, this one knows 1, 2, 3"), "{error}");
        }
    }
}
