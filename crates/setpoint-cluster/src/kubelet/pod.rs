//! One pod on a node as a pure machine: `(state, event, now) → (state, effects)`, with the pod's status as a
//! function of the state. The worker feeds it and carries out what it asks for.
//!
//! ```text
//! Prepare ─▶ init containers one by one ─▶ containers ─▶ … ─▶ all stopped ─▶ RemoveSandbox ─▶ Finalize
//!    ▲                                                  │
//!    └──────────────── sandbox ended ◀──────────────────┘
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::backoff::later;
use super::container::{ContainerMachine, Role, Turn, role_of};
use super::hook::Hook;
use super::probe::{ProbeAction, ProbeOutcome};
use super::prober::ProbeKind;
use super::runtime::{ContainerId, Exit, Image, ImageError, Sandbox, Signal};
use crate::recorder::Note;

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The pod was seen in this form.
    Seen(Arc<Pod>),
    /// The pod is gone from the API: it was deleted without waiting for this node.
    Gone,
    /// Volumes and sandbox are there, or not (reason of the event, message).
    Prepared(Result<Sandbox, (String, String)>),
    /// The sandbox has ended by itself; the exits of its containers follow.
    SandboxEnded,
    /// A start ended.
    Started { container: String, result: Result<(ContainerId, Image), StartFailure> },
    /// A run ended.
    Exited { container: String, id: ContainerId, exit: Exit },
    /// A probe ended.
    Probed { container: String, id: ContainerId, kind: ProbeKind, outcome: ProbeOutcome },
    /// A `postStart` hook ended, with a message if it failed.
    PostStartDone { container: String, id: ContainerId, failure: Option<String> },
    /// A `preStop` hook ended, with a message if it failed.
    PreStopDone { container: String, id: ContainerId, failure: Option<String> },
    /// The sandbox is removed, or could not be.
    Removed(Result<(), String>),
    /// The node is heard from again: what others wrote meanwhile is put right.
    Reconnected,
    /// Time has passed.
    Tick,
}

/// Why a container did not start.
#[derive(Debug)]
pub enum StartFailure {
    /// Its image is not there.
    Image(ImageError),
    /// What it refers to is not there (`CreateContainerConfigError`).
    Config(String),
    /// The machine refused (`CreateContainerError`).
    Create(String),
    /// Its command cannot be run; counts as an exit with this code.
    Run {
        /// Which command and why.
        message: String,
        /// The exit code.
        code: i32,
    },
}

/// What the worker has to do; each but the notes comes back as an event.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Work out the volumes, create the sandbox, write the files.
    Prepare,
    /// Resolve the image, work out the environment, start.
    Start { container: String, attempt: u32 },
    /// Send a signal.
    Signal { id: ContainerId, signal: Signal },
    /// Run a probe.
    Probe { container: String, id: ContainerId, kind: ProbeKind, action: ProbeAction, timeout: Duration },
    /// Run a `postStart` hook.
    PostStart { container: String, id: ContainerId, hook: Hook },
    /// Run a `preStop` hook.
    PreStop { container: String, id: ContainerId, hook: Hook },
    /// Forget an old run.
    Remove(ContainerId),
    /// Remove the sandbox.
    RemoveSandbox,
    /// Delete the pod from the API, without grace, with its UID as precondition; then this machine ends.
    Finalize,
    /// Record an event about the pod, or about one of its containers.
    Note { container: Option<(Role, String)>, note: Note },
    /// Record that a container waits for its restart.
    NoteBackOff { container: String },
}

#[derive(Clone, Debug)]
enum Preparation {
    Due {
        at: Timestamp,
        wait: Duration,
    },
    Running {
        wait: Duration,
    },
    Done(Sandbox),
    /// The sandbox has ended: a new one is made once no container counts as running.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Due(Timestamp),
    Running,
    Done,
}

/// First wait before a failed preparation is tried again; doubles to [`PREPARE_LONGEST`].
const PREPARE_FIRST: Duration = Duration::from_millis(500);
const PREPARE_LONGEST: Duration = Duration::from_secs(10);
/// Wait before a failed removal is tried again.
const REMOVE_RETRY: Duration = Duration::from_secs(1);
/// Grace of a pod that does not say any (the API's default).
const DEFAULT_GRACE: u64 = 30;

/// The machine of one pod.
#[derive(Clone, Debug)]
pub struct PodMachine {
    pub(super) pod: Arc<Pod>,
    pub(super) since: Timestamp,
    pub(super) containers: Vec<ContainerMachine>,
    pub(super) conditions: BTreeMap<&'static str, super::pod_status::Condition>,
    preparation: Preparation,
    removal: Option<Removal>,
    ending: bool,
    gone: bool,
    finalized: bool,
}

impl PodMachine {
    /// A machine for a pod that was just seen for the first time.
    pub fn new(pod: Arc<Pod>, now: Timestamp) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let init = spec.init_containers.clone().unwrap_or_default();
        let reason = if init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
        let first = |spec| ContainerMachine::new(spec, role_of(&pod, &spec.name), "PodInitializing", now);
        let mut containers: Vec<_> = init.iter().map(first).collect();
        containers
            .extend(spec.containers.iter().map(|spec| ContainerMachine::new(spec, Role::Main, reason, now)));
        let mut machine = Self {
            pod,
            since: now,
            containers,
            conditions: BTreeMap::new(),
            preparation: Preparation::Due { at: now, wait: PREPARE_FIRST },
            removal: None,
            ending: false,
            gone: false,
            finalized: false,
        };
        machine.refresh_conditions(now);
        machine
    }

    /// The pod as last seen.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// The pod's address, once it has one.
    pub fn address(&self) -> Option<IpAddr> {
        self.sandbox().and_then(|sandbox| sandbox.addresses.first().copied())
    }

    /// The sandbox, once it exists.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match &self.preparation {
            Preparation::Done(sandbox) => Some(sandbox),
            _ => None,
        }
    }

    /// The container of that name.
    pub fn container(&self, name: &str) -> Option<&ContainerMachine> {
        self.containers.iter().find(|container| container.spec.name == name)
    }

    /// Whether everything is done and the machine can be dropped.
    pub fn is_over(&self) -> bool {
        self.finalized
    }

    /// Whether the pod is on its way out.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    pub(super) fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    /// Takes an event and gives what has to be done now.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut turn = Turn { now, address: self.address(), effects: Vec::new() };
        self.take(event, &mut turn);
        turn.address = self.address();
        self.advance(&mut turn);
        self.refresh_conditions(now);
        turn.effects
    }

    fn take(&mut self, event: Event, turn: &mut Turn) {
        let grace = self.grace();
        let policy =
            self.spec().and_then(|spec| spec.restart_policy.clone()).unwrap_or_else(|| "Always".into());
        let ending = self.ending;
        let restart = |role: Role| {
            let policy = policy.clone();
            move |code: i32| !ending && restarts(role, &policy, code)
        };
        match event {
            Event::Seen(pod) => self.pod = pod,
            Event::Gone => {
                self.gone = true;
                self.ending = true;
            }
            Event::Prepared(Ok(sandbox)) => self.preparation = Preparation::Done(sandbox),
            Event::Prepared(Err((reason, message))) => {
                if let Preparation::Running { wait } = self.preparation {
                    turn.effects
                        .push(Effect::Note { container: None, note: Note::warning(&reason, message) });
                    self.preparation =
                        Preparation::Due { at: later(turn.now, wait), wait: (wait * 2).min(PREPARE_LONGEST) };
                }
            }
            Event::SandboxEnded => {
                // Removed in order, or replaced already.
                if matches!(self.preparation, Preparation::Done(_)) && !self.ending {
                    self.preparation = Preparation::Lost;
                }
            }
            Event::Started { container, result } => {
                if let Some(container) = self.find(&container) {
                    let restart = restart(container.role);
                    match result {
                        Ok((id, image)) => container.started(id, image, turn),
                        Err(failure) => container.start_failed(failure, restart, turn),
                    }
                }
            }
            Event::Exited { container, id, exit } => {
                if let Some(container) = self.find(&container) {
                    let restart = restart(container.role);
                    container.exited(&id, &exit, restart, turn);
                }
            }
            Event::Probed { container, id, kind, outcome } => {
                if let Some(container) = self.find(&container) {
                    container.probed(&id, kind, &outcome, grace, turn);
                }
            }
            Event::PostStartDone { container, id, failure } => {
                if let Some(message) = failure
                    && let Some(container) = self.find(&container)
                    && container.running() == Some(&id)
                {
                    let about = Some((container.role, container.spec.name.clone()));
                    let note =
                        Note::warning("FailedPostStartHook", format!("PostStartHook failed: {message}"));
                    turn.effects.push(Effect::Note { container: about, note });
                    container.stop(grace, "FailedPostStartHook", turn);
                }
            }
            Event::PreStopDone { container, id, failure } => {
                if let Some(container) = self.find(&container) {
                    container.pre_stop_done(&id, failure, turn);
                }
            }
            Event::Removed(Ok(())) => self.removal = Some(Removal::Done),
            Event::Removed(Err(message)) => {
                turn.effects
                    .push(Effect::Note { container: None, note: Note::warning("FailedKillPod", message) });
                self.removal = Some(Removal::Due(later(turn.now, REMOVE_RETRY)));
            }
            Event::Reconnected | Event::Tick => {}
        }
    }

    /// Brings everything as far as it can go turn.now.
    fn advance(&mut self, turn: &mut Turn) {
        if self.pod.metadata.deletion_timestamp.is_some() {
            self.ending = true;
        }
        for container in &mut self.containers {
            container.tick(turn);
        }
        if self.ending {
            self.end(turn);
            return;
        }
        if self.is_terminal() {
            // Sidecars outlive the containers that they serve, not the pod.
            let grace = self.grace();
            for container in self.containers.iter_mut().filter(|container| container.role == Role::Sidecar) {
                container.forbid_restart();
                let why = format!("Stopping container {}", container.spec.name);
                container.stop(grace, &why, turn);
            }
            return;
        }
        self.replace_sandbox(turn);
        match self.preparation {
            Preparation::Due { at, wait } if at <= turn.now => {
                self.preparation = Preparation::Running { wait };
                turn.effects.push(Effect::Prepare);
            }
            Preparation::Done(_) => {
                let mut open = true;
                for container in &mut self.containers {
                    if open && !(container.role == Role::Init && container.finished()) {
                        container.start_if_due(turn);
                    }
                    open &= container.lets_pass();
                }
            }
            _ => {}
        }
    }

    /// Begins again in a new sandbox when the old one has ended: init containers run again, then the others as their
    /// restart policy and back-off say (`computePodActions` in `pkg/kubelet/kuberuntime` upstream).
    fn replace_sandbox(&mut self, turn: &mut Turn) {
        if !matches!(self.preparation, Preparation::Lost)
            || !self.containers.iter().all(ContainerMachine::quiet)
        {
            return;
        }
        let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
        turn.effects.push(Effect::Note { container: None, note: Note::normal("SandboxChanged", message) });
        for container in self.containers.iter_mut().filter(|container| container.role == Role::Init) {
            container.run_again(turn.now);
        }
        self.preparation = Preparation::Due { at: turn.now, wait: PREPARE_FIRST };
    }

    /// Stops containers, then sidecars, then removes the sandbox, then the pod.
    fn end(&mut self, turn: &mut Turn) {
        let grace = self.grace();
        let mains_quiet = self
            .containers
            .iter()
            .filter(|container| container.role != Role::Sidecar)
            .all(ContainerMachine::quiet);
        for container in &mut self.containers {
            container.forbid_restart();
            if (container.role != Role::Sidecar || mains_quiet) && !container.stopping() {
                let why = format!("Stopping container {}", container.spec.name);
                container.stop(grace, &why, turn);
            } else if container.stopping() && self.pod.metadata.deletion_grace_period_seconds == Some(0) {
                container.stop(Duration::ZERO, "", turn);
            }
        }
        if !self.containers.iter().all(ContainerMachine::quiet)
            || matches!(self.preparation, Preparation::Running { .. })
        {
            return;
        }
        match self.removal {
            None => {
                self.removal = Some(Removal::Running);
                turn.effects.push(Effect::RemoveSandbox);
            }
            Some(Removal::Due(at)) if at <= turn.now => {
                self.removal = Some(Removal::Running);
                turn.effects.push(Effect::RemoveSandbox);
            }
            Some(Removal::Done) if !self.finalized => {
                self.finalized = true;
                if !self.gone {
                    turn.effects.push(Effect::Finalize);
                }
            }
            _ => {}
        }
    }

    /// When something is due, if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let mut times = Vec::new();
        let over = self.ending || self.is_terminal();
        if !over && let Preparation::Due { at, .. } = self.preparation {
            times.push(at);
        }
        if let Some(Removal::Due(at)) = self.removal {
            times.push(at);
        }
        let mut open = !over && matches!(self.preparation, Preparation::Done(_));
        for container in &self.containers {
            times.extend(container.wake_at(open));
            open &= container.lets_pass();
        }
        times.into_iter().min()
    }

    /// All containers have ended for good: the pod has succeeded or failed.
    pub(super) fn is_terminal(&self) -> bool {
        let failed_init =
            self.containers.iter().any(|c| c.role == Role::Init && c.finished() && !c.succeeded());
        let mut mains = self.containers.iter().filter(|container| container.role == Role::Main).peekable();
        failed_init || (mains.peek().is_some() && mains.all(ContainerMachine::finished))
    }

    fn grace(&self) -> Duration {
        let metadata = &self.pod.metadata;
        let seconds = metadata
            .deletion_grace_period_seconds
            .or_else(|| self.spec().and_then(|spec| spec.termination_grace_period_seconds))
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(DEFAULT_GRACE);
        // A forced deletion still lets processes see the signal.
        Duration::from_secs(if self.ending { seconds.max(1) } else { seconds })
    }

    fn find(&mut self, name: &str) -> Option<&mut ContainerMachine> {
        self.containers.iter_mut().find(|container| container.spec.name == name)
    }
}

fn restarts(role: Role, policy: &str, code: i32) -> bool {
    match (role, policy) {
        (Role::Sidecar, _) | (Role::Main, "Always") => true,
        (_, "Never") => false,
        (Role::Init, _) | (Role::Main, "OnFailure") => code != 0,
        (Role::Main, _) => false,
    }
}

#[cfg(test)]
mod tests;
