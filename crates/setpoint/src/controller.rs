mod channel;
mod identity;
mod inbox;
mod run;
mod undecodable;
mod watch;
mod worker;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::core::PartialObjectMeta;
use tokio_util::sync::CancellationToken;

pub use channel::Channel;
pub(crate) use identity::Identity;
pub use watch::{Lookup, Watch, by_index};

use crate::rights::Target;
use crate::{
    Action, Cause, Cleanup, Context, Declarations, Key, Kind, Object, Predicate, Reconciler, Report, Result,
    Runtime, Selector, Verb,
};

const READ: &[Verb] = &[Verb::Get, Verb::List, Verb::Watch];

type CleanupFn<R> = for<'a> fn(
    &'a R,
    Arc<<R as Reconciler>::Object>,
    &'a Context<<R as Reconciler>::Object>,
) -> BoxFuture<'a, Result<Action>>;

/// A key to reconcile, told by a source outside the API server, now or later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    pub(crate) key: Key,
    pub(crate) cause: Cause,
    pub(crate) delay: Duration,
}

impl Trigger {
    /// Reconcile `key` when `delay` is over. The timer lives until it is due, whatever happens before.
    pub fn later(key: Key, cause: Cause, delay: Duration) -> Self {
        Self { key, cause, delay }
    }
}

impl From<(Key, Cause)> for Trigger {
    fn from((key, cause): (Key, Cause)) -> Self {
        Self { key, cause, delay: Duration::ZERO }
    }
}

/// Declares a controller: what it reconciles, owns, watches and may do. Everything is declared once; from it
/// come watches, event handlers and RBAC rules.
#[must_use = "a controller does nothing unless given to an Operator or run"]
pub struct Controller<R: Reconciler> {
    pub(crate) reconciler: Arc<R>,
    pub(crate) name: String,
    pub(crate) field_manager: Option<String>,
    pub(crate) kind: Kind,
    pub(crate) selector: Selector,
    pub(crate) declared: Declarations,
    pub(crate) watches: Vec<watch::Setup>,
    pub(crate) predicate: Option<Predicate<R::Object>>,
    pub(crate) sources: Vec<Source>,
    pub(crate) finalizer: Option<(String, CleanupFn<R>)>,
    pub(crate) gone: Vec<Forget>,
    pub(crate) concurrency: usize,
    pub(crate) time_limit: Duration,
    pub(crate) resync: Option<Duration>,
    pub(crate) start: Option<Shared<BoxFuture<'static, ()>>>,
}

/// Forgets what is kept for an object.
pub(crate) type Forget = Box<dyn Fn(&Key) + Send + Sync>;

pub(crate) type Source = Box<dyn Fn() -> BoxStream<'static, Trigger> + Send + Sync>;

impl<R: Reconciler> Controller<R> {
    /// A controller of a kind that is known at compile time, named after it in lower case.
    pub fn new(reconciler: R) -> Self
    where
        <R::Object as kube::Resource>::DynamicType: Default,
    {
        Self::with(reconciler, &<R::Object as kube::Resource>::DynamicType::default())
    }

    /// A controller of a kind that is known at run time.
    pub fn with(reconciler: R, dynamic: &<R::Object as kube::Resource>::DynamicType) -> Self {
        let kind = R::Object::kind_of(dynamic);
        let mut declared = Declarations::default();
        declared.add(Target::of(&kind), READ);
        declared.add(Target::sub(&kind, "status"), &[Verb::Get, Verb::Patch]);
        Self {
            reconciler: Arc::new(reconciler),
            name: kind.kind.to_lowercase(),
            field_manager: None,
            kind,
            selector: Selector::all(),
            declared,
            watches: Vec::new(),
            predicate: None,
            sources: Vec::new(),
            finalizer: None,
            gone: Vec::new(),
            concurrency: 4,
            time_limit: crate::minutes(5),
            resync: None,
            start: None,
        }
    }

    /// The reconciler, for a test that looks into it while it runs.
    pub fn reconciler(&self) -> Arc<R> {
        Arc::clone(&self.reconciler)
    }

    /// Another name than the kind's: in logs, metrics and events. Names are unique in a process.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The field manager of its applies; the controller's name unless set. Keep it stable over releases:
    /// what another manager applied is not ours.
    pub fn field_manager(mut self, manager: impl Into<String>) -> Self {
        self.field_manager = Some(manager.into());
        self
    }

    /// Says that the objects of a kind known only at run time live outside namespaces. Call it first.
    pub fn cluster_scoped(mut self) -> Self {
        self.kind = self.kind.cluster_scoped();
        self.declared = self.declared.cluster_scoped(&self.kind);
        self
    }

    /// Reconciles only the selected objects.
    pub fn selector(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }

    /// Watches children of kind `K` and reconciles the owner that their controller owner reference names.
    /// Implies the rights to read, create and patch them.
    pub fn owns<K: Object>(self) -> Self
    where
        K::DynamicType: Default,
    {
        self.owns_as(Watch::<K>::new())
    }

    /// As [`owns`](Self::owns), keeping only the metadata of the children in memory.
    pub fn owns_metadata<K: Object>(self) -> Self
    where
        K::DynamicType: Default,
    {
        self.owns_as(Watch::<PartialObjectMeta<K>>::new())
    }

    /// As [`owns`](Self::owns), with a predicate, a selector or a kind that is known at run time.
    pub fn owns_as<K: Object>(mut self, watch: Watch<K>) -> Self {
        self.declared.add(Target::of(&watch.kind), READ);
        self.declared.add(Target::of(&watch.kind), &[Verb::Create, Verb::Patch]);
        // Owner references with blockOwnerDeletion need it where OwnerReferencesPermissionEnforcement is on.
        self.declared.add(Target::sub(&self.kind, "finalizers"), &[Verb::Update]);
        self.watches.push(watch.owned_by::<R::Object>(&self.kind));
        self
    }

    /// Watches objects of kind `K` and reconciles the keys that `map` gives for the old and the new state.
    /// Implies the rights to read them. [`by_index`] makes such a map.
    pub fn watches<K: Object>(
        self,
        map: impl Fn(Option<&K>, Option<&K>, &Lookup) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self
    where
        K::DynamicType: Default,
    {
        self.watches_as(Watch::<K>::new(), map)
    }

    /// As [`watches`](Self::watches), with a predicate, a selector or a kind that is known at run time.
    pub fn watches_as<K: Object>(
        mut self,
        watch: Watch<K>,
        map: impl Fn(Option<&K>, Option<&K>, &Lookup) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        if watch.elsewhere.is_none() {
            self.declared.add(Target::of(&watch.kind), READ);
        }
        self.watches.push(watch.mapped(map));
        self
    }

    /// An index on the shared cache of `K`, which is the reconciled kind or one that is watched: objects by
    /// the values that `values` gives.
    pub fn index<K: Object>(
        mut self,
        name: &'static str,
        values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Self
    where
        K::DynamicType: Default,
    {
        self.watches.push(watch::index::<K>(Kind::of::<K>(), name, values));
        self
    }

    /// As [`index`](Self::index), on a kind that is known at run time.
    pub fn index_of<K: Object>(
        mut self,
        dynamic: &K::DynamicType,
        name: &'static str,
        values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        self.watches.push(watch::index::<K>(K::kind_of(dynamic), name, values));
        self
    }

    /// Which changes of the reconciled kind count; all of them unless set.
    pub fn when(mut self, predicate: Predicate<R::Object>) -> Self {
        self.predicate = Some(predicate);
        self
    }

    /// Other things that say when to reconcile what: a function that makes a stream of [`Trigger`]s, or of
    /// `(Key, Cause)`. Started again for each term of leadership.
    pub fn source<S>(mut self, stream: impl Fn() -> S + Send + Sync + 'static) -> Self
    where
        S: Stream<Item: Into<Trigger>> + Send + 'static,
    {
        self.sources.push(Box::new(move || stream().map(Into::into).boxed()));
        self
    }

    /// Reconciles what is sent into `channel`, from wherever.
    pub fn channel(self, channel: &Channel) -> Self {
        let channel = channel.clone();
        self.source(move || channel.listen())
    }

    /// Reconciles all objects each `period`, behind everything that is news: for effects outside the cluster that
    /// nothing watches. Never unless set; a time of its own for each object is [`Action::requeue`].
    pub fn resync(mut self, period: Duration) -> Self {
        self.resync = Some(period);
        self
    }

    /// Rights that no watch implies.
    pub fn uses<K: Object>(mut self, verbs: &[Verb]) -> Self
    where
        K::DynamicType: Default,
    {
        self.declared.add(Target::of(&Kind::of::<K>()), verbs);
        self
    }

    /// Rights on a sub-resource, such as `eviction` or `scale`.
    pub fn uses_subresource<K: Object>(mut self, subresource: &str, verbs: &[Verb]) -> Self
    where
        K::DynamicType: Default,
    {
        self.declared.add(Target::sub(&Kind::of::<K>(), subresource), verbs);
        self
    }

    /// Rights on any target: kinds known at run time, or `*`.
    pub fn uses_target(mut self, target: Target, verbs: &[Verb]) -> Self {
        self.declared.add(target, verbs);
        self
    }

    /// Adds a finalizer before the first reconcile, cleans up when the object is being deleted, and removes
    /// the finalizer last.
    pub fn finalizer(mut self, name: impl Into<String>) -> Self
    where
        R: Cleanup,
    {
        self.declared.add(Target::of(&self.kind), &[Verb::Patch]);
        self.finalizer = Some((name.into(), |reconciler, object, cx| reconciler.cleanup(object, cx).boxed()));
        self
    }

    /// Called when an object is gone: forget what is kept for it, such as metrics.
    pub fn gone(mut self, forget: impl Fn(&Key) + Send + Sync + 'static) -> Self {
        self.gone.push(Box::new(forget));
        self
    }

    /// How many objects are reconciled at the same time, 4 unless set. One object never twice.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers.max(1);
        self
    }

    /// How long a reconcile may take, 5 minutes unless set. Then it is dropped, which is a failure.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Starts no watch before `ready` completes, so that a kind which nobody uses costs nothing.
    pub fn start_when(mut self, ready: impl Future<Output = ()> + Send + 'static) -> Self {
        self.start = Some(ready.boxed().shared());
        self
    }
}

impl<R: Reconciler> fmt::Debug for Controller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// A controller of whatever type, ready to run. A clone is the same controller, with the same reconciler.
#[derive(Clone)]
pub struct AnyController {
    name: String,
    kind: Kind,
    declared: Declarations,
    finalizer: Option<String>,
    concurrency: usize,
    time_limit: Duration,
    start: Arc<dyn Start>,
}

/// Starts a controller of whatever type, once for each term of leadership.
trait Start: Send + Sync {
    fn warm(self: Arc<Self>, runtime: Runtime) -> BoxFuture<'static, Result<()>>;
    fn run(
        self: Arc<Self>,
        runtime: Runtime,
        stop: CancellationToken,
        workers: usize,
    ) -> BoxFuture<'static, Result<()>>;
    fn once(
        self: Arc<Self>,
        runtime: Runtime,
        keys: Option<Vec<Key>>,
    ) -> BoxFuture<'static, Result<Vec<Report>>>;
}

impl<R: Reconciler> Start for Controller<R> {
    fn warm(self: Arc<Self>, runtime: Runtime) -> BoxFuture<'static, Result<()>> {
        async move { run::warm(&self, &runtime).await }.boxed()
    }

    fn run(
        self: Arc<Self>,
        runtime: Runtime,
        stop: CancellationToken,
        workers: usize,
    ) -> BoxFuture<'static, Result<()>> {
        run::run(self, runtime, stop, workers).boxed()
    }

    fn once(
        self: Arc<Self>,
        runtime: Runtime,
        keys: Option<Vec<Key>>,
    ) -> BoxFuture<'static, Result<Vec<Report>>> {
        run::once(self, runtime, keys).boxed()
    }
}

impl AnyController {
    /// Its name, unique in a process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The reconciled kind.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Everything that it may do; RBAC rules are derived from this.
    pub fn declared(&self) -> &Declarations {
        &self.declared
    }

    /// Its finalizer, if it has one.
    pub fn finalizer(&self) -> Option<&str> {
        self.finalizer.as_deref()
    }

    /// How many objects it reconciles at the same time.
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// How long one of its reconciles may take.
    pub fn time_limit(&self) -> Duration {
        self.time_limit
    }

    /// Another number of workers than the controller was declared with, at least one.
    pub fn set_concurrency(&mut self, workers: usize) {
        self.concurrency = workers.max(1);
    }

    /// Runs until `stop` is cancelled: then sources stop, nothing more is started, and running reconciles
    /// get the runtime's grace before they are dropped. Dropping the future drops everything at once.
    pub async fn run(self, runtime: Runtime, stop: CancellationToken) -> Result<()> {
        self.start(runtime, stop).await
    }

    /// Reconciles each of `keys` once, or all objects by key, one after the other, and tells what each reconcile
    /// did. Nothing is run again, whatever it asks for; nothing is watched for causes. Waits until the caches are
    /// filled, however long that takes.
    ///
    /// # Errors
    /// If a declaration of the controller cannot work. A reconcile that fails is a report that says so.
    pub async fn once(&self, runtime: Runtime, keys: Option<Vec<Key>>) -> Result<Vec<Report>> {
        Arc::clone(&self.start).once(runtime, keys).await
    }

    /// As [`run`](Self::run), for one term of several.
    pub(crate) fn start(&self, runtime: Runtime, stop: CancellationToken) -> BoxFuture<'static, Result<()>> {
        Arc::clone(&self.start).run(runtime, stop, self.concurrency)
    }

    /// Fills the caches and does nothing else: what a standby does.
    pub(crate) fn warm(&self, runtime: Runtime) -> BoxFuture<'static, Result<()>> {
        Arc::clone(&self.start).warm(runtime)
    }
}

impl fmt::Debug for AnyController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyController")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("declared", &self.declared)
            .finish_non_exhaustive()
    }
}

impl<R: Reconciler> From<Controller<R>> for AnyController {
    fn from(controller: Controller<R>) -> Self {
        Self {
            name: controller.name.clone(),
            kind: controller.kind.clone(),
            declared: controller.declared.clone(),
            finalizer: controller.finalizer.as_ref().map(|(name, _)| name.clone()),
            concurrency: controller.concurrency,
            time_limit: controller.time_limit,
            start: Arc::new(controller),
        }
    }
}
