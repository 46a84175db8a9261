//! Who wants to know in which namespaces something was written.

use std::collections::BTreeSet;
use std::fmt;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::EventKind;

/// Which writes count, by resource.
type Filter = dyn Fn(&str, EventKind) -> bool + Send + Sync;

/// Collects the namespaces of writes that count, each once until it is taken: a slow reader costs no memory.
pub(crate) struct Listener {
    counts: Box<Filter>,
    namespaces: Mutex<BTreeSet<String>>,
    news: Notify,
}

impl Listener {
    pub(super) fn new(counts: impl Fn(&str, EventKind) -> bool + Send + Sync + 'static) -> Self {
        Self { counts: Box::new(counts), namespaces: Mutex::default(), news: Notify::new() }
    }

    /// A write happened.
    pub(super) fn written(&self, resource: &str, kind: EventKind, namespace: &str) {
        if (self.counts)(resource, kind) {
            self.add(namespace);
        }
    }

    pub(super) fn add(&self, namespace: &str) {
        let mut namespaces = self.namespaces.lock();
        if !namespaces.contains(namespace) {
            namespaces.insert(namespace.to_owned());
            self.news.notify_one();
        }
    }

    /// Waits until there are some. [`Listener::take`] gives them.
    pub(crate) async fn some(&self) {
        while self.namespaces.lock().is_empty() {
            self.news.notified().await;
        }
    }

    /// Those since it was last asked.
    pub(crate) fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.namespaces.lock())
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("namespaces", &self.namespaces).finish_non_exhaustive()
    }
}
