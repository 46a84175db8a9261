//! When a probe is due and when its results count, as a pure machine.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Probe;

use super::backoff::later;
use super::probe::ProbeOutcome;

/// Which of a container's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Holds the others back until it passed once.
    Startup,
    /// Its failure restarts the container.
    Liveness,
    /// Decides whether the container is ready.
    Readiness,
}

impl ProbeKind {
    /// As events name it: `Readiness probe failed: …`.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// One probe of one run of a container.
///
/// A result counts once it came `successThreshold` or `failureThreshold` times in a row
/// (`pkg/kubelet/prober/worker.go`).
#[derive(Clone, Debug)]
pub struct Prober {
    /// Which probe.
    pub kind: ProbeKind,
    /// Time limit of one run.
    pub timeout: Duration,
    /// Grace for the container that this probe kills, instead of the pod's.
    pub grace: Option<Duration>,
    initial_delay: Duration,
    period: Duration,
    success_threshold: u32,
    failure_threshold: u32,
    due: Option<Timestamp>,
    running: bool,
    last: Option<bool>,
    run: u32,
    settled: Option<bool>,
}

impl Prober {
    /// A probe with upstream's defaults for what `probe` leaves open. It is not due before
    /// [`begin`](Self::begin).
    pub fn new(kind: ProbeKind, probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
        };
        Self {
            kind,
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            grace: probe
                .termination_grace_period_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(Duration::from_secs),
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
            due: None,
            running: false,
            last: None,
            run: 0,
            settled: None,
        }
    }

    /// The container runs since `started` (and, for liveness and readiness, its startup probe has passed).
    pub fn begin(&mut self, started: Timestamp, now: Timestamp) {
        self.due = Some(later(started, self.initial_delay).max(now));
    }

    /// No more runs for this container.
    pub fn end(&mut self) {
        self.due = None;
    }

    /// When the next run is due; none while one runs or before the beginning.
    pub fn due(&self) -> Option<Timestamp> {
        self.due.filter(|_| !self.running)
    }

    /// Whether a run has to start now; if so it counts as running until [`record`](Self::record).
    pub fn start_if_due(&mut self, now: Timestamp) -> bool {
        let starts = self.due().is_some_and(|due| due <= now);
        if starts {
            self.running = true;
            self.due = Some(later(now, self.period));
        }
        starts
    }

    /// Takes the outcome of a run; gives the result if it settled to another one than before.
    pub fn record(&mut self, outcome: &ProbeOutcome) -> Option<bool> {
        self.running = false;
        let passed = match outcome {
            ProbeOutcome::Success => true,
            ProbeOutcome::Failure(_) => false,
            ProbeOutcome::Error(_) => return None,
        };
        self.run = if self.last == Some(passed) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(passed);
        let threshold = if passed { self.success_threshold } else { self.failure_threshold };
        if self.run < threshold || self.settled == Some(passed) {
            return None;
        }
        self.settled = Some(passed);
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prober(success: i32, failure: i32) -> Prober {
        let probe = Probe {
            period_seconds: Some(2),
            success_threshold: Some(success),
            failure_threshold: Some(failure),
            initial_delay_seconds: Some(5),
            ..Probe::default()
        };
        Prober::new(ProbeKind::Readiness, &probe)
    }

    fn outcome(passed: bool) -> ProbeOutcome {
        if passed { ProbeOutcome::Success } else { ProbeOutcome::Failure("no".into()) }
    }

    #[test]
    fn runs_after_the_delay_and_then_each_period() {
        let mut prober = prober(1, 2);
        let second = |seconds| Timestamp::from_second(seconds).unwrap();
        assert_eq!(prober.due(), None);
        prober.begin(second(0), second(0));
        assert!(!prober.start_if_due(second(4)));
        assert!(prober.start_if_due(second(5)));
        assert!(!prober.start_if_due(second(9)), "one run at a time");
        assert_eq!(prober.record(&outcome(true)), Some(true));
        assert_eq!(prober.due(), Some(second(7)));
    }

    #[test]
    fn errors_count_for_nothing() {
        let mut prober = prober(1, 2);
        assert_eq!(prober.record(&outcome(false)), None);
        assert_eq!(prober.record(&ProbeOutcome::Error("runtime is busy".into())), None);
        assert_eq!(prober.record(&outcome(false)), Some(false));
    }

    proptest! {
        /// The result changes exactly when the last `threshold` outcomes agree on another one.
        #[test]
        fn settles_on_runs_of_equal_outcomes(
            success in 1..4i32,
            failure in 1..4i32,
            outcomes in proptest::collection::vec(any::<bool>(), 0..40),
        ) {
            let mut prober = prober(success, failure);
            let mut settled = None;
            for (index, passed) in outcomes.iter().enumerate() {
                let change = prober.record(&outcome(*passed));
                let threshold = if *passed { success } else { failure } as usize;
                let agree = index + 1 >= threshold && outcomes[index + 1 - threshold..=index].iter().all(|o| o == passed);
                let expected = (agree && settled != Some(*passed)).then_some(*passed);
                prop_assert_eq!(change, expected);
                settled = change.or(settled);
            }
        }
    }
}
