use std::future::IntoFuture;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::Value;

use super::{Access, Resource};
use crate::{Error, Key, Kind, Object, ObjectRef, Result};

/// An apply that is refused before anything is sent.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The object exists and belongs to somebody else.
    #[error("{object} exists and is not ours{owner}: delete it, or apply with .adopt()")]
    NotOurs {
        /// The object.
        object: ObjectRef,
        /// Who controls it, as text to append.
        owner: String,
    },
    /// The object is being deleted: what is applied now would go with it.
    #[error("{0} is being deleted: apply it again when it is gone")]
    BeingDeleted(ObjectRef),
    /// Garbage collection would delete a child whose owner is in another namespace.
    #[error(
        "{child} cannot be owned by {owner}: an owner must be in the namespace of its child, or cluster-scoped"
    )]
    ForeignNamespace {
        /// The child.
        child: ObjectRef,
        /// The owner.
        owner: ObjectRef,
    },
    /// An object without a name.
    #[error("cannot apply a {0} without a name")]
    NoName(Kind),
    /// An object that would own itself.
    #[error("{0} cannot own itself")]
    OwnsItself(ObjectRef),
}

/// A server-side apply; `.await` it. Made by [`crate::Context::apply`].
#[must_use = "an apply does nothing unless awaited"]
#[derive(Debug)]
pub struct Apply<'a, K> {
    access: &'a Access,
    kind: Kind,
    object: K,
    adopt: bool,
    owned: bool,
    if_unchanged: bool,
}

impl<'a, K: Object> Resource<'a, K> {
    /// As [`crate::Context::apply`].
    pub fn apply(&self, object: K) -> Apply<'a, K> {
        Apply {
            access: self.access,
            kind: self.kind.clone(),
            object,
            adopt: false,
            owned: true,
            if_unchanged: false,
        }
    }
}

impl<K> Apply<'_, K> {
    /// Takes over an object that exists and is not ours, unless another controller owns it.
    pub fn adopt(mut self) -> Self {
        self.adopt = true;
        self
    }

    /// Adds no owner reference: the object outlives the reconciled one.
    pub fn unowned(mut self) -> Self {
        self.owned = false;
        self
    }

    /// Only if the object is still as the cache has it: its resource version is a precondition.
    pub fn if_unchanged(mut self) -> Self {
        self.if_unchanged = true;
        self
    }
}

impl<'a, K: Object> IntoFuture for Apply<'a, K> {
    type Output = Result<Arc<K>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let _ =
                (self.access, self.kind, Key::of(&self.object), self.adopt, self.owned, self.if_unchanged);
            Err(Error::msg("apply is not there yet"))
        }
        .boxed()
    }
}

impl Access {
    #[expect(clippy::unused_async, reason = "first landing: the shape")]
    pub(crate) async fn apply_status<O: Object>(&self, _status: Value, _object: &Arc<O>) -> Result<Arc<O>> {
        Err(Error::msg("status is not there yet"))
    }
}
