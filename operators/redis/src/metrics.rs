use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use setpoint::{Key, Metrics};

use crate::decide::{Decision, Reason, Step};
use crate::observe::Observation;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct ClusterLabels {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct InstanceLabels {
    namespace: String,
    name: String,
    pod: String,
}

/// The operator's own metrics, made from its observations. Series go with their cluster.
#[derive(Clone, Default)]
pub struct ClusterMetrics {
    clusters: Gauge,
    up: Family<InstanceLabels, Gauge>,
    failovers: Family<ClusterLabels, Counter<u64, AtomicU64>>,
    known: Arc<Mutex<BTreeMap<Key, Vec<InstanceLabels>>>>,
}

impl ClusterMetrics {
    /// Metrics that are served with `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.register(|registry| {
            registry.register(
                "redis_cluster_total",
                "RedisClusters that this operator looks after",
                own.clusters.clone(),
            );
            registry.register("redis_instance_up", "Whether the server of a pod answers", own.up.clone());
            registry.register("redis_failover", "Fail-overs that were completed", own.failovers.clone());
        });
        own
    }

    /// Notes what was seen of the cluster `key`, and what was carried out.
    pub fn note(&self, key: &Key, o: &Observation, done: &Decision) {
        let cluster =
            ClusterLabels { namespace: key.namespace.clone().unwrap_or_default(), name: key.name.clone() };
        let mut known = self.known.lock();
        let before = known.remove(key).unwrap_or_default();
        let mut now = Vec::new();
        for instance in o.instances.values() {
            let labels = InstanceLabels {
                namespace: cluster.namespace.clone(),
                name: cluster.name.clone(),
                pod: instance.name.clone(),
            };
            self.up.get_or_create(&labels).set(i64::from(instance.server().is_some()));
            now.push(labels);
        }
        for labels in before.iter().filter(|labels| !now.contains(labels)) {
            self.up.remove(labels);
        }
        known.insert(key.clone(), now);
        self.clusters.set(i64::try_from(known.len()).unwrap_or(i64::MAX));
        let failovers = self.failovers.get_or_create(&cluster);
        if let Step::Record(_) = done.step
            && done.reasons.iter().any(|reason| matches!(reason, Reason::Promoted { term, .. } if *term > 1))
        {
            failovers.inc();
        }
    }

    /// Drops the series of the cluster `key`.
    pub fn forget(&self, key: &Key) {
        let mut known = self.known.lock();
        for labels in known.remove(key).into_iter().flatten() {
            self.up.remove(&labels);
        }
        self.clusters.set(i64::try_from(known.len()).unwrap_or(i64::MAX));
        self.failovers.remove(&ClusterLabels {
            namespace: key.namespace.clone().unwrap_or_default(),
            name: key.name.clone(),
        });
    }
}
