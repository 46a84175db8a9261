use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Install;
use crate::Scope;

/// Path of conversion webhooks, as in kubebuilder's projects.
const CONVERT: &str = "/convert";

/// A webhook of admission, as its configuration needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionWebhook {
    /// Its name in the configuration: at least three parts with dots between them.
    pub name: String,
    /// Path that it is served at.
    pub path: String,
    /// Whether it changes objects: it is then in the MutatingWebhookConfiguration.
    pub mutating: bool,
    /// Group, version and plural of the kind that it is asked about. Requests for other versions are converted first.
    pub resource: [String; 3],
    /// `CREATE`, `UPDATE`, `DELETE`, `CONNECT`.
    pub operations: Vec<String>,
    /// `Fail` or `Ignore`.
    pub failure_policy: String,
    /// How long the API server waits for it.
    pub timeout_seconds: u64,
    /// Names and CEL expressions that must be true of a request.
    pub match_conditions: Vec<(String, String)>,
}

/// The webhooks of an operator and where they are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhooks {
    /// Port of the container. Default: 9443. The Service's port is 443.
    pub port: u16,
    /// Where the API server reaches them, if not through the Service: `https://10.0.0.5:9443`, without a path at its end. For an operator
    /// that runs outside the cluster. Default: none.
    pub url: Option<String>,
    /// The webhooks of admission.
    pub admission: Vec<AdmissionWebhook>,
    /// Names of the CustomResourceDefinitions whose versions a webhook converts.
    pub converted: BTreeSet<String>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Self { port: 9443, url: None, admission: Vec::new(), converted: BTreeSet::new() }
    }
}

impl Webhooks {
    /// Whether there is anything to be served.
    pub fn is_empty(&self) -> bool {
        self.admission.is_empty() && self.converted.is_empty()
    }
}

impl Install {
    /// Name of the Service through which the API server reaches the webhooks.
    pub fn webhook_service_name(&self) -> String {
        format!("{}-webhook", self.name)
    }

    /// The Service, if there are webhooks that it leads to.
    pub(super) fn webhook_service(&self) -> Option<Value> {
        (!self.webhooks.is_empty() && self.webhooks.url.is_none()).then(|| {
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": self.metadata(&self.webhook_service_name(), Some(&self.namespace)),
                "spec": {
                    "ports": [{"name": "webhooks", "port": 443, "protocol": "TCP", "targetPort": "webhooks"}],
                    "selector": self.labels(),
                },
            })
        })
    }

    /// The configurations of the webhooks of admission, mutating first. They have no `caBundle`: the running operator sets
    /// it, as a field manager of its own, so that applying these again does not take it away.
    pub fn webhook_configurations(&self) -> Vec<Value> {
        let configuration = |mutating: bool, kind: &str| {
            let webhooks: Vec<Value> = self
                .webhooks
                .admission
                .iter()
                .filter(|webhook| webhook.mutating == mutating)
                .map(|webhook| self.webhook(webhook))
                .collect();
            (!webhooks.is_empty()).then(|| {
                json!({
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": kind,
                    "metadata": self.metadata(&self.name, None),
                    "webhooks": webhooks,
                })
            })
        };
        [(true, "MutatingWebhookConfiguration"), (false, "ValidatingWebhookConfiguration")]
            .into_iter()
            .filter_map(|(mutating, kind)| configuration(mutating, kind))
            .collect()
    }

    fn webhook(&self, webhook: &AdmissionWebhook) -> Value {
        let [group, version, plural] = &webhook.resource;
        let mut value = json!({
            "name": webhook.name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": self.client_config(&webhook.path),
            "failurePolicy": webhook.failure_policy,
            "rules": [{
                "apiGroups": [group],
                "apiVersions": [version],
                "operations": webhook.operations,
                "resources": [plural],
            }],
            "sideEffects": "None",
            "timeoutSeconds": webhook.timeout_seconds,
        });
        if !webhook.match_conditions.is_empty() {
            let conditions = webhook.match_conditions.iter();
            value["matchConditions"] = conditions
                .map(|(name, expression)| json!({"name": name, "expression": expression}))
                .collect();
        }
        // An operator of some namespaces must not stand in the way of the others.
        if let Scope::Namespaces(namespaces) = &self.scope {
            value["namespaceSelector"] = json!({"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces},
            ]});
        }
        value
    }

    fn client_config(&self, path: &str) -> Value {
        if let Some(url) = &self.webhooks.url {
            return json!({"url": format!("{}{path}", url.trim_end_matches('/'))});
        }
        let name = self.webhook_service_name();
        json!({"service": {"name": name, "namespace": self.namespace, "path": path, "port": 443}})
    }

    /// `crd` with the stanza that has its versions converted by the operator, if it is one of those.
    pub(super) fn with_conversion(&self, name: &str, crd: &Value) -> Value {
        let mut crd = crd.clone();
        if self.webhooks.converted.contains(name) {
            crd["spec"]["conversion"] = json!({
                "strategy": "Webhook",
                "webhook": {"clientConfig": self.client_config(CONVERT), "conversionReviewVersions": ["v1"]},
            });
        }
        crd
    }
}
