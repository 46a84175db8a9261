use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Labels = [(&'static str, String); 1];

/// The metrics of elections, by the name of their lease.
pub(super) struct Elections {
    leading: Family<Labels, Gauge>,
    slow_path: Family<Labels, Counter>,
}

impl Elections {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self { leading: Family::default(), slow_path: Family::default() };
        registry.register(
            "leader_election_master_status",
            "Whether this replica leads (1) or stands by (0)",
            this.leading.clone(),
        );
        registry.register(
            "leader_election_slowpath",
            "Renewals that had to read the lease first",
            this.slow_path.clone(),
        );
        this
    }

    pub(super) fn leading(&self, election: &str, leads: bool) {
        self.leading.get_or_create(&labels(election)).set(i64::from(leads));
        // There from the start.
        drop(self.slow_path.get_or_create(&labels(election)));
    }

    pub(super) fn slow_path(&self, election: &str) {
        self.slow_path.get_or_create(&labels(election)).inc();
    }
}

fn labels(election: &str) -> Labels {
    [("name", election.to_owned())]
}
