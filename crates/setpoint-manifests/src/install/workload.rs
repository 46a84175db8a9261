use serde_json::{Value, json};

use super::{Install, watch_namespace};

/// User and group `nonroot` of the distroless images.
const NON_ROOT: u32 = 65532;

/// The health endpoint and how often the kubelet asks it. The defaults are those of a kubebuilder project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Port of `/healthz` and `/readyz`. Default: 8081.
    pub port: u16,
    /// Seconds between liveness probes. Default: 20.
    pub liveness_period_seconds: u32,
    /// Seconds between readiness probes. Default: 10.
    pub readiness_period_seconds: u32,
}

impl Default for Probes {
    fn default() -> Self {
        Self { port: 8081, liveness_period_seconds: 20, readiness_period_seconds: 10 }
    }
}

/// Requests and limits of the operator's container, as Kubernetes quantities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Requested CPU. Default: `10m`.
    pub cpu_request: String,
    /// Requested memory. Default: `64Mi`.
    pub memory_request: String,
    /// CPU limit. Default: `500m`.
    pub cpu_limit: String,
    /// Memory limit. Default: `128Mi`.
    pub memory_limit: String,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu_request: "10m".to_owned(),
            memory_request: "64Mi".to_owned(),
            cpu_limit: "500m".to_owned(),
            memory_limit: "128Mi".to_owned(),
        }
    }
}

impl Install {
    /// Name of the Service of the metrics.
    pub fn metrics_service_name(&self) -> String {
        format!("{}-metrics", self.name)
    }

    pub(super) fn metrics_service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(&self.metrics_service_name(), Some(&self.namespace)),
            "spec": {
                "ports": [{"name": "metrics", "port": self.metrics_port, "protocol": "TCP", "targetPort": "metrics"}],
                "selector": self.labels(),
            },
        })
    }

    /// The operator as a Deployment that the restricted Pod Security Standard admits, with a read-only root.
    pub(super) fn deployment(&self) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata(&self.name, Some(&self.namespace)),
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": self.labels()},
                "strategy": {"type": self.strategy()},
                "template": {
                    "metadata": {
                        "annotations": {"kubectl.kubernetes.io/default-container": "operator"},
                        "labels": self.labels(),
                    },
                    "spec": {
                        "containers": [self.container()],
                        "enableServiceLinks": false,
                        "securityContext": {
                            "runAsNonRoot": true,
                            "runAsUser": NON_ROOT,
                            "runAsGroup": NON_ROOT,
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "serviceAccountName": self.name,
                        "terminationGracePeriodSeconds": self.termination_grace_seconds,
                    },
                },
            },
        })
    }

    /// One replica stands for "no leader election": then the old pod ends before the new one starts, so that
    /// an upgrade never has two at work.
    fn strategy(&self) -> &'static str {
        if self.replicas > 1 { "RollingUpdate" } else { "Recreate" }
    }

    fn container(&self) -> Value {
        let probe = |path: &str, delay: u32, period: u32| {
            json!({
                "httpGet": {"path": path, "port": "health"},
                "initialDelaySeconds": delay,
                "periodSeconds": period,
            })
        };
        let mut ports = vec![
            json!({"name": "metrics", "containerPort": self.metrics_port, "protocol": "TCP"}),
            json!({"name": "health", "containerPort": self.probes.port, "protocol": "TCP"}),
        ];
        if !self.webhooks.is_empty() {
            ports.push(json!({"name": "webhooks", "containerPort": self.webhooks.port, "protocol": "TCP"}));
        }
        json!({
            "name": "operator",
            "image": self.image,
            "args": self.args,
            "env": [
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                {"name": "WATCH_NAMESPACE", "value": watch_namespace(&self.scope)},
            ],
            "ports": ports,
            "livenessProbe": probe("/healthz", 15, self.probes.liveness_period_seconds),
            "readinessProbe": probe("/readyz", 5, self.probes.readiness_period_seconds),
            "resources": {
                "requests": {"cpu": self.resources.cpu_request, "memory": self.resources.memory_request},
                "limits": {"cpu": self.resources.cpu_limit, "memory": self.resources.memory_limit},
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": true,
            },
        })
    }
}
