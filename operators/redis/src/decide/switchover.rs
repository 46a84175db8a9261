//! The planned change of primary: the old one hands over and no write is lost.
//!
//! ```text
//! Record(target) ─▶ Set(quorum, successor) ─▶ HandOver ─▶ Set(HANDED_OVER, old) ─▶ publish ─▶ Seal(old)
//! undo:  Demote(successor) ─▶ AbortHandOver ─▶ Record(target = current) ─▶ Promote(current)
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use super::failover::give_up;
use super::{LATER, Reason, SOON, Step, roll, upkeep};
use crate::observe::{Handover, Instance, Ledger, Node, Observation, Place, Server};
use crate::render::{HANDED_OVER, SEALED};

/// A successor further behind than this many bytes would make writes wait too long.
const CLOSE: u64 = 1 << 20;

/// A successor that has not taken over after this time never will: the server itself waits for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long not to try again after an attempt that failed.
const PAUSE: Duration = Duration::from_secs(30);

/// A healthy primary is to move: a human asks for it, its pod ends, its node is about to be emptied, or its pod is
/// the last one of an older template.
pub(super) fn planned(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let primary = o.primary()?;
    primary.server().filter(|server| server.writable())?;
    if let Some(wanted) = o.requested.as_deref() {
        if wanted == primary.name {
            return Some(Step::Dismiss);
        }
        let candidate = o.instance(wanted).ok_or_else(|| format!("there is no pod {wanted}"));
        return Some(match candidate.and_then(|candidate| fit(o, primary, candidate).map(|()| candidate)) {
            Ok(candidate) => begin(o, primary, candidate, "asked for by annotation", reasons),
            Err(why) => {
                reasons.push(Reason::SwitchoverRefused { pod: wanted.to_owned(), why });
                Step::Dismiss
            }
        });
    }
    let why = if ends(primary) {
        "its pod is being deleted"
    } else if cordoned(primary) {
        "its node takes no new pods"
    } else if unasked(o, primary) {
        "its pod is more than was asked for"
    } else if roll::primary_is_due(o, primary) {
        "its pod is of an older template"
    } else {
        return None;
    };
    // A role that moves for another reason than the pod's end stays where it came.
    let settles = |member: &Instance| {
        let place = cordoned(primary) || unasked(o, primary);
        !cordoned(member) && !unasked(o, member) && (place || !roll::outdated(o, member))
    };
    let candidate = o
        .members()
        .filter(|member| fit(o, primary, member).is_ok() && (ends(primary) || settles(member)))
        .max_by_key(|member| {
            let ready = member.pod.as_ref().is_some_and(|pod| pod.ready);
            let place = (!unasked(o, member), !cordoned(member), !roll::outdated(o, member));
            (ready, place, member.server().map(|server| server.offset), std::cmp::Reverse(&member.name))
        })?;
    Some(begin(o, primary, candidate, why, reasons))
}

/// Whether `instance` is more than the spec asks for.
fn unasked(o: &Observation, instance: &Instance) -> bool {
    !o.instances.range(..o.settings.size).any(|(_, asked)| asked.name == instance.name)
}

/// Whether the node of `instance` takes no new pods.
fn cordoned(instance: &Instance) -> bool {
    instance.pod.as_ref().is_some_and(|pod| pod.cordoned)
}

fn ends(instance: &Instance) -> bool {
    instance.pod.as_ref().is_none_or(|pod| pod.terminating)
}

/// Whether `candidate` can take over from `primary` at once and with every write.
fn fit(o: &Observation, primary: &Instance, candidate: &Instance) -> Result<(), String> {
    let name = &candidate.name;
    if candidate.name == primary.name {
        return Err(format!("{name} is the primary"));
    }
    if ends(candidate) {
        return Err(format!("{name} is being deleted"));
    }
    if primary.kept.is_some_and(|at| o.now.saturating_duration_since(at) < PAUSE) {
        return Err(format!("an attempt failed within the last {} s", PAUSE.as_secs()));
    }
    let lag = upkeep::lag(candidate, primary);
    if !upkeep::in_sync(candidate, primary) || lag.is_none() {
        return Err(format!("{name} is not in sync with {}", primary.name));
    }
    match lag.filter(|lag| *lag > CLOSE) {
        Some(lag) => Err(format!("{name} is {lag} bytes behind, more than {CLOSE}")),
        None => Ok(()),
    }
}

/// Records that `candidate` takes over. The old primary will receive from it, and the quorum is what the new
/// one can meet without a pod that ends.
fn begin(
    o: &Observation,
    primary: &Instance,
    candidate: &Instance,
    why: &str,
    reasons: &mut Vec<Reason>,
) -> Step {
    let helps = |other: &&Instance| {
        other.name != candidate.name
            && !ends(other)
            && (other.name == primary.name || upkeep::in_sync(other, primary))
    };
    let helpers = o.instances.values().filter(helps).count();
    let mut members: BTreeSet<String> = o.ledger.members.clone();
    members.insert(primary.name.clone());
    reasons.push(Reason::SwitchingOver {
        from: primary.name.clone(),
        to: candidate.name.clone(),
        why: why.to_owned(),
    });
    Step::Record(Ledger {
        target: Some(candidate.name.clone()),
        term: o.ledger.term + 1,
        members,
        quorum: o.ledger.quorum.min(upkeep::possible_quorum(o, helpers)),
        ..o.ledger.clone()
    })
}

/// `primary` answers and is recorded to give its role to `candidate`, which doesn't accept writes yet. None if
/// it has lost its role in another way.
pub(super) fn hand_over(
    o: &Observation,
    primary: &Instance,
    candidate: &Instance,
    reasons: &mut Vec<Reason>,
) -> Option<Step> {
    let server = primary.server().filter(|server| !server.detached() && !server.loading)?;
    let wait = |reasons: &mut Vec<Reason>| {
        reasons.push(Reason::Waiting { why: format!("for {} to take over", candidate.name) });
        Some(Step::Wait(SOON))
    };
    match (&server.place, server.handover) {
        (_, Handover::Waiting) => wait(reasons),
        (Place::Primary, _) if server.writable() => Some(start(o, primary, candidate, reasons)),
        (Place::Primary, _) => Some(
            harmless(o, candidate, reasons)
                .unwrap_or_else(|| give_up(o, reasons, format!("{} did not take over", candidate.name))),
        ),
        // It may be the primary again if the successor refuses, even one that took over already.
        (Place::Replica { .. }, Handover::Promoting) if server.quorum < SEALED => Some(Step::Set {
            pod: primary.name.clone(),
            name: "min-replicas-to-write",
            value: HANDED_OVER.to_string(),
        }),
        (Place::Replica { .. }, _) if candidate.server().is_some_and(Server::sealed_primary) => {
            Some(Step::Promote { pod: candidate.name.clone(), quorum: o.ledger.quorum })
        }
        (Place::Replica { .. }, Handover::Promoting) => {
            let since = primary.promoting.map_or(Duration::ZERO, |at| o.now.saturating_duration_since(at));
            if since < PATIENCE && !candidate.down() {
                return wait(reasons);
            }
            Some(
                harmless(o, candidate, reasons)
                    .unwrap_or_else(|| Step::AbortHandOver { pod: primary.name.clone() }),
            )
        }
        (Place::Replica { .. }, Handover::None) if primary.follows(candidate) => match candidate.server() {
            // Its answer is older than the primary's.
            Some(successor) if !successor.detached() => wait(reasons),
            _ => Some(harmless(o, candidate, reasons).unwrap_or_else(|| {
                give_up(o, reasons, format!("{} ended before it served", candidate.name))
            })),
        },
        (Place::Replica { .. }, Handover::None) => None,
    }
}

/// The primary still accepts writes: it starts to hand over, or the change is given up.
fn start(o: &Observation, primary: &Instance, candidate: &Instance, reasons: &mut Vec<Reason>) -> Step {
    if candidate.server().is_none() && !candidate.down() {
        reasons.push(Reason::Blocked {
            why: format!(
                "{} serves, but {} may have been promoted and does not answer",
                primary.name, candidate.name
            ),
        });
        return Step::Wait(LATER);
    }
    let wanted = ends(primary)
        || cordoned(primary)
        || unasked(o, primary)
        || roll::outdated(o, primary)
        || o.requested.as_ref() == Some(&candidate.name);
    // Where the change began as a fail-over the record lacks that the old primary may receive, and its quorum is
    // the old one's: a planned change is to begin anew.
    if !wanted || !o.ledger.members.contains(&primary.name) {
        return give_up(o, reasons, format!("{} serves", primary.name));
    }
    if let Err(why) = fit(o, primary, candidate) {
        return give_up(o, reasons, why);
    }
    match (candidate.server(), candidate.address()) {
        (Some(successor), Some(to)) if successor.quorum == o.ledger.quorum => {
            Step::HandOver { from: primary.name.clone(), pod: candidate.name.clone(), to }
        }
        _ => Step::Set {
            pod: candidate.name.clone(),
            name: "min-replicas-to-write",
            value: o.ledger.quorum.to_string(),
        },
    }
}

/// What is to be done until `candidate` can do no harm even if it is told to take over later: it refuses
/// writes then, or doesn't run. None if that is so.
fn harmless(o: &Observation, candidate: &Instance, reasons: &mut Vec<Reason>) -> Option<Step> {
    match candidate.server() {
        Some(server) if server.quorum >= SEALED && (server.detached() || server.sealed_primary()) => None,
        Some(_) => Some(Step::Demote { pod: candidate.name.clone() }),
        None if candidate.down() => None,
        None => Some(match &candidate.pod {
            Some(pod)
                if pod.node == Node::Ready
                    && !pod.terminating
                    && candidate.silence(o.now) >= Duration::from_secs(3) =>
            {
                Step::Delete { pod: candidate.name.clone(), uid: pod.uid.clone() }
            }
            _ => {
                reasons.push(Reason::Blocked {
                    why: format!(
                        "{} may have taken over and does not answer; need proof of its death",
                        candidate.name
                    ),
                });
                Step::Wait(LATER)
            }
        }),
    }
}

/// The recorded primary was to hand over, or was sealed by somebody, and nobody took over: it has everything
/// that was acknowledged. None if it lost its role in another way.
pub(super) fn resume(o: &Observation, primary: &Instance, reasons: &mut Vec<Reason>) -> Option<Step> {
    let server = primary.server().filter(|server| !server.detached() && !server.loading)?;
    match server.handover {
        Handover::None => {
            let own = primary.primary.as_ref().is_some_and(|sighting| server.lines.contains(&sighting.line));
            (own || server.place == Place::Primary)
                .then(|| Step::Promote { pod: primary.name.clone(), quorum: o.ledger.quorum })
        }
        Handover::Promoting
            if primary.promoting.is_some_and(|at| o.now.saturating_duration_since(at) >= PATIENCE) =>
        {
            Some(Step::AbortHandOver { pod: primary.name.clone() })
        }
        Handover::Waiting | Handover::Promoting => {
            reasons.push(Reason::Waiting { why: format!("for the end of a hand-over by {}", primary.name) });
            Some(Step::Wait(SOON))
        }
    }
}

/// A replica that could accept writes if somebody promoted it, or whose clients still have to be sent to the
/// new primary.
pub(super) fn unsealed_replica(o: &Observation, _: &mut Vec<Reason>) -> Option<Step> {
    let primary = o.primary()?;
    let unsealed = |instance: &&Instance| {
        instance.name != primary.name
            && instance
                .server()
                .is_some_and(|server| server.place != Place::Primary && server.quorum != SEALED)
    };
    o.instances.values().find(unsealed).map(|instance| Step::Seal { pod: instance.name.clone() })
}
