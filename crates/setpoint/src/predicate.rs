use std::fmt;
use std::sync::Arc;

use kube::{Resource, ResourceExt};

/// An object before and after; one of them is absent when it appears or goes away.
#[derive(Debug)]
pub struct Change<'a, K> {
    /// As it was.
    pub old: Option<&'a K>,
    /// As it is.
    pub new: Option<&'a K>,
}

impl<K> Clone for Change<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Change<'_, K> {}

type Test<K> = Arc<dyn Fn(Change<'_, K>) -> bool + Send + Sync>;

/// Which changes of a watched kind put a key into the queue. Predicates combine with
/// [`and`](Self::and), [`or`](Self::or) and [`not`](Self::not).
pub struct Predicate<K>(Test<K>);

impl<K: 'static> Predicate<K> {
    /// A test of one's own, asked for every change.
    pub fn new(test: impl Fn(Change<'_, K>) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(test))
    }

    /// A test of updates; objects that appear or go away pass.
    pub fn of_updates(test: impl Fn(&K, &K) -> bool + Send + Sync + 'static) -> Self {
        Self::new(move |change| match (change.old, change.new) {
            (Some(old), Some(new)) => test(old, new),
            _ => true,
        })
    }

    /// Both must pass.
    pub fn and(self, other: Self) -> Self {
        Self::new(move |change| self.passes(change) && other.passes(change))
    }

    /// One must pass.
    pub fn or(self, other: Self) -> Self {
        Self::new(move |change| self.passes(change) || other.passes(change))
    }

    /// The opposite.
    #[expect(clippy::should_implement_trait, reason = "kube's and controller-runtime's word, beside and/or")]
    pub fn not(self) -> Self {
        Self::new(move |change| !self.passes(change))
    }

    /// Whether `change` passes.
    pub fn passes(&self, change: Change<'_, K>) -> bool {
        (self.0)(change)
    }
}

impl<K> Clone for Predicate<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> fmt::Debug for Predicate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predicate")
    }
}

/// Updates that changed `.metadata.generation`, uid or the deletion timestamp: those of the spec.
pub fn generation_changed<K: Resource + 'static>() -> Predicate<K> {
    Predicate::of_updates(|old: &K, new: &K| {
        old.meta().generation != new.meta().generation
            || old.meta().uid != new.meta().uid
            || old.meta().deletion_timestamp != new.meta().deletion_timestamp
    })
}

/// Updates that changed the resource version: all but those of a re-list.
pub fn resource_version_changed<K: Resource + 'static>() -> Predicate<K> {
    Predicate::of_updates(|old: &K, new: &K| old.meta().resource_version != new.meta().resource_version)
}

/// Updates that changed a label.
pub fn labels_changed<K: Resource + 'static>() -> Predicate<K> {
    Predicate::of_updates(|old: &K, new: &K| old.labels() != new.labels())
}

/// Updates that changed an annotation. The one that `kubectl apply` keeps for itself is not looked at.
pub fn annotations_changed<K: Resource + 'static>() -> Predicate<K> {
    Predicate::of_updates(|old: &K, new: &K| old.annotations() != new.annotations())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(generation: i64, label: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.generation = Some(generation);
        object.labels_mut().insert("a".to_owned(), label.to_owned());
        object
    }

    #[test]
    fn combined_predicates_pass_when_one_or_both_do() {
        let (old, new) = (object(1, "x"), object(1, "y"));
        let change = Change { old: Some(&old), new: Some(&new) };
        assert!(!generation_changed().passes(change));
        assert!(labels_changed().passes(change));
        assert!(generation_changed().or(labels_changed()).passes(change));
        assert!(!generation_changed().and(labels_changed()).passes(change));
        assert!(generation_changed().not().passes(change));
        assert!(generation_changed().passes(Change { old: None, new: Some(&new) }));
    }
}
