use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use parking_lot::{Mutex, RwLock};
use setpoint_clock::Entropy;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::decode::{Peek, decode_text};
use crate::reflector::Reflector;
use crate::runtime::partitions;
use crate::store::{Listed, Member, Payload, Put, Store, Transition, Values, Version};
use crate::{Key, Kind, Object, Observer, Scope, Selector, fingerprint};

mod freshness;
mod glance;

pub(crate) use freshness::Snapshot;
pub(crate) use glance::Glance;

/// Silence of a watch after which it counts as stuck. Bookmarks come about every 60 s.
pub(crate) const SILENCE: Duration = Duration::from_secs(150);

/// So many objects are decoded each time that they are read together; where more are, they are kept decoded.
const PACKED_READS: usize = 100;

/// The index of every cache: objects by the uid of their controller, or of the owner that they are linked to.
pub(crate) const CONTROLLER: &str = "metadata.ownerReferences.controller.uid";

/// All caches of a process: one for each kind, representation and selector, shared by all controllers.
#[derive(Clone)]
pub struct Caches(Arc<Inner>);

struct Inner {
    client: Client,
    scope: Scope,
    entropy: Entropy,
    observer: Arc<dyn Observer>,
    caches: Mutex<BTreeMap<WatchId, Arc<dyn AnyCache>>>,
    reflectors: Mutex<Vec<AbortHandle>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reflectors.lock().iter().for_each(AbortHandle::abort);
        // Handlers know caches, which know handlers.
        self.caches.lock().values().for_each(|cache| cache.deafen());
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WatchId {
    kind: Kind,
    /// The Rust type: whole objects of some shape, or metadata only. Its name, for an order that is the same
    /// in every build, and its identity, as names need not be unique.
    representation: (&'static str, TypeId),
    selector: Selector,
}

impl WatchId {
    fn of<T: 'static>(kind: &Kind, selector: &Selector) -> Self {
        Self {
            kind: kind.clone(),
            representation: (std::any::type_name::<T>(), TypeId::of::<T>()),
            selector: selector.clone(),
        }
    }
}

/// How a cache is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheHealth {
    /// What is watched.
    pub kind: Kind,
    /// The namespace, or all of them.
    pub namespace: Option<String>,
    /// Whether its first list is complete.
    pub synced: bool,
    /// How long the server has been silent. Bookmarks come about every 60 s.
    pub silent: Duration,
    /// Silent for 150 s or more.
    pub stuck: bool,
    /// Objects in memory.
    pub objects: usize,
    /// Why the last attempt to watch failed, if it did.
    pub error: Option<String>,
}

impl CacheHealth {
    /// What is watched, and in which namespace if not in all.
    pub(crate) fn place(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} in {namespace}", self.kind),
            None => self.kind.to_string(),
        }
    }
}

impl Caches {
    pub(crate) fn new(client: Client, scope: Scope, entropy: Entropy, observer: Arc<dyn Observer>) -> Self {
        let (caches, reflectors) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { client, scope, entropy, observer, caches, reflectors }))
    }

    /// How each watch is doing, sorted by kind.
    pub fn health(&self) -> Vec<CacheHealth> {
        self.0.caches.lock().values().flat_map(|cache| cache.health()).collect()
    }

    /// The cached object under a key, of a kind that some controller of this runtime watches without a
    /// selector. For caches of another cluster (see [`crate::Watch::elsewhere`]); of one's own, the context reads.
    pub fn get<K: Object>(&self, key: &Key) -> Option<Arc<K>>
    where
        K::DynamicType: Default,
    {
        self.opened::<K>()?.get(key)
    }

    /// As [`get`](Self::get): the cached objects of a namespace, or all of them, by key.
    pub fn list<K: Object>(&self, namespace: Option<&str>) -> Vec<Arc<K>>
    where
        K::DynamicType: Default,
    {
        self.opened::<K>().map(|cache| cache.list(namespace)).unwrap_or_default()
    }

    fn opened<K: Object>(&self) -> Option<Arc<Cache<K>>>
    where
        K::DynamicType: Default,
    {
        let id = WatchId::of::<K>(&Kind::of::<K>(), &Selector::all());
        let cache = Arc::clone(self.0.caches.lock().get(&id)?);
        cache.any().downcast().ok()
    }

    /// The cache of a kind in a representation; its watch starts with the first call.
    pub(crate) fn open<T: Object>(&self, kind: &Kind, selector: &Selector) -> Arc<Cache<T>> {
        let id = WatchId::of::<T>(kind, selector);
        let mut caches = self.0.caches.lock();
        if let Some(Ok(cache)) = caches.get(&id).map(|cache| Arc::clone(cache).any().downcast::<Cache<T>>()) {
            return cache;
        }
        let partitions = partitions(&self.0.scope, kind);
        let cache = Arc::new(Cache::<T>::new(kind.clone(), selector.clone(), &partitions));
        for namespace in partitions {
            let reflector = Reflector::new(
                self.0.client.clone(),
                Arc::clone(&cache),
                namespace,
                self.0.entropy.clone(),
                Arc::clone(&self.0.observer),
            );
            self.0.reflectors.lock().push(tokio::spawn(reflector.run()).abort_handle());
        }
        caches.insert(id, Arc::clone(&cache) as Arc<dyn AnyCache>);
        cache
    }

    /// Puts the answer to an own write into every cache of its kind. Where only the watch can tell, waits
    /// until that has passed the written version, for at most `limit`.
    pub(crate) async fn wrote(&self, kind: &Kind, object: &str, origin: &Origin, limit: Duration) {
        let caches = self.of(kind);
        let until = Instant::now() + limit;
        for cache in caches {
            let Some((key, version)) = cache.wrote(object, origin) else { continue };
            if !cache.passed(&key, version, until).await {
                cache.suspect(&key);
            }
        }
    }

    /// Hides a deleted object in every cache of its kind.
    pub(crate) fn hide(&self, kind: &Kind, key: &Key, uid: &str, origin: &Origin) {
        for cache in self.of(kind) {
            cache.hide(key, uid, origin);
        }
    }

    /// Marks a key whose last write has an unknown outcome.
    pub(crate) fn suspect(&self, kind: &Kind, key: &Key) {
        for cache in self.of(kind) {
            cache.suspect(key);
        }
    }

    /// Waits until every cache of the kind has seen `version`, for at most `limit`.
    pub(crate) async fn passed(&self, kind: &Kind, key: &Key, version: u64, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        for cache in self.of(kind) {
            if !cache.passed(key, version, until).await {
                cache.suspect(key);
                return false;
            }
        }
        true
    }

    /// Waits until every cache of the kind has seen the deletion of this very object, for at most `limit`.
    pub(crate) async fn deletion_seen(&self, kind: &Kind, key: &Key, uid: &str, limit: Duration) {
        let until = Instant::now() + limit;
        for cache in self.of(kind) {
            if !cache.deletion_seen(key, uid, until).await {
                cache.suspect(key);
            }
        }
    }

    fn of(&self, kind: &Kind) -> Vec<Arc<dyn AnyCache>> {
        self.0
            .caches
            .lock()
            .iter()
            .filter(|(id, _)| id.kind.same_resource(kind))
            .map(|(_, cache)| Arc::clone(cache))
            .collect()
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.health()).finish()
    }
}

/// Where a transition came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Watch,
    /// The first list, or what was there when a handler came.
    Initial,
    /// A write of the reconcile of this key by this controller.
    Own {
        controller: Arc<str>,
        key: Key,
    },
}

/// Told each transition once, in order.
type Handler<T> = Box<dyn Fn(&Transition<T>, &Origin) + Send + Sync>;

/// Who is told by a handler; when it is gone, so is the handler.
pub(crate) type Listener = Weak<dyn Any + Send + Sync>;

/// The objects of one watch, or of one for each watched namespace.
pub(crate) struct Cache<T> {
    kind: Kind,
    selector: Selector,
    parts: BTreeMap<Option<String>, Part<T>>,
    /// Held while a change is made and told, so that handlers hear changes in their order.
    telling: Mutex<()>,
    handlers: RwLock<Vec<(Listener, Handler<T>)>>,
    moved: watch::Sender<()>,
}

struct Part<T> {
    store: Mutex<Store<T>>,
    pulse: Mutex<Pulse>,
}

struct Pulse {
    heard: Instant,
    error: Option<String>,
}

impl<T: Object> Cache<T> {
    fn new(kind: Kind, selector: Selector, partitions: &[Option<String>]) -> Self {
        let controller: Values<T> = Arc::new(|payload: &Payload<T>| {
            let Some(head) = payload.head() else { return Vec::new() };
            let linked = head.link.map(|(uid, _)| uid);
            head.controller.map(|owner| owner.uid).into_iter().chain(linked).collect()
        });
        let part = |namespace: &Option<String>| {
            let mut store = Store::default();
            store.add_index(CONTROLLER, &controller);
            let pulse = Pulse { heard: Instant::now(), error: None };
            (namespace.clone(), Part { store: Mutex::new(store), pulse: Mutex::new(pulse) })
        };
        Self {
            kind,
            selector,
            parts: partitions.iter().map(part).collect(),
            telling: Mutex::new(()),
            handlers: RwLock::default(),
            moved: watch::Sender::new(()),
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Tells `handler` what is there, then each change.
    pub(crate) fn subscribe(
        &self,
        listener: Listener,
        handler: impl Fn(&Transition<T>, &Origin) + Send + Sync + 'static,
    ) {
        let _telling = self.telling.lock();
        let mut present = Vec::new();
        for part in self.parts.values() {
            present.extend(part.store.lock().iter().map(|(key, record)| Transition {
                key: Arc::clone(key),
                old: None,
                new: Some(record.payload.clone()),
                late: false,
            }));
        }
        for transition in &present {
            handler(transition, &Origin::Initial);
        }
        self.handlers.write().push((listener, Box::new(handler)));
    }

    pub(crate) fn add_index(&self, name: &'static str, values: &Values<T>) {
        for part in self.parts.values() {
            part.store.lock().add_index(name, values);
        }
    }

    /// Waits until the first list of every part is complete.
    pub(crate) async fn synced(&self) {
        let mut moved = self.moved.subscribe();
        while !self.parts.values().all(|part| part.store.lock().synced()) {
            // The sender lives as long as this cache.
            let _ = moved.changed().await;
        }
    }

    /// Reads one part, if the key's namespace is watched.
    pub(crate) fn read<R>(&self, key: &Key, read: impl FnOnce(&mut Store<T>) -> R) -> Option<R> {
        self.part(key.namespace.as_deref()).map(|part| read(&mut part.store.lock()))
    }

    /// Reads all parts, or that of one namespace.
    pub(crate) fn read_all<R>(
        &self,
        namespace: Option<&str>,
        mut read: impl FnMut(&Store<T>) -> R,
    ) -> Vec<R> {
        match namespace {
            Some(namespace) => {
                self.part(Some(namespace)).into_iter().map(|part| read(&part.store.lock())).collect()
            }
            None => self.parts.values().map(|part| read(&part.store.lock())).collect(),
        }
    }

    /// The object under a key, as it can be read.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.payload(key)?.object()
    }

    fn payload(&self, key: &Key) -> Option<Payload<T>> {
        self.read(key, |store| store.visible(key).map(|record| record.payload.clone())).flatten()
    }

    /// As [`get`](Self::get), not decoded, if it is of this uid.
    pub(crate) fn payload_of(&self, key: &Key, uid: &str) -> Option<Payload<T>> {
        let payload = |store: &mut Store<T>| {
            store.visible(key).filter(|record| *record.uid == *uid).map(|record| record.payload.clone())
        };
        self.read(key, payload).flatten()
    }

    /// Whether an object of this uid is under a key, and can be decoded.
    pub(crate) fn has(&self, key: &Key, uid: &str) -> bool {
        self.payload_of(key, uid).is_some_and(|payload| !payload.is_undecodable())
    }

    /// Objects of a namespace, or all of them, by key.
    pub(crate) fn list(&self, namespace: Option<&str>) -> Vec<Arc<T>> {
        let in_namespace =
            |key: &Key| namespace.is_none_or(|namespace| key.namespace.as_deref() == Some(namespace));
        let read = || {
            let parts = self.read_all(namespace, |store| {
                let objects = store.iter().filter(|(key, _)| in_namespace(key));
                objects.map(|(_, record)| record.payload.clone()).collect::<Vec<_>>()
            });
            parts.into_iter().flatten().collect()
        };
        self.objects(&read)
    }

    /// Decodes what is read. Who reads many at once does so again and again: from then on they are kept decoded.
    fn objects(&self, read: &dyn Fn() -> Vec<Payload<T>>) -> Vec<Arc<T>> {
        let mut payloads = read();
        if payloads.iter().filter(|payload| matches!(payload, Payload::Packed(_))).count() > PACKED_READS {
            self.parts.values().for_each(|part| part.store.lock().unpack());
            payloads = read();
        }
        payloads.iter().filter_map(Payload::object).collect()
    }

    /// The keys of all that can be read, also of what cannot be decoded.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let keys =
            self.read_all(None, |store| store.iter().map(|(key, _)| Key::clone(key)).collect::<Vec<_>>());
        keys.into_iter().flatten().collect()
    }

    /// Objects of an index, by key. `None`: there is no such index.
    pub(crate) fn by_index(&self, index: &str, value: &str) -> Option<Vec<Arc<T>>> {
        let read = || {
            self.read_all(None, |store| store.by_index(index, value)).into_iter().collect::<Option<Vec<_>>>()
        };
        read()?;
        Some(self.objects(&|| read().into_iter().flatten().flatten().collect()))
    }

    /// Changes the part of a namespace and tells the handlers.
    pub(crate) fn change(
        &self,
        namespace: Option<&str>,
        origin: &Origin,
        change: impl FnOnce(&mut Store<T>) -> Vec<Transition<T>>,
    ) {
        let Some(part) = self.part(namespace) else { return };
        let _telling = self.telling.lock();
        let transitions = change(&mut part.store.lock());
        let mut left = false;
        for transition in &transitions {
            if transition.late {
                tracing::debug!(kind = %self.kind, key = %transition.key, "an own write had overtaken a change");
            }
            for (listener, handler) in self.handlers.read().iter() {
                if listener.strong_count() == 0 {
                    left = true;
                } else if catch_unwind(AssertUnwindSafe(|| handler(transition, origin))).is_err() {
                    // A map or predicate of an author: the watch and the other handlers go on.
                    tracing::error!(kind = %self.kind, key = %transition.key, "an event handler panicked");
                }
            }
        }
        if left {
            self.handlers.write().retain(|(listener, _)| listener.strong_count() > 0);
        }
        self.moved.send_replace(());
    }

    /// A complete list of the part of a namespace.
    pub(crate) fn listed<E>(
        &self,
        namespace: Option<&str>,
        list: impl FnOnce(&mut Store<T>) -> Result<Listed<T>, E>,
    ) -> Result<(), E> {
        let origin = if self.part(namespace).is_some_and(|part| part.store.lock().synced()) {
            Origin::Watch
        } else {
            Origin::Initial
        };
        let mut outcome = Ok(());
        self.change(namespace, &origin, |store| match list(store) {
            Ok(listed) => {
                if listed.restored {
                    tracing::warn!(
                        kind = %self.kind,
                        "the API server is older than what was seen: it was restored from a backup, starting again"
                    );
                }
                listed.transitions
            }
            Err(error) => {
                outcome = Err(error);
                Vec::new()
            }
        });
        outcome
    }

    /// The server said something, or could not be reached.
    pub(crate) fn pulse(&self, namespace: Option<&str>, error: Option<String>) {
        if let Some(part) = self.part(namespace) {
            let mut pulse = part.pulse.lock();
            if error.is_none() {
                pulse.heard = Instant::now();
            }
            pulse.error = error;
        }
    }

    pub(crate) fn undecodable(&self) -> usize {
        self.read_all(None, Store::undecodable).into_iter().sum()
    }

    /// Puts an object that was written or read live. The version to wait for, if only the watch can tell.
    pub(crate) fn put(&self, object: &str, origin: &Origin) -> Option<(Key, u64)> {
        let Peek { key, uid, version, .. } = Peek::of(object).ok()?;
        if self.knows(&key, &uid, &version) {
            return None;
        }
        let member = if self.selector == Selector::all() {
            Member::Yes
        } else {
            self.selector.matches(&serde_json::from_str(object).ok()?)
        };
        let seen = decode_text::<T>(&self.kind, object)?;
        let mut wait = None;
        self.change(key.namespace.clone().as_deref(), origin, |store| match store.wrote(seen, member) {
            Put::Stored(transition) => vec![transition],
            Put::Known => Vec::new(),
            Put::Wait(version) => {
                wait = Some(version);
                Vec::new()
            }
        });
        wait.map(|version| (key, version))
    }

    /// Whether this state of an object is here already.
    pub(crate) fn knows(&self, key: &Key, uid: &str, version: &Version) -> bool {
        self.read(key, |store| store.knows(key, uid, version)).unwrap_or(false)
    }

    /// Waits until `condition` holds, asked again after every change; for at most `until`.
    async fn holds(&self, until: Instant, condition: impl Fn() -> bool + Send) -> bool {
        let mut moved = self.moved.subscribe();
        while !condition() {
            if tokio::time::timeout_at(until, moved.changed()).await.is_err() {
                return condition();
            }
        }
        true
    }

    fn part(&self, namespace: Option<&str>) -> Option<&Part<T>> {
        match self.parts.get(&None) {
            Some(part) => Some(part),
            None => self.parts.get(&namespace.map(str::to_owned)),
        }
    }
}

/// A cache of whatever type.
pub(crate) trait AnyCache: Send + Sync {
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    fn health(&self) -> Vec<CacheHealth>;
    fn wrote(&self, object: &str, origin: &Origin) -> Option<(Key, u64)>;
    fn hide(&self, key: &Key, uid: &str, origin: &Origin);
    fn suspect(&self, key: &Key);
    fn is_suspect(&self, key: &Key) -> bool;
    /// The suspect keys, or the given one if it is suspect.
    fn suspects(&self, key: Option<&Key>) -> Vec<Key>;
    /// A live read has settled a suspect.
    fn settled(&self, key: &Key);
    /// A live read has shown that there is no such object.
    fn vanish(&self, key: &Key);
    /// Whether only metadata is kept.
    fn is_metadata(&self) -> bool;
    /// What an apply has to know about an object, if that is here.
    fn glance(&self, key: &Key, manager: &str, part: fingerprint::Part, intent: u64) -> Option<Glance>;
    /// Notes that a manager's intent led to what is here now.
    fn remember(&self, key: &Key, manager: &str, part: fingerprint::Part, intent: u64);
    fn kind_of(&self) -> &Kind;
    fn selector_of(&self) -> &Selector;
    /// Waits until the first list of every part is complete.
    fn synced(self: Arc<Self>) -> BoxFuture<'static, ()>;
    /// The namespaces that are watched, or `None` for all.
    fn partitions(&self) -> Vec<Option<String>>;
    /// Waits until everything in a snapshot of a part was seen.
    fn covers<'a>(&'a self, namespace: Option<&'a str>, snapshot: &'a Snapshot) -> BoxFuture<'a, ()>;
    /// Drops all handlers.
    fn deafen(&self);
    fn passed<'a>(&'a self, key: &'a Key, version: u64, until: Instant) -> BoxFuture<'a, bool>;
    /// Waits until this very object is being deleted, or gone.
    fn deletion_seen<'a>(&'a self, key: &'a Key, uid: &'a str, until: Instant) -> BoxFuture<'a, bool>;
}

impl<T: Object> AnyCache for Cache<T> {
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn health(&self) -> Vec<CacheHealth> {
        let parts = self.parts.iter().map(|(namespace, part)| {
            let (synced, objects) = {
                let store = part.store.lock();
                (store.synced(), store.iter().count())
            };
            let pulse = part.pulse.lock();
            let silent = pulse.heard.elapsed();
            CacheHealth {
                kind: self.kind.clone(),
                namespace: namespace.clone(),
                synced,
                silent,
                stuck: silent >= SILENCE,
                objects,
                error: pulse.error.clone(),
            }
        });
        parts.collect()
    }

    fn wrote(&self, object: &str, origin: &Origin) -> Option<(Key, u64)> {
        self.put(object, origin)
    }

    fn hide(&self, key: &Key, uid: &str, origin: &Origin) {
        self.change(key.namespace.as_deref(), origin, |store| store.hide(key, uid).into_iter().collect());
    }

    fn suspect(&self, key: &Key) {
        self.read(key, |store| store.suspect(key));
    }

    fn is_suspect(&self, key: &Key) -> bool {
        self.read(key, |store| store.is_suspect(key)).unwrap_or(false)
    }

    fn suspects(&self, key: Option<&Key>) -> Vec<Key> {
        if let Some(key) = key {
            return self.is_suspect(key).then(|| key.clone()).into_iter().collect();
        }
        let parts = self.read_all(None, |store| store.suspects().cloned().collect::<Vec<_>>());
        parts.into_iter().flatten().collect()
    }

    fn settled(&self, key: &Key) {
        self.read(key, |store| store.settled(key));
    }

    fn vanish(&self, key: &Key) {
        self.change(key.namespace.as_deref(), &Origin::Watch, |store| {
            let uid = store.visible(key).map(|record| record.uid.clone());
            uid.and_then(|uid| store.hide(key, &uid)).into_iter().collect()
        });
    }

    fn is_metadata(&self) -> bool {
        T::metadata_api()
    }

    fn glance(&self, key: &Key, manager: &str, part: fingerprint::Part, intent: u64) -> Option<Glance> {
        self.read(key, |store| Glance::of_record(store.visible(key)?, manager, part, intent)).flatten()
    }

    fn remember(&self, key: &Key, manager: &str, part: fingerprint::Part, intent: u64) {
        self.read(key, |store| {
            if let Some(record) = store.record_mut(key) {
                fingerprint::remember(&mut record.memos, &record.prints, manager, part, intent);
            }
        });
    }

    fn kind_of(&self) -> &Kind {
        &self.kind
    }

    fn selector_of(&self) -> &Selector {
        &self.selector
    }

    fn synced(self: Arc<Self>) -> BoxFuture<'static, ()> {
        async move { Cache::synced(&self).await }.boxed()
    }

    fn partitions(&self) -> Vec<Option<String>> {
        self.parts.keys().cloned().collect()
    }

    fn covers<'a>(&'a self, namespace: Option<&'a str>, snapshot: &'a Snapshot) -> BoxFuture<'a, ()> {
        let covered = move || {
            let part = self.part(namespace);
            part.is_none_or(|part| part.store.lock().covers(&snapshot.objects, snapshot.version))
        };
        async move {
            let mut moved = self.moved.subscribe();
            while !covered() {
                // The sender lives as long as this cache.
                let _ = moved.changed().await;
            }
        }
        .boxed()
    }

    fn deafen(&self) {
        self.handlers.write().clear();
    }

    fn passed<'a>(&'a self, key: &'a Key, version: u64, until: Instant) -> BoxFuture<'a, bool> {
        self.holds(until, move || {
            let progress = self.read(key, |store| store.progress().and_then(Version::number));
            progress.is_none_or(|progress| progress.is_some_and(|progress| progress >= version))
        })
        .boxed()
    }

    fn deletion_seen<'a>(&'a self, key: &'a Key, uid: &'a str, until: Instant) -> BoxFuture<'a, bool> {
        self.holds(until, move || {
            !self.has(key, uid)
                || self.payload(key).and_then(|payload| payload.head()).is_none_or(|head| head.is_deleting())
        })
        .boxed()
    }
}
