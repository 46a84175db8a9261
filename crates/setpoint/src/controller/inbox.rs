use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Trigger;
use crate::queue::{Add, Class, Outcome, Popped, Queue};
use crate::{Cause, Key, Kind, Observer, Reason, Runtime};

/// The queue of one controller, with its clock, its metrics, and a bell for the workers.
pub(crate) struct Inbox {
    controller: Arc<str>,
    queue: Mutex<Queue>,
    bell: Notify,
    runtime: Runtime,
}

/// An add that no event of an object caused.
fn plain(cause: Cause, class: Class) -> Add {
    Add { cause, class, echo: false, renews: false, version: None }
}

impl Inbox {
    pub(crate) fn new(controller: Arc<str>, runtime: Runtime) -> Self {
        Self { controller, queue: Mutex::default(), bell: Notify::new(), runtime }
    }

    pub(crate) fn add(&self, key: &Key, add: Add) {
        self.queue.lock().add(key, add, Instant::now());
        self.observer().queue_added(&self.controller);
        self.bell.notify_one();
    }

    /// Adds keys of a resync.
    pub(crate) fn resync(&self, keys: Vec<Key>) {
        for key in keys {
            let cause = Cause::new(Reason::Resync, None);
            self.add(&key, plain(cause, Class::Background));
        }
    }

    pub(crate) fn trigger(&self, trigger: Trigger) {
        if trigger.delay.is_zero() {
            let cause = trigger.cause;
            self.add(&trigger.key, plain(cause, Class::Fresh));
        } else {
            self.queue.lock().add_after(&trigger.key, trigger.cause, trigger.delay, Instant::now());
            self.bell.notify_one();
        }
    }

    /// See [`Queue::made`].
    pub(crate) fn made(&self, key: &Key, object: (&Kind, &Key), version: u64) {
        self.queue.lock().made(key, object, version);
    }

    pub(crate) fn pop(&self) -> Option<Popped> {
        let popped = self.queue.lock().pop(Instant::now())?;
        self.observer().queue_waited(&self.controller, popped.waited);
        Some(popped)
    }

    pub(crate) fn finish(&self, key: &Key, outcome: Outcome) {
        if self.queue.lock().finish(key, outcome, Instant::now()) {
            self.observer().queue_retried(&self.controller);
        }
    }

    /// Tells how many keys are ready.
    pub(crate) fn report_depth(&self) {
        let (fresh, background) = self.queue.lock().depth();
        self.observer().queue_depth(&self.controller, fresh, background);
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.queue.lock().next_wake()
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stop();
    }

    /// Rings at each add.
    pub(crate) fn bell(&self) -> &Notify {
        &self.bell
    }

    fn observer(&self) -> &dyn Observer {
        self.runtime.observer()
    }
}
