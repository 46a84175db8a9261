use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use setpoint::{Key, Metrics};
use tokio::time::Instant;

use crate::decide::{Decision, Reason, Step, lag};
use crate::observe::{Instance, Observation, Server};
use crate::render::Role;

/// Upper bounds of the buckets of durations in seconds: a death is a matter of one, a lost node of ten.
const SECONDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 30.0, 60.0, 300.0];

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

/// `reason` is `planned` for a switch-over and `lost` where the primary did not serve any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct ChangeLabels {
    namespace: String,
    name: String,
    reason: &'static str,
}

const REASONS: [&str; 2] = ["lost", "planned"];

/// The operator's own metrics, made from its observations. Series go with their cluster.
#[derive(Clone)]
pub struct ClusterMetrics {
    clusters: Gauge,
    up: Family<InstanceLabels, Gauge>,
    lag: Family<InstanceLabels, Gauge>,
    failovers: Family<ChangeLabels, Counter<u64, AtomicU64>>,
    durations: Family<ChangeLabels, Histogram, fn() -> Histogram>,
    known: Arc<Mutex<BTreeMap<Key, Known>>>,
}

/// What is kept of one cluster.
#[derive(Default)]
struct Known {
    instances: Vec<InstanceLabels>,
    outage: Option<Outage>,
}

/// A time in which the Service led to no primary.
struct Outage {
    since: Instant,
    /// Why another primary was made, once it was.
    promoted: Option<&'static str>,
}

impl ClusterMetrics {
    /// Metrics that are served with `metrics`.
    pub fn register(metrics: &Metrics) -> Self {
        let own = Self {
            clusters: Gauge::default(),
            up: Family::default(),
            lag: Family::default(),
            failovers: Family::default(),
            durations: Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram),
            known: Arc::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "redis_cluster_total",
                "RedisClusters that this operator looks after",
                own.clusters.clone(),
            );
            registry.register("redis_instance_up", "Whether the server of a pod answers", own.up.clone());
            registry.register(
                "redis_replication_lag_bytes",
                "Bytes of the replication stream that a replica has not confirmed to the primary",
                own.lag.clone(),
            );
            registry.register(
                "redis_failover",
                "Changes of the primary that were completed, planned ones and others",
                own.failovers.clone(),
            );
            registry.register(
                "redis_failover_duration_seconds",
                "Time from the last sign of the old primary, or from the start of a planned move, until the Service leads to another",
                own.durations.clone(),
            );
        });
        own
    }

    /// Notes what was seen of the cluster `key`, and what was carried out.
    pub fn note(&self, key: &Key, o: &Observation, done: &Decision) {
        let cluster =
            ClusterLabels { namespace: key.namespace.clone().unwrap_or_default(), name: key.name.clone() };
        let mut all = self.known.lock();
        let known = all.entry(key.clone()).or_default();
        let primary = o.primary().filter(|primary| primary.server().is_some_and(Server::writable));
        let mut now = Vec::new();
        for instance in o.instances.values() {
            let labels = InstanceLabels {
                namespace: cluster.namespace.clone(),
                name: cluster.name.clone(),
                pod: instance.name.clone(),
            };
            self.up.get_or_create(&labels).set(i64::from(instance.server().is_some()));
            match primary.and_then(|primary| lag(instance, primary)) {
                Some(lag) => {
                    self.lag.get_or_create(&labels).set(i64::try_from(lag).unwrap_or(i64::MAX));
                }
                None => {
                    self.lag.remove(&labels);
                }
            }
            now.push(labels);
        }
        for labels in known.instances.iter().filter(|labels| !now.contains(labels)) {
            self.up.remove(labels);
            self.lag.remove(labels);
        }
        known.instances = now;
        let change = |reason| ChangeLabels {
            namespace: cluster.namespace.clone(),
            name: cluster.name.clone(),
            reason,
        };
        for reason in REASONS {
            drop(self.failovers.get_or_create(&change(reason)));
        }
        if let Some((seconds, reason)) = follow(&mut known.outage, o, primary) {
            self.durations.get_or_create(&change(reason)).observe(seconds);
        }
        if let Some(reason) = promotion(done) {
            self.failovers.get_or_create(&change(reason)).inc();
            known.outage.get_or_insert(Outage { since: o.now, promoted: None }).promoted = Some(reason);
        }
        self.clusters.set(i64::try_from(all.len()).unwrap_or(i64::MAX));
    }

    /// Drops the series of the cluster `key`.
    pub fn forget(&self, key: &Key) {
        let mut known = self.known.lock();
        for labels in known.remove(key).into_iter().flat_map(|known| known.instances) {
            self.up.remove(&labels);
            self.lag.remove(&labels);
        }
        self.clusters.set(i64::try_from(known.len()).unwrap_or(i64::MAX));
        for reason in REASONS {
            let labels = ChangeLabels {
                namespace: key.namespace.clone().unwrap_or_default(),
                name: key.name.clone(),
                reason,
            };
            self.failovers.remove(&labels);
            self.durations.remove(&labels);
        }
    }
}

/// Why another server became the primary, if `done` completed that.
fn promotion(done: &Decision) -> Option<&'static str> {
    let Step::Record(_) = done.step else { return None };
    done.reasons.iter().find_map(|reason| match reason {
        Reason::Promoted { term, planned, .. } if *term > 1 => {
            Some(if *planned { "planned" } else { "lost" })
        }
        _ => None,
    })
}

/// Keeps the time in which there is no `primary` behind the Service; how long it was, in seconds, and why, at
/// the end of one that another primary ended.
fn follow(
    outage: &mut Option<Outage>,
    o: &Observation,
    primary: Option<&Instance>,
) -> Option<(f64, &'static str)> {
    let serves = primary
        .is_some_and(|primary| primary.pod.as_ref().is_some_and(|pod| pod.role == Some(Role::Primary)));
    if serves {
        let Outage { since, promoted } = outage.take()?;
        return Some((o.now.saturating_duration_since(since).as_secs_f64(), promoted?));
    }
    if o.ledger.term > 0 {
        let old = o.ledger.current.as_deref().and_then(|name| o.instance(name));
        let lost = old.and_then(|old| if old.server().is_some() { old.detached } else { old.silent });
        outage.get_or_insert_with(|| Outage { since: lost.unwrap_or(o.now), promoted: None });
    }
    None
}
