use clap::Args;
use setpoint_manifests::Install;

use super::Operator;
use super::webhooks::secret_name;
use crate::rbac;
use crate::webhook::certificates::Source;

/// What is installed only on request.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct Parts {
    /// With the ServiceMonitor by which the Prometheus operator finds the metrics
    #[arg(long)]
    pub(super) service_monitor: bool,
    /// With a NetworkPolicy: who may connect to the operator, and where it may connect to
    #[arg(long)]
    pub(super) network_policy: bool,
    /// Metrics over TLS, for those only who may read them [default: what the operator says]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub(super) metrics_secure: Option<bool>,
}

impl Parts {
    /// All of them, to remove whatever is there.
    pub(super) fn all() -> Self {
        Self { service_monitor: true, network_policy: true, metrics_secure: Some(true) }
    }

    /// Adds those to `install` that change nothing else.
    pub(super) fn add(self, install: &mut Install) {
        install.service_monitor |= self.service_monitor;
        install.network_policy |= self.network_policy;
    }
}

/// Secure metrics, with the right to keep a certificate of the operator's own.
pub(super) fn secure_metrics(operator: &Operator, install: &mut Install) {
    install.secure_metrics();
    if matches!(operator.certificates.source, Source::Own) {
        let secret = secret_name(&operator.name);
        let local = install.local.entry(install.namespace.clone()).or_default();
        local.extend(&rbac::certificates(&secret));
        install.authority_secret = Some(secret);
    }
}
