//! Prometheus metrics under the names that dashboards for controller-runtime and client-go expect.
//!
//! One [`Metrics`] belongs to one operator; several operators in a process do not share series. Every series
//! of a controller is there from its start with the value 0, so that `rate()` sees the first increase.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;

mod client;
mod controller;
mod process;
mod reflector;

pub(crate) use client::ClientMetrics;
pub use controller::{ControllerMetrics, Outcome, Reconciling};
pub use reflector::ReflectorMetrics;

/// The metrics of an operator: those of its controllers, caches and client, and the operator's own.
///
/// Cheap to clone; clones share the same series.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    controllers: controller::Families,
    reflectors: reflector::Families,
    client: ClientMetrics,
}

impl Metrics {
    /// Metrics without controllers: those of the client and of the process.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let controllers = controller::Families::register(&mut registry);
        let reflectors = reflector::Families::register(&mut registry);
        let client = ClientMetrics::register(&mut registry);
        process::register(&mut registry);
        Self(Arc::new(Inner { registry: Mutex::new(registry), controllers, reflectors, client }))
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

    /// The series of the controller `name` with at most `max_concurrent` reconciles at a time.
    pub fn controller(&self, name: &str, max_concurrent: usize) -> ControllerMetrics {
        self.0.controllers.controller(name, max_concurrent)
    }

    /// The series of the cache of a resource, such as `configmaps` or `redisclusters.cache.example.com`.
    pub fn reflector(&self, resource: &str) -> ReflectorMetrics {
        self.0.reflectors.reflector(resource)
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
fn seconds(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests;
