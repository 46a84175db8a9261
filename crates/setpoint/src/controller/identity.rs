use std::any::TypeId;
use std::fmt;
use std::sync::{Arc, Weak};

use super::inbox::Inbox;
use crate::background::{Wake, Works};
use crate::cache::{AnyCache, Cache, Origin};
use crate::{Declarations, Key, Kind, Object, Undeclared, Verb};

/// Who a controller is, as its contexts know it: name, rights, and the caches that it declared.
pub(crate) struct Identity {
    pub(crate) name: Arc<str>,
    pub(crate) field_manager: String,
    pub(crate) declared: Declarations,
    pub(crate) caches: Vec<Declared>,
    pub(crate) has_finalizer: bool,
    /// What its objects have running in the background, and how that says that it has ended.
    pub(crate) works: Arc<Works>,
    pub(crate) wake: Wake,
    /// Its queue, if it has one.
    pub(crate) inbox: Weak<Inbox>,
}

/// A cache that a controller declared.
#[derive(Clone)]
pub(crate) struct Declared {
    representation: TypeId,
    kind: Kind,
    cache: Arc<dyn AnyCache>,
}

impl Declared {
    pub(crate) fn new<K: Object>(cache: &Arc<Cache<K>>) -> Self {
        Self {
            representation: TypeId::of::<K>(),
            kind: cache.kind().clone(),
            cache: Arc::clone(cache) as Arc<dyn AnyCache>,
        }
    }

    pub(crate) fn cache(&self) -> Arc<dyn AnyCache> {
        Arc::clone(&self.cache)
    }
}

/// The first declared cache of `K`, in the representation that `K` is.
pub(crate) fn find<K: Object>(caches: &[Declared], kind: &Kind) -> Option<Arc<Cache<K>>> {
    let declared = caches
        .iter()
        .find(|declared| declared.representation == TypeId::of::<K>() && declared.kind.same_resource(kind))?;
    declared.cache().any().downcast().ok()
}

impl Identity {
    /// The cache of `K`, if it was declared.
    pub(crate) fn cache<K: Object>(&self, kind: &Kind) -> Option<Arc<Cache<K>>> {
        find(&self.caches, kind)
    }

    /// All declared caches of a kind, in whatever representation.
    pub(crate) fn caches_of<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = Arc<dyn AnyCache>> + 'a {
        let of_kind = self.caches.iter().filter(|declared| declared.kind.same_resource(kind));
        of_kind.map(Declared::cache)
    }

    /// Refuses what was not declared.
    pub(crate) fn check(&self, kind: &Kind, subresource: Option<&str>, verb: Verb) -> Result<(), Undeclared> {
        if self.declared.allow(kind, subresource, verb) {
            return Ok(());
        }
        let resource = match subresource {
            Some(subresource) => format!("{}/{subresource}", kind.plural),
            None => kind.plural.clone(),
        };
        Err(Undeclared { controller: self.name.to_string(), verb, resource, kind: kind.kind.clone() })
    }

    /// The running reconcile of `owner` has made this version of an object.
    pub(crate) fn made(&self, owner: &Key, object: (&Kind, &Key), version: u64) {
        if let Some(inbox) = self.inbox.upgrade() {
            inbox.made(owner, object, version);
        }
    }

    /// Marks writes of the reconcile of `key`.
    pub(crate) fn origin(&self, key: &Key) -> Origin {
        Origin::Own { controller: Arc::clone(&self.name), key: key.clone() }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.name).finish_non_exhaustive()
    }
}
