use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::networking::v1::NetworkPolicyEgressRule;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;
use setpoint_manifests::{AdmissionWebhook, Install, KustomizeError, ManifestError, YamlError, documents};

use super::webhooks::secret_name;
use super::{Operator, parts};
use crate::webhook::AnyVersions;
use crate::webhook::certificates::Source;
use crate::{Kind, Webhook, rbac};

/// Why manifests could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("{0}")]
    Manifest(#[from] ManifestError),
    #[error("{0}")]
    Yaml(#[from] YamlError),
    #[error("{0}")]
    Kustomize(#[from] KustomizeError),
    #[error("cannot write {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// [`Operator::install`], with metrics that are `secure` or not.
pub(super) fn install(operator: &Operator, namespace: String, secure: bool) -> Install {
    let tag = operator.version.as_deref().unwrap_or("latest");
    let image = operator.image.clone().unwrap_or_else(|| format!("{}:{tag}", operator.name));
    let mut install = Install::new(operator.name.clone(), namespace, image);
    install.crds = operator.crds.iter().map(crd_value).collect();
    install.rights = operator.rights();
    if let Some(election) = &operator.election {
        let namespace = election.namespace.clone().unwrap_or_else(|| install.namespace.clone());
        install.local.insert(namespace, rbac::lock(election));
        // One works, the other takes over.
        install.replicas = 2;
    }
    install.webhooks.url.clone_from(&operator.webhook_url);
    install.webhooks.admission = operator.webhooks.iter().map(admission).collect();
    install.webhooks.converted = operator.converting().iter().map(AnyVersions::crd_name).collect();
    if !install.webhooks.is_empty() && matches!(operator.certificates.source, Source::Own) {
        let local = install.local.entry(install.namespace.clone()).or_default();
        local.extend(&rbac::certificates(&secret_name(&operator.name)));
    }
    install.egress = operator.egress.iter().map(egress_value).collect();
    if let Some(scope) = &operator.scope {
        install.scope = scope.clone();
    }
    if secure {
        parts::secure_metrics(operator, &mut install);
    }
    // The kubelet waits for both graces, of reconciles and of tasks, and for the events.
    let grace = u32::try_from(operator.grace.as_secs()).unwrap_or(u32::MAX);
    let tasks = if operator.tasks.is_empty() { 0 } else { grace };
    install.termination_grace_seconds = grace.saturating_add(tasks).saturating_add(10);
    install
}

fn admission(webhook: &Webhook) -> AdmissionWebhook {
    let Kind { group, version, plural, .. } = webhook.kind.clone();
    AdmissionWebhook {
        name: webhook.name(),
        path: webhook.path(),
        mutating: webhook.mutating,
        resource: [group, version, plural],
        operations: webhook.operations.iter().map(ToString::to_string).collect(),
        failure_policy: webhook.failure_policy.as_str().to_owned(),
        timeout_seconds: webhook.time_limit.as_secs(),
        match_conditions: webhook.match_conditions.clone(),
    }
}

#[expect(clippy::expect_used, reason = "a k8s-openapi type has only string keys and no failing serializer")]
fn crd_value(crd: &CustomResourceDefinition) -> Value {
    serde_json::to_value(crd).expect("a CustomResourceDefinition is JSON")
}

#[expect(clippy::expect_used, reason = "a k8s-openapi type has only string keys and no failing serializer")]
fn egress_value(rule: &NetworkPolicyEgressRule) -> Value {
    serde_json::to_value(rule).expect("a rule is JSON")
}

/// Kinds that the operator reconciles and that neither Kubernetes has built in nor the operator declares a
/// CRD for: probably forgotten, so `manifests` says so.
pub(super) fn undeclared_crds(operator: &Operator) -> Vec<String> {
    let declared = |group: &str, plural: &str| {
        operator.crds.iter().any(|crd| crd.spec.group == group && crd.spec.names.plural == plural)
    };
    let mut missing: Vec<String> = operator
        .controllers
        .iter()
        .map(crate::AnyController::kind)
        // Built-in groups have no dot, or belong to k8s.io.
        .filter(|kind| kind.group.contains('.') && !kind.group.ends_with(".k8s.io"))
        .filter(|kind| !declared(&kind.group, &kind.plural))
        .map(ToString::to_string)
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

/// Writes `install.yaml` and a folder for kustomize into `directory`, which is created if needed. Gives the paths written.
pub(super) fn write(install: &Install, directory: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let mut files = install.kustomize()?;
    files.insert("install.yaml".to_owned(), documents(&install.objects()?)?);
    let mut written = Vec::new();
    for (name, text) in files {
        let path = directory.join(name);
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, text))
            .map_err(|source| WriteError::File { path: path.clone(), source })?;
        written.push(path);
    }
    Ok(written)
}
