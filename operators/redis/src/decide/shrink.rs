//! Servers beyond those that are asked for are removed one at a time, the highest first.
//!
//! ```text
//! primary beyond ─▶ switch-over to one that stays
//! victim ─▶ quorum without it ─▶ Unlabel ─▶ leaving ─▶ Detach ─▶ out of the members ─▶ Scale(replicas − 1) ─▶ its pod is gone ─▶ the next
//! ```
//!
//! From its detachment on the victim lacks writes, so it must not take over from the primary: `leaving` remembers that.

use super::{LATER, Reason, Step, roll, upkeep};
use crate::observe::{Instance, Ledger, Observation, Server};

/// The server that is removed next, if that may be done now: all that stay are in sync with a primary that stays, and
/// no pod that was removed before is left.
pub(super) fn victim(o: &Observation) -> Option<&Instance> {
    let replicas = o.workload.as_ref()?.replicas;
    let primary = o.primary()?;
    if o.frozen || replicas <= o.settings.size {
        return None;
    }
    let staying = || o.instances.range(..o.settings.size).map(|(_, instance)| instance);
    let stay = staying().count() == o.settings.size as usize
        && staying().any(|instance| instance.name == primary.name)
        && primary.server().is_some_and(Server::writable)
        && staying().all(|instance| {
            let long = instance.steady.is_some_and(|at| o.now.saturating_duration_since(at) >= roll::CALM);
            long && (instance.name == primary.name || upkeep::in_sync(instance, primary))
        });
    let left = o.instances.range(replicas..).any(|(_, instance)| instance.pod.is_some());
    (stay && !left).then(|| o.instances.get(&(replicas - 1))).flatten()
}

/// One that was to leave stays after all, once it has all writes again, or is gone.
pub(super) fn stays(o: &Observation, primary: &Instance) -> Option<Step> {
    let leaving = o.ledger.leaving.as_deref()?;
    let over = match o.instance(leaving) {
        Some(instance) => {
            instance.name == primary.name
                || (upkeep::in_sync(instance, primary)
                    && victim(o).is_none_or(|victim| victim.name != leaving))
        }
        None => true,
    };
    over.then(|| Step::Record(Ledger { leaving: None, ..o.ledger.clone() }))
}

/// The next step of a removal.
pub(super) fn next(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let replicas = o.workload.as_ref()?.replicas;
    if o.frozen || replicas <= o.settings.size {
        return None;
    }
    let highest = o.instances.get(&(replicas - 1))?;
    let pod = highest.name.clone();
    reasons.push(Reason::Removing { pod: pod.clone() });
    let Some(victim) = victim(o) else { return Some(Step::Wait(LATER)) };
    let scale = Step::Scale(replicas - 1);
    if victim.pod.as_ref().is_some_and(|pod| pod.role.is_some()) {
        return Some(Step::Unlabel { pod });
    }
    if o.ledger.leaving.as_ref() != Some(&pod) {
        return Some(Step::Record(Ledger { leaving: Some(pod), ..o.ledger.clone() }));
    }
    match victim.server() {
        Some(server) if !server.detached() => Some(Step::Detach { pod }),
        // It may still receive from the primary, and counts as long as nobody knows.
        None if !victim.down() => {
            reasons.push(Reason::Waiting { why: format!("for {pod}, which is to be removed, to answer") });
            Some(Step::Wait(LATER))
        }
        _ if o.ledger.members.contains(&pod) => {
            let mut ledger = o.ledger.clone();
            ledger.members.remove(&pod);
            Some(Step::Record(ledger))
        }
        _ => Some(scale),
    }
}
