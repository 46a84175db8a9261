use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Key, Kind, Object, Predicate, Selector};

/// How a kind is watched beside the reconciled one: which of its changes count, and which objects.
#[derive(Debug)]
pub struct Watch<K> {
    pub(crate) kind: Kind,
    pub(crate) selector: Selector,
    pub(crate) predicate: Option<Predicate<K>>,
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
        Self { kind: K::kind_of(dynamic), selector: Selector::all(), predicate: None }
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

    pub(crate) fn owned_by<O: Object>(self, _owner: &Kind) -> Setup {
        Setup(PhantomData)
    }

    pub(crate) fn mapped(
        self,
        _map: impl Fn(Option<&K>, Option<&K>, &Lookup) -> Vec<Key> + Send + Sync + 'static,
    ) -> Setup {
        Setup(PhantomData)
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

pub(crate) struct Setup(PhantomData<()>);

pub(crate) fn index<K: Object>(
    _kind: Kind,
    _name: &'static str,
    _values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
) -> Setup {
    Setup(PhantomData)
}

/// The controller's caches, for maps from one kind to another.
#[derive(Debug)]
pub struct Lookup(());

impl Lookup {
    /// The cached objects of `K` whose index has `value`, by key.
    pub fn by_index<K: Object>(&self, index: &str, value: &str) -> Vec<Arc<K>>
    where
        K::DynamicType: Default,
    {
        let _ = (index, value, self.0);
        Vec::new()
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
