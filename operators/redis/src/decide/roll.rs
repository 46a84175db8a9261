//! Pods of an older template are replaced one at a time: replicas first, then the primary's role moves to one
//! that is up to date, then the old primary.
//!
//! ```text
//! broken: an outdated pod whose server serves nothing ─▶ Restart (no gate: so a reverted spec heals a stuck roll)
//! else, once everything has been in sync for a while:
//!   outdated replica ─▶ quorum lowered ─▶ Restart ─▶ in sync again ─▶ the next
//!   outdated primary ─▶ switch-over to an up-to-date replica ─▶ it is an outdated replica
//! ```

use std::time::Duration;

use super::{LATER, Reason, Step, list, upkeep, volumes};
use crate::observe::{Instance, Observation, Process, Proof, Server, View};
use crate::render::Role;

/// How long everything must have been in sync before the next pod is replaced.
pub(super) const CALM: Duration = Duration::from_secs(10);

/// Whether the pod of `instance` was made from another template than the one in force, or its file system grows when
/// it starts anew.
pub(super) fn outdated(o: &Observation, instance: &Instance) -> bool {
    volumes::pending(instance)
        || o.workload.as_ref().is_some_and(|workload| {
            instance
                .pod
                .as_ref()
                .is_some_and(|pod| pod.template_hash.as_deref() != Some(workload.template_hash.as_str()))
        })
}

/// The instances with outdated pods, lowest ordinal first.
fn all_outdated(o: &Observation) -> Vec<&Instance> {
    o.instances.values().filter(|instance| outdated(o, instance)).collect()
}

/// An outdated pod that serves nothing is replaced at once: its container does not run, or it is a replica that
/// was never in sync beside a healthy primary.
pub(super) fn broken(o: &Observation) -> Option<Step> {
    let primary = o.primary().filter(|primary| primary.server().is_some_and(Server::writable));
    let serves_nothing = |instance: &&Instance| {
        let Some(pod) = instance.pod.as_ref().filter(|pod| !pod.terminating) else { return false };
        match &instance.view {
            View::Down(Proof::NotRunning) => pod.process != Process::Running,
            View::Reached(server) => primary.is_some_and(|primary| {
                primary.name != instance.name
                    && !server.loading
                    && !pod.ready
                    && !upkeep::in_sync(instance, primary)
            }),
            View::Down(_) | View::Unreachable { .. } => false,
        }
    };
    all_outdated(o).into_iter().find(serves_nothing).and_then(restart)
}

/// The replica that is to be replaced next, if that may be done now.
pub(super) fn victim(o: &Observation) -> Option<&Instance> {
    let primary = calm(o)?;
    all_outdated(o).into_iter().rev().find(|instance| instance.name != primary.name)
}

/// Whether `primary` is the last one with an outdated pod, so that its role is to move now.
pub(super) fn primary_is_due(o: &Observation, primary: &Instance) -> bool {
    !o.settings.manual && calm(o).is_some() && outdated(o, primary) && all_outdated(o).len() == 1
}

/// The next step of a roll, once the quorum no longer counts on the server that is about to stop.
pub(super) fn next(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let outdated = all_outdated(o);
    if outdated.is_empty() {
        return None;
    }
    reasons.push(Reason::Rolling { what: list(outdated.iter().copied()) });
    if let Some(victim) = victim(o) {
        return restart(victim);
    }
    let alone = o.instances.len() == 1 && o.settings.persistent;
    match calm(o) {
        // Nobody could take over: its data is on its volume, and a restart is what was asked for.
        Some(primary) if alone && !o.settings.manual => restart(primary),
        None if blocked(o).is_none() => Some(Step::Wait(LATER)),
        Some(_) | None => None,
    }
}

/// Why the roll does not go on, where it takes somebody to look.
pub fn blocked(o: &Observation) -> Option<String> {
    let outdated_pods = all_outdated(o);
    let primary = o.primary();
    let first = outdated_pods.first()?;
    if o.instances.len() == 1 && !o.settings.persistent && first.server().is_some() {
        return Some(format!(
            "{} runs an older pod template, and a restart would lose its data, which is in memory only: delete the pod to accept that",
            first.name
        ));
    }
    if o.settings.manual
        && outdated_pods.len() == 1
        && primary.is_some_and(|primary| primary.name == first.name)
    {
        let what = if o.instances.len() == 1 { "delete the pod" } else { "name another pod in annotation" };
        let how = if o.instances.len() == 1 { "" } else { crate::api::SWITCHOVER };
        return Some(
            format!("{} is the primary and update.primary is Manual: {what} {how}", first.name)
                .trim_end()
                .to_owned(),
        );
    }
    let stuck = o.instances.values().find_map(|instance| {
        let pod = instance.pod.as_ref().filter(|_| !outdated(o, instance))?;
        let fine = primary
            .is_some_and(|primary| primary.name == instance.name || upkeep::in_sync(instance, primary));
        let late = pod.age > o.settings.patience;
        let trouble =
            pod.trouble.clone().or_else(|| late.then(|| format!("not in sync for {} s", pod.age.as_secs())));
        trouble.filter(|_| !fine || !pod.ready).map(|trouble| format!("{}: {trouble}", instance.name))
    })?;
    Some(format!(
        "{} keep their older pod template because a new one does not get in sync; {stuck}; take the last change of spec.image, spec.version, spec.resources, spec.scheduling or spec.config.parameters back, or change it again",
        list(outdated_pods)
    ))
}

/// The names of the outdated pods, for the status.
pub fn pending(o: &Observation) -> Option<String> {
    let outdated = all_outdated(o);
    (!outdated.is_empty()).then(|| list(outdated))
}

fn restart(instance: &Instance) -> Option<Step> {
    let pod = instance.pod.as_ref()?;
    Some(Step::Restart { pod: instance.name.clone(), uid: pod.uid.clone() })
}

/// The primary, if all servers that are asked for exist, serve and have been in sync for a while.
fn calm(o: &Observation) -> Option<&Instance> {
    let primary = o.primary()?;
    let size = usize::try_from(o.settings.size).unwrap_or(usize::MAX);
    if o.instances.len() != size.max(1) {
        return None;
    }
    let all = o.instances.values().all(|instance| {
        let pod = instance.pod.as_ref().is_some_and(|pod| {
            let role = if instance.name == primary.name { Role::Primary } else { Role::Replica };
            pod.ready && !pod.terminating && pod.role == Some(role)
        });
        let synced = if instance.name == primary.name {
            instance.server().is_some_and(Server::writable)
        } else {
            upkeep::in_sync(instance, primary) && o.ledger.members.contains(&instance.name)
        };
        let long = instance.steady.is_some_and(|at| o.now.saturating_duration_since(at) >= CALM);
        pod && synced && long
    });
    all.then_some(primary)
}
