use std::time::Duration;

use super::candidate::{Hold, choose};
use super::{LATER, Reason, SOON, Step, bootstrap, list, switchover, upkeep};
use crate::observe::{Instance, Ledger, Node, Observation, Server, View};
use crate::render::SEALED;

/// A primary cut off from its replicas refuses writes after `min-replicas-max-lag` and two seconds.
const FENCE: Duration = Duration::from_secs(5);

/// Two servers accept writes: one must stop.
pub(super) fn two_primaries(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let mut writable: Vec<&Instance> = o.writable().collect();
    if writable.len() < 2 {
        return None;
    }
    let keeps = [&o.ledger.target, &o.ledger.current]
        .into_iter()
        .flatten()
        .find_map(|name| writable.iter().position(|instance| &instance.name == name));
    if let Some(keeps) = keeps {
        writable.remove(keeps);
    } else {
        let rank = |instance: &&Instance| {
            instance.server().map_or((0, 0), |server| (server.followers.len(), server.offset))
        };
        writable.sort_by_key(rank);
        if rank(&writable[0]) == rank(&writable[1]) {
            let why = format!(
                "{} both accept writes and nothing tells which is right: demote one by hand",
                list(writable)
            );
            reasons.push(Reason::Blocked { why });
            return Some(Step::Wait(LATER));
        }
    }
    let demoted = writable.first()?.name.clone();
    reasons.push(Reason::SplitBrain { demoted: demoted.clone() });
    Some(Step::Demote { pod: demoted })
}

/// A change of primary is under way: finish it or give it up.
pub(super) fn change_of_primary(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let target = o.ledger.target.as_deref()?;
    if o.ledger.current.as_deref() == Some(target) {
        return None;
    }
    let Some(candidate) = o.instance(target) else {
        return Some(give_up(o, reasons, format!("{target} does not exist any more")));
    };
    if candidate.server().is_some_and(Server::writable) {
        return Some(publish(o, candidate, reasons));
    }
    // Only what is known not to accept writes may be passed over: it may have been promoted unseen.
    let unpromoted = candidate.server().is_some() || candidate.down();
    let Some(current) = o.ledger.current.as_deref() else {
        return Some(promote_fenced(o, candidate, unpromoted, reasons));
    };
    let Some(primary) = o.instance(current) else {
        return Some(Step::Record(Ledger { current: None, target: None, ..o.ledger.clone() }));
    };
    let waiting = |why: String, reasons: &mut Vec<Reason>| {
        reasons.push(Reason::Blocked { why });
        Some(Step::Wait(LATER))
    };
    if let Some(step) = switchover::hand_over(o, primary, candidate, reasons) {
        return Some(step);
    }
    match choose(o, primary) {
        Ok(chosen) if chosen.name == target => Some(fence(o, primary, chosen, reasons)),
        Ok(chosen) if unpromoted => Some(begin(o, primary, chosen, reasons)),
        Ok(_) => waiting(format!("{target} may have been promoted and does not answer"), reasons),
        Err(Hold::Later(after, why)) => {
            reasons.push(Reason::Waiting { why });
            Some(Step::Wait(after))
        }
        Err(Hold::Blocked(_)) if unpromoted && primary.server().is_some_and(|server| !server.loading) => {
            Some(give_up(o, reasons, format!("{target} cannot take over and {current} is back")))
        }
        Err(Hold::Blocked(why)) => waiting(why, reasons),
        Err(Hold::OnlyWeCannotReach) if unpromoted => {
            Some(give_up(o, reasons, format!("replicas hear {current}")))
        }
        Err(Hold::OnlyWeCannotReach) => {
            reasons.push(Reason::CannotReachPrimary { pod: current.to_owned() });
            Some(Step::Wait(LATER))
        }
    }
}

/// The recorded primary doesn't serve any more.
pub(super) fn lost_primary(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let current = o.ledger.current.as_deref()?;
    let Some(primary) = o.instance(current) else {
        return Some(Step::Record(Ledger { current: None, target: None, ..o.ledger.clone() }));
    };
    if primary.server().is_some_and(Server::writable) {
        return None;
    }
    // Nobody but the operator makes a server accept writes, and records it before: the record was changed by hand.
    if let Some(real) = o.writable().next().filter(|real| primary.follows(real)) {
        return Some(bootstrap::adopt(o, real, reasons));
    }
    if let Some(step) = switchover::resume(o, primary, reasons) {
        return Some(step);
    }
    match choose(o, primary) {
        Ok(chosen) => Some(begin(o, primary, chosen, reasons)),
        Err(Hold::Later(after, why)) => {
            reasons.push(Reason::Waiting { why });
            Some(Step::Wait(after))
        }
        Err(Hold::OnlyWeCannotReach) => {
            reasons.push(Reason::CannotReachPrimary { pod: primary.name.clone() });
            Some(Step::Wait(LATER))
        }
        Err(Hold::Blocked(why)) => {
            if let Some(server) = primary.server() {
                return Some(bootstrap::restarted_primary(o, primary, server, reasons));
            }
            reasons.push(Reason::Blocked { why });
            Some(Step::Wait(LATER))
        }
    }
}

/// Records that `chosen` is to take over from `primary`. The quorum stays the old primary's: the fence needs it.
fn begin(o: &Observation, primary: &Instance, chosen: &Instance, reasons: &mut Vec<Reason>) -> Step {
    let what = match &primary.view {
        View::Down(proof) => proof.describe().to_owned(),
        View::Reached(_) => "it restarted".to_owned(),
        View::Unreachable { .. } => format!("no answer for {} s", primary.silence(o.now).as_secs()),
    };
    let offset = chosen.server().map_or(0, |server| server.offset);
    let last = primary
        .primary
        .as_ref()
        .map_or_else(String::new, |sighting| format!(", {} last seen at {}", primary.name, sighting.offset));
    reasons.push(Reason::FailingOver {
        from: primary.name.clone(),
        to: chosen.name.clone(),
        why: format!("{what}; {} is at offset {offset}{last}", chosen.name),
    });
    let mut members = o.ledger.members.clone();
    members.remove(&primary.name);
    Step::Record(Ledger {
        target: Some(chosen.name.clone()),
        term: o.ledger.term + 1,
        members,
        ..o.ledger.clone()
    })
}

/// Makes sure that `primary` accepts no more writes, then promotes `chosen`.
fn fence(o: &Observation, primary: &Instance, chosen: &Instance, reasons: &mut Vec<Reason>) -> Step {
    if let View::Unreachable { .. } = primary.view {
        if let Some(pod) = &primary.pod
            && pod.node == Node::Ready
            && !pod.terminating
        {
            return Step::Delete { pod: primary.name.clone(), uid: pod.uid.clone() };
        }
        let reached = || {
            o.instances
                .values()
                .filter(|instance| instance.name != primary.name && instance.server().is_some())
        };
        if let Some(helper) = reached().find(|instance| instance.follows(primary)) {
            return Step::Detach { pod: helper.name.clone() };
        }
        let detached = reached().filter_map(|instance| instance.detached).max();
        let over = detached.map_or(Duration::ZERO, |at| o.now.saturating_duration_since(at));
        if over < FENCE {
            let left = FENCE.saturating_sub(over);
            reasons.push(Reason::Waiting {
                why: format!("until {}, cut off from its replicas, refuses writes", primary.name),
            });
            return Step::Wait(left.max(SOON));
        }
    }
    // A successor that was passed over may still be told to take over by what the old primary sent last.
    let unsealed = |instance: &&Instance| {
        ![&chosen.name, &primary.name].contains(&&instance.name)
            && instance.server().is_some_and(|server| server.quorum < SEALED)
    };
    if let Some(other) = o.instances.values().find(unsealed) {
        return Step::Seal { pod: other.name.clone() };
    }
    let quorum = quorum_after(o, chosen);
    if quorum < o.ledger.quorum {
        // Recorded before it is in force. From here on the old quorum is forgotten, so the fence is done. What the
        // chosen one has is all there is, and it may be nothing: see `promote_fenced`.
        let holds_data = chosen.server().is_some_and(|server| server.keys > 0);
        return Step::Record(Ledger { current: None, quorum, holds_data, ..o.ledger.clone() });
    }
    Step::Promote { pod: chosen.name.clone(), quorum: o.ledger.quorum }
}

/// Promotes `candidate`, where no primary is left to be fenced.
fn promote_fenced(
    o: &Observation,
    candidate: &Instance,
    unpromoted: bool,
    reasons: &mut Vec<Reason>,
) -> Step {
    let start_over = Step::Record(Ledger { target: None, ..o.ledger.clone() });
    if unpromoted && o.writable().next().is_some() {
        return start_over;
    }
    match candidate.server() {
        // It lost its data since it was chosen: choose again, unless nobody has any.
        Some(server)
            if !server.loading
                && server.keys == 0
                && o.ledger.holds_data
                && others_may_hold_data(o, candidate) =>
        {
            start_over
        }
        Some(server) if !server.loading => {
            let quorum = quorum_after(o, candidate);
            if quorum < o.ledger.quorum {
                return Step::Record(Ledger { quorum, ..o.ledger.clone() });
            }
            Step::Promote { pod: candidate.name.clone(), quorum: o.ledger.quorum }
        }
        None if candidate.down() && !candidate.volume => start_over,
        _ => {
            reasons
                .push(Reason::Waiting { why: format!("for {} to answer and load its data", candidate.name) });
            Step::Wait(LATER)
        }
    }
}

/// Whether a server other than `candidate` has data, or a volume that nobody has looked into.
fn others_may_hold_data(o: &Observation, candidate: &Instance) -> bool {
    o.instances.values().filter(|instance| instance.name != candidate.name).any(|instance| {
        match &instance.view {
            View::Reached(server) => server.loading || server.keys > 0,
            View::Down(_) => instance.volume,
            View::Unreachable { .. } => true,
        }
    })
}

/// The quorum that `chosen` can meet as the primary.
fn quorum_after(o: &Observation, chosen: &Instance) -> u32 {
    let others = o.instances.values().filter(|instance| {
        instance.name != chosen.name && instance.server().is_some_and(|server| !server.loading)
    });
    upkeep::possible_quorum(o, others.count())
}

/// `primary` was promoted: lead replicas to it, then record it. Clients come last, by its label: a write must
/// not be acknowledged by a server that the ledger doesn't know as the primary.
fn publish(o: &Observation, primary: &Instance, reasons: &mut Vec<Reason>) -> Step {
    if let Some(step) = upkeep::attach_members(o, primary) {
        return step;
    }
    let planned = o.ledger.current.as_ref().is_some_and(|current| o.ledger.members.contains(current));
    reasons.push(Reason::Promoted { pod: primary.name.clone(), term: o.ledger.term, planned });
    let members = o
        .instances
        .values()
        .filter(|instance| instance.follows(primary))
        .map(|instance| instance.name.clone());
    Step::Record(Ledger {
        current: Some(primary.name.clone()),
        members: members.collect(),
        holds_data: primary.server().is_some_and(|server| server.keys > 0),
        ..o.ledger.clone()
    })
}

/// Gives the change of primary up; the recorded primary, if any, stays it.
pub(super) fn give_up(o: &Observation, reasons: &mut Vec<Reason>, why: String) -> Step {
    if let Some(current) = &o.ledger.current {
        reasons.push(Reason::Undone { pod: current.clone(), why });
    }
    Step::Record(Ledger { target: o.ledger.current.clone(), ..o.ledger.clone() })
}
