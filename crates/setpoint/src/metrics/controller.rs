use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::seconds;

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Upper bounds of reconcile times in seconds, as controller-runtime has them.
const RECONCILE_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Success,
    /// To be run again at once.
    Requeue,
    /// To be run again after a time.
    RequeueAfter,
    /// An error that is retried with back-off.
    Error,
    /// An error that retrying cannot cure.
    Terminal,
    /// The reconciler panicked: an error of that key only.
    Panic,
    /// The time limit was over.
    Timeout,
}

impl Outcome {
    const ALL: [Self; 7] = [
        Self::Success,
        Self::Requeue,
        Self::RequeueAfter,
        Self::Error,
        Self::Terminal,
        Self::Panic,
        Self::Timeout,
    ];

    /// Value of the label `result`, which has four values in controller-runtime.
    fn result(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
            Self::Error | Self::Terminal | Self::Panic | Self::Timeout => "error",
        }
    }

    fn is_error(self) -> bool {
        self.result() == "error"
    }
}

/// The metric families that all controllers of an operator share.
pub(super) struct Families {
    reconcile_total: Family<Labels, Counter>,
    reconcile_errors: Family<Labels, Counter>,
    terminal_errors: Family<Labels, Counter>,
    panics: Family<Labels, Counter>,
    timeouts: Family<Labels, Counter>,
    reconcile_time: Histograms,
    max_concurrent: Family<Labels, Gauge>,
    active_workers: Family<Labels, Gauge>,
    short_total: Family<Labels, Counter>,
    short_duration: Histograms,
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
    queue_duration: Histograms,
    work_duration: Histograms,
    running: Arc<AllRunning>,
}

impl Families {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let reconcile_times: Histograms = Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS));
        let short_times: Histograms = Family::new_with_constructor(|| Histogram::new(RECONCILE_BUCKETS));
        // client-go's `prometheus.ExponentialBuckets(10e-9, 10, 12)`.
        let queue_times: Histograms =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1e-8, 10.0, 12)));
        let work_times: Histograms =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1e-8, 10.0, 12)));
        let this = Self {
            reconcile_total: Family::default(),
            reconcile_errors: Family::default(),
            terminal_errors: Family::default(),
            panics: Family::default(),
            timeouts: Family::default(),
            reconcile_time: reconcile_times,
            max_concurrent: Family::default(),
            active_workers: Family::default(),
            short_total: Family::default(),
            short_duration: short_times,
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            queue_duration: queue_times,
            work_duration: work_times,
            running: Arc::default(),
        };
        // Counters get their suffix "_total" from the encoder.
        let r = registry;
        r.register(
            "controller_runtime_reconcile",
            "Reconciliations of a controller by result",
            this.reconcile_total.clone(),
        );
        r.register(
            "controller_runtime_reconcile_errors",
            "Reconciliations of a controller that failed",
            this.reconcile_errors.clone(),
        );
        r.register(
            "controller_runtime_terminal_reconcile_errors",
            "Reconciliations of a controller that failed in a way which retrying cannot cure",
            this.terminal_errors.clone(),
        );
        r.register(
            "controller_runtime_reconcile_panics",
            "Reconciliations of a controller that panicked",
            this.panics.clone(),
        );
        r.register(
            "controller_runtime_reconcile_timeouts",
            "Reconciliations of a controller that reached their time limit",
            this.timeouts.clone(),
        );
        r.register(
            "controller_runtime_reconcile_time_seconds",
            "Time of a reconciliation",
            this.reconcile_time.clone(),
        );
        r.register(
            "controller_runtime_max_concurrent_reconciles",
            "Reconciliations of a controller that may run at a time",
            this.max_concurrent.clone(),
        );
        r.register(
            "controller_runtime_active_workers",
            "Reconciliations of a controller that run now",
            this.active_workers.clone(),
        );
        r.register(
            "controller_reconcile",
            "Reconciliations of a controller by result",
            this.short_total.clone(),
        );
        r.register(
            "controller_reconcile_duration_seconds",
            "Time of a reconciliation",
            this.short_duration.clone(),
        );
        r.register("workqueue_depth", "Keys that wait for a worker", this.depth.clone());
        r.register("workqueue_adds", "Keys added to the queue", this.adds.clone());
        r.register("workqueue_retries", "Keys queued again after an error", this.retries.clone());
        r.register(
            "workqueue_queue_duration_seconds",
            "Time from the first add of a key to its worker",
            this.queue_duration.clone(),
        );
        r.register(
            "workqueue_work_duration_seconds",
            "Time that a worker spent on a key",
            this.work_duration.clone(),
        );
        r.register_collector(Box::new(this.running.clone()));
        this
    }

    /// The series of one controller, created with the value 0.
    pub(super) fn controller(&self, name: &str, max_concurrent: usize) -> ControllerMetrics {
        let controller: Labels = vec![("controller", name.to_owned())];
        let queue: Labels = vec![("name", name.to_owned()), ("controller", name.to_owned())];
        let result = |outcome: Outcome| -> Labels {
            vec![("controller", name.to_owned()), ("result", outcome.result().to_owned())]
        };
        // controller-runtime's priorities: 0, and -100 for the initial list and resyncs.
        let priority = |value: &str| -> Labels {
            vec![("name", name.to_owned()), ("controller", name.to_owned()), ("priority", value.to_owned())]
        };
        self.max_concurrent.get_or_create(&controller).set(max_concurrent as i64);
        ControllerMetrics(Arc::new(Series {
            results: Outcome::ALL.map(|outcome| {
                (
                    self.reconcile_total.get_or_create_owned(&result(outcome)),
                    self.short_total.get_or_create_owned(&result(outcome)),
                )
            }),
            reconcile_errors: self.reconcile_errors.get_or_create_owned(&controller),
            terminal_errors: self.terminal_errors.get_or_create_owned(&controller),
            panics: self.panics.get_or_create_owned(&controller),
            timeouts: self.timeouts.get_or_create_owned(&controller),
            reconcile_time: self.reconcile_time.get_or_create_owned(&controller),
            short_duration: self.short_duration.get_or_create_owned(&controller),
            active_workers: self.active_workers.get_or_create_owned(&controller),
            depth_fresh: self.depth.get_or_create_owned(&priority("0")),
            depth_background: self.depth.get_or_create_owned(&priority("-100")),
            adds: self.adds.get_or_create_owned(&queue),
            retries: self.retries.get_or_create_owned(&queue),
            queue_duration: self.queue_duration.get_or_create_owned(&queue),
            work_duration: self.work_duration.get_or_create_owned(&queue),
            running: self.running.of(name),
        }))
    }
}

/// What the queue and the workers of one controller report. Cheap to clone.
#[derive(Clone)]
pub struct ControllerMetrics(Arc<Series>);

struct Series {
    results: [(Counter, Counter); 7],
    reconcile_errors: Counter,
    terminal_errors: Counter,
    panics: Counter,
    timeouts: Counter,
    reconcile_time: Histogram,
    short_duration: Histogram,
    active_workers: Gauge,
    depth_fresh: Gauge,
    depth_background: Gauge,
    adds: Counter,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
    running: Arc<Running>,
}

impl ControllerMetrics {
    /// A key was added to the queue (also when it was there already and its causes merged).
    pub fn added(&self) {
        self.0.adds.inc();
    }

    /// A key was queued again because its reconcile failed.
    pub fn retried(&self) {
        self.0.retries.inc();
    }

    /// Keys that are ready and wait for a worker, by class.
    pub fn depth(&self, fresh: usize, background: usize) {
        self.0.depth_fresh.set(fresh as i64);
        self.0.depth_background.set(background as i64);
    }

    /// A worker took a key that had waited for `waited` since its first add.
    pub fn start(&self, waited: Duration) -> Reconciling {
        self.0.queue_duration.observe(seconds(waited));
        self.0.active_workers.inc();
        let started = Instant::now();
        Reconciling { series: self.0.clone(), started, ticket: self.0.running.enter(started) }
    }

    /// How long the longest of the running reconciles has been running; `None` when none runs.
    pub fn longest_running(&self) -> Option<Duration> {
        self.0.running.since().first().map(Instant::elapsed)
    }
}

impl fmt::Debug for ControllerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerMetrics").finish_non_exhaustive()
    }
}

/// A running reconcile. Dropped without [`finish`](Self::finish), it was cut off by a shutdown: it leaves the
/// count of active workers and is counted in no result.
#[must_use = "call finish with the outcome of the reconcile"]
pub struct Reconciling {
    series: Arc<Series>,
    started: Instant,
    ticket: u64,
}

impl Reconciling {
    /// The reconcile ended with `outcome`.
    pub fn finish(self, outcome: Outcome) {
        let series = &self.series;
        let elapsed = seconds(self.started.elapsed());
        series.reconcile_time.observe(elapsed);
        series.short_duration.observe(elapsed);
        series.work_duration.observe(elapsed);
        let (usual, short) = &series.results[outcome as usize];
        usual.inc();
        short.inc();
        if outcome.is_error() {
            series.reconcile_errors.inc();
        }
        match outcome {
            Outcome::Terminal => drop(series.terminal_errors.inc()),
            Outcome::Panic => drop(series.panics.inc()),
            Outcome::Timeout => drop(series.timeouts.inc()),
            Outcome::Success | Outcome::Requeue | Outcome::RequeueAfter | Outcome::Error => {}
        }
    }
}

impl Drop for Reconciling {
    fn drop(&mut self) {
        self.series.active_workers.dec();
        self.series.running.leave(self.ticket);
    }
}

impl fmt::Debug for Reconciling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciling").field("started", &self.started).finish_non_exhaustive()
    }
}

/// Start times of a controller's running reconciles.
#[derive(Debug, Default)]
struct Running(Mutex<(u64, BTreeMap<u64, Instant>)>);

impl Running {
    fn enter(&self, now: Instant) -> u64 {
        let (next, running) = &mut *self.0.lock();
        *next += 1;
        running.insert(*next, now);
        *next
    }

    fn leave(&self, ticket: u64) {
        self.0.lock().1.remove(&ticket);
    }

    /// Start times, the earliest first: tickets are given out in order of time.
    fn since(&self) -> Vec<Instant> {
        self.0.lock().1.values().copied().collect()
    }
}

/// Computes the two metrics of unfinished work at the time of a scrape.
#[derive(Debug, Default)]
struct AllRunning(Mutex<BTreeMap<String, Arc<Running>>>);

impl AllRunning {
    fn of(&self, controller: &str) -> Arc<Running> {
        self.0.lock().entry(controller.to_owned()).or_default().clone()
    }
}

/// How a number of seconds is taken from the elapsed times of running reconciles, the longest first.
type Figure = fn(&[f64]) -> f64;

impl Collector for AllRunning {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let figures: [(&str, &str, Figure); 2] = [
            (
                "workqueue_unfinished_work_seconds",
                "Sum of the times that running reconciles have taken so far; a growing value shows a stuck worker",
                |elapsed| elapsed.iter().fold(0.0, |sum, seconds| sum + seconds),
            ),
            (
                "workqueue_longest_running_processor_seconds",
                "Time that the longest of the running reconciles has taken so far",
                |elapsed| elapsed.first().copied().unwrap_or(0.0),
            ),
        ];
        for (name, help, figure) in figures {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (controller, running) in &*self.0.lock() {
                let elapsed: Vec<f64> =
                    running.since().iter().map(|start| seconds(start.elapsed())).collect();
                let labels: Labels = vec![("name", controller.clone()), ("controller", controller.clone())];
                ConstGauge::new(figure(&elapsed)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
