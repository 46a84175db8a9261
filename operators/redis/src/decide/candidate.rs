use std::time::Duration;

use tokio::time::Instant;

use super::{SOON, list};
use crate::observe::{Instance, Link, Observation, Place, Server, Sighting, View};

/// A replica that lost its link no longer than this before the primary was last seen has its recent writes.
const FRESHNESS: Duration = Duration::from_secs(5);

/// How long a replica may take to notice that a dead primary's connection is gone.
const LINK_GRACE: Duration = Duration::from_secs(1);

/// How long after the loss of a primary a better choice than the one at hand is waited for: a member that does
/// not answer at this moment, or the primary itself, which restarts with its data.
const BETTER: Duration = Duration::from_secs(3);

/// Why no candidate is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The answer is due after this time.
    Later(Duration, String),
    /// Replicas hear the primary; only the operator doesn't.
    OnlyWeCannotReach,
    /// It cannot be told without a guess.
    Blocked(String),
}

/// The member that is to take over from `primary`, which doesn't serve any more: reached, loaded, in the
/// primary's line of history, fresh, and the furthest of these; after a bounded wait where somebody else may
/// have more.
pub(super) fn choose<'a>(o: &'a Observation, primary: &Instance) -> Result<&'a Instance, Hold> {
    if let View::Unreachable { .. } = primary.view {
        silence_counts(o, primary)?;
    }
    let lost = match primary.view {
        View::Unreachable { since } => Some(since),
        View::Down(_) => primary.silent,
        View::Reached(_) => primary.detached,
    };
    let reached: Vec<(&Instance, &Server)> = others(o, primary)
        .filter(|member| member.pod.as_ref().is_some_and(|pod| !pod.terminating))
        .filter_map(|member| Some((member, member.server()?)))
        .filter(|(_, server)| !server.loading && server.place != Place::Primary)
        .collect();
    if let Some(lost) = lost {
        // Offsets from before the loss say nothing about who has most; the monitors are asking again.
        if reached.iter().any(|(member, _)| !member.answered_since(lost)) {
            return Err(Hold::Later(SOON, "for answers of the replicas".to_owned()));
        }
        // While the link is up there may be more of the stream to read from it.
        let draining = reached.iter().any(|(member, server)| {
            member.follows(primary) && matches!(server.link(), Some(Link::Up { .. }))
        });
        if draining
            && !matches!(primary.view, View::Unreachable { .. })
            && o.now.saturating_duration_since(lost) < LINK_GRACE
        {
            return Err(Hold::Later(SOON, "for replicas to read what the primary sent last".to_owned()));
        }
    }
    await_silent(o, primary, lost)?;
    let chosen =
        reached.iter().map(|(member, _)| *member).find(|member| o.chosen.as_ref() == Some(&member.name));
    let usable: Result<Vec<(&Instance, &Server)>, Hold> = match &primary.primary {
        Some(sighting) => recent(o, primary, reached, sighting),
        None => without_history(o, primary, reached),
    };
    // Where none is known to be recent a human may take it upon himself.
    if let (Err(_), Some(chosen)) = (&usable, chosen) {
        return Ok(chosen);
    }
    let (best, server) = usable?
        .into_iter()
        .max_by_key(|(member, server)| {
            let ready = member.pod.as_ref().is_some_and(|pod| pod.ready);
            let target = o.ledger.target.as_deref() == Some(member.name.as_str());
            (server.offset, target, ready, std::cmp::Reverse(&member.name))
        })
        .ok_or_else(|| Hold::Blocked(no_candidate(o, primary)))?;
    better(o, primary, server, lost)?;
    Ok(best)
}

/// Those of `reached` that are in the line that `primary` was last seen to write, `sighting`, and not long behind.
fn recent<'a>(
    o: &Observation,
    primary: &Instance,
    reached: Vec<(&'a Instance, &'a Server)>,
    sighting: &Sighting,
) -> Result<Vec<(&'a Instance, &'a Server)>, Hold> {
    let linked =
        |member: &Instance| member.linked.as_ref().is_some_and(|(at, _)| *at + FRESHNESS >= sighting.at);
    let recent: Vec<_> = reached
        .into_iter()
        .filter(|(member, server)| server.lines.contains(&sighting.line) && linked(member))
        .collect();
    if recent.is_empty() { Err(Hold::Blocked(no_candidate(o, primary))) } else { Ok(recent) }
}

/// Waits for members that do not answer at this moment: freshness cannot tell who has most. A replica whose link
/// broke just before the primary died lacks what was written between, and a primary that comes back empty lacks all.
fn await_silent(o: &Observation, primary: &Instance, lost: Option<Instant>) -> Result<(), Hold> {
    let soon = |member: &&Instance| {
        let since = member.silent.filter(|_| matches!(member.view, View::Unreachable { .. }));
        since.is_some_and(|since| {
            o.now.saturating_duration_since(lost.map_or(since, |lost| lost.max(since))) < BETTER
        })
    };
    let silent: Vec<&Instance> = others(o, primary).filter(soon).collect();
    if silent.is_empty() {
        return Ok(());
    }
    Err(Hold::Later(SOON, format!("for {}, which may have more of the data", list(silent))))
}

/// Whether the primary's own data is better than that of the best candidate, whose server is `best`: the candidate
/// lacks some of what the primary was last seen to have. That is waited for as long as it is likely to come back;
/// where the candidate has nothing at all, until the primary or a human decides.
fn better(o: &Observation, primary: &Instance, best: &Server, lost: Option<Instant>) -> Result<(), Hold> {
    let Some(seen) =
        primary.primary.as_ref().map(|sighting| sighting.offset).filter(|seen| *seen > best.offset)
    else {
        return Ok(());
    };
    let lacks =
        format!("the replicas in reach lack {} bytes of what {} had", seen - best.offset, primary.name);
    let waits = lost.is_some_and(|lost| o.now.saturating_duration_since(lost) < BETTER);
    match &primary.view {
        View::Reached(server) if server.loading || server.keys > 0 => Err(Hold::Blocked(lacks)),
        View::Down(proof) if waits && primary.volume && proof.returns() => {
            Err(Hold::Later(SOON, format!("for {} to restart with its data: {lacks}", primary.name)))
        }
        View::Down(_) | View::Unreachable { .. }
            if primary.volume && best.keys == 0 && o.ledger.holds_data =>
        {
            Err(Hold::Blocked(format!(
                "{lacks} and are empty: waiting for {} to come back, or name the one to go on with in annotation {}",
                primary.name,
                crate::api::CHOOSE_PRIMARY
            )))
        }
        _ => Ok(()),
    }
}

/// The members beside `primary`, which is one while it hands over.
fn all_others<'a>(o: &'a Observation, primary: &Instance) -> impl Iterator<Item = &'a Instance> {
    let name = primary.name.clone();
    o.members().filter(move |member| member.name != name)
}

/// Those of them that may take over: not one that was cut off to be removed, while the primary went on.
fn others<'a>(o: &'a Observation, primary: &Instance) -> impl Iterator<Item = &'a Instance> {
    all_others(o, primary).filter(|member| o.ledger.leaving.as_ref() != Some(&member.name))
}

/// Whether the silence of `primary` may lead to a change: long enough, confirmed by the replicas, and too
/// few of those that could still help it are out of reach.
fn silence_counts(o: &Observation, primary: &Instance) -> Result<(), Hold> {
    let silent = primary.silence(o.now);
    let enough = o.settings.unreachable_after;
    if silent < enough {
        return Err(Hold::Later(enough.saturating_sub(silent), format!("for {} to answer", primary.name)));
    }
    let heard = o.members().any(|member| {
        member.follows(primary)
            && member
                .server()
                .and_then(Server::link)
                .is_some_and(|link| matches!(link, Link::Up { last_io } if last_io < enough.as_secs()))
    });
    if heard {
        return Err(Hold::OnlyWeCannotReach);
    }
    let quorum = o.ledger.quorum;
    let missing: Vec<&Instance> =
        all_others(o, primary).filter(|member| member.server().is_none() && !member.down()).collect();
    let known = all_others(o, primary).count();
    if quorum == 0 {
        return Err(Hold::Blocked(format!(
            "{} does not answer and may still accept writes without replicas; need proof of its death",
            primary.name
        )));
    }
    if missing.len() >= quorum as usize {
        return Err(Hold::Blocked(format!(
            "{} of {known} replicas reachable, need {}, or proof of death of {}",
            known.saturating_sub(missing.len()),
            (known + 1).saturating_sub(quorum as usize),
            list(missing.into_iter().chain([primary]))
        )));
    }
    Ok(())
}

/// Those that may be trusted to have the latest writes where the operator never saw the primary alive: all of
/// one line, provided that so few members are missing that every acknowledged write reached one of them.
fn without_history<'a>(
    o: &Observation,
    primary: &Instance,
    reached: Vec<(&'a Instance, &'a Server)>,
) -> Result<Vec<(&'a Instance, &'a Server)>, Hold> {
    let missing: Vec<&Instance> = others(o, primary).filter(|member| member.server().is_none()).collect();
    if missing.len() >= o.ledger.quorum.max(1) as usize {
        return Err(Hold::Blocked(format!(
            "cannot tell which replica is up to date without {}; name the one to go on with in annotation {}",
            list(missing),
            crate::api::CHOOSE_PRIMARY
        )));
    }
    if o.ledger.quorum == 0 {
        return Err(Hold::Blocked(format!(
            "cannot tell whether a replica is up to date: writes needed none; name the one to go on with in annotation {}",
            crate::api::CHOOSE_PRIMARY
        )));
    }
    // A restarted server has an offset of 0 or 1 in a line of its own.
    let known: Vec<_> = reached.into_iter().filter(|(_, server)| server.offset > 1).collect();
    if known.windows(2).any(|pair| pair[0].1.lines[0] != pair[1].1.lines[0]) {
        return Err(Hold::Blocked(format!(
            "{} hold different histories; name the right one in annotation {}",
            list(known.iter().map(|(member, _)| *member)),
            crate::api::CHOOSE_PRIMARY
        )));
    }
    Ok(known)
}

fn no_candidate(o: &Observation, primary: &Instance) -> String {
    let out: Vec<&Instance> = others(o, primary).filter(|member| member.server().is_none()).collect();
    if others(o, primary).next().is_none() {
        format!("{} has no replica; waiting for it to come back", primary.name)
    } else if out.is_empty() {
        format!(
            "no replica has the recent writes of {}; waiting for it to come back, or name the one to go on with in annotation {}",
            primary.name,
            crate::api::CHOOSE_PRIMARY
        )
    } else {
        format!(
            "no replica in reach has the recent writes of {}; out of reach: {}; name the one to go on with in annotation {}",
            primary.name,
            list(out),
            crate::api::CHOOSE_PRIMARY
        )
    }
}
