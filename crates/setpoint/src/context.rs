mod applied;
mod apply;
mod read;
mod write;

use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::object::HasStatus;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use setpoint_clock::{Clock, Entropy};

pub use applied::Applied;
pub use apply::{Apply, Refused};
pub use read::NotCached;
pub use write::{Create, Delete, Incomplete, Patch, Patching, Propagation, Replace};

pub(crate) use apply::object;
pub(crate) use write::Conflict;

use crate::controller::Identity;
use crate::report::Journal;
use crate::{Background, Cause, Event, Key, Kind, Object, ObjectRef, Result, Runtime, Term};

/// What a reconcile may do: read caches, write through the API server, tell.
///
/// Reads come from the caches; [`live`](Self::live) is the one that asks the API server. Writes go to the
/// API server and their answers into the caches, so that the next pass never acts on older state than its
/// own writes. A kind or verb that the controller did not declare is refused.
#[derive(Debug)]
pub struct Context<O: Object> {
    object: Arc<O>,
    access: Access,
}

/// The part of a context that doesn't depend on the type of its object.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) runtime: Runtime,
    pub(crate) controller: Arc<Identity>,
    /// The reconciled object.
    pub(crate) owner: ObjectRef,
    /// Its version: the one that was read, then that of our own writes to it.
    pub(crate) version: Mutex<Option<String>>,
    pub(crate) causes: Vec<Cause>,
    /// Adds beyond those that are kept in `causes`.
    pub(crate) more_causes: usize,
    pub(crate) reconcile_id: String,
    /// The term in which the reconcile began.
    pub(crate) term: Term,
    /// What it has done so far. Outlives a reconcile that is dropped.
    pub(crate) journal: Arc<Mutex<Journal>>,
}

/// The same verbs as [`Context`], for a kind that is known only at run time; see [`Context::resource`].
#[derive(Debug)]
pub struct Resource<'a, K> {
    access: &'a Access,
    kind: Kind,
    of: PhantomData<fn() -> K>,
}

impl<O: Object> Context<O> {
    pub(crate) fn new(object: Arc<O>, access: Access) -> Self {
        Self { object, access }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The reconciled object, as it was when the reconcile began.
    pub fn object(&self) -> &Arc<O> {
        &self.object
    }

    /// Its complete name.
    pub fn object_ref(&self) -> &ObjectRef {
        &self.access.owner
    }

    /// A controller owner reference to the reconciled object.
    pub fn owner_reference(&self) -> OwnerReference {
        self.access.owner_reference()
    }

    /// Why this reconcile runs: the causes of all adds that merged into it, at most 16.
    pub fn causes(&self) -> &[Cause] {
        &self.access.causes
    }

    /// How many causes there were beyond those that [`causes`](Self::causes) keeps.
    pub fn more_causes(&self) -> usize {
        self.access.more_causes
    }

    /// Names this run in every line of its log.
    pub fn reconcile_id(&self) -> &str {
        &self.access.reconcile_id
    }

    /// The term of leadership that this reconcile belongs to: for effects outside the cluster.
    pub fn term(&self) -> &Term {
        &self.access.term
    }

    /// Time.
    pub fn clock(&self) -> &Clock {
        self.access.runtime.clock()
    }

    /// Randomness.
    pub fn entropy(&self) -> &Entropy {
        self.access.runtime.entropy()
    }

    /// The client itself, for what the verbs here don't cover. Its writes are not seen by the caches before
    /// their events, and what it needs has to be declared with `uses`.
    pub fn client(&self) -> kube::Client {
        self.access.runtime.client().clone()
    }

    /// Whether writes are only tried.
    pub fn dry_run(&self) -> bool {
        self.access.runtime.dry_run()
    }

    /// Records a Kubernetes event about the reconciled object.
    pub fn event(&self, event: Event) {
        self.access.event(event);
    }

    /// Work for this object that outlasts the reconcile, such as a copy of gigabytes: started by the first call of this name, told
    /// how it is doing by each. When it has ended, the object is reconciled once more, and the call tells its result.
    ///
    /// The work is dropped when the object is gone, when the controller stops, and when the term of leadership is lost, so it has to be
    /// cancel-safe; and it has to tell from the outside world how far an earlier one came. What it does outside the cluster
    /// carries [`term`](Self::term).
    pub fn background<F>(&self, name: &str, work: impl FnOnce() -> F) -> Background
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (controller, owner) = (&self.access.controller, &self.access.owner);
        controller.works.run((&owner.key, owner.uid.as_ref()), name, &controller.wake, work)
    }

    /// The verbs for a kind that is known only at run time: `cx.resource::<DynamicObject>(&api_resource)`.
    pub fn resource<K: Object>(&self, dynamic: &K::DynamicType) -> Resource<'_, K> {
        Resource { access: &self.access, kind: K::kind_of(dynamic), of: PhantomData }
    }

    fn known<K: Object>(&self) -> Resource<'_, K>
    where
        K::DynamicType: Default,
    {
        self.resource::<K>(&K::DynamicType::default())
    }

    /// The cached object, or `None`. A bare name of a namespaced kind is looked for in the namespace of the
    /// reconciled object. Fails only when the kind is not watched by this controller, or when the outcome of
    /// an own write is unknown and the API server doesn't answer.
    pub async fn get<K: Object>(&self, key: impl Into<Key>) -> Result<Option<Arc<K>>>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().get(key).await
    }

    /// All cached objects in the namespace of the reconciled object (all of them if it has none), by key.
    pub async fn list<K: Object>(&self) -> Result<Vec<Arc<K>>>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().list().await
    }

    /// All cached objects of all watched namespaces, by key.
    pub async fn list_all<K: Object>(&self) -> Result<Vec<Arc<K>>>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().list_all().await
    }

    /// The cached objects whose index has `value`, over all watched namespaces, by key.
    pub async fn by_index<K: Object>(&self, index: &str, value: &str) -> Result<Vec<Arc<K>>>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().by_index(index, value).await
    }

    /// The cached objects whose controller owner reference is the reconciled object, by key, and those that are
    /// [linked](Self::apply_linked) to it.
    pub async fn children<K: Object>(&self) -> Result<Vec<Arc<K>>>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().children().await
    }

    /// Asks the API server (a quorum read), not the cache.
    pub async fn live<K: Object>(&self, key: impl Into<Key>) -> Result<Option<K>>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().live(key).await
    }

    /// Server-side apply of a child with the controller's field manager and owner reference. Nothing is sent
    /// when nothing would change. `.await` gives the object as it is then ([`Applied`]).
    pub fn apply<K: Object>(&self, object: K) -> Apply<'_, K>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().apply(object)
    }

    /// As [`apply`](Self::apply), for a child that cannot have an owner reference: one in another namespace, or outside namespaces. A label with
    /// the owner's uid and an annotation with its name tie it instead: `owns` wakes the owner, and [`children`](Self::children) lists it. Garbage collection knows
    /// nothing of that, so the controller needs a finalizer, whose cleanup deletes it.
    pub fn apply_linked<K: Object>(&self, object: K) -> Apply<'_, K>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().apply_linked(object)
    }

    /// Creates a child with the controller's owner reference; fails if it exists.
    pub fn create<K: Object>(&self, object: K) -> Create<'_, K>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().create(object)
    }

    /// Replaces an object with what was read and changed; its resource version must be set, and a conflict
    /// is an error after which the reconcile runs again.
    pub fn replace<K: Object>(&self, object: K) -> Replace<'_, K>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().replace(object)
    }

    /// Patches an object that may be somebody else's: no owner reference is added.
    pub fn patch<K: Object>(&self, key: impl Into<Key>, patch: Patch) -> Patching<'_, K>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().patch(key, patch)
    }

    /// Deletes exactly this object (its uid is a precondition). Already gone is fine.
    pub fn delete<K: Object>(&self, object: &K) -> Delete<'_, K>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().delete(object)
    }

    /// Evicts a pod: deletes it if its disruption budgets allow that, otherwise fails with the API server's
    /// 429. Needs `Verb::Create` on the sub-resource `eviction`.
    pub async fn evict(&self, pod: &k8s_openapi::api::core::v1::Pod) -> Result<()> {
        self.access.evict(pod).await
    }

    /// Sets the replicas of an object through its `/scale`.
    pub async fn scale<K: Object>(&self, key: impl Into<Key>, replicas: i32) -> Result<()>
    where
        K::DynamicType: Default,
    {
        self.known::<K>().scale(key, replicas).await
    }

    /// Applies `status` as the `.status` of the reconciled object, through `/status`, with the resource
    /// version that this reconcile has read: a conflict is an error after which it runs again. Nothing is
    /// sent when nothing would change. Fields of other field managers stay.
    ///
    /// It takes the status type of the kind and no other:
    ///
    /// ```compile_fail,E0308
    /// # use kube::CustomResource;
    /// # use schemars::JsonSchema;
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
    /// #[kube(group = "example.com", version = "v1", kind = "Website", namespaced, status = "WebsiteStatus")]
    /// struct WebsiteSpec {}
    /// #[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
    /// struct WebsiteStatus {}
    /// async fn report(cx: &setpoint::Context<Website>) -> setpoint::Result<()> {
    ///     cx.status(WebsiteSpec {}).await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn status(&self, status: O::Status) -> Result<Arc<O>>
    where
        O: HasStatus<Status: Serialize + Send>,
    {
        self.status_as(status).await
    }

    /// As [`status`](Self::status), for kinds whose Rust type does not say what its status is: built-in ones and those known
    /// only at run time.
    pub async fn status_as(&self, status: impl Serialize + Send) -> Result<Arc<O>> {
        let status: Value = serde_json::to_value(status)?;
        self.access.apply_status(status, &self.object).await
    }
}

impl<K> Resource<'_, K> {
    /// Says that the objects of a kind known only at run time live outside namespaces.
    pub fn cluster_scoped(mut self) -> Self {
        self.kind = self.kind.cluster_scoped();
        self
    }
}

impl Access {
    pub(crate) fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.owner.kind.api_version(),
            kind: self.owner.kind.kind.clone(),
            name: self.owner.key.name.clone(),
            uid: self.owner.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    pub(crate) fn event(&self, event: Event) {
        let about = ObjectReference {
            api_version: Some(self.owner.kind.api_version()),
            kind: Some(self.owner.kind.kind.clone()),
            namespace: self.owner.key.namespace.clone(),
            name: Some(self.owner.key.name.clone()),
            uid: self.owner.uid.clone(),
            resource_version: self.version.lock().clone(),
            ..ObjectReference::default()
        };
        self.journal.lock().events.push(event.clone());
        self.runtime.recorder().record(&self.controller.name, &about, event);
    }

    /// The key meant by a bare name: that in the namespace of the reconciled object.
    pub(crate) fn resolve(&self, kind: &Kind, key: Key) -> Key {
        match (kind.namespaced, &key.namespace) {
            (true, None) => Key { namespace: self.owner.key.namespace.clone(), name: key.name },
            _ => key,
        }
    }
}
