use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use setpoint_clock::Entropy;

use crate::{Kind, Observer, Scope};

/// All caches of a process: one for each kind, representation and selector, shared by all controllers.
#[derive(Clone)]
pub struct Caches(Arc<Inner>);

struct Inner {
    client: Client,
    scope: Scope,
    entropy: Entropy,
    observer: Arc<dyn Observer>,
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
    /// Why the last attempt to watch failed, if it did.
    pub error: Option<String>,
}

impl Caches {
    pub(crate) fn new(client: Client, scope: Scope, entropy: Entropy, observer: Arc<dyn Observer>) -> Self {
        Self(Arc::new(Inner { client, scope, entropy, observer }))
    }

    /// How each watch is doing, sorted by kind.
    pub fn health(&self) -> Vec<CacheHealth> {
        let _ = (&self.0.client, &self.0.scope, &self.0.entropy, &self.0.observer);
        Vec::new()
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.health()).finish()
    }
}
