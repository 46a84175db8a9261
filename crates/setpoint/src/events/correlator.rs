use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::{Event, Severity};

/// A series that nothing was added to for so long is finished (client-go, `finishTime`).
const FINISH_AFTER: Duration = Duration::from_secs(6 * 60);
/// A running series is written again after so long, so that the Event does not expire (`refreshTime`).
const REFRESH_AFTER: Duration = Duration::from_secs(30 * 60);
/// Series that are kept in memory at most; the least recently seen gives way (client-go's LRU size).
const MAX_SERIES: usize = 4096;
/// Requests for one object in a burst, and the time in which one more is earned (client-go's spam filter).
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);

/// An event that happened at a time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Occurrence {
    pub(super) controller: String,
    pub(super) regarding: ObjectReference,
    pub(super) event: Event,
    pub(super) time: Timestamp,
}

/// What makes two events the same one happening again. The note is no part of it: it often has numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeriesKey {
    severity: Severity,
    action: String,
    reason: String,
    controller: String,
    regarding: ObjectKey,
    related: Option<ObjectKey>,
}

type ObjectKey = [Option<String>; 6];

fn object_key(object: &ObjectReference) -> ObjectKey {
    [
        object.api_version.clone(),
        object.kind.clone(),
        object.namespace.clone(),
        object.name.clone(),
        object.uid.clone(),
        object.field_path.clone(),
    ]
}

impl SeriesKey {
    fn of(occurrence: &Occurrence) -> Self {
        let event = &occurrence.event;
        Self {
            severity: event.severity,
            action: event.action.clone(),
            reason: event.reason.clone(),
            controller: occurrence.controller.clone(),
            regarding: object_key(&occurrence.regarding),
            related: event.related.as_ref().map(object_key),
        }
    }
}

/// What has to be sent for an occurrence.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// A new Event.
    Create(SeriesKey),
    /// The count of an existing Event.
    Count(Tally),
    /// Nothing now: it was counted and will be written later.
    Later,
    /// Nothing: too many about this object.
    Spam,
}

/// The state of a series, to be written to its Event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tally {
    pub(super) key: SeriesKey,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) total: i32,
    pub(super) last: Timestamp,
}

struct Series {
    namespace: String,
    name: String,
    count: i32,
    last: Timestamp,
    /// Count and time of the last write.
    written: (i32, Timestamp),
}

struct Bucket {
    tokens: u32,
    earned: Timestamp,
}

/// Groups events into series and keeps one object from flooding the API server: a pure machine. Only what
/// costs a request costs a token, so a series counts on while its object is throttled.
#[derive(Default)]
pub(super) struct Correlator {
    series: BTreeMap<SeriesKey, Series>,
    buckets: BTreeMap<ObjectKey, Bucket>,
}

impl Correlator {
    /// Takes an occurrence. After [`Step::Create`] the Event's name is told by [`created`](Self::created).
    pub(super) fn observe(&mut self, occurrence: &Occurrence) -> Step {
        let now = occurrence.time;
        let key = SeriesKey::of(occurrence);
        if let Some(series) =
            self.series.get_mut(&key).filter(|series| since(series.last, now) < FINISH_AFTER)
        {
            series.count += 1;
            series.last = now;
            // The second one shows at once that it is a series; from then on the sweep writes.
            if series.written.0 > 1 || !Self::pay(&mut self.buckets, &key.regarding, now) {
                return Step::Later;
            }
            return Step::Count(series.written_at(&key, now));
        }
        if Self::pay(&mut self.buckets, &key.regarding, now) { Step::Create(key) } else { Step::Spam }
    }

    /// The Event for `key` was written under this name at `now`.
    pub(super) fn created(&mut self, key: SeriesKey, namespace: &str, name: &str, now: Timestamp) {
        if self.series.len() >= MAX_SERIES {
            let oldest = self.series.iter().min_by_key(|(_, series)| series.last).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.series.remove(&oldest);
            }
        }
        let series = Series {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            count: 1,
            last: now,
            written: (1, now),
        };
        self.series.insert(key, series);
    }

    /// The Event of `key` is gone: the next occurrence makes a new one.
    pub(super) fn lost(&mut self, key: &SeriesKey) {
        self.series.remove(key);
    }

    /// Whether a sweep would ever do something.
    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty() && self.buckets.is_empty()
    }

    /// Finishes series that are over, refreshes those that go on, and forgets objects with a full bucket.
    pub(super) fn sweep(&mut self, now: Timestamp) -> Vec<Tally> {
        let mut counts = Vec::new();
        self.series.retain(|key, series| {
            let finished = since(series.last, now) >= FINISH_AFTER;
            let refresh = series.count > 1 && since(series.written.1, now) >= REFRESH_AFTER;
            if series.count > series.written.0 && (finished || refresh) {
                counts.push(series.written_at(key, now));
            }
            !finished
        });
        self.buckets.retain(|_, bucket| {
            bucket.earn(now);
            bucket.tokens < BURST
        });
        counts
    }

    /// All counts that were not written yet, for the end of the process.
    pub(super) fn finish(&mut self, now: Timestamp) -> Vec<Tally> {
        let unwritten = self.series.iter_mut().filter(|(_, series)| series.count > series.written.0);
        unwritten.map(|(key, series)| series.written_at(key, now)).collect()
    }

    /// Takes a token for a request about `object`.
    fn pay(buckets: &mut BTreeMap<ObjectKey, Bucket>, object: &ObjectKey, now: Timestamp) -> bool {
        let bucket = buckets.entry(object.clone()).or_insert(Bucket { tokens: BURST, earned: now });
        bucket.earn(now);
        if bucket.tokens == 0 {
            return false;
        }
        bucket.tokens -= 1;
        true
    }
}

impl Series {
    fn written_at(&mut self, key: &SeriesKey, now: Timestamp) -> Tally {
        self.written = (self.count, now);
        Tally {
            key: key.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            total: self.count,
            last: self.last,
        }
    }
}

impl Bucket {
    fn earn(&mut self, now: Timestamp) {
        while self.tokens < BURST && since(self.earned, now) >= REFILL {
            self.tokens += 1;
            self.earned += REFILL;
        }
        if self.tokens == BURST {
            self.earned = now;
        }
    }
}

/// Time from `then` to `now`, zero if it runs backwards.
fn since(then: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(name: &str, reason: &str, seconds: i64) -> Occurrence {
        Occurrence {
            controller: "website".to_owned(),
            regarding: ObjectReference { name: Some(name.to_owned()), ..Default::default() },
            event: Event::normal(reason, format!("at {seconds}")),
            time: Timestamp::from_second(seconds).unwrap(),
        }
    }

    /// Observes, and plays the writer that creates what is to be created.
    fn observe(correlator: &mut Correlator, occurrence: &Occurrence) -> Step {
        let step = correlator.observe(occurrence);
        if let Step::Create(key) = &step {
            correlator.created(key.clone(), "ns", &format!("event-{}", occurrence.time), occurrence.time);
        }
        step
    }

    fn count(step: &Step) -> Option<i32> {
        if let Step::Count(tally) = step { Some(tally.total) } else { None }
    }

    #[test]
    fn the_first_creates_the_second_counts_the_rest_waits() {
        let mut correlator = Correlator::default();
        assert!(matches!(observe(&mut correlator, &occurrence("web", "Scaled", 0)), Step::Create(_)));
        assert_eq!(count(&observe(&mut correlator, &occurrence("web", "Scaled", 1))), Some(2));
        for second in 2..50 {
            assert_eq!(observe(&mut correlator, &occurrence("web", "Scaled", second)), Step::Later);
        }
        assert!(matches!(observe(&mut correlator, &occurrence("web", "Other", 50)), Step::Create(_)));
        assert!(matches!(observe(&mut correlator, &occurrence("db", "Scaled", 50)), Step::Create(_)));
    }

    #[test]
    fn a_series_gets_its_final_count_when_it_is_over() {
        let mut correlator = Correlator::default();
        for second in 0..10 {
            observe(&mut correlator, &occurrence("web", "Scaled", second));
        }
        assert_eq!(correlator.sweep(Timestamp::from_second(100).unwrap()), []);
        let counts = correlator.sweep(Timestamp::from_second(9 + 360).unwrap());
        assert_eq!(
            counts.iter().map(|tally| (tally.total, tally.last.as_second())).collect::<Vec<_>>(),
            [(10, 9)]
        );
        assert!(
            matches!(observe(&mut correlator, &occurrence("web", "Scaled", 400)), Step::Create(_)),
            "a new one"
        );
    }

    #[test]
    fn a_long_series_is_refreshed() {
        let mut correlator = Correlator::default();
        for minute in 0..=31 {
            observe(&mut correlator, &occurrence("web", "Scaled", minute * 60));
        }
        let counts = correlator.sweep(Timestamp::from_second(31 * 60).unwrap());
        assert_eq!(counts.iter().map(|tally| tally.total).collect::<Vec<_>>(), [32]);
        assert_eq!(correlator.sweep(Timestamp::from_second(32 * 60).unwrap()), []);
    }

    #[test]
    fn one_object_cannot_flood() {
        let mut correlator = Correlator::default();
        let steps: Vec<Step> =
            (0..40).map(|n| observe(&mut correlator, &occurrence("web", &format!("Reason{n}"), 0))).collect();
        assert_eq!(steps.iter().filter(|step| matches!(step, Step::Create(_))).count(), 25);
        assert_eq!(steps[25..], vec![Step::Spam; 15]);
        assert!(
            matches!(observe(&mut correlator, &occurrence("db", "Reason", 0)), Step::Create(_)),
            "another object"
        );
        assert!(matches!(observe(&mut correlator, &occurrence("web", "Late", 299)), Step::Spam));
        assert!(matches!(observe(&mut correlator, &occurrence("web", "Late", 300)), Step::Create(_)));
    }

    #[test]
    fn memory_is_bounded_and_given_back() {
        let mut correlator = Correlator::default();
        for n in 0..5000 {
            observe(&mut correlator, &occurrence(&format!("web-{n}"), "Scaled", n));
        }
        assert_eq!(correlator.series.len(), MAX_SERIES);
        correlator.sweep(Timestamp::from_second(100_000).unwrap());
        assert!(correlator.is_empty());
    }

    #[test]
    fn the_end_writes_open_counts_once() {
        let mut correlator = Correlator::default();
        for second in 0..4 {
            observe(&mut correlator, &occurrence("web", "Scaled", second));
        }
        let now = Timestamp::from_second(10).unwrap();
        assert_eq!(correlator.finish(now).len(), 1);
        assert_eq!(correlator.finish(now), []);
    }
}
