use std::fmt;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, String)>;

pub(super) struct Families {
    objects: Family<Labels, Gauge>,
    undecodable: Family<Labels, Gauge>,
    events: Family<Labels, Counter>,
    relists: Family<Labels, Counter>,
}

impl Families {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            objects: Family::default(),
            undecodable: Family::default(),
            events: Family::default(),
            relists: Family::default(),
        };
        registry.register(
            "setpoint_cache_objects",
            "Objects in the cache of a resource",
            this.objects.clone(),
        );
        registry.register(
            "setpoint_cache_undecodable_objects",
            "Objects of a resource that do not fit the Rust type; they are skipped and the rest goes on",
            this.undecodable.clone(),
        );
        registry.register(
            "setpoint_watch_events",
            "Watch events received for a resource",
            this.events.clone(),
        );
        registry.register(
            "setpoint_watch_relists",
            "Times that a resource was listed anew",
            this.relists.clone(),
        );
        this
    }

    pub(super) fn reflector(&self, resource: &str) -> ReflectorMetrics {
        let labels: Labels = vec![("resource", resource.to_owned())];
        ReflectorMetrics {
            objects: self.objects.get_or_create_owned(&labels),
            undecodable: self.undecodable.get_or_create_owned(&labels),
            events: self.events.get_or_create_owned(&labels),
            relists: self.relists.get_or_create_owned(&labels),
        }
    }
}

/// What the reflector of one resource reports. Cheap to clone.
#[derive(Clone)]
pub struct ReflectorMetrics {
    objects: Gauge,
    undecodable: Gauge,
    events: Counter,
    relists: Counter,
}

impl ReflectorMetrics {
    /// Number of objects in the cache.
    pub fn objects(&self, count: usize) {
        self.objects.set(count as i64);
    }

    /// Number of objects that could not be decoded.
    pub fn undecodable(&self, count: usize) {
        self.undecodable.set(count as i64);
    }

    /// A watch event arrived.
    pub fn event(&self) {
        self.events.inc();
    }

    /// The resource was listed, for the first time or anew.
    pub fn relisted(&self) {
        self.relists.inc();
    }
}

impl fmt::Debug for ReflectorMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReflectorMetrics").finish_non_exhaustive()
    }
}
