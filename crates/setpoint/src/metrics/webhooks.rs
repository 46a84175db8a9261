use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::{controller, seconds};

type Labels = Vec<(&'static str, String)>;

/// The metrics of webhooks, by their path, under the names of controller-runtime.
#[derive(Clone)]
pub(crate) struct WebhookMetrics {
    requests: Family<Labels, Counter>,
    latency: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Family<Labels, Gauge>,
    panics: Counter,
    conversion_panics: Counter,
    read: Counter,
    read_errors: Counter,
}

/// A request that is being answered.
pub(crate) struct Counted {
    metrics: WebhookMetrics,
    path: String,
    start: Instant,
}

impl WebhookMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            requests: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(controller::RECONCILE_BUCKETS)),
            in_flight: Family::default(),
            panics: Counter::default(),
            conversion_panics: Counter::default(),
            read: Counter::default(),
            read_errors: Counter::default(),
        };
        // Counters get their suffix "_total" from the encoder.
        let r = registry;
        r.register(
            "controller_runtime_webhook_requests",
            "Requests of webhooks by HTTP status",
            this.requests.clone(),
        );
        r.register(
            "controller_runtime_webhook_latency_seconds",
            "How long requests of webhooks took",
            this.latency.clone(),
        );
        r.register(
            "controller_runtime_webhook_requests_in_flight",
            "Requests of webhooks that are being answered",
            this.in_flight.clone(),
        );
        r.register("controller_runtime_webhook_panics", "Panics of admission webhooks", this.panics.clone());
        r.register(
            "controller_runtime_conversion_webhook_panics",
            "Panics of conversion webhooks",
            this.conversion_panics.clone(),
        );
        r.register("certwatcher_read_certificate", "Certificates read from files", this.read.clone());
        r.register(
            "certwatcher_read_certificate_errors",
            "Certificates that could not be read from files",
            this.read_errors.clone(),
        );
        this
    }

    /// Makes the series of a path, with the value 0.
    pub(crate) fn declare(&self, path: &str) {
        for code in ["200", "500"] {
            drop(self.requests.get_or_create(&by_code(path, code.to_owned())));
        }
        drop(self.latency.get_or_create(&by_path(path)));
        drop(self.in_flight.get_or_create(&by_path(path)));
    }

    pub(crate) fn started(&self, path: &str) -> Counted {
        self.in_flight.get_or_create(&by_path(path)).inc();
        Counted { metrics: self.clone(), path: path.to_owned(), start: Instant::now() }
    }

    pub(crate) fn conversion_panicked(&self) {
        self.conversion_panics.inc();
    }

    /// A certificate was read from files, or could not be.
    pub(crate) fn certificate_read(&self, well: bool) {
        self.read.inc();
        if !well {
            self.read_errors.inc();
        }
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }
}

impl Counted {
    pub(crate) fn finished(self, code: u16) {
        let took: Duration = self.start.elapsed();
        self.metrics.requests.get_or_create(&by_code(&self.path, code.to_string())).inc();
        self.metrics.latency.get_or_create(&by_path(&self.path)).observe(seconds(took));
    }
}

/// A request whose caller goes away is over, too.
impl Drop for Counted {
    fn drop(&mut self) {
        self.metrics.in_flight.get_or_create(&by_path(&self.path)).dec();
    }
}

fn by_path(path: &str) -> Labels {
    vec![("webhook", path.to_owned())]
}

fn by_code(path: &str, code: String) -> Labels {
    vec![("code", code), ("webhook", path.to_owned())]
}
