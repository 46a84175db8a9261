use super::{Reason, Step, roll, shrink, volumes};
use crate::observe::{Handover, Instance, Ledger, Link, Observation, Place, Server};
use crate::render::Role;
use crate::settings::{LIVE, same};

/// A pod that is not to be the primary carries its label. Comes before all else: the Service must never
/// lead to two, nor to one that is being replaced.
pub(super) fn stray_label(o: &Observation, _: &mut Vec<Reason>) -> Option<Step> {
    let rightful = rightful(o);
    o.instances
        .values()
        .find(|instance| {
            instance.pod.as_ref().is_some_and(|pod| pod.role == Some(Role::Primary))
                && rightful != Some(instance.name.as_str())
        })
        .map(|instance| Step::Unlabel { pod: instance.name.clone() })
}

/// The pod that the Service may lead to. While the primary hands over it stays that until its successor serves.
fn rightful(o: &Observation) -> Option<&str> {
    let (current, target) = (o.ledger.current.as_deref(), o.ledger.target.as_deref());
    let server = |name: Option<&str>| name.and_then(|name| o.instance(name)).and_then(Instance::server);
    let hands_over = server(current)
        .is_some_and(|server| server.place == Place::Primary || server.handover != Handover::None)
        && server(target).is_none_or(|server| server.place != Place::Primary);
    if hands_over { current } else { target.or(current) }
}

/// The recorded primary accepts writes: the Service may lead to it.
pub(super) fn serve(o: &Observation, _: &mut Vec<Reason>) -> Option<Step> {
    let primary = o.primary()?;
    let labelled = primary.pod.as_ref().is_none_or(|pod| pod.role == Some(Role::Primary));
    (!labelled && primary.server().is_some_and(Server::writable))
        .then(|| Step::Label { pod: primary.name.clone(), role: Role::Primary })
}

/// Servers that follow nobody, or the wrong one, join the primary: recorded as members first. So are those that
/// follow it already: whoever may receive counts for the fence.
pub(super) fn attach(o: &Observation, _: &mut Vec<Reason>) -> Option<Step> {
    let primary = o.primary()?;
    let following = o.instances.values().filter(|instance| instance.follows(primary));
    let receivers: Vec<&Instance> = astray(o, primary).chain(following).collect();
    if receivers.iter().any(|instance| !o.ledger.members.contains(&instance.name)) {
        let members =
            o.ledger.members.iter().cloned().chain(receivers.iter().map(|instance| instance.name.clone()));
        return Some(Step::Record(Ledger { members: members.collect(), ..o.ledger.clone() }));
    }
    attach_members(o, primary)
}

/// The next recorded member that doesn't follow `primary` is told to.
pub(super) fn attach_members(o: &Observation, primary: &Instance) -> Option<Step> {
    let to = primary.address()?;
    let member = astray(o, primary).find(|instance| o.ledger.members.contains(&instance.name))?;
    Some(Step::Attach { pod: member.name.clone(), to })
}

/// Loaded servers that should follow `primary` but don't.
fn astray<'a>(o: &'a Observation, primary: &'a Instance) -> impl Iterator<Item = &'a Instance> {
    let leaves = shrink::victim(o).map(|victim| &victim.name);
    o.instances.values().filter(move |instance| {
        instance.name != primary.name
            && leaves != Some(&instance.name)
            && instance.pod.as_ref().is_some_and(|pod| !pod.terminating)
            && !instance.follows(primary)
            && instance.server().is_some_and(|server| !server.loading && !server.writable())
    })
}

/// Labels, quorum and live settings, then the number of servers: nothing of that disturbs a server. At last pods
/// of an older template.
pub(super) fn maintain(o: &Observation, reasons: &mut Vec<Reason>) -> Option<Step> {
    let primary = o.primary()?;
    let server = primary.server()?;
    labels(o, primary)
        .or_else(|| members(o))
        .or_else(|| shrink::stays(o, primary))
        .or_else(|| quorum(o, primary, server))
        .or_else(|| settings(o, primary, reasons))
        .or_else(|| {
            (server.keys > 0 && !o.ledger.holds_data)
                .then(|| Step::Record(Ledger { holds_data: true, ..o.ledger.clone() }))
        })
        .or_else(|| grow(o))
        .or_else(|| shrink::next(o, reasons))
        .or_else(|| volumes::next(o, reasons))
        .or_else(|| roll::next(o, reasons))
}

/// Replicas in sync are admitted.
fn labels(o: &Observation, primary: &Instance) -> Option<Step> {
    let replica = |instance: &&Instance| {
        let labelled = instance.pod.as_ref().is_some_and(|pod| pod.role == Some(Role::Replica));
        instance.name != primary.name
            && in_sync(instance, primary)
            && !labelled
            && shrink::victim(o).is_none_or(|victim| victim.name != instance.name)
    };
    let instance = o.instances.values().find(replica)?;
    Some(Step::Label { pod: instance.name.clone(), role: Role::Replica })
}

/// Whether `instance` follows `primary` and hears it: a link counts as up for a minute after the last byte.
pub fn in_sync(instance: &Instance, primary: &Instance) -> bool {
    let hears = |server: &Server| matches!(server.link(), Some(Link::Up { last_io }) if last_io <= 3);
    instance.follows(primary) && instance.server().is_some_and(hears)
}

/// How many bytes of the stream `instance` has not acknowledged to `primary`; none if that doesn't list it.
pub fn lag(instance: &Instance, primary: &Instance) -> Option<u64> {
    let (server, ip) = (primary.server()?, instance.ip()?);
    let follower = server.followers.iter().find(|follower| follower.ip == ip && follower.online)?;
    Some(server.offset.saturating_sub(follower.offset))
}

/// Members that are proven not to run receive nothing any more.
fn members(o: &Observation) -> Option<Step> {
    let members = o
        .ledger
        .members
        .iter()
        .filter(|name| o.instance(name).is_some_and(|instance| !instance.down()))
        .cloned();
    let members = members.collect();
    (members != o.ledger.members).then(|| Step::Record(Ledger { members, ..o.ledger.clone() }))
}

/// As many replicas as the user wants, or half of the servers: a majority with the primary.
pub(super) fn target_quorum(o: &Observation) -> u32 {
    let servers =
        o.workload.as_ref().map_or(o.settings.size, |workload| o.settings.size.min(workload.replicas));
    o.settings.min_replicas.map_or(servers / 2, |wanted| wanted.min(servers.saturating_sub(1)))
}

/// The quorum where `confirming` replicas can meet it: no more than that, unless the user would rather have writes
/// refused.
pub(super) fn possible_quorum(o: &Observation, confirming: usize) -> u32 {
    let target = target_quorum(o);
    if o.settings.required { target } else { target.min(u32::try_from(confirming).unwrap_or(u32::MAX)) }
}

/// As many replicas as wanted must confirm, but never more than there are, so that a lost one doesn't stop
/// writes. The record is lowered before the server and raised after it.
fn quorum(o: &Observation, primary: &Instance, server: &Server) -> Option<Step> {
    let listed = |ip: &str| {
        server.followers.iter().any(|follower| follower.ip == ip && follower.online && follower.lag <= 3)
    };
    // The primary lists a replica before it sends it anything: its word counts where the replica is not reached.
    let confirms = |instance: &&Instance| match instance.server() {
        Some(_) => in_sync(instance, primary),
        None => instance.ip().is_some_and(listed),
    };
    // Those that are about to stop don't count.
    let victim = roll::victim(o).or_else(|| shrink::victim(o)).map(|victim| &victim.name);
    let stays = |instance: &&Instance| {
        Some(&instance.name) != victim && instance.pod.as_ref().is_none_or(|pod| !pod.terminating)
    };
    let confirming = o.members().filter(stays).filter(confirms).count();
    let wanted = possible_quorum(o, confirming);
    let record = || Some(Step::Record(Ledger { quorum: wanted, ..o.ledger.clone() }));
    if wanted < o.ledger.quorum {
        record()
    } else if server.quorum != wanted {
        Some(Step::Set {
            pod: primary.name.clone(),
            name: "min-replicas-to-write",
            value: wanted.to_string(),
        })
    } else if wanted > o.ledger.quorum {
        record()
    } else {
        None
    }
}

/// What running servers must have in force.
fn settings(o: &Observation, primary: &Instance, reasons: &mut Vec<Reason>) -> Option<Step> {
    let wanted = &o.settings;
    let running = || {
        o.instances
            .values()
            .filter_map(|instance| Some((instance, instance.server()?)))
            .filter(|(_, server)| !server.loading)
    };
    let set = |instance: &Instance, name: &'static str, value: String| {
        Some(Step::Set { pod: instance.name.clone(), name, value })
    };
    for (instance, server) in running() {
        if in_sync(instance, primary) && !server.serve_stale && server.place != Place::Primary {
            return set(instance, "replica-serve-stale-data", "yes".to_owned());
        }
    }
    let policy = wanted.policy.as_str();
    if let Some((instance, _)) = running().find(|(_, server)| server.policy != policy) {
        reasons.push(Reason::Configuring { what: format!("maxmemory-policy on {}", instance.name) });
        return set(instance, "maxmemory-policy", policy.to_owned());
    }
    let maxmemory = wanted.maxmemory?;
    // Below what is in use a server that may not evict would refuse every write.
    let full: Vec<&Instance> = running()
        .filter(|(_, server)| server.maxmemory != maxmemory && server.used_memory > maxmemory)
        .map(|(instance, _)| instance)
        .collect();
    if !full.is_empty() && !wanted.policy.evicts_all() {
        let why = format!(
            "{maxmemory} bytes are less than what {} use, and maxmemoryPolicy {policy} does not free enough: raise it or evict all keys",
            super::list(full)
        );
        reasons.push(Reason::ConfigRefused { field: "spec.config.maxmemory", why });
        return None;
    }
    if let Some((instance, _)) = running().find(|(_, server)| server.maxmemory != maxmemory) {
        reasons.push(Reason::Configuring { what: format!("maxmemory on {}", instance.name) });
        return set(instance, "maxmemory", maxmemory.to_string());
    }
    // What the user took out of the spec is as if it had never been there.
    LIVE.iter().find_map(|parameter| {
        let value = wanted.parameters.get(parameter.name).map_or(parameter.default, String::as_str);
        let differs = |server: &Server| {
            server.parameters.get(parameter.name).is_some_and(|shown| !same(parameter, value, shown))
        };
        let (instance, _) = running().find(|(_, server)| differs(server))?;
        reasons.push(Reason::Configuring { what: format!("{} on {}", parameter.name, instance.name) });
        set(instance, parameter.name, value.to_owned())
    })
}

/// More servers, once the primary serves.
fn grow(o: &Observation) -> Option<Step> {
    let workload = o.workload.as_ref()?;
    (workload.replicas < o.settings.size && !o.frozen).then_some(Step::Scale(o.settings.size))
}

/// Pods that the StatefulSet is to have but has not, where no primary serves that would be asked first: somebody
/// lowered its number.
pub(super) fn put_back(o: &Observation) -> Option<Step> {
    let workload = o.workload.as_ref()?;
    let bare = o.ledger.current.is_none() && workload.replicas < o.settings.size;
    (bare && !o.frozen).then_some(Step::Scale(o.settings.size))
}
