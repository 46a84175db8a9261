use serde_json::{Value, json};

use super::Install;

/// Label of the namespaces that may scrape, as kubebuilder's projects have it.
const SCRAPERS: (&str, &str) = ("metrics", "enabled");

/// What else may be installed with an operator, in the order of its declaration in [`Install`].
impl Install {
    /// How many of the operator's pods an administrator may take away at a time. With one replica there is no budget: it
    /// would only keep nodes from being drained.
    pub(super) fn disruption_budget(&self) -> Option<Value> {
        (self.replicas > 1).then(|| {
            json!({
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": self.metadata(&self.name, Some(&self.namespace)),
                "spec": {
                    "maxUnavailable": 1,
                    "selector": {"matchLabels": self.labels()},
                    // A pod that isn't ready does no work that could be interrupted.
                    "unhealthyPodEvictionPolicy": "AlwaysAllow",
                },
            })
        })
    }

    /// Who may connect to the operator's pods, and where they may connect to. Health probes need no rule: the kubelet of a pod's
    /// own node is always let through.
    pub(crate) fn network_policy_object(&self) -> Value {
        let tcp = |port: u16| json!({"port": port, "protocol": "TCP"});
        let (key, value) = SCRAPERS;
        let mut ingress = vec![json!({
            "from": [{"namespaceSelector": {"matchLabels": {key: value}}}],
            "ports": [tcp(self.metrics_port)],
        })];
        if !self.webhooks.is_empty() {
            // API servers are no pods in most clusters, so no selector finds them.
            ingress.push(json!({"ports": [tcp(self.webhooks.port)]}));
        }
        let mut egress = vec![
            json!({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}),
            json!({"ports": self.api_server_ports.iter().copied().map(tcp).collect::<Vec<_>>()}),
        ];
        egress.extend(self.egress.iter().cloned());
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": self.metadata(&self.name, Some(&self.namespace)),
            "spec": {
                "podSelector": {"matchLabels": self.labels()},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": ingress,
                "egress": egress,
            },
        })
    }

    /// What has the Prometheus operator scrape the metrics. Its kind comes with that operator.
    pub(crate) fn service_monitor_object(&self) -> Value {
        let mut endpoint = json!({"path": "/metrics", "port": "metrics", "scheme": "http"});
        if self.metrics_secure {
            endpoint["scheme"] = json!("https");
            endpoint["bearerTokenFile"] = json!("/var/run/secrets/kubernetes.io/serviceaccount/token");
            endpoint["tlsConfig"] = match &self.authority_secret {
                Some(secret) => json!({
                    "ca": {"secret": {"name": secret, "key": "ca.crt"}},
                    "serverName": format!("{}.{}.svc", self.metrics_service_name(), self.namespace),
                }),
                // Whose authority it is, only the one who mounts the certificate knows.
                None => json!({"insecureSkipVerify": true}),
            };
        }
        json!({
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": self.metadata(&self.name, Some(&self.namespace)),
            "spec": {"endpoints": [endpoint], "selector": {"matchLabels": self.labels()}},
        })
    }
}
