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
use crate::Reconciled;

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Upper bounds of reconcile times in seconds, as controller-runtime has them.
pub(super) const RECONCILE_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

/// Every way to end, in the order of the enum: a series' place in [`Series::results`].
const ENDS: [Reconciled; 6] = [
    Reconciled::Success,
    Reconciled::RequeueAfter,
    Reconciled::Error,
    Reconciled::Terminal,
    Reconciled::Panic,
    Reconciled::TimedOut,
];

/// controller-runtime's fourth value of the label `result`: of a field that it has deprecated and that [`crate::Action`]
/// does not have, so it stays 0, for dashboards that look for it.
const REQUEUE: &str = "requeue";

/// Value of the label `result`.
fn result(ended: Reconciled) -> &'static str {
    match ended {
        Reconciled::Success => "success",
        Reconciled::RequeueAfter => "requeue_after",
        Reconciled::Error | Reconciled::Terminal | Reconciled::Panic | Reconciled::TimedOut => "error",
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
    pub(super) fn controller(&self, name: &str, max_concurrent: usize) -> Series {
        let controller: Labels = vec![("controller", name.to_owned())];
        let queue: Labels = vec![("name", name.to_owned()), ("controller", name.to_owned())];
        let by_result = |ended: Reconciled| -> Labels {
            vec![("controller", name.to_owned()), ("result", result(ended).to_owned())]
        };
        // controller-runtime's priorities: 0, and -100 for the initial list and resyncs.
        let priority = |value: &str| -> Labels {
            vec![("name", name.to_owned()), ("controller", name.to_owned()), ("priority", value.to_owned())]
        };
        let requeued: Labels = vec![("controller", name.to_owned()), ("result", REQUEUE.to_owned())];
        drop(self.reconcile_total.get_or_create(&requeued));
        self.max_concurrent.get_or_create(&controller).set(max_concurrent as i64);
        Series {
            results: ENDS.map(|ended| {
                (
                    self.reconcile_total.get_or_create_owned(&by_result(ended)),
                    self.short_total.get_or_create_owned(&by_result(ended)),
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
        }
    }
}

/// The series of one controller.
pub(super) struct Series {
    results: [(Counter, Counter); 6],
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

impl Series {
    pub(super) fn added(&self) {
        self.adds.inc();
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }

    pub(super) fn depth(&self, fresh: usize, background: usize) {
        self.depth_fresh.set(fresh as i64);
        self.depth_background.set(background as i64);
    }

    pub(super) fn waited(&self, waited: Duration) {
        self.queue_duration.observe(seconds(waited));
    }

    pub(super) fn started(&self) {
        self.active_workers.inc();
        self.running.enter();
    }

    pub(super) fn finished(&self, ended: Reconciled, took: Duration) {
        self.active_workers.dec();
        self.running.leave(took);
        let elapsed = seconds(took);
        self.reconcile_time.observe(elapsed);
        self.short_duration.observe(elapsed);
        self.work_duration.observe(elapsed);
        let (usual, short) = &self.results[ended as usize];
        usual.inc();
        short.inc();
        if result(ended) == "error" {
            self.reconcile_errors.inc();
        }
        match ended {
            Reconciled::Terminal => drop(self.terminal_errors.inc()),
            Reconciled::Panic => drop(self.panics.inc()),
            Reconciled::TimedOut => drop(self.timeouts.inc()),
            Reconciled::Success | Reconciled::RequeueAfter | Reconciled::Error => {}
        }
    }

    /// How long the longest of the running reconciles has been running; `None` when none runs.
    pub(super) fn longest_running(&self) -> Option<Duration> {
        self.running.since().iter().map(Instant::elapsed).max()
    }
}

/// Start times of a controller's running reconciles.
#[derive(Debug, Default)]
struct Running(Mutex<Vec<Instant>>);

impl Running {
    fn enter(&self) {
        self.0.lock().push(Instant::now());
    }

    /// Removes the one that started `took` ago. The two measure on their own, hence the nearest.
    fn leave(&self, took: Duration) {
        let mut running = self.0.lock();
        let distance = |start: &Instant| start.elapsed().abs_diff(took);
        let nearest = running.iter().enumerate().min_by_key(|(_, start)| distance(start)).map(|(at, _)| at);
        if let Some(at) = nearest {
            running.swap_remove(at);
        }
    }

    fn since(&self) -> Vec<Instant> {
        self.0.lock().clone()
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

/// How a number of seconds is taken from the elapsed times of running reconciles.
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
                |elapsed| elapsed.iter().copied().fold(0.0, f64::max),
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
