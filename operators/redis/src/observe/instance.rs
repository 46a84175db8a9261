use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{Address, Server, Sighting, Track};
use crate::render::Role;
use crate::settings::Settings;

/// Everything that a decision is made from. Complete in itself: the same observation gives the same decision.
#[derive(Clone, Debug)]
pub struct Observation {
    /// When this was put together.
    pub now: Instant,
    /// What the user asks for.
    pub settings: Settings,
    /// What the operator remembers.
    pub ledger: Ledger,
    /// The StatefulSet, if it exists.
    pub workload: Option<Workload>,
    /// One entry for each ordinal of the StatefulSet, and for pods beyond.
    pub instances: BTreeMap<u32, Instance>,
    /// The pod that a human chose as holder of the right data.
    pub chosen: Option<String>,
    /// The pod that a human asks to be the primary.
    pub requested: Option<String>,
    /// A human accepts to start empty.
    pub accept_data_loss: bool,
    /// Something stands in the way of more servers.
    pub frozen: bool,
    /// Size of each volume in bytes that the user asks for, where volumes may grow to it.
    pub volumes: Option<u128>,
}

impl Observation {
    /// Whether ready pods have not been looked at yet, as after the operator's start: nothing is known then.
    pub fn premature(&self) -> bool {
        self.instances
            .values()
            .any(|instance| !instance.looked && instance.pod.as_ref().is_some_and(|pod| pod.ready))
    }
}

/// What must outlive the operator's process, kept in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Pod of the primary.
    pub current: Option<String>,
    /// Pod that is to be the primary.
    pub target: Option<String>,
    /// Number of changes of the primary.
    pub term: i64,
    /// Pods that may be receiving from the primary.
    pub members: BTreeSet<String>,
    /// The lowest `min-replicas-to-write` that may be in force on the primary.
    pub quorum: u32,
    /// A key was seen since the last change of the primary, or the new one had one.
    pub holds_data: bool,
    /// Pod of a replica that is cut off while the primary serves, to be removed: it lacks writes that nobody knows of.
    pub leaving: Option<String>,
}

/// The StatefulSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Number of pods that it is to have.
    pub replicas: u32,
    /// Hash of the pod template that the operator renders now.
    pub template_hash: String,
    /// UID of the StatefulSet.
    pub uid: String,
    /// Size of the volumes of new pods in bytes; none if they have none.
    pub volumes: Option<u128>,
    /// It is being deleted.
    pub terminating: bool,
}

/// What Kubernetes says of the volume claim of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// The size that it asks for, in bytes.
    pub asked: u128,
    /// The size that its volume has, in bytes.
    pub has: u128,
    /// The volume has grown, and its file system will when the pod starts anew.
    pub pending: bool,
}

/// One server: its pod, what was last heard of it, and what was seen before.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Name of the pod, which may be gone.
    pub name: String,
    /// The pod, if it exists.
    pub pod: Option<PodFacts>,
    /// What is known of the server now.
    pub view: View,
    /// When the answer in `view` came.
    pub answered: Option<Instant>,
    /// When it was last seen as a writable primary.
    pub primary: Option<Sighting>,
    /// When its link to a primary was last seen up, and to which.
    pub linked: Option<(Instant, Address)>,
    /// Since when it has been seen detached.
    pub detached: Option<Instant>,
    /// Since when it has been seen waiting for its successor to take over.
    pub promoting: Option<Instant>,
    /// When it was last seen to have kept its role although it was to hand it over.
    pub kept: Option<Instant>,
    /// Since when it has served without interruption, as the primary or with its link up.
    pub steady: Option<Instant>,
    /// Since when it has been silent, if known.
    pub silent: Option<Instant>,
    /// When it last answered, however long ago.
    pub heard: Option<Instant>,
    /// Its monitor, if it has one, has looked at least once.
    pub looked: bool,
    /// A volume exists that may hold data.
    pub volume: bool,
    /// The claim of that volume, where it is known.
    pub claim: Option<Claim>,
    /// Why the server refuses the operator's account.
    pub login: Option<String>,
}

/// What Kubernetes says of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Its UID.
    pub uid: String,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// Whether its node is known to be ready, so that the kubelet's words are current.
    pub node: Node,
    /// Its node takes no new pods: it is about to be emptied.
    pub cordoned: bool,
    /// Time since its creation.
    pub age: Duration,
    /// It is being deleted.
    pub terminating: bool,
    /// Its readiness probe succeeds.
    pub ready: bool,
    /// State of the server's container as the kubelet says.
    pub process: Process,
    /// The role that its label admits it to.
    pub role: Option<Role>,
    /// Hash of the template that it was made from.
    pub template_hash: Option<String>,
    /// Why it does not run, such as `ErrImagePull: …`.
    pub trouble: Option<String>,
}

/// State of a pod's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// The pod has none yet.
    None,
    /// Ready.
    Ready,
    /// Not ready, or not known to be.
    Unknown,
    /// The node is gone or marked as out of service.
    Gone,
}

/// State of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Not started yet, or waiting to be started again.
    Waiting,
    /// Running.
    Running,
    /// Ended.
    Terminated,
    /// The kubelet hasn't said.
    Unknown,
}

/// What is known of a server now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// It answered within the last three seconds.
    Reached(Box<Server>),
    /// Proven not to run.
    Down(Proof),
    /// No answer, which proves nothing.
    Unreachable {
        /// Since when.
        since: Instant,
    },
}

/// Why a server is known not to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The kubelet of a ready node says that the container doesn't run.
    NotRunning,
    /// The pod exists with its address on a ready node, and refused connections twice.
    Refused,
    /// The pod does not exist.
    Gone,
    /// The pod that was observed is gone; the one of its name has never answered, so it was never admitted.
    Replaced,
    /// The node is gone or marked as out of service.
    NodeGone,
    /// A human confirmed it.
    Confirmed,
}

impl Proof {
    /// Whether the server is expected to start again by itself.
    pub fn returns(self) -> bool {
        matches!(self, Self::NotRunning | Self::Refused | Self::Gone | Self::Replaced)
    }

    /// The proof in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NotRunning => "its container does not run",
            Self::Refused => "it refuses connections",
            Self::Gone => "its pod is gone",
            Self::Replaced => "its pod is gone, and the new one does not answer yet",
            Self::NodeGone => "its node is gone",
            Self::Confirmed => "confirmed by annotation",
        }
    }
}

impl Instance {
    /// Puts together what Kubernetes says of the pod called `name` and what its monitor has seen at `now`.
    /// `confirmed`: a human took responsibility for this pod (by UID) being dead.
    pub fn of(
        name: String,
        pod: Option<PodFacts>,
        track: Option<&Track>,
        now: Instant,
        volume: bool,
        confirmed: bool,
    ) -> Self {
        let answer = track.and_then(|track| track.answer(now));
        let view = match (&pod, answer) {
            (None, _) => View::Down(Proof::Gone),
            (Some(_), Some((_, server))) => View::Reached(Box::new(server.clone())),
            (Some(_), None) if confirmed => View::Down(Proof::Confirmed),
            (Some(pod), None) => match (pod.node, pod.process) {
                (Node::Gone, _) => View::Down(Proof::NodeGone),
                (Node::None, _) | (Node::Ready, Process::Waiting | Process::Terminated) => {
                    View::Down(Proof::NotRunning)
                }
                (Node::Ready, _) if track.is_some_and(Track::dead) => View::Down(Proof::Refused),
                _ if track.is_some_and(Track::untouched) => View::Down(Proof::Replaced),
                _ => View::Unreachable { since: track.and_then(Track::silent_since).unwrap_or(now) },
            },
        };
        Self {
            name,
            pod,
            answered: answer.map(|(at, _)| at),
            view,
            primary: track.and_then(Track::primary).cloned(),
            linked: track.and_then(Track::linked).cloned(),
            detached: track.and_then(Track::detached),
            promoting: track.and_then(Track::promoting),
            kept: track.and_then(Track::kept),
            steady: track.and_then(Track::steady),
            silent: track.and_then(Track::silent_since),
            heard: track.and_then(Track::heard),
            looked: track.is_none_or(Track::looked),
            volume,
            claim: None,
            login: track.and_then(Track::login).map(str::to_owned),
        }
    }

    /// The server, if it answered.
    pub fn server(&self) -> Option<&Server> {
        match &self.view {
            View::Reached(server) => Some(server),
            View::Down(_) | View::Unreachable { .. } => None,
        }
    }

    /// Whether it is proven not to run.
    pub fn down(&self) -> bool {
        matches!(self.view, View::Down(_))
    }

    /// The pod's address.
    pub fn ip(&self) -> Option<&str> {
        self.pod.as_ref()?.ip.as_deref()
    }

    /// Whether its answer came at or after `at`.
    pub fn answered_since(&self, at: Instant) -> bool {
        self.answered.is_some_and(|answered| answered >= at)
    }

    /// How long it has been without an answer at `now`: since its last one, once a later question got none.
    pub fn silence(&self, now: Instant) -> Duration {
        match self.view {
            View::Unreachable { since } => {
                now.saturating_duration_since(self.heard.map_or(since, |heard| heard.min(since)))
            }
            View::Reached(_) | View::Down(_) => Duration::ZERO,
        }
    }
}
