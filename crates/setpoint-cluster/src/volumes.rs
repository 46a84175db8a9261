//! Persistent volumes: claims are bound to volumes, and a class of this cluster makes a directory for each.

mod decide;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;
use setpoint::kube::ResourceExt;
use setpoint::{Action, Context, Controller, Event, Key, Lookup, Patch, Reconciler, Result, Verb};

use decide::{ClaimStep, VolumeStep};

/// The provisioner of the classes whose volumes are directories on the machine that runs the cluster.
pub(crate) const PROVISIONER: &str = "setpoint.dev/directory";
/// The class that claims get which name none.
pub(crate) const DEFAULT_CLASS: &str = "standard";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
const MANAGER: &str = "kube-controller-manager";

/// The default StorageClass of a new cluster.
pub(crate) fn default_class() -> StorageClass {
    StorageClass {
        metadata: setpoint::kube::core::ObjectMeta {
            name: Some(DEFAULT_CLASS.to_owned()),
            annotations: Some(
                [("storageclass.kubernetes.io/is-default-class".to_owned(), "true".to_owned())].into(),
            ),
            ..setpoint::kube::core::ObjectMeta::default()
        },
        provisioner: PROVISIONER.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("Immediate".to_owned()),
        allow_volume_expansion: Some(true),
        ..StorageClass::default()
    }
}

/// Binds claims to volumes and provisions directories.
pub(crate) struct ClaimBinder {
    root: PathBuf,
}

impl ClaimBinder {
    /// `root` is the folder in which each volume gets a directory of its own.
    pub(crate) fn controller(root: PathBuf) -> Controller<Self> {
        Controller::new(Self { root })
            .named("persistentvolume-binder")
            .field_manager(MANAGER)
            .watches::<PersistentVolume>(claim_of_volume)
            .watches::<StorageClass>(unbound_claims)
            .watches::<Pod>(claims_of_pod)
            .uses::<PersistentVolume>(&[Verb::Create, Verb::Patch])
            .uses::<PersistentVolumeClaim>(&[Verb::Patch])
    }
}

impl Reconciler for ClaimBinder {
    type Object = PersistentVolumeClaim;

    async fn reconcile(
        &self,
        claim: Arc<PersistentVolumeClaim>,
        cx: &Context<PersistentVolumeClaim>,
    ) -> Result<Action> {
        let pods = cx.list::<Pod>().await?;
        let classes = cx.list_all::<StorageClass>().await?;
        let volumes = cx.list_all::<PersistentVolume>().await?;
        let step = decide::claim(
            &claim,
            &decide::Surroundings { pods: &pods, classes: &classes, volumes: &volumes, root: &self.root },
        );
        let key = Key::of(&*claim);
        match step {
            ClaimStep::Settled => return Ok(Action::await_change()),
            ClaimStep::Unprotect => {
                let kept: Vec<_> =
                    claim.finalizers().iter().filter(|name| *name != CLAIM_PROTECTION).collect();
                let patch =
                    json!({"metadata": {"resourceVersion": claim.resource_version(), "finalizers": kept}});
                cx.patch::<PersistentVolumeClaim>(&key, Patch::Merge(patch)).await?;
            }
            ClaimStep::SetClass(class) => {
                let patch = json!({"spec": {"storageClassName": class}});
                cx.patch::<PersistentVolumeClaim>(&key, Patch::Merge(patch)).await?;
            }
            ClaimStep::Provision(volume) => {
                cx.apply(*volume).unowned().await?;
            }
            ClaimStep::Bind(volume) => {
                let patch = json!({
                    "metadata": {"annotations": {
                        "pv.kubernetes.io/bind-completed": "yes",
                        "pv.kubernetes.io/bound-by-controller": "yes",
                    }},
                    "spec": {"volumeName": volume},
                });
                cx.patch::<PersistentVolumeClaim>(&key, Patch::Merge(patch)).await?;
            }
            ClaimStep::Reserve(volume) => {
                let patch = json!({"spec": {"claimRef": decide::claim_reference(&claim)}});
                cx.patch::<PersistentVolume>(Key::cluster(volume), Patch::Merge(patch)).await?;
            }
            ClaimStep::Grow { volume, capacity } => {
                let patch = json!({"spec": {"capacity": {"storage": capacity}}});
                cx.patch::<PersistentVolume>(Key::cluster(volume), Patch::Merge(patch)).await?;
            }
            ClaimStep::Report(status) => {
                cx.status_as(*status).await?;
            }
            ClaimStep::Wait { reason, note, warning } => {
                cx.event(if warning { Event::warning(reason, note) } else { Event::normal(reason, note) });
                return Ok(Action::await_change());
            }
        }
        // One step has been made; whether another one follows is decided on what it has led to.
        Ok(Action::requeue(Duration::ZERO))
    }
}

/// Reports the phase of volumes and removes those that nothing claims any more.
pub(crate) struct VolumeReclaimer {
    root: PathBuf,
}

impl VolumeReclaimer {
    /// `root` is the folder that [`ClaimBinder`] makes directories in: nothing outside it is ever removed.
    pub(crate) fn controller(root: PathBuf) -> Controller<Self> {
        Controller::new(Self { root })
            .named("persistentvolume-reclaimer")
            .field_manager(MANAGER)
            .watches::<PersistentVolumeClaim>(volume_of_claim)
            .uses::<PersistentVolume>(&[Verb::Patch, Verb::Delete])
            .uses::<PersistentVolumeClaim>(&[Verb::Get])
    }
}

impl Reconciler for VolumeReclaimer {
    type Object = PersistentVolume;

    async fn reconcile(
        &self,
        volume: Arc<PersistentVolume>,
        cx: &Context<PersistentVolume>,
    ) -> Result<Action> {
        // A claim that the cache doesn't have may be newer than the cache, and data hangs on the answer.
        let claim = match decide::claim_key(&volume) {
            Some(key) => match cx.get::<PersistentVolumeClaim>(key.clone()).await? {
                Some(claim) => Some((*claim).clone()),
                None => cx.live::<PersistentVolumeClaim>(key).await?,
            },
            None => None,
        };
        match decide::volume(&volume, claim.as_ref()) {
            VolumeStep::Settled => return Ok(Action::await_change()),
            VolumeStep::Report(phase) => {
                cx.status_as(json!({"phase": phase})).await?;
            }
            VolumeStep::Delete => cx.delete(&*volume).await?,
            VolumeStep::Remove => {
                if let Some(directory) = directory(&volume, &self.root) {
                    remove(&directory)?;
                }
                let kept: Vec<_> =
                    volume.finalizers().iter().filter(|name| *name != VOLUME_PROTECTION).collect();
                let patch =
                    json!({"metadata": {"resourceVersion": volume.resource_version(), "finalizers": kept}});
                cx.patch::<PersistentVolume>(Key::of(&*volume), Patch::Merge(patch)).await?;
            }
        }
        Ok(Action::requeue(Duration::ZERO))
    }
}

/// The directory of a volume that this cluster provisioned, if it lies in the folder where those are made.
fn directory(volume: &PersistentVolume, root: &Path) -> Option<PathBuf> {
    let provisioned =
        volume.annotations().get("pv.kubernetes.io/provisioned-by").is_some_and(|by| by == PROVISIONER);
    let path = root.join(volume.name_any());
    let recorded = volume.spec.as_ref()?.host_path.as_ref().map(|host| Path::new(&host.path));
    (provisioned && recorded == Some(path.as_path())).then_some(path)
}

fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn claim_of_volume(
    old: Option<&PersistentVolume>,
    new: Option<&PersistentVolume>,
    lookup: &Lookup,
) -> Vec<Key> {
    let claimed: Vec<_> = [old, new].into_iter().flatten().filter_map(decide::claim_key).collect();
    // A volume without a claim may be what some claim waits for.
    if claimed.is_empty() { unbound_claims::<PersistentVolume>(old, new, lookup) } else { claimed }
}

fn unbound_claims<K>(_old: Option<&K>, _new: Option<&K>, lookup: &Lookup) -> Vec<Key> {
    let claims = lookup.list::<PersistentVolumeClaim>(None);
    let unbound = claims.iter().filter(|claim| !decide::bound(claim));
    unbound.map(|claim| Key::of(&**claim)).collect()
}

fn claims_of_pod(old: Option<&Pod>, new: Option<&Pod>, _lookup: &Lookup) -> Vec<Key> {
    let Some(pod) = new.or(old) else { return Vec::new() };
    let namespace = pod.namespace().unwrap_or_default();
    decide::claims(pod).map(|claim| Key::new(namespace.as_str(), claim)).collect()
}

fn volume_of_claim(
    old: Option<&PersistentVolumeClaim>,
    new: Option<&PersistentVolumeClaim>,
    _lookup: &Lookup,
) -> Vec<Key> {
    let volumes =
        [old, new].into_iter().flatten().filter_map(|claim| claim.spec.as_ref()?.volume_name.clone());
    volumes.map(Key::cluster).collect()
}
