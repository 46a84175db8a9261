//! Validation of the built-in kinds that operators touch: the rules that the OpenAPI documents don't carry, in kube-apiserver's words. Metadata is
//! checked elsewhere, alike for all kinds, and so are definitions of custom resources.

mod address;
mod autoscaler;
mod certificate;
mod conditions;
mod config;
mod container;
mod errors;
mod event;
mod job;
mod network;
mod pod;
mod policy;
mod projected;
mod quota;
mod rbac;
mod review;
mod rules;
mod security;
mod selector;
mod service;
mod status;
mod storage;
mod tables;
mod volume;
mod volume_source;
mod webhook;
mod workload;

use serde_json::Value;
use setpoint_schema::{FieldError, FieldPath};

pub(crate) use certificate::organizations as requested_certificate;
pub(super) use container::{amounts as container_resources, claims};
pub(super) use errors::Errors;
pub(crate) use quota::POD_RESOURCES;
pub(crate) use selector::{is_empty as selects_all, selects};

/// Every wrong field of a new object, or of an update. Subresources are checked by their own kinds, but for what is said here.
pub fn validate(
    group: &str,
    kind: &str,
    new: &Value,
    old: Option<&Value>,
    subresource: Option<&str>,
) -> Vec<FieldError> {
    let known = setpoint_kinds::kinds().iter().find(|known| known.group == group && known.kind == kind);
    let definition = match (group, kind) {
        // Whoever sends it, an event is checked in its old form.
        ("events.k8s.io", "Event") => "io.k8s.api.core.v1.Event",
        _ => known.map_or("", |known| known.definition),
    };
    let mut errors = Errors::of(definition);
    if let Some(subresource) = subresource {
        if let Some(old) = old {
            status::check(&mut errors, group, kind, subresource, new, old);
        }
        if (group, kind, subresource) == ("", "ResourceQuota", "status") {
            quota::resource_quota(&mut errors, new, old, true);
        }
        return errors.into_inner();
    }
    rules::check(&mut errors, new, old, tables::object(group, kind));
    let root = FieldPath::root();
    match (group, kind) {
        ("", "Pod") => pod::pod(&mut errors, new, old),
        ("", "PodTemplate") => pod::template(&mut errors, &new["template"], &root.child("template"), &[]),
        ("", "Service") => service::service(&mut errors, new, old),
        ("", "Endpoints") => service::endpoints(&mut errors, new),
        ("discovery.k8s.io", "EndpointSlice") => service::slice(&mut errors, new, old),
        ("", "ConfigMap") => config::config_map(&mut errors, new, old),
        ("", "Secret") => config::secret(&mut errors, new, old),
        ("", "Node") => config::node(&mut errors, new, old),
        ("", "LimitRange") => quota::limit_range(&mut errors, new),
        ("", "ResourceQuota") => quota::resource_quota(&mut errors, new, old, false),
        ("scheduling.k8s.io", "PriorityClass") => config::priority_class(&mut errors, new, old),
        ("", "Event") => event::core(&mut errors, new),
        ("events.k8s.io", "Event") => event::new_api(&mut errors, new, old),
        ("", "PersistentVolumeClaim") => storage::claim(&mut errors, new, old),
        ("", "PersistentVolume") => storage::volume(&mut errors, new, old),
        ("storage.k8s.io", "StorageClass") => storage::class(&mut errors, new),
        ("apps", "StatefulSet") => workload::stateful_set(&mut errors, new, old),
        ("apps", "Deployment") => workload::deployment(&mut errors, new, old),
        ("apps", "ReplicaSet") => workload::replica_set(&mut errors, new, old),
        ("", "ReplicationController") => workload::replication_controller(&mut errors, new),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            policy::validating(&mut errors, new, old);
        }
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => {
            policy::mutating(&mut errors, new, old);
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => {
            policy::binding(&mut errors, new, true);
        }
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding") => {
            policy::binding(&mut errors, new, false);
        }
        ("networking.k8s.io", "Ingress") => network::ingress(&mut errors, new, old),
        ("networking.k8s.io", "NetworkPolicy") => network::policy(&mut errors, new),
        ("networking.k8s.io", "IngressClass") => network::ingress_class(&mut errors, new),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::autoscaler(&mut errors, new),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificate::request(&mut errors, new, old),
        ("certificates.k8s.io", "ClusterTrustBundle") => certificate::bundle(&mut errors, new, old),
        ("storage.k8s.io", "CSIDriver") => storage::driver(&mut errors, new),
        ("storage.k8s.io", "CSINode") => storage::node(&mut errors, new),
        ("storage.k8s.io", "VolumeAttachment") => storage::attachment(&mut errors, new),
        ("storage.k8s.io", "VolumeAttributesClass") => storage::attributes(&mut errors, new),
        ("", "Namespace") => config::namespace(&mut errors, new, false),
        ("authorization.k8s.io", kind) if kind.ends_with("AccessReview") => {
            review::access(&mut errors, kind, new);
        }
        ("node.k8s.io", "RuntimeClass") => config::runtime_class(&mut errors, new),
        ("apps", "DaemonSet") => workload::daemon_set(&mut errors, new, old),
        ("batch", "Job") => job::job(&mut errors, new, old),
        ("batch", "CronJob") => job::cron_job(&mut errors, new, old),
        ("policy", "PodDisruptionBudget") => workload::disruption_budget(&mut errors, new),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => rbac::role(&mut errors, kind, new),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::binding(&mut errors, kind, new, old);
        }
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => webhook::configuration(&mut errors, new),
        _ => {}
    }
    errors.into_inner()
}

/// What is wrong with the place and the versions of the webhook that converts a custom resource, at `path`.
pub(crate) fn validate_conversion(client: &Value, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Errors::default();
    webhook::client(&mut errors, client, path);
    errors.into_inner()
}

/// What is wrong with the versions of reviews that a webhook takes, of which there is one.
pub(crate) fn validate_review_versions(versions: &[Value], path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Errors::default();
    webhook::review_versions(&mut errors, versions, path);
    errors.into_inner()
}

/// Whether the rules here say everything about a kind; what the OpenAPI documents require is then no news.
pub fn is_whole(group: &str) -> bool {
    matches!(
        group,
        "" | "apps"
            | "batch"
            | "policy"
            | "autoscaling"
            | "networking.k8s.io"
            | "storage.k8s.io"
            | "coordination.k8s.io"
            | "scheduling.k8s.io"
            | "rbac.authorization.k8s.io"
            | "node.k8s.io"
            | "certificates.k8s.io"
            | "discovery.k8s.io"
            | "events.k8s.io"
            | "authorization.k8s.io"
    )
}
