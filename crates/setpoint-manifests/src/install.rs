use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{Rights, Scope};

mod operations;
mod rbac;
mod webhooks;
mod workload;

pub use webhooks::{AdmissionWebhook, Webhooks};
pub use workload::{Probes, Resources};

/// What is wrong with the input of [`Install::objects`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ManifestError {
    /// A name that Kubernetes would refuse.
    #[error("{field} {value:?}: {rule}")]
    Name {
        /// Which part of the input.
        field: &'static str,
        /// What was given.
        value: String,
        /// What a valid one looks like.
        rule: &'static str,
    },
    /// An object in [`Install::crds`] that is not a CustomResourceDefinition with a name.
    #[error(
        "crds[{index}] is not a CustomResourceDefinition of apiextensions.k8s.io/v1 with a metadata.name"
    )]
    NotACrd {
        /// Its place in the list.
        index: usize,
    },
}

/// Everything that is needed to install an operator, in the order in which it has to be applied.
#[derive(Clone, Debug)]
pub struct Install {
    /// Name of the operator: of its Deployment, ServiceAccount and roles. A DNS label of at most 55 characters.
    pub name: String,
    /// Namespace that the operator itself runs in.
    pub namespace: String,
    /// Container image of the operator.
    pub image: String,
    /// Arguments of the container. Default: `["run"]`.
    pub args: Vec<String>,
    /// CustomResourceDefinitions of the kinds that the operator serves.
    pub crds: Vec<Value>,
    /// What the operator may do.
    pub rights: Rights,
    /// Rights in one namespace each, whatever the scope: on the operator's own lease. Granted by Roles named
    /// after the operator, with `-local`.
    pub local: BTreeMap<String, Rights>,
    /// Namespaces that the operator works in; handed to it in `WATCH_NAMESPACE`.
    pub scope: Scope,
    /// Number of replicas. More than one needs leader election. Default: 1.
    pub replicas: u32,
    /// Seconds that a stopping pod gets to end its running reconciles. Default: 40, which leaves the
    /// SDK's own 30 s of grace time to end first.
    pub termination_grace_seconds: u32,
    /// Port of the metrics endpoint. Default: 8080.
    pub metrics_port: u16,
    /// Whether metrics are served over TLS to those only who may read them; the container's arguments say so. See
    /// [`secure_metrics`](Self::secure_metrics). Default: no.
    pub metrics_secure: bool,
    /// The Secret whose `ca.crt` vouches for the operator's certificate, if the operator makes its own.
    pub authority_secret: Option<String>,
    /// Whether to install the Prometheus operator's ServiceMonitor. Default: no, since its kind is not everywhere.
    pub service_monitor: bool,
    /// Whether to install a NetworkPolicy: in, to the metrics from namespaces with the label `metrics: enabled`, and to the
    /// webhooks; out, to DNS, the API server and what `egress` says. Default: no.
    pub network_policy: bool,
    /// Ports of the API server, behind its Service as well, for the NetworkPolicy. Default: 443 and 6443.
    pub api_server_ports: Vec<u16>,
    /// What else the operator connects to: `NetworkPolicyEgressRule`s for the NetworkPolicy.
    pub egress: Vec<Value>,
    /// Health endpoint and timing of its probes.
    pub probes: Probes,
    /// Webhooks that the operator serves, of admission and of conversion.
    pub webhooks: Webhooks,
    /// Requested and allowed resources of the container.
    pub resources: Resources,
}

impl Install {
    /// An operator with the defaults of each field: one replica, all namespaces, no CRDs, no rights.
    pub fn new(name: impl Into<String>, namespace: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            namespace: namespace.into(),
            image: image.into(),
            args: vec!["run".to_owned()],
            crds: Vec::new(),
            rights: Rights::new(),
            local: BTreeMap::new(),
            scope: Scope::All,
            replicas: 1,
            termination_grace_seconds: 40,
            metrics_port: 8080,
            metrics_secure: false,
            authority_secret: None,
            service_monitor: false,
            network_policy: false,
            api_server_ports: vec![443, 6443],
            egress: Vec::new(),
            probes: Probes::default(),
            webhooks: Webhooks::default(),
            resources: Resources::default(),
        }
    }

    /// All objects in the order in which they are applied: the Namespace, CRDs, the ServiceAccount, roles and
    /// bindings, the NetworkPolicy, the Services, the PodDisruptionBudget, the Deployment, and last the webhook
    /// configurations, which nothing answers before, and the ServiceMonitor.
    ///
    /// # Errors
    /// If a name is none that Kubernetes accepts, or an object in `crds` is not a CustomResourceDefinition.
    pub fn objects(&self) -> Result<Vec<Value>, ManifestError> {
        let mut objects = vec![self.namespace_object()];
        objects.extend(self.definitions()?);
        objects.extend(self.access()?);
        objects.extend(self.network_policy.then(|| self.network_policy_object()));
        objects.push(self.metrics_service());
        objects.extend(self.webhook_service());
        objects.extend(self.disruption_budget());
        objects.push(self.deployment());
        objects.extend(self.webhook_configurations());
        objects.extend(self.service_monitor.then(|| self.service_monitor_object()));
        Ok(objects)
    }

    /// Has metrics served over TLS on port 8443, to those only who have a token and the right to read them, with what
    /// that needs: the container's arguments, and the roles `<name>-metrics-auth` of the operator, which asks the API server about
    /// tokens and rights, and `<name>-metrics-reader` for who may scrape.
    pub fn secure_metrics(&mut self) -> &mut Self {
        self.metrics_secure = true;
        self.metrics_port = 8443;
        self.args.extend([
            "--metrics-secure".to_owned(),
            format!("--metrics-bind-address=:{}", self.metrics_port),
        ]);
        self
    }

    /// Only the identity of the operator and its rights: the ServiceAccount, roles and bindings. For running
    /// the operator outside the cluster, for instance in a test, under the same rights as inside.
    ///
    /// # Errors
    /// If a name is none that Kubernetes accepts.
    pub fn access(&self) -> Result<Vec<Value>, ManifestError> {
        self.check_names()?;
        Ok(rbac::objects(self))
    }

    /// The CustomResourceDefinitions as they are installed: by name, which is the order that stays when the declaration
    /// of controllers is reordered, and with the webhook that converts their versions.
    ///
    /// # Errors
    /// If an object in `crds` is not a CustomResourceDefinition.
    pub fn definitions(&self) -> Result<Vec<Value>, ManifestError> {
        let mut crds = Vec::new();
        for (index, crd) in self.crds.iter().enumerate() {
            let name = crd.pointer("/metadata/name").and_then(Value::as_str);
            match name {
                Some(name)
                    if crd["kind"] == "CustomResourceDefinition"
                        && crd["apiVersion"] == "apiextensions.k8s.io/v1" =>
                {
                    crds.push((name, crd));
                }
                _ => return Err(ManifestError::NotACrd { index }),
            }
        }
        crds.sort_by_key(|(name, _)| *name);
        crds.dedup_by_key(|(name, _)| *name);
        Ok(crds.into_iter().map(|(name, crd)| self.with_conversion(name, crd)).collect())
    }

    fn check_names(&self) -> Result<(), ManifestError> {
        // "-metrics" is the longest suffix, and Services have DNS labels as names.
        check_label("operator name", &self.name, 63 - "-metrics".len())?;
        check_label("namespace", &self.namespace, 63)?;
        if let Scope::Namespaces(namespaces) = &self.scope {
            for namespace in namespaces {
                check_label("watched namespace", namespace, 63)?;
            }
        }
        for namespace in self.local.keys() {
            check_label("namespace of local rights", namespace, 63)?;
        }
        if self.image.is_empty() || self.image.contains(char::is_whitespace) {
            return Err(ManifestError::Name {
                field: "image",
                value: self.image.clone(),
                rule: "an image reference such as registry.example.com/web-operator:v1 is needed",
            });
        }
        Ok(())
    }

    /// Labels of every object.
    fn labels(&self) -> Value {
        json!({"app.kubernetes.io/component": "operator", "app.kubernetes.io/name": self.name})
    }

    fn metadata(&self, name: &str, namespace: Option<&str>) -> Value {
        let mut metadata = json!({"name": name, "labels": self.labels()});
        if let Some(namespace) = namespace {
            metadata["namespace"] = json!(namespace);
        }
        metadata
    }

    /// The namespace, which admits only pods of the restricted Pod Security Standard: ours are.
    fn namespace_object(&self) -> Value {
        let mut metadata = self.metadata(&self.namespace, None);
        metadata["labels"]["pod-security.kubernetes.io/enforce"] = json!("restricted");
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    }
}

/// Whether `value` is a label of RFC 1123, as names of namespaces and Services have to be: at most 63 lower-case letters, digits and `-`,
/// with a letter or digit at both ends.
pub fn is_label(value: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&value.len())
        && value.chars().all(allowed)
        && !value.starts_with('-')
        && !value.ends_with('-')
}

/// RFC 1123 label, as Kubernetes checks names of namespaces and Services.
fn check_label(field: &'static str, value: &str, max: usize) -> Result<(), ManifestError> {
    if is_label(value) && value.len() <= max {
        return Ok(());
    }
    Err(ManifestError::Name {
        field,
        value: value.to_owned(),
        rule: if max < 63 {
            "at most 55 lower-case letters, digits and '-', and a letter or digit at both ends"
        } else {
            "at most 63 lower-case letters, digits and '-', and a letter or digit at both ends"
        },
    })
}

/// `WATCH_NAMESPACE` as OLM writes it: a list with commas, empty for all namespaces.
fn watch_namespace(scope: &Scope) -> String {
    match scope {
        Scope::All => String::new(),
        Scope::Namespaces(namespaces) => join(namespaces),
    }
}

fn join(namespaces: &BTreeSet<String>) -> String {
    namespaces.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
