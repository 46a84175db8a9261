use std::any::Any;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::identity::{Declared, find};
use super::inbox::Inbox;
use crate::cache::{Cache, Caches, Origin};
use crate::packed::Head;
use crate::queue::{Add, Class};
use crate::store::{Payload, Transition, Values};
use crate::{
    Cause, Change, Error, Key, Kind, Object, ObjectRef, Predicate, Reason, Result, Runtime, Selector,
};

/// How a kind is watched beside the reconciled one: which of its changes count, and which objects.
#[derive(Debug)]
pub struct Watch<K> {
    pub(crate) kind: Kind,
    pub(crate) selector: Selector,
    pub(crate) predicate: Option<Predicate<K>>,
    /// The caches of another cluster.
    pub(crate) elsewhere: Option<Caches>,
}

impl<K: Object> Watch<K> {
    /// All changes of all objects of a kind that is known at compile time.
    pub fn new() -> Self
    where
        K::DynamicType: Default,
    {
        Self::of(&K::DynamicType::default())
    }

    /// All changes of all objects of a kind that is known at run time.
    pub fn of(dynamic: &K::DynamicType) -> Self {
        Self { kind: K::kind_of(dynamic), selector: Selector::all(), predicate: None, elsewhere: None }
    }

    /// Says that the objects of a kind known only at run time live outside namespaces.
    pub fn cluster_scoped(mut self) -> Self {
        self.kind = self.kind.cluster_scoped();
        self
    }

    /// Only these changes.
    pub fn when(mut self, predicate: Predicate<K>) -> Self {
        self.predicate = Some(predicate);
        self
    }

    /// Only these objects.
    pub fn selector(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }

    /// Objects of another cluster, through the caches of a runtime of its own: `Runtime::builder(client)`. For
    /// [`crate::Controller::watches_as`] with a map to keys of this cluster. The context reads this cluster only; read
    /// the other one with [`Caches::get`] of that runtime. The controller starts when both clusters' caches
    /// are filled. Rights in the other cluster are for its client to have: no RBAC rule is derived.
    pub fn elsewhere(mut self, runtime: &Runtime) -> Self {
        self.elsewhere = Some(runtime.caches().clone());
        self
    }

    /// Changes of a child lead to its controller or to the owner that it is linked to, if that is a cached object of the reconciled
    /// kind: group, kind and uid compare, the version does not.
    pub(crate) fn owned_by<O: Object>(self, owner: &Kind) -> Setup {
        let owner = owner.clone();
        self.told(move |states, lookup| {
            let cache = find::<O>(&lookup.caches, &owner);
            let owners = |head: Option<&Head>| {
                let controller = head.and_then(|head| head.controller.as_ref());
                let controller = controller
                    .filter(|controller| owner.same_group_kind(&controller.api_version, &controller.kind));
                let referred = controller.map(|controller| {
                    let namespace = states.key().namespace.clone().filter(|_| owner.namespaced);
                    (Key { namespace, name: controller.name.clone() }, &*controller.uid)
                });
                let linked = head.and_then(Head::link).and_then(|link| Some((link.key(&owner)?, link.uid)));
                referred
                    .into_iter()
                    .chain(linked)
                    .filter(|(key, uid)| cache.as_ref().is_some_and(|cache| cache.has(key, uid)))
                    .map(|(key, _)| key)
                    .collect::<Vec<_>>()
            };
            [owners(states.old_head()), owners(states.new_head())].concat()
        })
    }

    pub(crate) fn mapped(
        self,
        map: impl Fn(Option<&K>, Option<&K>, &Lookup) -> Vec<Key> + Send + Sync + 'static,
    ) -> Setup {
        self.told(move |states, lookup| map(states.old_object(), states.new_object(), lookup))
    }

    fn told(self, map: impl Fn(&States<'_, K>, &Lookup) -> Vec<Key> + Send + Sync + 'static) -> Setup {
        let map = Arc::new(map);
        let open = move |caches: &Caches| {
            let cache = self.elsewhere.as_ref().unwrap_or(caches).open::<K>(&self.kind, &self.selector);
            let declared = self.elsewhere.is_none().then(|| Declared::new(&cache));
            let (predicate, kind, map) = (self.predicate.clone(), self.kind.clone(), Arc::clone(&map));
            let subscribe = move |wiring: &Wiring| {
                let wiring = wiring.clone();
                let listener = Arc::downgrade(&(Arc::clone(&wiring.inbox) as Arc<dyn Any + Send + Sync>));
                let inbox = Arc::downgrade(&wiring.inbox);
                let (controller, lookup) = (wiring.controller, wiring.lookup);
                cache.subscribe(listener, move |transition, origin| {
                    let Some(inbox) = inbox.upgrade() else { return };
                    let states = States::of(transition);
                    if !states.pass(predicate.as_ref()) {
                        return;
                    }
                    let keys: BTreeSet<Key> = map(&states, &lookup).into_iter().collect();
                    for key in keys {
                        let add = add(&kind, &states, origin, &controller, &key);
                        inbox.add(&key, Add { renews: false, ..add });
                    }
                });
                async move { cache.synced().await }.boxed()
            };
            (declared, Box::new(subscribe) as Subscribe)
        };
        Setup::Watch(Box::new(open))
    }
}

/// The old and the new state of an object, of which only what is asked for is decoded, and only once.
struct States<'a, K> {
    transition: &'a Transition<K>,
    old: OnceCell<Option<Arc<K>>>,
    new: OnceCell<Option<Arc<K>>>,
    old_head: OnceCell<Option<Head>>,
    new_head: OnceCell<Option<Head>>,
}

impl<'a, K: Object> States<'a, K> {
    fn of(transition: &'a Transition<K>) -> Self {
        let (old, new) = (OnceCell::new(), OnceCell::new());
        Self { transition, old, new, old_head: OnceCell::new(), new_head: OnceCell::new() }
    }

    fn key(&self) -> &Key {
        &self.transition.key
    }

    fn old_object(&self) -> Option<&K> {
        self.old.get_or_init(|| self.transition.old.as_ref().and_then(Payload::object)).as_deref()
    }

    fn new_object(&self) -> Option<&K> {
        self.new.get_or_init(|| self.transition.new.as_ref().and_then(Payload::object)).as_deref()
    }

    fn old_head(&self) -> Option<&Head> {
        self.old_head.get_or_init(|| self.transition.old.as_ref().and_then(Payload::head)).as_ref()
    }

    fn new_head(&self) -> Option<&Head> {
        self.new_head.get_or_init(|| self.transition.new.as_ref().and_then(Payload::head)).as_ref()
    }

    fn pass(&self, predicate: Option<&Predicate<K>>) -> bool {
        let Some(predicate) = predicate else { return true };
        let (old, new) = (self.old_object(), self.new_object());
        // Without an object there is nothing to test: what cannot be decoded is told.
        (old.is_none() && new.is_none()) || predicate.passes(Change { old, new })
    }

    /// Whether a failure that was terminal may be cured by this change: a new generation, or for kinds without
    /// generations any change.
    fn renew(&self) -> bool {
        match (self.old_head(), self.new_head()) {
            (Some(old), Some(new)) => {
                new.generation.is_none()
                    || old.generation != new.generation
                    || old.uid != new.uid
                    || old.deletion != new.deletion
            }
            _ => true,
        }
    }
}

impl<K: Object> Default for Watch<K>
where
    K::DynamicType: Default,
{
    fn default() -> Self {
        Self::new()
    }
}

/// Subscribes a controller's handler; the future is done when the cache is synced.
pub(crate) type Subscribe = Box<dyn FnOnce(&Wiring) -> BoxFuture<'static, ()> + Send>;

/// Gives no cache to read where it is another cluster's.
type Open = Box<dyn Fn(&Caches) -> (Option<Declared>, Subscribe) + Send + Sync>;
type AddIndex = Box<dyn Fn(&[Declared]) -> Result<()> + Send + Sync>;

/// What is done for a declaration when its controller starts, once for each term of leadership.
pub(crate) enum Setup {
    /// Opens a cache.
    Watch(Open),
    /// Adds an index to a declared cache.
    Index(AddIndex),
}

/// What handlers need to tell a controller.
#[derive(Clone)]
pub(crate) struct Wiring {
    pub(crate) controller: Arc<str>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) lookup: Lookup,
}

/// Changes of the reconciled kind itself.
pub(crate) fn primary<O: Object>(
    cache: Arc<Cache<O>>,
    predicate: Option<Predicate<O>>,
    wiring: &Wiring,
) -> BoxFuture<'static, ()> {
    let listener = Arc::downgrade(&(Arc::clone(&wiring.inbox) as Arc<dyn Any + Send + Sync>));
    let inbox = Arc::downgrade(&wiring.inbox);
    let (controller, kind) = (Arc::clone(&wiring.controller), cache.kind().clone());
    cache.subscribe(listener, move |transition, origin| {
        let Some(inbox) = inbox.upgrade() else { return };
        let states = States::of(transition);
        if states.pass(predicate.as_ref()) {
            let key = states.key();
            let add = add(&kind, &states, origin, &controller, key);
            inbox.add(key, Add { renews: states.renew(), ..add });
        }
    });
    async move { cache.synced().await }.boxed()
}

fn add<K: Object>(
    kind: &Kind,
    states: &States<'_, K>,
    origin: &Origin,
    controller: &Arc<str>,
    key: &Key,
) -> Add {
    let transition = states.transition;
    let reason = match (origin, &transition.old, &transition.new) {
        (Origin::Initial, ..) => Reason::Initial,
        (_, None, _) => Reason::Added,
        (_, Some(_), Some(_)) => Reason::Changed,
        (_, Some(_), None) => Reason::Deleted,
    };
    let new = states.new_head();
    let uid = new.or_else(|| states.old_head()).and_then(|head| head.uid.clone());
    let object = ObjectRef { kind: kind.clone(), key: states.key().clone(), uid };
    Add {
        cause: Cause::new(reason, Some(object)),
        class: if *origin == Origin::Initial { Class::Background } else { Class::Fresh },
        // That something is gone is news even to the one who deleted it: what waits for it goes on from here.
        echo: transition.new.is_some()
            && matches!(origin, Origin::Own { controller: writer, key: written }
                if writer == controller && written == key),
        renews: false,
        version: new.and_then(|head| head.version),
    }
}

pub(crate) fn index<K: Object>(
    kind: Kind,
    name: &'static str,
    values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
) -> Setup {
    let values: Values<K> = Arc::new(move |payload: &Payload<K>| {
        payload.object().map(|object| values(&object)).unwrap_or_default()
    });
    Setup::Index(Box::new(move |caches| {
        let Some(cache) = find::<K>(caches, &kind) else {
            return Err(Error::msg(format!("index {name} is on {kind}, which is not watched")));
        };
        cache.add_index(name, &values);
        Ok(())
    }))
}

/// The controller's caches, for maps from one kind to another: the reconciled kind and those it watches.
/// A kind that is not among them has no objects here.
#[derive(Clone)]
pub struct Lookup {
    pub(crate) caches: Arc<Vec<Declared>>,
}

impl Lookup {
    /// The cached object under a key.
    pub fn get<K: Object>(&self, key: &Key) -> Option<Arc<K>>
    where
        K::DynamicType: Default,
    {
        find::<K>(&self.caches, &Kind::of::<K>())?.get(key)
    }

    /// The cached objects of a namespace, or all of them, by key.
    pub fn list<K: Object>(&self, namespace: Option<&str>) -> Vec<Arc<K>>
    where
        K::DynamicType: Default,
    {
        find::<K>(&self.caches, &Kind::of::<K>()).map(|cache| cache.list(namespace)).unwrap_or_default()
    }

    /// As [`get`](Self::get), of a kind that is known at run time.
    pub fn get_of<K: Object>(&self, dynamic: &K::DynamicType, key: &Key) -> Option<Arc<K>> {
        find::<K>(&self.caches, &K::kind_of(dynamic))?.get(key)
    }

    /// As [`list`](Self::list), of a kind that is known at run time.
    pub fn list_of<K: Object>(&self, dynamic: &K::DynamicType, namespace: Option<&str>) -> Vec<Arc<K>> {
        find::<K>(&self.caches, &K::kind_of(dynamic)).map(|cache| cache.list(namespace)).unwrap_or_default()
    }

    /// The cached objects of `K` whose index has `value`, by key.
    pub fn by_index<K: Object>(&self, index: &str, value: &str) -> Vec<Arc<K>>
    where
        K::DynamicType: Default,
    {
        find::<K>(&self.caches, &Kind::of::<K>())
            .and_then(|cache| cache.by_index(index, value))
            .unwrap_or_default()
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").finish_non_exhaustive()
    }
}

/// A map for [`crate::Controller::watches`]: the objects of `O` whose index `index` has the name of the
/// changed object.
pub fn by_index<O: Object, K: Object>(
    index: &'static str,
) -> impl Fn(Option<&K>, Option<&K>, &Lookup) -> Vec<Key> + Send + Sync + 'static
where
    O::DynamicType: Default,
{
    move |old, new, lookup| {
        let name = new.or(old).and_then(|object| object.meta().name.as_deref()).unwrap_or_default();
        lookup.by_index::<O>(index, name).iter().map(|object| Key::of(&**object)).collect()
    }
}
