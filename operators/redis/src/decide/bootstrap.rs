use super::{LATER, Reason, SOON, Step, list};
use crate::observe::{Instance, Ledger, Observation, Server, View};

/// No primary is recorded: choose the first, once every server is known.
pub(super) fn first_primary(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    if o.ledger.current.is_some() || o.ledger.target.is_some() {
        return None;
    }
    if o.workload.is_none() || o.instances.is_empty() {
        return Some(Step::Wait(LATER));
    }
    if let Some(step) = wait_for_all(o, reasons) {
        return Some(step);
    }
    if let Some(primary) = o.writable().next() {
        return Some(adopt(o, primary, reasons));
    }
    Some(match holder(o) {
        Ok(Some(holder)) => elect(o, holder, "it holds the data", reasons),
        Ok(None) => start_empty(o, reasons),
        Err(why) => {
            reasons.push(Reason::Blocked { why });
            Step::Wait(LATER)
        }
    })
}

/// The recorded primary's process restarted and no replica can take over: it may serve again with its own
/// data. `server` is what it says of itself.
pub(super) fn restarted_primary(
    o: &Observation,
    primary: &Instance,
    server: &Server,
    reasons: &mut Vec<Reason>,
) -> Step {
    if let Some(other) = o.writable().next() {
        return adopt(o, other, reasons);
    }
    if server.loading {
        reasons.push(Reason::Waiting { why: format!("for {} to load its data", primary.name) });
        return Step::Wait(SOON);
    }
    if server.keys > 0 || !o.ledger.holds_data {
        return elect(o, primary, "it is the recorded primary and restarted", reasons);
    }
    // It comes back empty although there was data: another may have it.
    if let Some(step) = wait_for_all(o, reasons) {
        return step;
    }
    match holder(o) {
        Ok(Some(holder)) => elect(o, holder, "it alone holds data", reasons),
        Ok(None) => start_empty(o, reasons),
        Err(why) => {
            reasons.push(Reason::Blocked { why });
            Step::Wait(LATER)
        }
    }
}

/// Waits until each server is loaded, or known not to run and to have no volume with data.
fn wait_for_all(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let awaited: Vec<&Instance> = o
        .instances
        .values()
        .filter(|instance| match &instance.view {
            View::Reached(server) => server.loading,
            View::Down(_) => instance.volume,
            View::Unreachable { .. } => true,
        })
        .collect();
    let nobody = o.instances.values().all(|instance| instance.server().is_none());
    (!awaited.is_empty() || nobody).then(|| {
        let troubles: Vec<String> = o
            .instances
            .values()
            .filter_map(|instance| {
                let trouble = instance.login.as_ref().or(instance.pod.as_ref()?.trouble.as_ref())?;
                Some(format!("{}: {trouble}", instance.name))
            })
            .collect();
        let mut why = format!("for {}", if nobody { list(o.instances.values()) } else { list(awaited) });
        if !troubles.is_empty() {
            why = format!("{why} ({})", troubles.join("; "));
        }
        reasons.push(Reason::Waiting { why });
        Step::Wait(LATER)
    })
}

/// The server with the right data; none if all are empty; an error if they disagree.
fn holder(o: &Observation) -> Result<Option<&Instance>, String> {
    let holders: Vec<(&Instance, &Server)> = o
        .instances
        .values()
        .filter_map(|instance| Some((instance, instance.server()?)))
        .filter(|(_, server)| server.keys > 0)
        .collect();
    let Some((first, rest)) = holders.split_first() else { return Ok(None) };
    if rest.is_empty() {
        return Ok(Some(first.0));
    }
    if let Some(chosen) =
        holders.iter().find(|(instance, _)| o.chosen.as_deref() == Some(instance.name.as_str()))
    {
        return Ok(Some(chosen.0));
    }
    let one_line = holders.iter().all(|(_, server)| server.offset > 1 && server.lines[0] == first.1.lines[0]);
    if one_line {
        return Ok(holders.iter().max_by_key(|(_, server)| server.offset).map(|(instance, _)| *instance));
    }
    Err(format!(
        "{} hold data of different histories: name the right one in annotation {}",
        list(holders.iter().map(|(instance, _)| *instance)),
        crate::api::CHOOSE_PRIMARY
    ))
}

/// All servers are empty: start with the lowest, unless that would seal a loss of data.
fn start_empty(o: &Observation, reasons: &mut Vec<Reason>) -> Step {
    if o.ledger.holds_data && o.settings.persistent && !o.accept_data_loss {
        let why = format!(
            "every server is empty although the cluster held data: restore a volume, or start empty with annotation {}=true",
            crate::api::ACCEPT_DATA_LOSS
        );
        reasons.push(Reason::Blocked { why });
        return Step::Wait(LATER);
    }
    let Some(lowest) = o.instances.values().find(|instance| instance.server().is_some()) else {
        return Step::Wait(LATER);
    };
    let ledger = Ledger { holds_data: false, ..begun(o, lowest) };
    reasons.push(Reason::Bootstrapping { pod: lowest.name.clone(), why: "all servers are empty".to_owned() });
    Step::Record(ledger)
}

/// Records that `chosen` becomes the primary where none is left that could accept writes.
fn elect(o: &Observation, chosen: &Instance, why: &str, reasons: &mut Vec<Reason>) -> Step {
    reasons.push(Reason::Bootstrapping { pod: chosen.name.clone(), why: why.to_owned() });
    Step::Record(begun(o, chosen))
}

fn begun(o: &Observation, chosen: &Instance) -> Ledger {
    Ledger {
        current: None,
        target: Some(chosen.name.clone()),
        term: o.ledger.term + 1,
        members: std::collections::BTreeSet::new(),
        quorum: 0,
        holds_data: o.ledger.holds_data,
        leaving: o.ledger.leaving.clone(),
    }
}

/// Records `primary`, which already accepts writes, with what follows it.
pub(super) fn adopt(o: &Observation, primary: &Instance, reasons: &mut Vec<Reason>) -> Step {
    reasons.push(Reason::Bootstrapping {
        pod: primary.name.clone(),
        why: "it already accepts writes".to_owned(),
    });
    let members = o
        .instances
        .values()
        .filter(|instance| instance.follows(primary))
        .map(|instance| instance.name.clone());
    Step::Record(Ledger {
        members: members.collect(),
        quorum: primary.server().map_or(0, |server| server.quorum),
        ..begun(o, primary)
    })
}
