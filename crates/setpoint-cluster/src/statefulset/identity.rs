//! The pods and claims of a StatefulSet: names, labels, volumes, owners.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::owner_reference;

/// Label with the pod's own name.
pub const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the pod's ordinal.
pub const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
/// Label with the name of the revision that a pod was made from.
pub const REVISION_LABEL: &str = "controller-revision-hash";

/// The ordinal in a pod's name, if the name is one of the set's.
pub fn ordinal(set: &StatefulSet, pod: &str) -> Option<i32> {
    let number = pod.strip_prefix(set.metadata.name.as_deref()?)?.strip_prefix('-')?;
    let ordinal = number.parse().ok()?;
    // `web-01` and `web-+1` parse, but no pod of a set is called so.
    (format!("{ordinal}") == number && ordinal >= 0).then_some(ordinal)
}

/// Name of a pod.
pub fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.metadata.name.as_deref().unwrap_or_default())
}

/// Name of the claim that a template gives for a pod.
pub fn claim_name(set: &StatefulSet, template: &str, ordinal: i32) -> String {
    format!("{template}-{}", pod_name(set, ordinal))
}

/// A pod as it has to be created.
pub fn pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let name = pod_name(set, ordinal);
    let given = template.metadata.clone().unwrap_or_default();
    let mut labels = given.labels.unwrap_or_default();
    labels.insert(POD_NAME_LABEL.into(), name.clone());
    labels.insert(POD_INDEX_LABEL.into(), ordinal.to_string());
    labels.insert(REVISION_LABEL.into(), revision.into());
    let mut spec = template.spec.clone().unwrap_or_default();
    spec.hostname = Some(name.clone());
    spec.subdomain.clone_from(&set.spec.service_name);
    let mut volumes: Vec<Volume> = claim_templates(set)
        .map(|(template, _)| Volume {
            name: template.to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(set, template, ordinal),
                read_only: None,
            }),
            ..Volume::default()
        })
        .collect();
    let taken: Vec<_> = volumes.iter().map(|volume| volume.name.clone()).collect();
    volumes.extend(spec.volumes.take().into_iter().flatten().filter(|volume| !taken.contains(&volume.name)));
    spec.volumes = Some(volumes).filter(|volumes| !volumes.is_empty());
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: given.annotations,
            finalizers: given.finalizers,
            owner_references: Some(vec![owner_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The labels that tell which pod of the set it is; they are put back when somebody takes them away.
pub fn identity_labels(ordinal: i32, name: &str) -> BTreeMap<&'static str, String> {
    [(POD_NAME_LABEL, name.to_owned()), (POD_INDEX_LABEL, ordinal.to_string())].into()
}

/// Templates of claims by name.
pub fn claim_templates(set: &StatefulSet) -> impl Iterator<Item = (&str, &PersistentVolumeClaim)> {
    let templates = set.spec.volume_claim_templates.iter().flatten();
    templates.filter_map(|template| Some((template.metadata.name.as_deref()?, template)))
}

/// The claims of a pod as they have to be created.
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let selector = set.spec.selector.match_labels.clone().unwrap_or_default();
    claim_templates(set)
        .map(|(name, template)| {
            let mut labels = template.metadata.labels.clone().unwrap_or_default();
            labels.extend(selector.clone());
            PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(claim_name(set, name, ordinal)),
                    namespace: set.metadata.namespace.clone(),
                    labels: Some(labels).filter(|labels| !labels.is_empty()),
                    annotations: template.metadata.annotations.clone(),
                    owner_references: claim_owners(set, None),
                    ..ObjectMeta::default()
                },
                spec: template.spec.clone(),
                status: None,
            }
        })
        .collect()
}

/// Owners of a claim by the retention policy: the set when claims go with it, and the pod (given here when it
/// is about to be scaled away) when claims go with that.
pub fn claim_owners(set: &StatefulSet, condemned: Option<&Pod>) -> Option<Vec<OwnerReference>> {
    let policy = set.spec.persistent_volume_claim_retention_policy.clone();
    let policy = policy.unwrap_or_default();
    let deletes = |value: &Option<String>| value.as_deref() == Some("Delete");
    match condemned {
        Some(pod) if deletes(&policy.when_scaled) => Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        _ if deletes(&policy.when_deleted) => Some(vec![owner_reference(set)]),
        _ => None,
    }
}
