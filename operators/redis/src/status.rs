//! The status that users and tools read: a pure function of what was observed and decided.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use setpoint::set_condition;
use setpoint_clock::Clock;

use crate::api::{Phase, RedisClusterStatus};
use crate::decide::{Decision, Reason, Step, in_sync, roll_blocked, roll_pending};
use crate::observe::{Instance, Ledger, Observation};
use crate::render::Role;
use crate::settings::{Problem, quantity};

/// What a condition says: its type, whether it holds, a word, a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Type of the condition.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, as a sentence.
    pub message: String,
}

/// Everything that a status is made from, beside what was observed and decided.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Fields of the spec that cannot be carried out.
    pub problems: Vec<Problem>,
    /// Why volumes are not as the spec says.
    pub storage: Option<String>,
    /// The operator only observes.
    pub paused: bool,
    /// What a server said that refuses a setting.
    pub refused: Option<String>,
}

/// The status to write. `before` is the status that was read.
pub fn status(
    o: &Observation,
    decision: &Decision,
    report: &Report,
    before: Option<&RedisClusterStatus>,
    generation: Option<i64>,
    clock: &Clock,
) -> RedisClusterStatus {
    let ledger = match &decision.step {
        Step::Record(ledger) if !report.paused => ledger.clone(),
        _ => o.ledger.clone(),
    };
    let verdicts = verdicts(o, decision, report);
    let mut conditions: Vec<Condition> = before.map(|status| status.conditions.clone()).unwrap_or_default();
    conditions.retain(|condition| verdicts.iter().any(|verdict| verdict.kind == condition.type_));
    for verdict in &verdicts {
        let holds = if verdict.holds { "True" } else { "False" };
        set_condition(
            &mut conditions,
            clock,
            generation,
            (verdict.kind, holds),
            verdict.reason,
            verdict.message.clone(),
        );
    }
    let pods = || o.instances.values().filter_map(|instance| instance.pod.as_ref());
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    RedisClusterStatus {
        phase: Some(phase(o, decision, &ledger)),
        size: i32::try_from(o.settings.size).ok(),
        replicas: count(pods().count()),
        ready_replicas: count(pods().filter(|pod| pod.ready && !pod.terminating).count()),
        current_primary: ledger.current,
        target_primary: ledger.target,
        term: ledger.term,
        members: ledger.members.into_iter().collect(),
        write_quorum: i32::try_from(ledger.quorum).unwrap_or(i32::MAX),
        holds_data: ledger.holds_data,
        leaving: ledger.leaving,
        storage_size: o
            .instances
            .values()
            .filter_map(|instance| instance.claim.as_ref())
            .map(|claim| claim.asked)
            .max()
            .map(quantity),
        render_revision: before.and_then(|status| status.render_revision),
        conditions,
    }
}

fn phase(o: &Observation, decision: &Decision, ledger: &Ledger) -> Phase {
    let blocked = decision.reasons.iter().any(|reason| matches!(reason, Reason::Blocked { .. }));
    if blocked {
        Phase::Failed
    } else if ledger.current.is_none() && o.ledger.term <= 1 {
        Phase::Pending
    } else if !complete(o) {
        Phase::Scaling
    } else {
        Phase::Running
    }
}

/// Whether all servers asked for exist.
fn complete(o: &Observation) -> bool {
    let pods = o.instances.values().filter(|instance| instance.pod.is_some()).count();
    pods == o.settings.size as usize
        && o.workload.as_ref().is_some_and(|workload| workload.replicas == o.settings.size)
}

fn verdicts(o: &Observation, decision: &Decision, report: &Report) -> Vec<Verdict> {
    let verdict = |kind, holds, reason, message: String| Verdict { kind, holds, reason, message };
    let available = available(o, decision);
    let (primary, out_of_sync) = match o.primary() {
        Some(primary) => {
            (Some(primary), replicas(o, primary).filter(|replica| !in_sync(replica, primary)).collect())
        }
        None => (None, Vec::new()),
    };
    let replicated = if primary.is_none() {
        verdict("Replicated", false, "NoPrimary", "there is no primary to replicate from".to_owned())
    } else if !out_of_sync.is_empty() {
        verdict("Replicated", false, "OutOfSync", format!("not in sync: {}", names(&out_of_sync)))
    } else {
        verdict("Replicated", true, "InSync", "every replica is in sync".to_owned())
    };
    let ready = if !available.holds {
        verdict("Ready", false, "PrimaryNotAvailable", available.message.clone())
    } else if !complete(o) {
        verdict("Ready", false, "Scaling", format!("{} of {} servers exist", existing(o), o.settings.size))
    } else if !replicated.holds {
        verdict("Ready", false, "NotReplicated", replicated.message.clone())
    } else {
        verdict("Ready", true, "AllInSync", "the primary serves and every replica is in sync".to_owned())
    };
    let mut all = vec![
        ready,
        available,
        replicated,
        progressing(o, decision, report),
        config(o, decision, report),
        blocked(decision),
        rollout(o),
    ];
    let grows = decision.reasons.iter().find_map(|reason| match reason {
        Reason::Growing { what } => Some(what.clone()),
        _ => None,
    });
    if let (Some(what), None) = (grows, &report.storage) {
        all.push(verdict("StorageResized", false, "Growing", what));
    }
    if let Some(why) = &report.storage {
        all.push(verdict("StorageResized", false, "NotSupported", why.clone()));
    }
    if report.paused {
        all.push(verdict(
            "Paused",
            true,
            "Annotation",
            "the operator only observes until the annotation is removed".to_owned(),
        ));
    }
    all
}

fn available(o: &Observation, decision: &Decision) -> Verdict {
    let verdict =
        |holds, reason, message: String| Verdict { kind: "PrimaryAvailable", holds, reason, message };
    for reason in &decision.reasons {
        match reason {
            Reason::Blocked { why } => return verdict(false, "Blocked", why.clone()),
            Reason::Waiting { why } => return verdict(false, "Waiting", format!("waiting {why}")),
            Reason::CannotReachPrimary { pod } => {
                return verdict(
                    false,
                    "OperatorCannotReachPrimary",
                    format!("replicas hear {pod}, the operator does not"),
                );
            }
            Reason::SwitchingOver { from, to, why } => {
                return verdict(false, "SwitchingOver", format!("from {from} to {to}: {why}"));
            }
            Reason::FailingOver { from, to, why } => {
                return verdict(false, "FailingOver", format!("from {from} to {to}: {why}"));
            }
            _ => {}
        }
    }
    let Some(primary) = o.primary() else {
        return verdict(false, "NoPrimary", "no server is the primary yet".to_owned());
    };
    let name = &primary.name;
    let Some(server) = primary.server().filter(|server| server.writable()) else {
        return verdict(false, "NotWritable", format!("{name} does not accept writes"));
    };
    let pod = primary.pod.as_ref();
    let following = server.followers.iter().filter(|follower| follower.online && follower.lag <= 3).count();
    if pod.is_none_or(|pod| pod.role != Some(Role::Primary)) {
        verdict(false, "NotLabelled", format!("{name} is not behind the Service yet"))
    } else if pod.is_none_or(|pod| !pod.ready) {
        verdict(false, "NotReady", format!("{name} is not ready"))
    } else if following < server.quorum as usize {
        verdict(
            false,
            "TooFewReplicas",
            format!("{name} refuses writes: {following} of {} needed replicas follow", server.quorum),
        )
    } else if server.write_error {
        verdict(false, "StorageFull", format!("{name} cannot write its append-only file"))
    } else {
        verdict(true, "Serving", format!("{name} accepts writes"))
    }
}

fn progressing(o: &Observation, decision: &Decision, report: &Report) -> Verdict {
    let verdict = |holds, reason, message: String| Verdict { kind: "Progressing", holds, reason, message };
    if let Some(problem) = report.problems.iter().find(|problem| problem.field.starts_with("spec.storage")) {
        return verdict(false, problem.reason(), problem.to_string());
    }
    if let Some(problem) = report.problems.first() {
        return verdict(false, problem.reason(), problem.to_string());
    }
    match &decision.step {
        _ if decision.reasons.iter().any(|reason| matches!(reason, Reason::Rolling { .. })) => {
            let pending = roll_pending(o).unwrap_or_default();
            verdict(
                true,
                "Rolling",
                format!("{pending} run an older pod template and will be replaced, one at a time"),
            )
        }
        Step::Settled
            if complete(o)
                && o.instances
                    .values()
                    .all(|instance| instance.pod.as_ref().is_some_and(|pod| pod.ready)) =>
        {
            verdict(false, "Settled", "nothing is left to do".to_owned())
        }
        Step::Settled => verdict(
            true,
            "Waiting",
            format!("{} of {} servers exist; waiting for all to be ready", existing(o), o.settings.size),
        ),
        Step::Wait(_) => {
            let why = decision.reasons.iter().find_map(|reason| match reason {
                Reason::Waiting { why } => Some(format!("waiting {why}")),
                Reason::Blocked { why } => Some(why.clone()),
                _ => None,
            });
            verdict(true, "Waiting", why.unwrap_or_else(|| "waiting".to_owned()))
        }
        Step::Scale(size) => verdict(true, "Scaling", format!("to {size} servers")),
        _ if decision.reasons.iter().any(|reason| matches!(reason, Reason::Removing { .. })) => {
            verdict(true, "Scaling", format!("to {} servers", o.settings.size))
        }
        _ => verdict(true, "Repairing", "changing roles or settings of servers".to_owned()),
    }
}

fn config(o: &Observation, decision: &Decision, report: &Report) -> Verdict {
    let verdict = |holds, reason, message: String| Verdict { kind: "ConfigApplied", holds, reason, message };
    let problem = report.problems.iter().find(|problem| !problem.field.starts_with("spec.storage"));
    if let Some(problem) = problem {
        return verdict(false, problem.reason(), problem.to_string());
    }
    if let Some(why) = &report.refused {
        return verdict(false, "Refused", why.clone());
    }
    for reason in &decision.reasons {
        match reason {
            Reason::ConfigRefused { field, why } => {
                return verdict(false, "Refused", format!("{field}: {why}"));
            }
            Reason::Configuring { what } => return verdict(false, "Applying", what.clone()),
            _ => {}
        }
    }
    let silent: Vec<&Instance> =
        o.instances.values().filter(|instance| instance.server().is_none()).collect();
    if silent.len() == o.instances.len() {
        let what = "no server answers, so nobody knows which settings are in force";
        return verdict(false, "NoServerAnswers", what.to_owned());
    }
    verdict(true, "Applied", "every server that answers has the settings of the spec".to_owned())
}

fn blocked(decision: &Decision) -> Verdict {
    let why = decision.reasons.iter().find_map(|reason| match reason {
        Reason::Blocked { why } => Some(why.clone()),
        _ => None,
    });
    match why {
        Some(message) => Verdict { kind: "FailoverBlocked", holds: true, reason: "NoSafeChoice", message },
        None => Verdict {
            kind: "FailoverBlocked",
            holds: false,
            reason: "NotBlocked",
            message: "nothing stops a fail-over".to_owned(),
        },
    }
}

/// How the replacement of pods of an older template stands.
fn rollout(o: &Observation) -> Verdict {
    let verdict = |holds, reason, message: String| Verdict { kind: "RolloutBlocked", holds, reason, message };
    match (roll_blocked(o), roll_pending(o)) {
        (Some(why), _) => verdict(true, "Stuck", why),
        (None, Some(pending)) => {
            verdict(false, "Rolling", format!("{pending} will be replaced, one at a time"))
        }
        (None, None) => verdict(false, "UpToDate", "every pod is of the current template".to_owned()),
    }
}

fn replicas<'a>(o: &'a Observation, primary: &'a Instance) -> impl Iterator<Item = &'a Instance> {
    o.instances.values().filter(|instance| instance.name != primary.name)
}

fn existing(o: &Observation) -> usize {
    o.instances.values().filter(|instance| instance.pod.is_some()).count()
}

fn names(instances: &[&Instance]) -> String {
    instances.iter().map(|instance| instance.name.as_str()).collect::<Vec<_>>().join(", ")
}
