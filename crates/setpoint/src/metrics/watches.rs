use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Kind;

type Labels = Vec<(&'static str, String)>;

/// The metrics of all caches, by resource.
pub(super) struct Watches {
    events: Family<Labels, Counter>,
    restarts: Family<Labels, Counter>,
    undecodable: Family<Labels, Gauge>,
}

impl Watches {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this =
            Self { events: Family::default(), restarts: Family::default(), undecodable: Family::default() };
        registry.register("setpoint_watch_events", "Watch events and lists received", this.events.clone());
        registry.register(
            "setpoint_watch_restarts",
            "Watches that had to be started again",
            this.restarts.clone(),
        );
        registry.register(
            "setpoint_cache_undecodable_objects",
            "Objects that do not fit the Rust type; they are skipped and the rest goes on",
            this.undecodable.clone(),
        );
        this
    }

    /// Makes the series of a resource, with the value 0.
    pub(super) fn declare(&self, kind: &Kind) {
        let labels = labels(kind);
        drop(self.events.get_or_create(&labels));
        drop(self.restarts.get_or_create(&labels));
        drop(self.undecodable.get_or_create(&labels));
    }

    pub(super) fn event(&self, kind: &Kind) {
        self.events.get_or_create(&labels(kind)).inc();
    }

    pub(super) fn restarted(&self, kind: &Kind) {
        self.restarts.get_or_create(&labels(kind)).inc();
    }

    pub(super) fn undecodable(&self, kind: &Kind, objects: usize) {
        self.undecodable.get_or_create(&labels(kind)).set(objects as i64);
    }
}

/// The resource as its CRD is named: `configmaps`, `redisclusters.cache.example.com`.
fn labels(kind: &Kind) -> Labels {
    let resource =
        if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) };
    vec![("resource", resource)]
}
