use std::future::{self, IntoFuture};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Method;
use kube::core::PartialObjectMeta;
use serde::Serialize;
use serde_json::{Map, Value, json};
use setpoint_schema::{fingerprint, normalise};

use super::write::{Conflict, Incomplete, Request};
use super::{Access, Applied, Resource};
use crate::cache::Glance;
use crate::decode::{Peek, decode, decode_text};
use crate::fingerprint::{Part, draft, settled};
use crate::request::Form;
use crate::store::Payload;
use crate::{Error, Key, Kind, Object, ObjectRef, Result, Verb, link};

/// The version of no object: etcd counts from here, so that the first write makes version 2. As a precondition of an apply it
/// is ignored where there is no object, and a conflict with any that there is, whoever made it.
const OF_NO_OBJECT: &str = "1";

pub(super) const APPLY: &str = "application/apply-patch+yaml";

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
    #[error("{0} is being deleted: it can be applied again when it is gone")]
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
    /// A back-reference without a finalizer: nobody would collect the child.
    #[error(
        "{child} cannot be linked: garbage collection does not reach it, and controller {controller} has no finalizer: declare one with \
         Controller::finalizer, and delete what is linked in its cleanup"
    )]
    NoFinalizer {
        /// The child.
        child: ObjectRef,
        /// The controller.
        controller: String,
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
    tie: Tie,
    if_unchanged: bool,
}

/// What ties a child to the reconciled object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Tie {
    /// An owner reference.
    Owned,
    /// A back-reference.
    Linked,
    /// Nothing.
    Unowned,
}

/// What is known about an object before it is applied.
struct Found<K> {
    glance: Glance,
    /// The whole object, if the cache keeps it as this type or it was read live.
    object: Option<Applied<K>>,
}

impl<'a, K: Object> Resource<'a, K> {
    /// As [`crate::Context::apply`].
    pub fn apply(&self, object: K) -> Apply<'a, K> {
        Apply {
            access: self.access,
            kind: self.kind.clone(),
            object,
            adopt: false,
            tie: Tie::Owned,
            if_unchanged: false,
        }
    }

    /// As [`crate::Context::apply_linked`].
    pub fn apply_linked(&self, object: K) -> Apply<'a, K> {
        Apply { tie: Tie::Linked, ..self.apply(object) }
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
        self.tie = Tie::Unowned;
        self
    }

    /// Only if the object is still as the cache has it: its resource version is a precondition.
    pub fn if_unchanged(mut self) -> Self {
        self.if_unchanged = true;
        self
    }
}

impl<'a, K: Object> IntoFuture for Apply<'a, K> {
    type Output = Result<Applied<K>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        // Mostly there is nothing to do, and then nothing to wait for: no room is made for the state of a request.
        match self.known() {
            Ok(Known::Settled { key, found }) => future::ready(Ok(self.unchanged(&key, found))).boxed(),
            Ok(Known::Open { child, draft }) => self.run(child, draft).boxed(),
            Err(error) => future::ready(Err(error)).boxed(),
        }
    }
}

/// What is known about an apply before anything is asked.
enum Known<K> {
    /// It would change nothing.
    Settled {
        key: Key,
        found: Found<K>,
    },
    Open {
        child: ObjectRef,
        draft: u64,
    },
}

impl<K: Object> Apply<'_, K> {
    fn known(&self) -> Result<Known<K>> {
        let access = self.access;
        access.controller.check(&self.kind, None, Verb::Create)?;
        access.controller.check(&self.kind, None, Verb::Patch)?;
        let key = access.resolve(&self.kind, Key::of(&self.object));
        if key.name.is_empty() {
            return Err(Refused::NoName(self.kind.clone()).into());
        }
        let draft = draft(&(self.tie, &access.owner.uid, &self.object))?;
        let certain = access.controller.caches_of(&self.kind).all(|cache| !cache.is_suspect(&key));
        let found = certain.then(|| access.glance::<K>(&self.kind, &key, draft)).flatten();
        match found.filter(|found| found.glance.settled) {
            Some(found) => {
                self.guard(&key, &found)?;
                Ok(Known::Settled { key, found })
            }
            None => Ok(Known::Open { child: ObjectRef::new(self.kind.clone(), key), draft }),
        }
    }

    async fn run(self, child: ObjectRef, draft: u64) -> Result<Applied<K>> {
        let access = self.access;
        let key = child.key.clone();
        for cache in access.controller.caches_of(&self.kind) {
            access.settle(&*cache, Some(&key)).await?;
        }
        let mut found = access.glance::<K>(&self.kind, &key, draft);
        if let Some(found) = found.take_if(|found| found.glance.settled) {
            self.guard(&key, &found)?;
            return Ok(self.unchanged(&key, found));
        }
        let mut body = encode(&self.kind, &key, &self.object)?;
        match self.tie {
            Tie::Owned => access.own(&child, &mut body)?,
            Tie::Linked => access.link(&child, &mut body)?,
            Tie::Unowned => {}
        }
        let intent = fingerprint(&normalise(&body));
        if found.is_none() {
            // What the cache of its kind doesn't have is most likely not there: no read, but a write that only creates.
            if access.controller.caches_of(&self.kind).next().is_some() && !access.runtime.dry_run() {
                metadata(&mut body).insert("resourceVersion".to_owned(), json!(OF_NO_OBJECT));
                match self.send(&key, &body, true).await {
                    Ok(answer) => {
                        access.remember(&self.kind, &key, Part::Main, draft);
                        return access.written(&self.kind, &answer);
                    }
                    Err(error) if error.is_conflict() => {}
                    Err(error) => return Err(error),
                }
                metadata(&mut body).remove("resourceVersion");
            }
            found = access.live::<K>(&self.kind, &key, intent).await?;
        }
        if let Some(found) = &found {
            self.guard(&key, found)?;
        }
        if let Some(found) = found.take_if(|found| found.glance.print == Some(intent)) {
            access.remember(&self.kind, &key, Part::Main, draft);
            return Ok(self.unchanged(&key, found));
        }
        let metadata = metadata(&mut body);
        if let Some(found) = &found {
            metadata.insert("uid".to_owned(), json!(found.glance.uid));
            if self.if_unchanged {
                metadata.insert("resourceVersion".to_owned(), json!(found.glance.version));
            }
        }
        // A new object must not take over one that somebody created a moment ago.
        let answer = self.send(&key, &body, found.is_some()).await;
        let answer = answer.map_err(|error| conflict(error, found.is_some(), &child))?;
        // Otherwise the version may be somebody else's, and this apply have changed nothing.
        let print = access.print(&self.kind, &key, Part::Main);
        if print != found.and_then(|found| found.glance.print)
            && let Ok(written) = Peek::of(&answer)
        {
            access.made(&self.kind, &written);
        }
        access.remember(&self.kind, &key, Part::Main, draft);
        access.written(&self.kind, &answer)
    }

    /// The object that an apply would not change.
    fn unchanged(self, key: &Key, found: Found<K>) -> Applied<K> {
        found.object.unwrap_or_else(|| {
            // Only metadata is kept: the object is what was applied, with the metadata that is known.
            let mut object = self.object;
            let meta = object.meta_mut();
            meta.uid = Some(found.glance.uid);
            meta.resource_version = Some(found.glance.version);
            meta.namespace.clone_from(&key.namespace);
            Applied::object(Arc::new(object))
        })
    }

    async fn send(&self, key: &Key, body: &Value, force: bool) -> Result<String> {
        let request = Request {
            method: Method::PATCH,
            kind: &self.kind,
            key,
            subresource: None,
            query: vec![
                ("fieldManager", self.access.controller.field_manager.clone()),
                ("force", force.to_string()),
            ],
            body: Some((APPLY, body)),
        };
        self.access.write(request).await
    }

    fn guard(&self, key: &Key, found: &Found<K>) -> Result<()> {
        let glance = &found.glance;
        let ours = match &glance.controller {
            Some((uid, _)) if self.tie != Tie::Unowned => {
                Some(uid.as_str()) == self.access.owner.uid.as_deref()
            }
            _ => glance.print.is_some() || self.adopt,
        };
        if !ours {
            let owner = match &glance.controller {
                Some((_, name)) => format!(" but controlled by {name}"),
                None => String::new(),
            };
            let object = ObjectRef::new(self.kind.clone(), key.clone());
            return Err(Refused::NotOurs { object, owner }.into());
        }
        if glance.deleting {
            return Err(Refused::BeingDeleted(ObjectRef::new(self.kind.clone(), key.clone())).into());
        }
        Ok(())
    }
}

impl Access {
    /// Puts the owner reference in, unless garbage collection would punish it.
    pub(super) fn own(&self, child: &ObjectRef, body: &mut Value) -> Result<()> {
        let owner = &self.owner;
        if owner.kind == child.kind && owner.key == child.key {
            return Err(Refused::OwnsItself(child.clone()).into());
        }
        if owner.key.namespace.is_some() && owner.key.namespace != child.key.namespace {
            return Err(Refused::ForeignNamespace { child: child.clone(), owner: owner.clone() }.into());
        }
        let reference = json!(self.owner_reference());
        let owners = metadata(body).entry("ownerReferences").or_insert_with(|| json!([]));
        if let Some(owners) = owners.as_array_mut() {
            owners.retain(|other| other.get("uid") != reference.get("uid"));
            owners.push(reference);
        }
        Ok(())
    }

    /// Puts the back-reference in.
    fn link(&self, child: &ObjectRef, body: &mut Value) -> Result<()> {
        if self.owner.kind == child.kind && self.owner.key == child.key {
            return Err(Refused::OwnsItself(child.clone()).into());
        }
        if !self.controller.has_finalizer {
            let controller = self.controller.name.to_string();
            return Err(Refused::NoFinalizer { child: child.clone(), controller }.into());
        }
        link::put(metadata(body), &self.owner);
        Ok(())
    }

    /// What is known about an object from a cache of its kind, in whatever representation.
    fn glance<K: Object>(&self, kind: &Kind, key: &Key, intent: u64) -> Option<Found<K>> {
        let manager = &self.controller.field_manager;
        let glance = self
            .controller
            .caches_of(kind)
            .find_map(|cache| cache.glance(key, manager, Part::Main, intent))?;
        let whole = self.controller.cache::<K>(kind);
        let object = whole.and_then(|whole| whole.payload_of(key, &glance.uid)).and_then(Applied::of);
        Some(Found { glance, object })
    }

    /// What the API server knows about an object that no cache has.
    async fn live<K: Object>(&self, kind: &Kind, key: &Key, intent: u64) -> Result<Option<Found<K>>> {
        let declared = self.controller.caches_of(kind).next().is_some();
        // What is kept already is not read once more.
        let form = if declared { Form::Metadata } else { Form::Whole };
        let Some(live) = self.read_live(kind, key, form).await? else { return Ok(None) };
        let manager = &self.controller.field_manager;
        if declared {
            let seen =
                decode::<PartialObjectMeta<K>>(kind, live).ok_or_else(|| Incomplete::new(kind, key))?;
            // Its print is that of metadata only, which an intent cannot equal.
            let glance = Glance::of_seen(&seen, manager, Part::Main, intent);
            return Ok(glance.map(|glance| Found { glance, object: None }));
        }
        let seen = decode::<K>(kind, live).ok_or_else(|| Incomplete::new(kind, key))?;
        let glance = Glance::of_seen(&seen, manager, Part::Main, intent);
        Ok(glance.map(|glance| Found { glance, object: Applied::of(seen.payload) }))
    }

    /// What the controller's applies left on the object that a cache has.
    fn print(&self, kind: &Kind, key: &Key, part: Part) -> Option<u64> {
        let manager = &self.controller.field_manager;
        self.controller.caches_of(kind).find_map(|cache| cache.glance(key, manager, part, 0)?.print)
    }

    /// Notes that `intent` led to what the caches have now.
    fn remember(&self, kind: &Kind, key: &Key, part: Part, intent: u64) {
        for cache in self.controller.caches_of(kind) {
            cache.remember(key, &self.controller.field_manager, part, intent);
        }
    }

    /// See [`crate::Context::status`].
    pub(super) async fn apply_status<O: Object>(&self, mut status: Value, read: &Arc<O>) -> Result<Arc<O>> {
        let (kind, key) = (&self.owner.kind, &self.owner.key);
        self.controller.check(kind, Some("status"), Verb::Patch)?;
        drop_nulls(&mut status);
        let intent = fingerprint(&json!({ "status": status }));
        let manager = &self.controller.field_manager;
        if let Some(cache) = self.controller.cache::<O>(kind) {
            self.settle(&*cache, Some(key)).await?;
            let found = cache.read(key, |store| {
                let record = store.visible(key)?;
                let settled = settled(&record.prints, &record.memos, manager, Part::Status, intent);
                // Most often the reconcile has read just that.
                let same = read.meta().resource_version.as_deref() == Some(&record.version.text());
                let object = if same { Some(Arc::clone(read)) } else { record.payload.object() };
                Some((Some(&*record.uid) == self.owner.uid.as_deref(), settled, object))
            });
            match found.flatten() {
                Some((true, true, object)) => return Ok(object.unwrap_or_else(|| Arc::clone(read))),
                Some((true, false, _)) => {}
                // Gone, or another object under the same name.
                Some((false, ..)) | None => return Err(Conflict(self.owner.clone()).into()),
            }
        }
        let answer = self.send_status(manager, status, true).await?;
        self.remember(kind, key, Part::Status, intent);
        self.written(kind, &answer).map(Applied::into_arc)
    }

    /// Applies the status of the reconciled object as it was read, for a field manager.
    pub(crate) async fn send_status(&self, manager: &str, status: Value, force: bool) -> Result<String> {
        let (kind, key) = (&self.owner.kind, &self.owner.key);
        let mut body = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "uid": self.owner.uid,
                "resourceVersion": self.version.lock().clone(),
            },
            "status": status,
        });
        drop_nulls(&mut body);
        let request = Request {
            method: Method::PATCH,
            kind,
            key,
            subresource: Some("status"),
            query: vec![("fieldManager", manager.to_owned()), ("force", force.to_string())],
            body: Some((APPLY, &body)),
        };
        self.write(request).await.map_err(|error| conflict(error, true, &self.owner))
    }
}

/// The object as a request body: with its kind and key, without what the server keeps.
pub(super) fn encode<K: Object>(kind: &Kind, key: &Key, object: &K) -> Result<Value> {
    let mut body = serde_json::to_value(object)?;
    drop_nulls(&mut body);
    let Some(fields) = body.as_object_mut() else {
        return Err(Error::msg(format!("a {kind} encodes to something else than an object")).terminal());
    };
    fields.insert("apiVersion".to_owned(), json!(kind.api_version()));
    fields.insert("kind".to_owned(), json!(kind.kind));
    let metadata = metadata(&mut body);
    for field in ["managedFields", "creationTimestamp", "generation", "selfLink", "resourceVersion", "uid"] {
        metadata.remove(field);
    }
    if !key.name.is_empty() {
        metadata.insert("name".to_owned(), json!(key.name));
    }
    if let Some(namespace) = &key.namespace {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    Ok(body)
}

/// The metadata of an object, made if there is none.
fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.get("metadata").is_some_and(Value::is_object) {
        object["metadata"] = json!({});
    }
    #[expect(clippy::expect_used, reason = "made above")]
    object["metadata"].as_object_mut().expect("an object")
}

/// Optional fields that an author's type writes as null are meant as absent.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The answer to a write as an object.
pub(crate) fn object<K: Object>(kind: &Kind, answer: &str) -> Result<Arc<K>> {
    match decode_text::<K>(kind, answer).map(|seen| (seen.key, seen.payload)) {
        Some((_, Payload::Object(object))) => Ok(object),
        Some((key, Payload::Packed(packed))) => packed
            .decode()
            .map(Arc::new)
            .map_err(|error| Incomplete::because(kind, &key, &error.to_string()).into()),
        Some((key, Payload::Undecodable(problem))) => Err(Incomplete::because(kind, &key, &problem).into()),
        None => Err(Incomplete::new(kind, &Key::cluster("")).into()),
    }
}

/// A precondition that failed: 409; a uid on another object is a 422. A field that another manager owns is
/// a 409 as well, but none that running again cures.
fn conflict(error: Error, precondition: bool, object: &ObjectRef) -> Error {
    let failed = error.status().is_some_and(|status| {
        let causes = || status.details.iter().flat_map(|details| &details.causes);
        match status.code {
            409 => !causes().any(|cause| cause.reason == "FieldManagerConflict"),
            422 => causes().any(|cause| cause.field == "metadata.uid"),
            _ => false,
        }
    });
    if precondition && failed { Conflict(object.clone()).into() } else { error }
}
