//! One container of a pod: its runs, restarts, probes and stop.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::backoff::{Backoff, later};
use super::hook::{lifecycle_hook, probe_action, stop_signal};
use super::pod::{Effect, StartFailure};
use super::probe::ProbeOutcome;
use super::prober::{ProbeKind, Prober};
use super::runtime::{ContainerId, Exit, Image, ImageError, Signal};
use crate::recorder::Note;

/// Which part a container has in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next one.
    Init,
    /// An init container with `restartPolicy: Always`: has to be started before the next one, runs on.
    Sidecar,
    /// The rest.
    Main,
}

/// The part that the container of that name has in a pod.
pub fn role_of(pod: &Pod, name: &str) -> Role {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    match init.into_iter().find(|container| container.name == name) {
        Some(container) if container.restart_policy.as_deref() == Some("Always") => Role::Sidecar,
        Some(_) => Role::Init,
        None => Role::Main,
    }
}

/// Where a container is.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// No run yet, or none possible for now. `since` is when the reason appeared.
    Waiting { reason: &'static str, message: Option<String>, since: Timestamp, retry: Timestamp },
    /// Runs.
    Running { id: ContainerId, since: Timestamp },
    /// Has ended; `restart` is when it is started again, none = never.
    Exited { run: ContainerStateTerminated, at: Timestamp, restart: Option<Timestamp> },
}

/// A stop that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// `preStop` runs; it may until the time given, and the whole grace ends then.
    Hook { until: Timestamp },
    /// The stop signal was sent; SIGKILL at the time given.
    Asked { kill_at: Timestamp },
    /// SIGKILL was sent.
    Killed,
}

/// After a `preStop` hook a container gets at least this long between its signal and SIGKILL
/// (`minimumGracePeriodInSeconds` upstream).
const MINIMUM_GRACE: Duration = Duration::from_secs(2);
/// How soon a start that failed for missing configuration is tried again.
const CONFIG_RETRY: Duration = Duration::from_secs(2);
/// `ErrImagePull` becomes `ImagePullBackOff` after this.
const PULL_ERROR_SHOWN: Duration = Duration::from_secs(1);

/// What one step of a pod's machine works with.
#[derive(Debug)]
pub struct Turn {
    /// The time of the step.
    pub now: Timestamp,
    /// The pod's address, once it has one.
    pub address: Option<IpAddr>,
    /// What has to be done, in order.
    pub effects: Vec<Effect>,
}

/// The machine of one container.
#[derive(Clone, Debug)]
pub struct ContainerMachine {
    pub spec: Container,
    pub role: Role,
    pub state: State,
    pub last: Option<ContainerStateTerminated>,
    pub restarts: u32,
    pub started: bool,
    pub image: Option<Image>,
    /// A start is under way.
    pub starting: bool,
    ready: bool,
    attempts: u32,
    crashes: Backoff,
    pulls: Backoff,
    stop: Option<Stop>,
    probers: Vec<Prober>,
    previous: Option<ContainerId>,
    config_note: Option<String>,
}

impl ContainerMachine {
    pub fn new(spec: &Container, role: Role, reason: &'static str, now: Timestamp) -> Self {
        Self {
            spec: spec.clone(),
            role,
            state: State::Waiting { reason, message: None, since: now, retry: now },
            last: None,
            restarts: 0,
            started: false,
            image: None,
            starting: false,
            ready: false,
            attempts: 0,
            crashes: Backoff::kubelet(),
            pulls: Backoff::kubelet(),
            stop: None,
            probers: Vec::new(),
            previous: None,
            config_note: None,
        }
    }

    /// Whether it counts as ready in `containerStatuses`.
    pub fn ready(&self) -> bool {
        match self.role {
            Role::Init => self.succeeded(),
            Role::Sidecar | Role::Main => self.ready && matches!(self.state, State::Running { .. }),
        }
    }

    pub fn succeeded(&self) -> bool {
        matches!(&self.state, State::Exited { run, restart: None, .. } if run.exit_code == 0)
    }

    /// Ended for good.
    pub fn finished(&self) -> bool {
        !self.starting && matches!(&self.state, State::Exited { restart: None, .. })
    }

    /// Neither runs nor is about to.
    pub fn quiet(&self) -> bool {
        !self.starting && !matches!(self.state, State::Running { .. })
    }

    pub fn running(&self) -> Option<&ContainerId> {
        match &self.state {
            State::Running { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The run before the current one, while its log is kept.
    pub fn previous(&self) -> Option<ContainerId> {
        match &self.state {
            State::Running { .. } => self.previous.clone(),
            _ => None,
        }
    }

    /// The newest run, whether it still runs or not.
    pub fn newest(&self) -> Option<ContainerId> {
        match &self.state {
            State::Running { id, .. } => Some(id.clone()),
            _ => self.previous.clone(),
        }
    }

    /// Whether the init containers behind this one may go on.
    pub fn lets_pass(&self) -> bool {
        match self.role {
            Role::Init => self.succeeded(),
            Role::Sidecar => self.started,
            Role::Main => true,
        }
    }

    /// Starts it if that is due.
    pub fn start_if_due(&mut self, turn: &mut Turn) {
        if self.starting {
            return;
        }
        let due = match &self.state {
            State::Waiting { retry, .. } => *retry <= turn.now,
            State::Exited { restart: Some(at), .. } => *at <= turn.now,
            _ => false,
        };
        if due {
            if let State::Exited { at, .. } = &self.state {
                self.crashes.next(*at, turn.now);
            }
            self.starting = true;
            turn.effects.push(Effect::Start { container: self.spec.name.clone(), attempt: self.attempts });
            return;
        }
        self.show_pull_back_off(turn.now);
    }

    /// `ErrImagePull` turns into `ImagePullBackOff` after a moment.
    fn show_pull_back_off(&mut self, now: Timestamp) {
        if let State::Waiting { reason: reason @ "ErrImagePull", message, since, .. } = &mut self.state
            && later(*since, PULL_ERROR_SHOWN) <= now
        {
            *reason = "ImagePullBackOff";
            let cause = message.take().unwrap_or_default();
            let image = self.spec.image.as_deref().unwrap_or_default();
            *message = Some(format!("Back-off pulling image \"{image}\": ErrImagePull: {cause}"));
        }
    }

    pub fn started(&mut self, id: ContainerId, image: Image, turn: &mut Turn) {
        self.starting = false;
        self.attempts += 1;
        self.config_note = None;
        if let State::Exited { run, .. } = &self.state {
            self.last = Some(run.clone());
            self.restarts += 1;
        }
        self.image = Some(image);
        self.state = State::Running { id: id.clone(), since: turn.now };
        self.stop = None;
        let probes = [
            (ProbeKind::Startup, &self.spec.startup_probe),
            (ProbeKind::Liveness, &self.spec.liveness_probe),
            (ProbeKind::Readiness, &self.spec.readiness_probe),
        ];
        self.probers =
            probes.iter().filter_map(|(kind, probe)| Some(Prober::new(*kind, probe.as_ref()?))).collect();
        self.started = self.spec.startup_probe.is_none();
        self.ready = self.started && self.spec.readiness_probe.is_none();
        for prober in &mut self.probers {
            if self.started || prober.kind == ProbeKind::Startup {
                prober.begin(turn.now, turn.now);
            }
        }
        turn.effects
            .push(self.note(Note::normal("Started", format!("Started container {}", self.spec.name))));
        let lifecycle = self.spec.lifecycle.as_ref();
        if let Some(hook) = lifecycle_hook(
            lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref()),
            &self.spec,
            turn.address,
        ) {
            turn.effects.push(Effect::PostStart { container: self.spec.name.clone(), id, hook });
        }
    }

    /// A start that did not come to a running process.
    pub fn start_failed(&mut self, failure: StartFailure, restart: impl Fn(i32) -> bool, turn: &mut Turn) {
        self.starting = false;
        match failure {
            StartFailure::Image(error) => {
                let message = error.to_string();
                let wait = {
                    self.pulls.next(turn.now, turn.now);
                    self.pulls.delay(turn.now)
                };
                let (reason, note) = match &error {
                    ImageError::Invalid { .. } => (
                        "InvalidImageName",
                        Note::warning(
                            "InspectFailed",
                            format!("Failed to apply default image tag: {message}"),
                        ),
                    ),
                    ImageError::NotFound { image, .. } => (
                        "ErrImagePull",
                        Note::warning("Failed", format!("Failed to pull image \"{image}\": {message}")),
                    ),
                };
                turn.effects.push(self.note(note));
                turn.effects.push(self.note(Note::warning("Failed", format!("Error: {reason}"))));
                self.wait_again(reason, message, wait, turn.now);
            }
            StartFailure::Config(message) => {
                self.note_once(&message, turn);
                self.wait_again("CreateContainerConfigError", message, CONFIG_RETRY, turn.now);
            }
            StartFailure::Create(message) => {
                self.note_once(&message, turn);
                self.wait_again("CreateContainerError", message, CONFIG_RETRY, turn.now);
            }
            StartFailure::Run { message, code } => {
                turn.effects.push(self.note(Note::warning("Failed", format!("Error: {message}"))));
                if let State::Exited { run, .. } = &self.state {
                    self.last = Some(run.clone());
                    self.restarts += 1;
                }
                self.attempts += 1;
                let run = ContainerStateTerminated {
                    exit_code: code,
                    reason: Some("StartError".into()),
                    message: Some(message),
                    started_at: Some(Time(Timestamp::UNIX_EPOCH)),
                    finished_at: Some(seconds(turn.now)),
                    ..ContainerStateTerminated::default()
                };
                self.exited_with(run, restart(code), turn);
            }
        }
    }

    fn wait_again(&mut self, reason: &'static str, message: String, wait: Duration, now: Timestamp) {
        if let State::Exited { run, .. } = &self.state {
            self.last = Some(run.clone());
            self.restarts += 1;
        }
        self.state = State::Waiting { reason, message: Some(message), since: now, retry: later(now, wait) };
    }

    /// Says why a start fails, once for each cause.
    fn note_once(&mut self, message: &str, turn: &mut Turn) {
        if self.config_note.as_deref() != Some(message) {
            self.config_note = Some(message.to_owned());
            turn.effects.push(self.note(Note::warning("Failed", format!("Error: {message}"))));
        }
    }

    pub fn exited(&mut self, id: &ContainerId, exit: &Exit, restart: impl Fn(i32) -> bool, turn: &mut Turn) {
        let State::Running { id: current, since } = &self.state else { return };
        if current != id {
            return;
        }
        let reason = match exit {
            Exit { out_of_memory: true, .. } => "OOMKilled",
            Exit { code: 0, .. } => "Completed",
            _ => "Error",
        };
        let run = ContainerStateTerminated {
            container_id: Some(id.0.clone()),
            exit_code: exit.code,
            // Upstream's runtimes report 128 + n and leave `signal` out.
            signal: None,
            reason: Some(reason.into()),
            message: exit.message.clone(),
            started_at: Some(seconds(*since)),
            finished_at: Some(seconds(exit.finished_at)),
        };
        if let Some(older) = self.previous.replace(id.clone()) {
            turn.effects.push(Effect::Remove(older));
        }
        self.exited_with(run, restart(exit.code), turn);
    }

    fn exited_with(&mut self, run: ContainerStateTerminated, restart: bool, turn: &mut Turn) {
        self.stop = None;
        self.probers.clear();
        self.started = false;
        self.ready = false;
        let wait = self.crashes.delay(turn.now);
        if restart && !wait.is_zero() {
            turn.effects.push(Effect::NoteBackOff { container: self.spec.name.clone() });
        }
        self.state = State::Exited { run, at: turn.now, restart: restart.then(|| later(turn.now, wait)) };
    }

    /// The message of `CrashLoopBackOff`, while it waits for its restart.
    pub fn back_off(&self, pod: &str, uid: &str) -> Option<String> {
        match &self.state {
            State::Exited { at, restart: Some(restart), .. } if restart > at && !self.starting => {
                Some(format!(
                    "back-off {} restarting failed container={} pod={pod}({uid})",
                    go_duration(self.crashes.delay(*at)),
                    self.spec.name
                ))
            }
            _ => None,
        }
    }

    /// Lets an init container that had succeeded run once more, for a new sandbox.
    pub fn run_again(&mut self, now: Timestamp) {
        if let State::Exited { at, restart: restart @ None, .. } = &mut self.state {
            (*at, *restart) = (now, Some(now));
        }
    }

    /// Never starts again.
    pub fn forbid_restart(&mut self) {
        if let State::Exited { restart, .. } = &mut self.state {
            *restart = None;
        }
    }

    /// Asks it to stop: `preStop`, signal, grace, SIGKILL. A second call can only shorten the grace.
    pub fn stop(&mut self, grace: Duration, why: &str, turn: &mut Turn) {
        let State::Running { id, .. } = &self.state else { return };
        let end = later(turn.now, grace);
        match &mut self.stop {
            Some(Stop::Hook { until }) => {
                *until = (*until).min(end);
                return;
            }
            Some(Stop::Asked { kill_at }) => {
                *kill_at = (*kill_at).min(end);
                return;
            }
            Some(Stop::Killed) => return,
            None => {}
        }
        let id = id.clone();
        for prober in &mut self.probers {
            if prober.kind != ProbeKind::Readiness {
                prober.end();
            }
        }
        turn.effects.push(self.note(Note::normal("Killing", why.to_owned())));
        let lifecycle = self.spec.lifecycle.as_ref();
        let hook = lifecycle_hook(
            lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()),
            &self.spec,
            turn.address,
        );
        match hook.filter(|_| !grace.is_zero()) {
            Some(hook) => {
                self.stop = Some(Stop::Hook { until: end });
                turn.effects.push(Effect::PreStop { container: self.spec.name.clone(), id, hook });
            }
            None => self.ask(id, end, turn),
        }
    }

    fn ask(&mut self, id: ContainerId, kill_at: Timestamp, turn: &mut Turn) {
        let signal = stop_signal(&self.spec);
        self.stop = Some(if signal == Signal::Kill { Stop::Killed } else { Stop::Asked { kill_at } });
        turn.effects.push(Effect::Signal { id, signal });
    }

    pub fn pre_stop_done(&mut self, id: &ContainerId, failure: Option<String>, turn: &mut Turn) {
        if self.running() != Some(id) {
            return;
        }
        if let Some(Stop::Hook { until }) = self.stop {
            if let Some(message) = failure {
                turn.effects.push(
                    self.note(Note::warning("FailedPreStopHook", format!("PreStopHook failed: {message}"))),
                );
            }
            self.ask(id.clone(), until.max(later(turn.now, MINIMUM_GRACE)), turn);
        }
    }

    /// Whether a stop has begun.
    pub fn stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// Starts what is due while it runs: probes, the end of a grace period.
    pub fn tick(&mut self, turn: &mut Turn) {
        let State::Running { id, .. } = &self.state else { return };
        let id = id.clone();
        match self.stop {
            Some(Stop::Hook { until }) if until <= turn.now => {
                let message = "PreStopHook took longer than the grace period".to_owned();
                turn.effects.push(self.note(Note::warning("FailedPreStopHook", message)));
                self.ask(id.clone(), later(turn.now, MINIMUM_GRACE), turn);
            }
            Some(Stop::Asked { kill_at }) if kill_at <= turn.now => {
                self.stop = Some(Stop::Killed);
                turn.effects.push(Effect::Signal { id: id.clone(), signal: Signal::Kill });
            }
            _ => {}
        }
        for prober in &mut self.probers {
            let probe = match prober.kind {
                ProbeKind::Startup => &self.spec.startup_probe,
                ProbeKind::Liveness => &self.spec.liveness_probe,
                ProbeKind::Readiness => &self.spec.readiness_probe,
            };
            if let Some(probe) = probe
                && prober.start_if_due(turn.now)
            {
                turn.effects.push(Effect::Probe {
                    container: self.spec.name.clone(),
                    id: id.clone(),
                    kind: prober.kind,
                    action: probe_action(probe, &self.spec, turn.address),
                    timeout: prober.timeout,
                });
            }
        }
    }

    /// Takes a probe's outcome. `grace` is the pod's.
    pub fn probed(
        &mut self,
        id: &ContainerId,
        kind: ProbeKind,
        outcome: &ProbeOutcome,
        grace: Duration,
        turn: &mut Turn,
    ) {
        let State::Running { id: current, since } = &self.state else { return };
        if current != id {
            return;
        }
        let since = *since;
        let Some(prober) = self.probers.iter_mut().find(|prober| prober.kind == kind) else { return };
        let settled = prober.record(outcome);
        let grace = prober.grace.unwrap_or(grace);
        if let ProbeOutcome::Failure(message) = outcome {
            let message = format!("{} probe failed: {message}", kind.title());
            turn.effects.push(self.note(Note::warning("Unhealthy", message)));
        }
        match (kind, settled) {
            (ProbeKind::Startup, Some(true)) => {
                self.started = true;
                self.ready = self.spec.readiness_probe.is_none();
                for prober in &mut self.probers {
                    match prober.kind {
                        ProbeKind::Startup => prober.end(),
                        _ if self.stop.is_none() => prober.begin(since, turn.now),
                        _ => {}
                    }
                }
            }
            (ProbeKind::Startup | ProbeKind::Liveness, Some(false)) => {
                let why = format!(
                    "Container {} failed {} probe, will be restarted",
                    self.spec.name,
                    kind.title().to_lowercase()
                );
                self.stop(grace, &why, turn);
            }
            (ProbeKind::Readiness, Some(passed)) => self.ready = passed && self.started,
            _ => {}
        }
    }

    /// When something is due here.
    pub fn wake_at(&self, may_start: bool) -> Option<Timestamp> {
        let state = match &self.state {
            State::Waiting { reason, since, retry, .. } => {
                let shown = (*reason == "ErrImagePull").then(|| later(*since, PULL_ERROR_SHOWN));
                shown.into_iter().chain([*retry]).min().filter(|_| may_start && !self.starting)
            }
            State::Exited { restart, .. } => restart.filter(|_| may_start && !self.starting),
            State::Running { .. } => match self.stop {
                Some(Stop::Hook { until }) => Some(until),
                Some(Stop::Asked { kill_at }) => Some(kill_at),
                Some(Stop::Killed) | None => None,
            },
        };
        state.into_iter().chain(self.probers.iter().filter_map(Prober::due)).min()
    }

    fn note(&self, note: Note) -> Effect {
        Effect::Note { container: Some((self.role, self.spec.name.clone())), note }
    }
}

/// A time as Kubernetes writes it: whole seconds.
pub fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// A duration as Go prints it: `10s`, `2m40s`, `5m0s`.
fn go_duration(duration: Duration) -> String {
    match (duration.as_secs() / 60, duration.as_secs() % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}
