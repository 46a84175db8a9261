//! Objects in, YAML out: what an operator needs to be installed.
//!
//! ```text
//! Rights (what the controllers declared) ─▶ ServiceAccount, (Cluster)Roles, bindings ─┐
//! CRDs (generated from the Rust types) ───────────────────────────────────────────────┼─▶ Install::objects ─▶ yaml::documents: install.yaml
//! webhooks ──▶ their configurations, the CRDs' conversion ─────────────────────────────┤
//! name, namespace, image ──▶ Namespace, Services, hardened Deployment, PodDisruptionBudget ┤
//! optional: NetworkPolicy, ServiceMonitor ─────────────────────────────────────────────┘  └▶ Install::kustomize: a folder
//! ```
//!
//! Everything here is a pure function of its input: no file, cluster or clock is read, and the same input
//! gives the same bytes, so that generated manifests can be committed and checked for drift.

mod install;
mod kustomize;
mod rights;
mod yaml;

pub use install::{AdmissionWebhook, Install, ManifestError, Probes, Resources, Webhooks, is_label};
pub use kustomize::KustomizeError;
pub use rights::{Rights, Rule, Scope};
pub use yaml::{YamlError, document, documents};
