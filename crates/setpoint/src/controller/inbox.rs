use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Trigger;
use crate::queue::{Add, Class, Outcome, Popped, Queue};
use crate::{Cause, Key, Kind, Observer, Reason, Runtime};

/// The queue of one controller, with its metrics, a bell for the workers, and one for who keeps its timers.
pub(crate) struct Inbox {
    controller: Arc<str>,
    state: Mutex<State>,
    /// Something is ready, or nothing will be any more.
    bell: Notify,
    /// Something will become ready earlier than was said.
    sooner: Notify,
    runtime: Runtime,
}

#[derive(Default)]
struct State {
    queue: Queue,
    /// The next wake-up, as the keeper of the timers knows it.
    wake: Option<Instant>,
    stopped: bool,
}

/// An add that no event of an object caused.
fn plain(cause: Cause, class: Class) -> Add {
    Add { cause, class, echo: false, renews: false, version: None }
}

impl Inbox {
    pub(crate) fn new(controller: Arc<str>, runtime: Runtime) -> Self {
        let (bell, sooner) = (Notify::new(), Notify::new());
        Self { controller, state: Mutex::default(), bell, sooner, runtime }
    }

    pub(crate) fn add(&self, key: &Key, add: Add) {
        self.change(|queue| queue.add(key, add, Instant::now()));
        self.observer().queue_added(&self.controller);
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
            self.change(|queue| queue.add_after(&trigger.key, trigger.cause, trigger.delay, Instant::now()));
        }
    }

    /// See [`Queue::made`].
    pub(crate) fn made(&self, key: &Key, object: (&Kind, &Key), version: u64) {
        self.state.lock().queue.made(key, object, version);
    }

    /// The next key to work on, when there is one; `None` when nothing is popped any more. That none of many workers is woken for nothing,
    /// each rings for the next.
    pub(crate) async fn next(&self) -> Option<Popped> {
        loop {
            // Before the look, so that no ring between is missed.
            let rung = self.bell.notified();
            if self.state.lock().stopped {
                return None;
            }
            let popped = self.change(|queue| queue.pop(Instant::now()));
            if let Some(popped) = popped {
                self.observer().queue_waited(&self.controller, popped.waited);
                return Some(popped);
            }
            rung.await;
        }
    }

    pub(crate) fn finish(&self, key: &Key, outcome: Outcome) {
        if self.change(|queue| queue.finish(key, outcome, Instant::now())) {
            self.observer().queue_retried(&self.controller);
        }
    }

    /// Makes ready what is due, for ever.
    pub(crate) async fn keep_time(&self) {
        loop {
            let wake = self.change(|queue| {
                queue.fire(Instant::now());
                queue.next_wake()
            });
            self.state.lock().wake = wake;
            let sooner = self.sooner.notified();
            match wake {
                // Whichever it was, the queue is looked at again.
                Some(wake) => drop(tokio::time::timeout_at(wake, sooner).await),
                None => sooner.await,
            }
        }
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.queue.stop();
        state.stopped = true;
        drop(state);
        self.bell.notify_waiters();
    }

    /// Changes the queue, and rings for what is ready then.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state.queue);
        let (fresh, background) = state.queue.depth();
        let wake = state.queue.next_wake();
        let sooner = wake.is_some_and(|wake| state.wake.is_none_or(|known| wake < known));
        if sooner {
            state.wake = wake;
        }
        drop(state);
        if fresh + background > 0 {
            self.bell.notify_one();
        }
        if sooner {
            self.sooner.notify_one();
        }
        self.observer().queue_depth(&self.controller, fresh, background);
        changed
    }

    fn observer(&self) -> &dyn Observer {
        self.runtime.observer()
    }
}
