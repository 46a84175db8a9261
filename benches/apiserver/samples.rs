use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The machine's own time.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Something that is measured; results are numbers in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// Milliseconds from the start of the first process to ready.
    Boot,
    /// MiB of all processes, ten seconds after the start.
    Rest,
    /// KiB of memory for each stored ConfigMap of 1 KiB.
    PerObject,
    /// Creates a second over HTTPS, by 16 clients.
    Creates,
    /// Milliseconds of the middle one of creates that go one at a time.
    LatencyMedian,
    /// Milliseconds that 99 of 100 creates do not exceed.
    LatencyHigh,
    /// Milliseconds from before a change is sent until the last of 1,000 watchers has it.
    FanOut,
    /// The same for watchers of whom each hundred shares a connection.
    SharedFanOut,
    /// Milliseconds of the longest write while all objects are listed in pages.
    Blocked,
    /// Milliseconds that 99 of 100 writes do not exceed meanwhile.
    BlockedHigh,
    /// Seconds for all pages meanwhile.
    Pages,
    /// KiB of memory for each idle watch with a connection of its own.
    Watch,
    /// KiB of memory for each idle watch of whom a hundred share a connection.
    SharedWatch,
    /// Percent of a core while there are 2,000 idle watches.
    WatchTime,
    /// Creates a second without sockets, on one core.
    InProcess,
}

/// All results, by measure and contender.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<(Measure, &'static str), Vec<f64>>);

impl Samples {
    pub(crate) fn add(&mut self, contender: &'static str, measure: Measure, value: f64) {
        eprintln!("{contender}: {measure:?} {value:.3}");
        self.0.entry((measure, contender)).or_default().push(value);
    }

    /// The results of one contender, sorted.
    pub(crate) fn of(&self, measure: Measure, contender: &'static str) -> Option<Vec<f64>> {
        let mut values = self.0.get(&(measure, contender))?.clone();
        values.sort_by(f64::total_cmp);
        Some(values)
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The value at `part` (0 to 1) of sorted values.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}
