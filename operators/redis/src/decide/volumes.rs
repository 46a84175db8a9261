//! Volumes grow: each claim, then what is left to a new start of its pod, then the StatefulSet for pods to come.
//!
//! ```text
//! claim smaller ─▶ GrowClaim ─▶ (the cluster grows the volume) ─▶ file system pending: its pod is outdated, see `roll`
//! all claims grown ─▶ Renew: the StatefulSet is made again, and adopts the pods
//! ```

use super::{LATER, Reason, Step};
use crate::observe::{Claim, Instance, Observation};

/// The next step towards volumes of the size that is asked for.
pub(super) fn next(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let wanted = o.volumes?;
    let workload = o.workload.as_ref()?;
    let told = |what: String| Reason::Growing { what };
    if let Some(claim) = claims(o).find(|claim| claim.asked < wanted) {
        reasons.push(told(format!("{} grows to {wanted} bytes", claim.name)));
        return Some(Step::GrowClaim { claim: claim.name.clone(), bytes: wanted });
    }
    if let Some(claim) = claims(o).find(|claim| claim.has < wanted && !claim.pending) {
        reasons.push(told(format!("{} has {} of {wanted} bytes", claim.name, claim.has)));
    }
    if workload.volumes.is_some_and(|volumes| volumes < wanted) {
        if workload.terminating {
            reasons.push(told("the StatefulSet is made anew".to_owned()));
            return Some(Step::Wait(LATER));
        }
        // Only while nothing of it is on its way: without it no pod comes back.
        let calm = workload.replicas == o.settings.size
            && o.instances.values().all(|instance| {
                instance.pod.as_ref().is_some_and(|pod| pod.ready && !pod.terminating)
                    && instance.claim.is_some()
            });
        if calm && !o.frozen {
            reasons.push(told("the StatefulSet is made anew, for pods to come".to_owned()));
            return Some(Step::Renew { uid: workload.uid.clone() });
        }
    }
    None
}

/// Whether the file system of `instance` grows when its pod starts anew.
pub(super) fn pending(instance: &Instance) -> bool {
    instance.claim.as_ref().is_some_and(|claim| claim.pending)
}

fn claims(o: &Observation) -> impl Iterator<Item = &Claim> {
    o.instances.values().filter_map(|instance| instance.claim.as_ref())
}
