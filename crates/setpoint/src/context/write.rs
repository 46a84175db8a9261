use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{Access, Resource};
use crate::{Error, Key, Kind, Object, Result};

/// A write that got no usable answer.
#[derive(Debug, thiserror::Error)]
#[error("{what} got an unusable answer: {problem}")]
pub struct WriteFailed {
    pub(crate) what: String,
    pub(crate) problem: String,
}

/// What a patch says.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// JSON merge patch (RFC 7396).
    Merge(Value),
    /// JSON patch (RFC 6902): a list of operations.
    Json(Value),
    /// Strategic merge patch; built-in kinds only.
    Strategic(Value),
}

impl Patch {
    /// Sets a label, or removes it.
    pub fn label(name: &str, value: Option<&str>) -> Self {
        Self::Merge(serde_json::json!({ "metadata": { "labels": { name: value } } }))
    }

    /// Sets an annotation, or removes it.
    pub fn annotation(name: &str, value: Option<&str>) -> Self {
        Self::Merge(serde_json::json!({ "metadata": { "annotations": { name: value } } }))
    }
}

/// What happens to the children of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// A creation; `.await` it. Made by [`crate::Context::create`].
#[must_use = "a creation does nothing unless awaited"]
#[derive(Debug)]
pub struct Create<'a, K> {
    access: &'a Access,
    kind: Kind,
    object: K,
    owned: bool,
}

/// A replacement; `.await` it. Made by [`crate::Context::replace`].
#[must_use = "a replacement does nothing unless awaited"]
#[derive(Debug)]
pub struct Replace<'a, K> {
    access: &'a Access,
    kind: Kind,
    object: K,
    subresource: Option<String>,
}

/// A patch; `.await` it. Made by [`crate::Context::patch`].
#[must_use = "a patch does nothing unless awaited"]
#[derive(Debug)]
pub struct Patching<'a, K> {
    access: &'a Access,
    kind: Kind,
    key: Key,
    patch: Patch,
    subresource: Option<String>,
    of: PhantomData<fn() -> K>,
}

/// A deletion; `.await` it. Made by [`crate::Context::delete`].
#[must_use = "a deletion does nothing unless awaited"]
#[derive(Debug)]
pub struct Delete<'a, K> {
    access: &'a Access,
    kind: Kind,
    key: Key,
    uid: Option<String>,
    version: Option<String>,
    grace: Option<Duration>,
    propagation: Option<Propagation>,
    of: PhantomData<fn() -> K>,
}

impl<'a, K: Object> Resource<'a, K> {
    /// As [`crate::Context::create`].
    pub fn create(&self, object: K) -> Create<'a, K> {
        Create { access: self.access, kind: self.kind.clone(), object, owned: true }
    }

    /// As [`crate::Context::replace`].
    pub fn replace(&self, object: K) -> Replace<'a, K> {
        Replace { access: self.access, kind: self.kind.clone(), object, subresource: None }
    }

    /// As [`crate::Context::patch`].
    pub fn patch(&self, key: impl Into<Key>, patch: Patch) -> Patching<'a, K> {
        Patching {
            access: self.access,
            kind: self.kind.clone(),
            key: self.access.resolve(&self.kind, key.into()),
            patch,
            subresource: None,
            of: PhantomData,
        }
    }

    /// As [`crate::Context::delete`].
    pub fn delete(&self, object: &K) -> Delete<'a, K> {
        Delete {
            access: self.access,
            kind: self.kind.clone(),
            key: self.access.resolve(&self.kind, Key::of(object)),
            uid: object.meta().uid.clone(),
            version: object.meta().resource_version.clone(),
            grace: None,
            propagation: None,
            of: PhantomData,
        }
        .forget_version()
    }

    /// As [`crate::Context::scale`].
    pub async fn scale(&self, key: impl Into<Key>, replicas: i32) -> Result<()> {
        let _ = (key.into(), replicas);
        Err(Error::msg("scale is not there yet"))
    }
}

impl<K> Create<'_, K> {
    /// Adds no owner reference.
    pub fn unowned(mut self) -> Self {
        self.owned = false;
        self
    }
}

impl<K> Replace<'_, K> {
    /// Replaces a sub-resource, such as `status`.
    pub fn subresource(mut self, name: &str) -> Self {
        self.subresource = Some(name.to_owned());
        self
    }
}

impl<K> Patching<'_, K> {
    /// Patches a sub-resource, such as `status`.
    pub fn subresource(mut self, name: &str) -> Self {
        self.subresource = Some(name.to_owned());
        self
    }
}

impl<K> Delete<'_, K> {
    fn forget_version(self) -> Self {
        self
    }

    /// Only if the object is still as it was read: its resource version is a precondition too.
    pub fn if_unchanged(self) -> Self {
        self
    }

    /// Time for a graceful end, in whole seconds; the kind's own default if not set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// What happens to its children; the kind's own default if not set.
    pub fn propagation(mut self, propagation: Propagation) -> Self {
        self.propagation = Some(propagation);
        self
    }
}

impl<'a, K: Object> IntoFuture for Create<'a, K> {
    type Output = Result<Arc<K>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let _ = (self.access, self.kind, self.owned, self.object);
            Err(Error::msg("create is not there yet"))
        }
        .boxed()
    }
}

impl<'a, K: Object> IntoFuture for Replace<'a, K> {
    type Output = Result<Arc<K>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let _ = (self.access, self.kind, self.object);
            Err(Error::msg("replace is not there yet"))
        }
        .boxed()
    }
}

impl<'a, K: Object> IntoFuture for Patching<'a, K> {
    type Output = Result<Arc<K>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let _ = (self.access, self.kind, self.key, self.patch);
            Err(Error::msg("patch is not there yet"))
        }
        .boxed()
    }
}

impl<'a, K: Object> IntoFuture for Delete<'a, K> {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let _ = (self.access, self.kind, self.key, self.uid, self.version, self.grace, self.propagation);
            Err(Error::msg("delete is not there yet"))
        }
        .boxed()
    }
}

#[expect(clippy::unused_async, reason = "first landing: the shape")]
impl Access {
    pub(crate) async fn evict(&self, _pod: &Pod) -> Result<()> {
        Err(Error::msg("evict is not there yet"))
    }
}
