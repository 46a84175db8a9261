//! Prometheus metrics under the names that dashboards for controller-runtime and client-go expect.
//!
//! One [`Metrics`] belongs to one operator; several operators in a process do not share series. Every series
//! of a controller is there from its start with the value 0, so that `rate()` sees the first increase.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;

use crate::{Kind, Observer, Reconciled};

mod client;
mod controller;
mod election;
mod process;
mod watches;
mod webhooks;

pub(crate) use client::ClientMetrics;
pub(crate) use webhooks::WebhookMetrics;

/// The metrics of an operator: those of its controllers, caches and client, and the operator's own.
///
/// Cheap to clone; clones share the same series.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    controllers: controller::Families,
    series: RwLock<BTreeMap<String, Arc<controller::Series>>>,
    watches: watches::Watches,
    elections: election::Elections,
    client: ClientMetrics,
    webhooks: WebhookMetrics,
}

impl Metrics {
    /// Metrics without controllers: those of the client and of the process.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let controllers = controller::Families::register(&mut registry);
        let watches = watches::Watches::register(&mut registry);
        let elections = election::Elections::register(&mut registry);
        let client = ClientMetrics::register(&mut registry);
        let webhooks = WebhookMetrics::register(&mut registry);
        process::register(&mut registry);
        Self(Arc::new(Inner {
            registry: Mutex::new(registry),
            controllers,
            series: RwLock::default(),
            watches,
            elections,
            client,
            webhooks,
        }))
    }

    /// Adds an operator's own metrics, for instance a gauge of its clusters:
    ///
    /// ```
    /// use prometheus_client::metrics::gauge::Gauge;
    ///
    /// let metrics = setpoint::Metrics::new();
    /// let clusters: Gauge = Gauge::default();
    /// metrics.register(|registry| registry.register("redis_cluster_total", "RedisClusters", clusters.clone()));
    /// clusters.set(3);
    /// assert!(metrics.encode().contains("redis_cluster_total 3"));
    /// ```
    ///
    /// Labels by object name make a series for each object: remove them when the object is gone.
    pub fn register<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.registry.lock())
    }

    /// How long the longest of a controller's running reconciles has been running; `None` when none runs.
    pub(crate) fn longest_running(&self, controller: &str) -> Option<Duration> {
        self.0.series.read().get(controller)?.longest_running()
    }

    fn series(&self, controller: &str, report: impl FnOnce(&controller::Series)) {
        if let Some(series) = self.0.series.read().get(controller) {
            report(series);
        }
    }

    pub(crate) fn webhooks(&self) -> &WebhookMetrics {
        &self.0.webhooks
    }

    pub(crate) fn client(&self) -> ClientMetrics {
        self.0.client.clone()
    }

    /// All series in the Prometheus text format (version 0.0.4).
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail; a metric whose own encoder fails leaves what came before it.
        if let Err(error) = prometheus_text::encode(&mut text, &self.0.registry.lock()) {
            tracing::warn!(%error, "a metric could not be encoded");
        }
        text
    }
}

impl Observer for Metrics {
    fn controller_started(&self, controller: &str, workers: usize) {
        let series = self.0.controllers.controller(controller, workers);
        self.0.series.write().insert(controller.to_owned(), Arc::new(series));
    }

    fn queue_added(&self, controller: &str) {
        self.series(controller, controller::Series::added);
    }

    fn queue_depth(&self, controller: &str, fresh: usize, background: usize) {
        self.series(controller, |series| series.depth(fresh, background));
    }

    fn queue_waited(&self, controller: &str, waited: Duration) {
        self.series(controller, |series| series.waited(waited));
    }

    fn queue_retried(&self, controller: &str) {
        self.series(controller, controller::Series::retried);
    }

    fn reconcile_started(&self, controller: &str) {
        self.series(controller, controller::Series::started);
    }

    fn reconcile_finished(&self, controller: &str, ended: Reconciled, took: Duration) {
        self.series(controller, |series| series.finished(ended, took));
    }

    fn watch_started(&self, kind: &Kind) {
        self.0.watches.declare(kind);
    }

    fn watch_event(&self, kind: &Kind) {
        self.0.watches.event(kind);
    }

    fn watch_restarted(&self, kind: &Kind) {
        self.0.watches.restarted(kind);
    }

    fn undecodable(&self, kind: &Kind, objects: usize) {
        self.0.watches.undecodable(kind, objects);
    }

    fn leading(&self, election: &str, leads: bool) {
        self.0.elections.leading(election, leads);
    }

    fn election_slow_path(&self, election: &str) {
        self.0.elections.slow_path(election);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A duration in seconds, the unit of every Prometheus metric.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests;
