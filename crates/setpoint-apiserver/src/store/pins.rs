//! Snapshots that lists in pages go on with, so that a writer in between does not make their tokens too old.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Snapshot;

/// Upstream compacts its history every five minutes.
const KEPT: Duration = Duration::from_secs(300);
/// Each keeps alive what was changed since.
const MOST: usize = 16;

#[derive(Debug)]
struct Pin {
    resource: Arc<str>,
    snapshot: Snapshot,
    until: Instant,
}

/// The newest of them, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<VecDeque<Pin>>);

impl Pins {
    pub(super) fn get(&self, resource: &str, revision: u64) -> Option<Snapshot> {
        let mut pins = self.0.lock();
        forget_old(&mut pins);
        let found = pins.iter().find(|pin| pin.snapshot.revision == revision && &*pin.resource == resource);
        found.map(|pin| pin.snapshot.clone())
    }

    pub(super) fn keep(&self, resource: &Arc<str>, snapshot: &Snapshot) {
        let mut pins = self.0.lock();
        forget_old(&mut pins);
        if pins.iter().any(|pin| pin.snapshot.revision == snapshot.revision && pin.resource == *resource) {
            return;
        }
        if pins.len() == MOST {
            pins.pop_front();
        }
        let until = Instant::now() + KEPT;
        pins.push_back(Pin { resource: Arc::clone(resource), snapshot: snapshot.clone(), until });
    }

    /// Frees what is no longer wanted. To be called now and then.
    pub(super) fn tidy(&self) {
        forget_old(&mut self.0.lock());
    }
}

fn forget_old(pins: &mut VecDeque<Pin>) {
    if pins.is_empty() {
        return;
    }
    let now = Instant::now();
    while pins.front().is_some_and(|pin| pin.until <= now) {
        pins.pop_front();
    }
}
