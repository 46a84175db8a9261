use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::apply::{APPLY, encode, object};
use super::{Access, Applied, Resource};
use crate::decode::Peek;
use crate::error::words;
use crate::report::WriteChange;
use crate::request::{Form, request};
use crate::store::Store;
use crate::{Error, Key, Kind, Object, ObjectRef, Result, Runtime, Verb, Write, WriteVerb};

/// How long a write waits for the watch, where only that can tell what it did.
const WAIT: Duration = Duration::from_secs(10);

const JSON: &str = "application/json";

/// The object has changed meanwhile, or is another one under the same name: the reconcile runs again.
#[derive(Debug, thiserror::Error)]
#[error("{0} has changed meanwhile, or is another object under the same name")]
pub(crate) struct Conflict(pub(crate) ObjectRef);

/// A write that was answered with something else than the object.
#[derive(Debug, thiserror::Error)]
#[error("the API server's answer about {kind} {key} is not usable: {problem}")]
pub struct Incomplete {
    kind: Kind,
    key: Key,
    problem: String,
}

impl Incomplete {
    pub(super) fn new(kind: &Kind, key: &Key) -> Self {
        Self::because(kind, key, "it has no metadata.name")
    }

    pub(super) fn because(kind: &Kind, key: &Key, problem: &str) -> Self {
        Self { kind: kind.clone(), key: key.clone(), problem: problem.to_owned() }
    }
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
        Self::Merge(json!({ "metadata": { "labels": { name: value } } }))
    }

    /// Sets an annotation, or removes it.
    pub fn annotation(name: &str, value: Option<&str>) -> Self {
        Self::Merge(json!({ "metadata": { "annotations": { name: value } } }))
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
    if_unchanged: bool,
    grace: Option<Duration>,
    propagation: Option<Propagation>,
    of: PhantomData<fn() -> K>,
}

/// A write on its way.
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) kind: &'a Kind,
    pub(super) key: &'a Key,
    pub(super) subresource: Option<&'a str>,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: Option<(&'static str, &'a Value)>,
}

/// Marks the key as suspect unless the outcome of its write becomes known: also when the reconcile is
/// dropped while the write is under way.
struct Doubt<'a> {
    runtime: &'a Runtime,
    kind: &'a Kind,
    key: &'a Key,
    known: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        // An object that was to be created under a generated name cannot be looked up.
        if !self.known && !self.key.name.is_empty() {
            self.runtime.caches().suspect(self.kind, self.key);
        }
    }
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
            if_unchanged: false,
            grace: None,
            propagation: None,
            of: PhantomData,
        }
    }

    /// As [`crate::Context::scale`].
    pub async fn scale(&self, key: impl Into<Key>, replicas: i32) -> Result<()> {
        let key = self.access.resolve(&self.kind, key.into());
        self.access.controller.check(&self.kind, Some("scale"), Verb::Patch)?;
        let body = json!({ "spec": { "replicas": replicas } });
        let answer = self
            .access
            .send(Request {
                method: Method::PATCH,
                kind: &self.kind,
                key: &key,
                subresource: Some("scale"),
                query: vec![("fieldManager", self.access.controller.field_manager.clone())],
                body: Some(("application/merge-patch+json", &body)),
            })
            .await?;
        // A Scale carries the version of its parent.
        if let Some(version) = Peek::of(&answer).ok().and_then(|scale| scale.version.number())
            && !self.access.runtime.dry_run()
        {
            self.access.runtime.caches().passed(&self.kind, &key, version, WAIT).await;
        }
        Ok(())
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
    /// Only if the object is still as it was read: its resource version is a precondition too.
    pub fn if_unchanged(mut self) -> Self {
        self.if_unchanged = true;
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
            let access = self.access;
            access.controller.check(&self.kind, None, Verb::Create)?;
            let key = access.resolve(&self.kind, Key::of(&self.object));
            let mut body = encode(&self.kind, &key, &self.object)?;
            if self.owned {
                access.own(&ObjectRef::new(self.kind.clone(), key.clone()), &mut body)?;
            }
            let answer = access
                .write(Request {
                    method: Method::POST,
                    kind: &self.kind,
                    key: &key,
                    subresource: None,
                    query: vec![("fieldManager", access.controller.field_manager.clone())],
                    body: Some((JSON, &body)),
                })
                .await?;
            access.written(&self.kind, &answer).map(Applied::into_arc)
        }
        .boxed()
    }
}

impl<'a, K: Object> IntoFuture for Replace<'a, K> {
    type Output = Result<Arc<K>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let access = self.access;
            let subresource = self.subresource.as_deref();
            access.controller.check(&self.kind, subresource, Verb::Update)?;
            let key = access.resolve(&self.kind, Key::of(&self.object));
            let meta = self.object.meta();
            let Some(version) = &meta.resource_version else {
                return Err(Error::msg(format!(
                    "{} {key} has no resourceVersion: replace what was read",
                    self.kind
                ))
                .terminal());
            };
            let mut body = encode(&self.kind, &key, &self.object)?;
            body["metadata"]["resourceVersion"] = json!(version);
            body["metadata"]["uid"] = json!(meta.uid);
            let answer = access
                .write(Request {
                    method: Method::PUT,
                    kind: &self.kind,
                    key: &key,
                    subresource,
                    query: vec![("fieldManager", access.controller.field_manager.clone())],
                    body: Some((JSON, &body)),
                })
                .await?;
            access.written(&self.kind, &answer).map(Applied::into_arc)
        }
        .boxed()
    }
}

impl<'a, K: Object> IntoFuture for Patching<'a, K> {
    type Output = Result<Arc<K>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        async move {
            let answer =
                self.access.patch(&self.kind, &self.key, self.subresource.as_deref(), &self.patch).await?;
            self.access.written(&self.kind, &answer).map(Applied::into_arc)
        }
        .boxed()
    }
}

impl<'a, K: Object> IntoFuture for Delete<'a, K> {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.run().boxed()
    }
}

impl<K: Object> Delete<'_, K> {
    async fn run(self) -> Result<()> {
        let (access, kind, key) = (self.access, &self.kind, &self.key);
        access.controller.check(kind, None, Verb::Delete)?;
        let Some(uid) = &self.uid else {
            return Err(Error::msg(format!("{kind} {key} has no uid: delete what was read")).terminal());
        };
        let mut body =
            json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid } });
        if self.if_unchanged {
            body["preconditions"]["resourceVersion"] = json!(self.version);
        }
        if let Some(grace) = self.grace {
            body["gracePeriodSeconds"] = json!(grace.as_secs());
        }
        if let Some(propagation) = self.propagation {
            body["propagationPolicy"] = json!(format!("{propagation:?}"));
        }
        let request = Request {
            method: Method::DELETE,
            kind,
            key,
            subresource: None,
            query: Vec::new(),
            body: Some((JSON, &body)),
        };
        let origin = access.controller.origin(&access.owner.key);
        let caches = access.runtime.caches();
        match access.send(request).await {
            Ok(_) if access.runtime.dry_run() => {}
            Ok(answer) if Peek::of(&answer).is_ok_and(|object| object.deleting) => {
                caches.wrote(kind, &answer, &origin, WAIT).await;
            }
            Ok(_) => caches.hide(kind, key, uid, &origin),
            Err(error) if error.is_not_found() => caches.hide(kind, key, uid, &origin),
            Err(error) if error.is_conflict() => {
                return Err(Conflict(ObjectRef {
                    uid: self.uid.clone(),
                    ..ObjectRef::new(kind.clone(), key.clone())
                })
                .into());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Access {
    /// A patch whose answer is the object.
    pub(crate) async fn patch(
        &self,
        kind: &Kind,
        key: &Key,
        subresource: Option<&str>,
        patch: &Patch,
    ) -> Result<String> {
        self.controller.check(kind, subresource, Verb::Patch)?;
        let body = match patch {
            Patch::Merge(body) => ("application/merge-patch+json", body),
            Patch::Json(body) => ("application/json-patch+json", body),
            Patch::Strategic(body) => ("application/strategic-merge-patch+json", body),
        };
        self.write(Request {
            method: Method::PATCH,
            kind,
            key,
            subresource,
            query: vec![("fieldManager", self.controller.field_manager.clone())],
            body: Some(body),
        })
        .await
    }

    /// See [`crate::Context::evict`].
    pub(super) async fn evict(&self, pod: &Pod) -> Result<()> {
        let (kind, key) = (Kind::of::<Pod>(), Key::of(pod));
        self.controller.check(&kind, Some("eviction"), Verb::Create)?;
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": key.name, "namespace": key.namespace },
            "deleteOptions": { "preconditions": { "uid": pod.metadata.uid } },
        });
        let request = Request {
            method: Method::POST,
            kind: &kind,
            key: &key,
            subresource: Some("eviction"),
            query: Vec::new(),
            body: Some((JSON, &body)),
        };
        self.send(request).await?;
        // The answer is a Status, not the pod: only the watch tells.
        if !self.runtime.dry_run() {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            self.runtime.caches().deletion_seen(&kind, &key, uid, WAIT).await;
        }
        Ok(())
    }

    /// Sends a write whose answer is the object, and puts that into the caches.
    pub(super) async fn write(&self, request: Request<'_>) -> Result<String> {
        let kind = request.kind;
        let expected = request.body.and_then(|(_, body)| version_of(body)).map(str::to_owned);
        let creates = request.method == Method::POST;
        let answer = self.send(request).await?;
        if self.runtime.dry_run() {
            return Ok(answer);
        }
        let origin = self.controller.origin(&self.owner.key);
        self.runtime.caches().wrote(kind, &answer, &origin, WAIT).await;
        let Ok(object) = Peek::of(&answer) else { return Ok(answer) };
        // With a precondition nobody else can have made the version that was answered.
        if creates || expected.is_some_and(|expected| expected != object.version.text()) {
            self.made(kind, &object);
        }
        if *kind == self.owner.kind && self.owner.uid.as_ref() == Some(&object.uid) {
            *self.version.lock() = Some(object.version.text());
        }
        Ok(answer)
    }

    /// The object in the answer to a write: if possible as a cache has it now.
    pub(super) fn written<K: Object>(&self, kind: &Kind, answer: &str) -> Result<Applied<K>> {
        let cached = || {
            let cache = self.controller.cache::<K>(kind).filter(|_| !self.runtime.dry_run())?;
            let Peek { key, uid, version, .. } = Peek::of(answer).ok()?;
            let object = |store: &mut Store<K>| {
                let record = store.visible(&key).filter(|_| store.knows(&key, &uid, &version))?;
                Some(record.payload.clone())
            };
            cache.read(&key, object).flatten().and_then(Applied::of)
        };
        cached().map_or_else(|| object(kind, answer).map(Applied::object), Ok)
    }

    /// This reconcile has made the version in the answer to a write. Its event may have been faster than the answer.
    pub(super) fn made(&self, kind: &Kind, object: &Peek) {
        if let Some(version) = object.version.number() {
            self.controller.made(&self.owner.key, (kind, &object.key), version);
        }
    }

    /// Sends a write. A key whose write has an unknown outcome is suspect from then on.
    pub(super) async fn send(&self, write: Request<'_>) -> Result<String> {
        // The client's fence knows the present term only, not that of this reconcile.
        self.term.check()?;
        let mut path = if write.method == Method::POST && write.subresource.is_none() {
            write.kind.collection_path(write.key.namespace.as_deref())
        } else {
            write.kind.object_path(write.key)
        };
        if let Some(subresource) = write.subresource {
            path = format!("{path}/{subresource}");
        }
        let mut query: Vec<(&str, &str)> =
            write.query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        if self.runtime.dry_run() {
            query.push(("dryRun", "All"));
        }
        let method = write.method.clone();
        let verb = verb(&write);
        let before = if self.runtime.dry_run() { self.before(&write).await } else { None };
        let request = request(write.method, &path, &query, Form::Whole, write.body)?;
        let mut doubt =
            Doubt { runtime: &self.runtime, kind: write.kind, key: write.key, known: self.runtime.dry_run() };
        let answer = self.runtime.client().request_text(request).await.and_then(|text| {
            // What is no JSON is no answer of an API server's.
            serde_json::from_str::<IgnoredAny>(&text).map_err(kube::Error::SerdeError).map(|_| text)
        });
        doubt.known |= match &answer {
            Ok(_) => true,
            Err(kube::Error::Api(status)) => status.code < 500,
            Err(_) => false,
        };
        let ok = answer.is_ok();
        tracing::debug!(%method, path, ok, "wrote");
        let after = || match &answer {
            Ok(text) if verb != WriteVerb::Delete => serde_json::from_str(text).unwrap_or_default(),
            _ => Value::Null,
        };
        self.journal.lock().writes.push(Write {
            verb,
            object: ObjectRef::new(write.kind.clone(), write.key.clone()),
            subresource: write.subresource.map(str::to_owned),
            error: answer.as_ref().err().map(words),
            change: before.map(|before| WriteChange { before, after: after() }),
        });
        Ok(answer?)
    }

    /// What a write that is only tried would change, as it is now: null if it does not exist, none if that cannot
    /// be told.
    async fn before(&self, write: &Request<'_>) -> Option<Value> {
        // A sub-resource that is only posted to has nothing to compare.
        if write.method == Method::POST && write.subresource.is_some() {
            return None;
        }
        let main = |subresource: &&str| *subresource == "status";
        let mut path = write.kind.object_path(write.key);
        if let Some(subresource) = write.subresource.filter(|subresource| !main(subresource)) {
            path = format!("{path}/{subresource}");
        }
        if write.key.name.is_empty() {
            return Some(Value::Null);
        }
        let read = request(Method::GET, &path, &[], Form::Whole, None).ok()?;
        match self.runtime.client().request::<Value>(read).await {
            Ok(object) => Some(object),
            Err(kube::Error::Api(status)) if status.code == 404 => Some(Value::Null),
            Err(_) => None,
        }
    }
}

fn version_of(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("resourceVersion")?.as_str()
}

fn verb(write: &Request<'_>) -> WriteVerb {
    match (&write.method, write.body) {
        (&Method::PATCH, Some((APPLY, _))) => WriteVerb::Apply,
        (&Method::PATCH, _) => WriteVerb::Patch,
        (&Method::PUT, _) => WriteVerb::Update,
        (&Method::DELETE, _) => WriteVerb::Delete,
        _ => WriteVerb::Create,
    }
}
