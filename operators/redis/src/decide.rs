//! From what was observed to the one thing to do next: pure functions, no clock, no IO.
//!
//! The rows of [`decide`] are tried from top to bottom and the first that has something to do wins, so a
//! repair never waits for upkeep. Each step is carried out, then everything is observed anew.

mod bootstrap;
mod candidate;
mod failover;
#[cfg(test)]
mod properties;
mod roll;
mod shrink;
mod switchover;
mod upkeep;
mod volumes;

use std::time::Duration;

pub use roll::{blocked as roll_blocked, pending as roll_pending};
pub use upkeep::{in_sync, lag};

use crate::observe::{Address, Instance, Ledger, Observation};
use crate::render::{PORT, Role};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the ledger to the status, provided nobody else has.
    Record(Ledger),
    /// Take the role label off a pod.
    Unlabel {
        /// The pod.
        pod: String,
    },
    /// Put a role label on a pod.
    Label {
        /// The pod.
        pod: String,
        /// The role.
        role: Role,
    },
    /// Seal and detach a server and disconnect its clients.
    Demote {
        /// The pod.
        pod: String,
    },
    /// Seal a server and disconnect its clients.
    Seal {
        /// The pod.
        pod: String,
    },
    /// Have the primary hand its role over.
    HandOver {
        /// Pod of the primary.
        from: String,
        /// Pod of the successor.
        pod: String,
        /// Address of the successor.
        to: Address,
    },
    /// Have a primary whose successor doesn't take over be the primary again.
    AbortHandOver {
        /// Pod of the primary.
        pod: String,
    },
    /// Take the request for another primary off the cluster: it is fulfilled, or cannot be.
    Dismiss,
    /// Have a replica follow nobody.
    Detach {
        /// The pod.
        pod: String,
    },
    /// Have a server follow another.
    Attach {
        /// The pod.
        pod: String,
        /// Address of the primary.
        to: Address,
    },
    /// Make a server the primary that accepts writes while `quorum` replicas follow.
    Promote {
        /// The pod.
        pod: String,
        /// Its `min-replicas-to-write`.
        quorum: u32,
    },
    /// Change one setting of a running server.
    Set {
        /// The pod.
        pod: String,
        /// The setting.
        name: &'static str,
        /// The value.
        value: String,
    },
    /// Delete a pod whose server doesn't answer, so that its end is proven.
    Delete {
        /// The pod.
        pod: String,
        /// Its UID.
        uid: String,
    },
    /// Delete a pod, so that the StatefulSet makes it anew from the current template.
    Restart {
        /// The pod.
        pod: String,
        /// Its UID.
        uid: String,
    },
    /// Ask for a larger volume.
    GrowClaim {
        /// The volume claim.
        claim: String,
        /// Its size.
        bytes: u128,
    },
    /// Delete the StatefulSet without its pods, so that it is made again with what cannot be changed in it.
    Renew {
        /// Its UID.
        uid: String,
    },
    /// Have the StatefulSet keep this many pods.
    Scale(u32),
    /// Nothing to do now; look again after this time.
    Wait(Duration),
    /// Nothing to do until something changes.
    Settled,
}

/// Why a step is taken, or why none is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The first primary was chosen.
    Bootstrapping {
        /// The pod.
        pod: String,
        /// Why this one.
        why: String,
    },
    /// The primary no longer serves; another takes over.
    FailingOver {
        /// The old primary.
        from: String,
        /// The new one.
        to: String,
        /// What happened to the old one, and offsets.
        why: String,
    },
    /// The primary hands its role over, as planned.
    SwitchingOver {
        /// The old primary.
        from: String,
        /// The new one.
        to: String,
        /// What for.
        why: String,
    },
    /// A human asked for a primary that cannot be.
    SwitchoverRefused {
        /// The pod.
        pod: String,
        /// Why not.
        why: String,
    },
    /// The change of primary is complete.
    Promoted {
        /// The new primary.
        pod: String,
        /// Number of changes so far.
        term: i64,
        /// The old one handed over.
        planned: bool,
    },
    /// The change of primary was given up.
    Undone {
        /// The pod that stays the primary.
        pod: String,
        /// Why.
        why: String,
    },
    /// A second writable primary was found.
    SplitBrain {
        /// The pod that loses.
        demoted: String,
    },
    /// No primary serves and none can be chosen safely.
    Blocked {
        /// Why, naming pods and what would help.
        why: String,
    },
    /// No primary serves; waiting for what usually comes by itself.
    Waiting {
        /// For what.
        why: String,
    },
    /// The operator does not reach the primary, but replicas do.
    CannotReachPrimary {
        /// The primary.
        pod: String,
    },
    /// A setting cannot be applied to running servers.
    ConfigRefused {
        /// Path of the field.
        field: &'static str,
        /// Why.
        why: String,
    },
    /// Pods of an older template are being replaced.
    Rolling {
        /// Which are left.
        what: String,
    },
    /// Volumes are not yet as large as asked for.
    Growing {
        /// Which.
        what: String,
    },
    /// A server is being removed, as it is more than what is asked for.
    Removing {
        /// The pod.
        pod: String,
    },
    /// A setting is not yet in force everywhere.
    Configuring {
        /// Which, where.
        what: String,
    },
}

/// A step and its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub step: Step,
    /// Why.
    pub reasons: Vec<Reason>,
}

/// How long to wait where a change of an observation is expected and would wake the controller anyway.
const SOON: Duration = Duration::from_millis(50);

/// How long to wait where nothing is expected to change.
const LATER: Duration = Duration::from_secs(1);

type Row = fn(&Observation, &mut Vec<Reason>) -> Option<Step>;

/// The rows, most urgent first.
const ROWS: [Row; 10] = [
    upkeep::stray_label,
    failover::two_primaries,
    failover::change_of_primary,
    failover::lost_primary,
    bootstrap::first_primary,
    upkeep::serve,
    switchover::unsealed_replica,
    switchover::planned,
    upkeep::attach,
    upkeep::maintain,
];

/// What to do about `observation`. The same observation always gives the same decision.
pub fn decide(observation: &Observation) -> Decision {
    let mut reasons = Vec::new();
    let mut step = ROWS.iter().find_map(|row| row(observation, &mut reasons)).unwrap_or(Step::Settled);
    if matches!(step, Step::Wait(_) | Step::Settled) {
        let meanwhile = roll::broken(observation).or_else(|| upkeep::put_back(observation));
        step = meanwhile.unwrap_or(step);
    }
    Decision { step, reasons }
}

impl Observation {
    /// The instance whose pod is called `name`.
    pub fn instance(&self, name: &str) -> Option<&Instance> {
        self.instances.values().find(|instance| instance.name == name)
    }

    /// The recorded primary, where no change of primary is going on.
    pub fn primary(&self) -> Option<&Instance> {
        let current = self.ledger.current.as_deref()?;
        (self.ledger.target.as_deref() == Some(current)).then(|| self.instance(current)).flatten()
    }

    /// The servers that accept writes.
    fn writable(&self) -> impl Iterator<Item = &Instance> {
        self.instances
            .values()
            .filter(|instance| instance.server().is_some_and(crate::observe::Server::writable))
    }

    /// The recorded members.
    fn members(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values().filter(|instance| self.ledger.members.contains(&instance.name))
    }
}

impl Instance {
    /// Where other servers reach this one.
    fn address(&self) -> Option<Address> {
        self.ip().map(|ip| Address { ip: ip.to_owned(), port: PORT })
    }

    /// Whether this server follows `primary`.
    pub fn follows(&self, primary: &Instance) -> bool {
        match (self.server(), primary.ip()) {
            (Some(server), Some(ip)) => server.follows(ip, PORT),
            _ => false,
        }
    }
}

/// Names in a sentence.
fn list<'a>(names: impl IntoIterator<Item = &'a Instance>) -> String {
    names.into_iter().map(|instance| instance.name.as_str()).collect::<Vec<_>>().join(", ")
}
