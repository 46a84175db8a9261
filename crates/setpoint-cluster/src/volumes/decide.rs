//! What to do next with a claim or a volume, as pure functions. The rules follow upstream's
//! persistent volume controller, pvc-protection controller and expand controller.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimStatus, PersistentVolumeSpec, Pod,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use setpoint::Key;
use setpoint::kube::ResourceExt;

use super::{CLAIM_PROTECTION, PROVISIONER, VOLUME_PROTECTION};
use crate::quantity;

/// What a claim is decided from, beside itself.
pub(super) struct Surroundings<'a> {
    /// The pods of its namespace.
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) classes: &'a [Arc<StorageClass>],
    pub(super) volumes: &'a [Arc<PersistentVolume>],
    /// The folder in which directories are made.
    pub(super) root: &'a Path,
}

/// One thing to do about a claim; the next follows when its effect is seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClaimStep {
    Settled,
    /// Nothing uses the deleted claim any more.
    Unprotect,
    /// It names no class: it gets the default one.
    SetClass(String),
    /// Make this volume for it.
    Provision(Box<PersistentVolume>),
    /// An existing volume fits: name the claim in it.
    Reserve(String),
    /// The volume names the claim: name the volume in the claim.
    Bind(String),
    /// The claim asks for more than its volume has, and its class allows that.
    Grow {
        volume: String,
        capacity: Quantity,
    },
    Report(Box<PersistentVolumeClaimStatus>),
    /// Something has to come from outside first.
    Wait {
        reason: &'static str,
        note: String,
        warning: bool,
    },
}

/// One thing to do about a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeStep {
    Settled,
    Report(&'static str),
    /// Its claim is gone and its policy says so.
    Delete,
    /// It is being deleted and nothing claims it: remove the directory, then the finalizer.
    Remove,
}

pub(super) fn claim(claim: &PersistentVolumeClaim, around: &Surroundings<'_>) -> ClaimStep {
    if claim.metadata.deletion_timestamp.is_some() {
        let name = claim.name_any();
        // A pod that has no node yet doesn't hold the claim, as upstream: it waits for the next one of this name.
        let used = around
            .pods
            .iter()
            .any(|pod| scheduled(pod) && !ended(pod) && claims(pod).any(|used| used == name));
        let protected = claim.finalizers().iter().any(|finalizer| finalizer == CLAIM_PROTECTION);
        return if protected && !used { ClaimStep::Unprotect } else { ClaimStep::Settled };
    }
    let spec = claim.spec.clone().unwrap_or_default();
    if let Some(name) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        return match around.volumes.iter().find(|volume| volume.name_any() == name) {
            Some(volume) => bound_claim(claim, volume, around),
            None if bound(claim) => report(
                claim,
                PersistentVolumeClaimStatus {
                    phase: Some("Lost".to_owned()),
                    ..PersistentVolumeClaimStatus::default()
                },
            ),
            None => wait("FailedBinding", format!("volume \"{name}\" not found"), true),
        };
    }
    if let Some(reserved) = around.volumes.iter().find(|volume| claimed_by(volume, claim)) {
        return ClaimStep::Bind(reserved.name_any());
    }
    let Some(class) = spec.storage_class_name else {
        return match around.classes.iter().find(|class| is_default(class)) {
            Some(default) => ClaimStep::SetClass(default.name_any()),
            None => wait(
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set".to_owned(),
                false,
            ),
        };
    };
    if let Some(fitting) = around.volumes.iter().find(|volume| fits(volume, claim, &class)) {
        return ClaimStep::Reserve(fitting.name_any());
    }
    if class.is_empty() {
        return wait(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set".to_owned(),
            false,
        );
    }
    match around.classes.iter().find(|candidate| candidate.name_any() == class) {
        None => {
            wait("ProvisioningFailed", format!("storageclass.storage.k8s.io \"{class}\" not found"), true)
        }
        Some(class) if class.provisioner == PROVISIONER => {
            ClaimStep::Provision(Box::new(provision(claim, class, around.root)))
        }
        Some(class) => wait(
            "ExternalProvisioning",
            format!(
                "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
                 administrator. If volume creation is delayed, please verify that the provisioner is running and \
                 correctly registered.",
                class.provisioner
            ),
            false,
        ),
    }
}

fn bound_claim(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    around: &Surroundings<'_>,
) -> ClaimStep {
    let name = volume.name_any();
    if volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none()) {
        return ClaimStep::Reserve(name);
    }
    if !claimed_by(volume, claim) {
        return wait("FailedBinding", format!("volume \"{name}\" already bound to a different claim."), true);
    }
    let capacity = capacity(volume);
    if let (Some(wanted), Some(actual)) = (requested(claim), &capacity)
        && quantity::units(&wanted.0) > quantity::units(&actual.0)
    {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
        let class = around.classes.iter().find(|candidate| candidate.name_any() == class);
        if class.is_some_and(|class| {
            class.provisioner == PROVISIONER && class.allow_volume_expansion == Some(true)
        }) {
            return ClaimStep::Grow { volume: name, capacity: wanted };
        }
    }
    report(
        claim,
        PersistentVolumeClaimStatus {
            phase: Some("Bound".to_owned()),
            access_modes: volume.spec.as_ref().and_then(|spec| spec.access_modes.clone()),
            capacity: capacity.map(|storage| [("storage".to_owned(), storage)].into()),
            ..PersistentVolumeClaimStatus::default()
        },
    )
}

fn report(claim: &PersistentVolumeClaim, status: PersistentVolumeClaimStatus) -> ClaimStep {
    let current = claim.status.clone().unwrap_or_default();
    let same = current.phase == status.phase
        && current.access_modes == status.access_modes
        && current.capacity == status.capacity;
    if same { ClaimStep::Settled } else { ClaimStep::Report(Box::new(status)) }
}

fn wait(reason: &'static str, note: String, warning: bool) -> ClaimStep {
    ClaimStep::Wait { reason, note, warning }
}

pub(super) fn volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> VolumeStep {
    let claimed = claim.is_some_and(|claim| claimed_by(volume, claim));
    if volume.metadata.deletion_timestamp.is_some() {
        let protected = volume.finalizers().iter().any(|finalizer| finalizer == VOLUME_PROTECTION);
        return if protected && !claimed { VolumeStep::Remove } else { VolumeStep::Settled };
    }
    let spec = volume.spec.clone().unwrap_or_default();
    // A reference without a UID reserves the volume for a claim that may not exist yet.
    let reserved = spec.claim_ref.as_ref().is_some_and(|claim| claim.uid.is_none());
    let phase = match (&spec.claim_ref, claimed) {
        (None, _) => "Available",
        (Some(_), true) => "Bound",
        (Some(_), false) if reserved => "Available",
        (Some(_), false) => "Released",
    };
    let reported = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if reported != Some(phase) {
        return VolumeStep::Report(phase);
    }
    if phase == "Released" && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") {
        return VolumeStep::Delete;
    }
    VolumeStep::Settled
}

fn provision(claim: &PersistentVolumeClaim, class: &StorageClass, root: &Path) -> PersistentVolume {
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    let spec = claim.spec.clone().unwrap_or_default();
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(BTreeMap::from([(
                "pv.kubernetes.io/provisioned-by".to_owned(),
                PROVISIONER.to_owned(),
            )])),
            finalizers: Some(vec![VOLUME_PROTECTION.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: requested(claim).map(|storage| [("storage".to_owned(), storage)].into()),
            claim_ref: Some(claim_reference(claim)),
            host_path: Some(HostPathVolumeSource {
                path: root.join(name).display().to_string(),
                type_: Some("DirectoryOrCreate".to_owned()),
            }),
            persistent_volume_reclaim_policy: class
                .reclaim_policy
                .clone()
                .or_else(|| Some("Delete".to_owned())),
            storage_class_name: Some(class.name_any()),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

pub(super) fn claim_reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.namespace(),
        name: Some(claim.name_any()),
        uid: claim.uid(),
        ..ObjectReference::default()
    }
}

/// The claim that `volume` names.
pub(super) fn claim_key(volume: &PersistentVolume) -> Option<Key> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(Key::new(reference.namespace.clone()?, reference.name.clone()?))
}

/// The claims that `pod` mounts.
pub(super) fn claims(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// Whether `claim` was bound once.
pub(super) fn bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn claimed_by(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return false };
    reference.name == Some(claim.name_any())
        && reference.namespace == claim.namespace()
        && reference.uid.as_ref().is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
}

/// Whether `volume` is free and has all that `claim` asks for.
fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim, class: &str) -> bool {
    let (Some(has), Some(asks)) = (&volume.spec, &claim.spec) else { return false };
    let modes = asks.access_modes.iter().flatten();
    let enough = match (capacity(volume), requested(claim)) {
        (Some(capacity), Some(requested)) => quantity::units(&capacity.0) >= quantity::units(&requested.0),
        (_, None) => true,
        (None, Some(_)) => false,
    };
    let labels =
        asks.selector.as_ref().and_then(|selector| selector.match_labels.clone()).unwrap_or_default();
    volume.metadata.deletion_timestamp.is_none()
        && has.claim_ref.is_none()
        && has.storage_class_name.as_deref().unwrap_or_default() == class
        && modes.clone().all(|mode| has.access_modes.iter().flatten().any(|other| other == mode))
        && labels.iter().all(|(label, value)| volume.labels().get(label) == Some(value))
        && asks.selector.as_ref().is_none_or(|selector| selector.match_expressions.is_none())
        && enough
}

fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage").cloned()
}

fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage").cloned()
}

fn is_default(class: &StorageClass) -> bool {
    class
        .annotations()
        .get("storageclass.kubernetes.io/is-default-class")
        .is_some_and(|value| value == "true")
}

fn scheduled(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty())
}

fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    fn a_claim(spec: &Value, status: &Value) -> PersistentVolumeClaim {
        from(json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u1", "finalizers": [CLAIM_PROTECTION]},
            "spec": spec, "status": status,
        }))
    }

    fn wanting(class: &str) -> PersistentVolumeClaim {
        a_claim(
            &json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}),
            &json!({}),
        )
    }

    fn decide(
        subject: &PersistentVolumeClaim,
        pods: &[Arc<Pod>],
        classes: &[Arc<StorageClass>],
        volumes: &[Arc<PersistentVolume>],
    ) -> ClaimStep {
        claim(subject, &Surroundings { pods, classes, volumes, root: Path::new("/volumes") })
    }

    fn standard() -> Arc<StorageClass> {
        Arc::new(super::super::default_class())
    }

    #[test]
    fn a_claim_is_provisioned_bound_and_reported() {
        let claim = wanting("standard");
        let ClaimStep::Provision(volume) = decide(&claim, &[], &[standard()], &[]) else {
            panic!("not provisioned")
        };
        assert_eq!(volume.spec.as_ref().unwrap().host_path.as_ref().unwrap().path, "/volumes/pvc-u1");
        let volumes = [Arc::new(*volume)];
        assert_eq!(decide(&claim, &[], &[standard()], &volumes), ClaimStep::Bind("pvc-u1".to_owned()));
        let mut bound = claim;
        bound.spec.as_mut().unwrap().volume_name = Some("pvc-u1".to_owned());
        let ClaimStep::Report(status) = decide(&bound, &[], &[standard()], &volumes) else {
            panic!("not reported")
        };
        assert_eq!(status.phase.as_deref(), Some("Bound"));
        bound.status = Some(*status);
        assert_eq!(decide(&bound, &[], &[standard()], &volumes), ClaimStep::Settled);
    }

    #[test]
    fn a_claim_without_a_class_gets_the_default_one() {
        let claim = a_claim(&json!({"resources": {"requests": {"storage": "1Gi"}}}), &json!({}));
        assert_eq!(decide(&claim, &[], &[standard()], &[]), ClaimStep::SetClass("standard".to_owned()));
        assert!(matches!(decide(&claim, &[], &[], &[]), ClaimStep::Wait { reason: "FailedBinding", .. }));
    }

    #[test]
    fn an_unknown_class_is_said_and_waited_for() {
        let ClaimStep::Wait { reason, note, warning } = decide(&wanting("fast"), &[], &[standard()], &[])
        else {
            panic!("an unknown class must be waited for")
        };
        assert_eq!((reason, warning), ("ProvisioningFailed", true));
        assert_eq!(note, "storageclass.storage.k8s.io \"fast\" not found");
    }

    #[test]
    fn growth_follows_the_class() {
        let ClaimStep::Provision(volume) = decide(&wanting("standard"), &[], &[standard()], &[]) else {
            panic!("not provisioned")
        };
        let mut claim = wanting("standard");
        let spec = claim.spec.as_mut().unwrap();
        spec.volume_name = Some("pvc-u1".to_owned());
        spec.resources.as_mut().unwrap().requests =
            Some([("storage".to_owned(), Quantity("2Gi".to_owned()))].into());
        let volumes = [Arc::new(*volume)];
        let grow = ClaimStep::Grow { volume: "pvc-u1".to_owned(), capacity: Quantity("2Gi".to_owned()) };
        assert_eq!(decide(&claim, &[], &[standard()], &volumes), grow);
        let mut fixed = super::super::default_class();
        fixed.allow_volume_expansion = None;
        assert!(matches!(decide(&claim, &[], &[Arc::new(fixed)], &volumes), ClaimStep::Report(_)));
    }

    #[test]
    fn a_deleted_claim_stays_while_a_pod_uses_it() {
        let mut claim = wanting("standard");
        claim.metadata.deletion_timestamp = Some(from(json!("2026-01-01T00:00:00Z")));
        let pod_on = |node: &str, phase: &str| {
            Arc::new(from::<Pod>(json!({
                "metadata": {"name": "p", "namespace": "shop"},
                "spec": {"nodeName": node, "containers": [], "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
                "status": {"phase": phase},
            })))
        };
        let pod = |phase| pod_on("node-1", phase);
        assert_eq!(decide(&claim, &[pod("Running")], &[], &[]), ClaimStep::Settled);
        // A replacement that waits for the claim's successor held the deleted claim for ever.
        assert_eq!(decide(&claim, &[pod_on("", "Pending")], &[], &[]), ClaimStep::Unprotect);
        assert_eq!(decide(&claim, &[pod("Succeeded")], &[], &[]), ClaimStep::Unprotect);
        assert_eq!(decide(&claim, &[], &[], &[]), ClaimStep::Unprotect);
    }

    #[test]
    fn a_released_volume_goes_only_where_its_policy_says_so() {
        let ClaimStep::Provision(provisioned) = decide(&wanting("standard"), &[], &[standard()], &[]) else {
            panic!("not provisioned")
        };
        let mut pv = *provisioned;
        let claim = wanting("standard");
        assert_eq!(volume(&pv, Some(&claim)), VolumeStep::Report("Bound"));
        pv.status = Some(from(json!({"phase": "Bound"})));
        assert_eq!(volume(&pv, Some(&claim)), VolumeStep::Settled);
        assert_eq!(volume(&pv, None), VolumeStep::Report("Released"));
        pv.status = Some(from(json!({"phase": "Released"})));
        assert_eq!(volume(&pv, None), VolumeStep::Delete);
        pv.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Retain".to_owned());
        assert_eq!(volume(&pv, None), VolumeStep::Settled);
        pv.metadata.deletion_timestamp = Some(from(json!("2026-01-01T00:00:00Z")));
        assert_eq!(volume(&pv, Some(&claim)), VolumeStep::Settled);
        assert_eq!(volume(&pv, None), VolumeStep::Remove);
    }
}
