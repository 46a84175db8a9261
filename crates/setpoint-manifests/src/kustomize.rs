//! The manifests as a folder for kustomize, laid out like the `config` of a kubebuilder project.
//!
//! ```text
//! default ─▶ crd/bases, rbac, manager, webhook          what install.yaml has
//!    └─ components: prometheus, network-policy          optional parts
//! ```

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{Install, ManifestError, YamlError, document, documents};

const HEADER: &str = "apiVersion: kustomize.config.k8s.io/v1beta1\n";

/// Why a folder for kustomize cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum KustomizeError {
    /// What is to be installed.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// An object.
    #[error(transparent)]
    Yaml(#[from] YamlError),
}

/// An optional part of `default`.
struct Component {
    folder: &'static str,
    file: &'static str,
    about: &'static str,
    chosen: bool,
    object: Value,
}

impl Install {
    /// Files by their path: `default/kustomization.yaml` builds what [`Install::objects`] gives. The optional parts are
    /// components, which `default` lists whether they are chosen or not; those that aren't stand behind a `#`.
    ///
    /// # Errors
    /// As [`Install::objects`].
    pub fn kustomize(&self) -> Result<BTreeMap<String, String>, KustomizeError> {
        let mut base = self.clone();
        (base.service_monitor, base.network_policy) = (false, false);
        let mut folders: BTreeMap<&str, Vec<(String, Vec<Value>)>> = BTreeMap::new();
        for object in base.objects()? {
            let (folder, file) = place(&object);
            let files = folders.entry(folder).or_default();
            match files.iter_mut().find(|(name, _)| *name == file) {
                Some((_, objects)) => objects.push(object),
                None => files.push((file, vec![object])),
            }
        }
        let components = [
            Component {
                folder: "network-policy",
                file: "network_policy.yaml",
                about: "Who may connect to the operator, and where it may connect to.",
                chosen: self.network_policy,
                object: self.network_policy_object(),
            },
            Component {
                folder: "prometheus",
                file: "monitor.yaml",
                about: "For the Prometheus operator, whose kinds have to be installed before.",
                chosen: self.service_monitor,
                object: self.service_monitor_object(),
            },
        ];
        let mut written = BTreeMap::new();
        let mut top = String::from(HEADER);
        top.push_str("kind: Kustomization\nresources:\n");
        for (folder, files) in folders {
            let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
            written.insert(format!("{folder}/kustomization.yaml"), listing("Kustomization", &names)?);
            top.extend(["- ../", folder, "\n"]);
            for (name, objects) in &files {
                written.insert(format!("{folder}/{name}"), documents(objects)?);
            }
        }
        let any = components.iter().any(|component| component.chosen);
        top.push_str("# Optional parts: take away the '#' before those that you want.\n");
        top.push_str(if any { "components:\n" } else { "#components:\n" });
        for Component { folder, file, about, chosen, object } in components {
            top.extend(["# ", about, "\n", if chosen { "" } else { "#" }, "- ../", folder, "\n"]);
            written.insert(format!("{folder}/kustomization.yaml"), listing("Component", &[file])?);
            written.insert(format!("{folder}/{file}"), document(&object)?);
        }
        written.insert("default/kustomization.yaml".to_owned(), top);
        Ok(written)
    }
}

fn listing(kind: &str, resources: &[&str]) -> Result<String, YamlError> {
    let version = if kind == "Component" { "v1alpha1" } else { "v1beta1" };
    document(&json!({
        "apiVersion": format!("kustomize.config.k8s.io/{version}"),
        "kind": kind,
        "resources": resources,
    }))
}

/// Folder and file of an object: one file for each kind, and one for each CustomResourceDefinition, by the names of a
/// kubebuilder project where it has one.
fn place(object: &Value) -> (&'static str, String) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let (folder, file) = match object["kind"].as_str().unwrap_or_default() {
        "CustomResourceDefinition" => {
            let (plural, group) = name.split_once('.').unwrap_or((name, "core"));
            return ("crd", format!("bases/{group}_{plural}.yaml"));
        }
        "ServiceAccount" => ("rbac", "service_account.yaml"),
        "ClusterRole" => ("rbac", "cluster_role.yaml"),
        "ClusterRoleBinding" => ("rbac", "cluster_role_binding.yaml"),
        "Role" => ("rbac", "role.yaml"),
        "RoleBinding" => ("rbac", "role_binding.yaml"),
        "Namespace" => ("manager", "namespace.yaml"),
        "Service" if name.ends_with("-webhook") => ("webhook", "service.yaml"),
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => ("webhook", "manifests.yaml"),
        "Service" => ("manager", "metrics_service.yaml"),
        "PodDisruptionBudget" => ("manager", "pod_disruption_budget.yaml"),
        _ => ("manager", "manager.yaml"),
    };
    (folder, file.to_owned())
}

#[cfg(test)]
mod tests;
