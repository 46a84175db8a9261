//! The work queue as a pure machine: methods take the time, nothing sleeps, nothing is spawned.
//!
//! ```text
//!            add                 pop                finish
//! (absent) ───────▶ ready ───────────────▶ running ────────▶ absent
//!                     ▲ ▲                   │  │ add: dirty
//!                 add │ └───────────────────┘  │ after / error
//!                     └────── waiting(at) ◀────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Cause, Key, Kind, Reason};

/// Causes kept for one run; further ones are counted.
const CAUSES_KEPT: usize = 16;
/// First back-off after a failure, doubled by each further one.
const BACK_OFF: Duration = Duration::from_millis(5);
/// The longest back-off.
const BACK_OFF_LIMIT: Duration = Duration::from_secs(1000);
/// No timer is further away: tokio's own end after a few years.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Each so manieth pop looks at Background first.
const BACKGROUND_EVERY: u64 = 4;

/// How urgent an add is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Initial lists and resyncs.
    Background,
    /// What happens now.
    Fresh,
}

/// A reason to look at a key.
#[derive(Clone, Debug)]
pub(crate) struct Add {
    pub(crate) cause: Cause,
    pub(crate) class: Class,
    /// An own write of the very reconcile of this key.
    pub(crate) echo: bool,
    /// It brings a new generation: a key whose failure was terminal is tried again.
    pub(crate) renews: bool,
    /// The version that the cause's object has now, if it has one that is a number.
    pub(crate) version: Option<u64>,
}

/// The causes that merged: the first ones, and how many more there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Causes {
    pub(crate) kept: Vec<Cause>,
    pub(crate) more: usize,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    After(Duration),
    Error,
    Terminal,
    /// The object does not exist.
    Gone,
}

/// A key to work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Popped {
    pub(crate) key: Key,
    pub(crate) causes: Causes,
    /// Since the first add.
    pub(crate) waited: Duration,
    /// Failures in a row before this run.
    pub(crate) failures: u32,
}

/// See the module's picture.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<Key, Entry>,
    /// Ready keys by class, in the order of their place.
    fresh: BTreeMap<u64, Key>,
    background: BTreeMap<u64, Key>,
    /// The next timer of each key that has one.
    timers: BTreeSet<(Instant, Key)>,
    places: u64,
    pops: u64,
    stopped: bool,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    /// Of the adds since the last pop; while running, those that made it dirty.
    pending: Pending,
    failures: u32,
    /// Class of the last run: a timer's add keeps it.
    class: Class,
    terminal: bool,
    result: Option<(Instant, Timer)>,
    sources: BTreeMap<(Instant, u64), Cause>,
    /// As it stands in `timers`.
    wake: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for a timer, or for a new generation.
    Waiting,
    Ready {
        place: u64,
    },
    Running,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    After,
    BackOff,
}

#[derive(Debug, Default)]
struct Pending {
    causes: Causes,
    /// Of the objects of the causes that are kept.
    versions: Vec<Option<u64>>,
    class: Option<Class>,
    since: Option<Instant>,
    renews: bool,
}

impl Pending {
    fn merge(&mut self, add: Add, now: Instant) {
        // An object and all its children are found at the start: one of them says it, for thousands of keys that wait.
        let again = add.cause.reason == Reason::Initial
            && self.causes.kept.iter().any(|cause| cause.reason == Reason::Initial);
        if self.causes.kept.len() < CAUSES_KEPT && !again {
            if self.causes.kept.is_empty() {
                self.causes.kept.reserve_exact(1);
                self.versions.reserve_exact(1);
            }
            self.causes.kept.push(add.cause);
            self.versions.push(add.version);
        } else {
            self.causes.more += 1;
        }
        self.class = self.class.max(Some(add.class));
        self.since.get_or_insert(now);
        self.renews |= add.renews;
    }

    /// Takes back what told of this version of an object.
    fn withdraw(&mut self, (kind, key): (&Kind, &Key), version: u64) {
        let told = self.versions.iter().zip(&self.causes.kept).position(|(told, cause)| {
            let object = cause.object.as_ref();
            *told == Some(version) && object.is_some_and(|object| (&object.kind, &object.key) == (kind, key))
        });
        let Some(at) = told else { return };
        self.versions.remove(at);
        self.causes.kept.remove(at);
        if self.causes == Causes::default() {
            *self = Self::default();
        }
    }
}

impl Entry {
    fn new() -> Self {
        Self {
            phase: Phase::Waiting,
            pending: Pending::default(),
            failures: 0,
            class: Class::Background,
            terminal: false,
            result: None,
            sources: BTreeMap::new(),
            wake: None,
        }
    }

    fn backs_off(&self) -> bool {
        self.phase == Phase::Waiting && matches!(self.result, Some((_, Timer::BackOff)))
    }

    fn next_timer(&self) -> Option<Instant> {
        let source = self.sources.keys().next().map(|(at, _)| *at);
        let result = self.result.map(|(at, _)| at);
        source.into_iter().chain(result).min()
    }
}

/// The back-off after `failures` failures in a row (at least one).
fn back_off(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(30);
    BACK_OFF.saturating_mul(1 << doublings).min(BACK_OFF_LIMIT)
}

impl Queue {
    /// Adds a key.
    pub(crate) fn add(&mut self, key: &Key, add: Add, now: Instant) {
        self.fire(now);
        self.add_now(key, add, now);
    }

    /// The running reconcile of `key` has made this version of an object: an event that was faster than the answer to the write
    /// was an echo.
    pub(crate) fn made(&mut self, key: &Key, object: (&Kind, &Key), version: u64) {
        if let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.phase == Phase::Running) {
            entry.pending.withdraw(object, version);
        }
    }

    /// Adds a key at a later time, whatever happens before.
    pub(crate) fn add_after(&mut self, key: &Key, cause: Cause, delay: Duration, now: Instant) {
        self.fire(now);
        if self.stopped {
            return;
        }
        self.places += 1;
        let place = self.places;
        let entry = self.entries.entry(key.clone()).or_insert_with(Entry::new);
        entry.sources.insert((now + delay.min(FAR), place), cause);
        self.schedule(key);
    }

    /// The next key to work on; it counts as running until [`finish`](Self::finish).
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Popped> {
        self.fire(now);
        if self.stopped {
            return None;
        }
        let background_first = (self.pops + 1).is_multiple_of(BACKGROUND_EVERY);
        let (_, key) = if background_first {
            self.background.pop_first().or_else(|| self.fresh.pop_first())
        } else {
            self.fresh.pop_first().or_else(|| self.background.pop_first())
        }?;
        self.pops += 1;
        let entry = self.entries.get_mut(&key)?;
        let pending = std::mem::take(&mut entry.pending);
        entry.phase = Phase::Running;
        entry.class = pending.class.unwrap_or(entry.class);
        entry.terminal = false;
        entry.result = None;
        let popped = Popped {
            key: key.clone(),
            causes: pending.causes,
            waited: pending.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
            failures: entry.failures,
        };
        self.schedule(&key);
        Some(popped)
    }

    /// Ends the run of a key. True if it goes back because of a failure.
    pub(crate) fn finish(&mut self, key: &Key, outcome: Outcome, now: Instant) -> bool {
        self.fire(now);
        let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.phase == Phase::Running) else {
            return false;
        };
        entry.phase = Phase::Waiting;
        let dirty = entry.pending.since.is_some();
        let mut ready = dirty;
        match outcome {
            Outcome::Success => entry.failures = 0,
            Outcome::After(delay) => {
                entry.failures = 0;
                entry.result = (!dirty).then(|| (now + delay.min(FAR), Timer::After));
            }
            Outcome::Error => {
                entry.failures = entry.failures.saturating_add(1);
                entry.result = (!dirty).then(|| (now + back_off(entry.failures), Timer::BackOff));
            }
            Outcome::Terminal => {
                entry.failures = 0;
                entry.terminal = true;
                ready = entry.pending.renews;
                if !ready {
                    entry.pending = Pending::default();
                }
            }
            Outcome::Gone => {
                let pending = std::mem::take(&mut entry.pending);
                *entry = Entry { pending, wake: entry.wake, ..Entry::new() };
            }
        }
        if ready {
            self.make_ready(key);
        }
        self.schedule(key);
        self.forget_if_idle(key);
        outcome == Outcome::Error
    }

    /// When something will become ready by itself.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        if self.stopped { None } else { self.timers.first().map(|(at, _)| *at) }
    }

    /// Ready keys: fresh ones, background ones.
    pub(crate) fn depth(&self) -> (usize, usize) {
        (self.fresh.len(), self.background.len())
    }

    /// Nothing is added or popped any more.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Turns timers that are due into adds.
    pub(crate) fn fire(&mut self, now: Instant) {
        while let Some((_, key)) = self.timers.first().filter(|(at, _)| *at <= now) {
            let key = key.clone();
            let Some(entry) = self.entries.get_mut(&key) else { return };
            let class = entry.class;
            let mut causes = Vec::new();
            if let Some((at, timer)) = entry.result
                && at <= now
            {
                entry.result = None;
                let reason = match timer {
                    Timer::After => Reason::After,
                    Timer::BackOff => Reason::Retry(entry.failures),
                };
                causes.push((Cause::new(reason, None), class));
            }
            while let Some(source) = entry.sources.first_entry().filter(|source| source.key().0 <= now) {
                causes.push((source.remove(), Class::Fresh));
            }
            for (cause, class) in causes {
                self.add_now(&key, Add { cause, class, echo: false, renews: false, version: None }, now);
            }
            self.schedule(&key);
            self.forget_if_idle(&key);
        }
    }

    fn add_now(&mut self, key: &Key, add: Add, now: Instant) {
        if self.stopped {
            return;
        }
        let entry = self.entries.entry(key.clone()).or_insert_with(Entry::new);
        match entry.phase {
            Phase::Running if add.echo => {}
            Phase::Running => entry.pending.merge(add, now),
            Phase::Waiting if entry.terminal && !add.renews => {}
            Phase::Waiting => {
                let promote = !(add.echo && entry.backs_off());
                entry.pending.merge(add, now);
                if promote {
                    // The wait of a key that an echo did not promote counts from here.
                    self.make_ready(key);
                }
            }
            Phase::Ready { place } => {
                let before = entry.pending.class;
                entry.pending.merge(add, now);
                if entry.pending.class > before {
                    self.background.remove(&place);
                    self.make_ready(key);
                }
            }
        }
    }

    /// Gives a key a new place among the ready ones of its class.
    fn make_ready(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.places += 1;
        entry.phase = Phase::Ready { place: self.places };
        let class = match entry.pending.class.unwrap_or(entry.class) {
            Class::Fresh => &mut self.fresh,
            Class::Background => &mut self.background,
        };
        class.insert(self.places, key.clone());
    }

    /// Keeps `timers` in step with the entry.
    fn schedule(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let next = entry.next_timer();
        if entry.wake != next {
            if let Some(at) = entry.wake {
                self.timers.remove(&(at, key.clone()));
            }
            if let Some(at) = next {
                self.timers.insert((at, key.clone()));
            }
            entry.wake = next;
        }
    }

    fn forget_if_idle(&mut self, key: &Key) {
        let idle = |entry: &Entry| entry.phase == Phase::Waiting && entry.wake.is_none() && !entry.terminal;
        if self.entries.get(key).is_some_and(idle) {
            self.entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
