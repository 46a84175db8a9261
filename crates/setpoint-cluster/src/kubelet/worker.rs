//! Runs one pod's machine: feeds it what happens, carries out what it asks for, publishes its status.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, FutureExt, select};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Status;
use kube::{Client, Resource};
use serde_json::{Value, json};
use setpoint_clock::Clock;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::backoff::elapsed;
use super::container::{ContainerMachine, Role, State, role_of};
use super::environment::{Environment, PodFacts};
use super::hook::Hook;
use super::orders::{ClusterDns, container_spec, hostname, pod_ref, sandbox_config};
use super::pod::{Effect, Event, PodMachine, StartFailure};
use super::probe::{ProbeAction, ProbeOutcome};
use super::prober::ProbeKind;
use super::runtime::{ContainerId, Exit, Image, PodRef, Runtime, RuntimeError, Sandbox};
use super::sources::{Sources, Tokens};
use super::volumes::{files, volumes};
use crate::recorder::{Note, Recorder, Reporter};

/// What all pods of a node share.
pub struct NodeContext<R> {
    pub runtime: R,
    pub client: Client,
    pub clock: Clock,
    pub recorder: Recorder,
    pub reporter: Reporter,
    /// False while the node is cut off: nothing is decided or published then.
    pub connected: watch::Receiver<bool>,
    pub dns: ClusterDns,
    pub volume_refresh: Duration,
    pub host_ip: Option<String>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
}

impl<R> NodeContext<R> {
    /// Records an event about a pod or one of its containers.
    fn note(&self, pod: &Pod, container: Option<(Role, String)>, note: Note) {
        let field = container.map(|(role, name)| {
            let list = if role == Role::Main { "containers" } else { "initContainers" };
            format!("spec.{list}{{{name}}}")
        });
        let mut about = pod.object_ref(&());
        about.field_path = field;
        self.recorder.record(&self.reporter, about, note);
    }
}

/// Where `kubectl logs` and `exec` find a container.
#[derive(Clone, Debug, Default)]
pub struct ContainerView {
    /// The run that goes on now.
    pub running: Option<ContainerId>,
    /// The newest run, ended or not.
    pub newest: Option<ContainerId>,
    /// The run before that.
    pub previous: Option<ContainerId>,
    /// Why it does not run, when it waits.
    pub waiting: Option<String>,
}

/// Containers of a pod by name.
pub type PodView = BTreeMap<String, ContainerView>;

/// How long after a failed status write it is tried again.
const PUBLISH_RETRY: Duration = Duration::from_millis(500);
/// How long a hook may take beside the pod's own grace.
const HOOK_LIMIT: Duration = Duration::from_secs(3600);

/// The task of one pod.
pub struct Worker<R> {
    node: Arc<NodeContext<R>>,
    machine: PodMachine,
    pod: watch::Sender<Arc<Pod>>,
    view: watch::Sender<PodView>,
    events: mpsc::UnboundedReceiver<Event>,
    sender: mpsc::UnboundedSender<Event>,
    tasks: JoinSet<()>,
    /// Makes the sandbox and looks after it as long as it lasts.
    sandbox: Option<AbortHandle>,
    published: Option<Value>,
}

impl<R: Runtime> Worker<R> {
    /// A worker, the way to tell it what happens, and its containers as it sees them.
    pub fn new(
        node: Arc<NodeContext<R>>,
        pod: Arc<Pod>,
    ) -> (Self, mpsc::UnboundedSender<Event>, watch::Receiver<PodView>) {
        let (sender, events) = mpsc::unbounded_channel();
        let (view, view_receiver) = watch::channel(PodView::new());
        let machine = PodMachine::new(pod.clone(), node.clock.now());
        let worker = Self {
            node,
            machine,
            pod: watch::Sender::new(pod),
            view,
            events,
            sender: sender.clone(),
            tasks: JoinSet::new(),
            sandbox: None,
            published: None,
        };
        (worker, sender, view_receiver)
    }

    /// Runs until the pod is gone.
    pub async fn run(mut self) {
        let mut event = Event::Tick;
        let mut connected = self.node.connected.clone();
        self.tasks.spawn(report_reconnects(connected.clone(), self.sender.clone()));
        loop {
            // The sender lives in the node; without it the node is gone and this task with it.
            let _ = connected.wait_for(|connected| *connected).await;
            if let Event::Seen(pod) = &event {
                self.pod.send_replace(pod.clone());
            }
            if let Event::Reconnected = &event {
                self.published = None;
            }
            let effects = self.machine.step(event, self.node.clock.now());
            let mut finalize = false;
            for effect in effects {
                finalize |= effect == Effect::Finalize;
                self.carry_out(effect);
            }
            self.view.send_replace(self.current_view());
            let published = self.publish().await;
            if finalize {
                self.finalize().await;
            }
            if self.machine.is_over() {
                return;
            }
            while self.tasks.try_join_next().is_some() {}
            let now = self.node.clock.now();
            let wake = self.machine.wake_at().map(|at| elapsed(now, at));
            let wait =
                if published { wake } else { Some(wake.map_or(PUBLISH_RETRY, |w| w.min(PUBLISH_RETRY))) };
            event = match wait {
                // The worker holds a sender itself, so the channel never closes.
                None => self.events.recv().await.unwrap_or(Event::Tick),
                Some(wait) => timeout(wait, self.events.recv()).await.ok().flatten().unwrap_or(Event::Tick),
            };
        }
    }

    fn current_view(&self) -> PodView {
        let view = |container: &ContainerMachine| ContainerView {
            running: container.running().cloned(),
            newest: container.newest(),
            previous: container.previous(),
            waiting: match &container.state {
                State::Waiting { reason, .. } => Some((*reason).to_owned()),
                _ => None,
            },
        };
        self.machine.containers.iter().map(|c| (c.spec.name.clone(), view(c))).collect()
    }

    fn carry_out(&mut self, effect: Effect) {
        let (node, sender) = (self.node.clone(), self.sender.clone());
        let pod = self.machine.pod().clone();
        let address = self.machine.sandbox().cloned();
        match effect {
            Effect::Prepare => {
                let latest = self.pod.subscribe();
                let task = self.tasks.spawn(async move {
                    let issued = node.clock.now();
                    let result = prepare(&node, &pod).await;
                    let prepared = result.as_ref().ok().cloned();
                    let _ = sender.send(Event::Prepared(result.map(|(sandbox, _)| sandbox)));
                    let Some((sandbox, tokens)) = prepared else { return };
                    for what in pod.spec.iter().flat_map(|spec| node.runtime.without_effect(spec)) {
                        node.note(&pod, None, Note::warning("NotSupported", what));
                    }
                    let name = pod_ref(&pod);
                    let ended = pin!(node.runtime.sandbox_ended(&name));
                    if has_file_volumes(&pod) {
                        let facts = facts(&node, &pod, Some(&sandbox));
                        let refresh = pin!(refresh_volumes(&node, latest, &facts, tokens, issued));
                        if let Either::Left(((), ended)) = select(refresh, ended).await {
                            ended.await;
                        }
                    } else {
                        ended.await;
                    }
                    let _ = sender.send(Event::SandboxEnded);
                });
                if let Some(older) = self.sandbox.replace(task) {
                    older.abort();
                }
            }
            Effect::Start { container, attempt } => {
                self.tasks.spawn(async move {
                    let result = start(&node, &pod, address.as_ref(), &container, attempt).await;
                    let id = result.as_ref().ok().map(|(id, _)| id.clone());
                    let _ = sender.send(Event::Started { container: container.clone(), result });
                    let Some(id) = id else { return };
                    let exit = node.runtime.wait(&id).await.unwrap_or_else(|error| Exit {
                        code: 137,
                        signal: None,
                        out_of_memory: false,
                        message: Some(format!("The container could not be located: {error}")),
                        finished_at: node.clock.now(),
                    });
                    // Before the exit, which would otherwise be answered by a start in a sandbox that is no more.
                    if node.runtime.sandbox_ended(&pod_ref(&pod)).now_or_never().is_some() {
                        let _ = sender.send(Event::SandboxEnded);
                    }
                    let _ = sender.send(Event::Exited { container, id, exit });
                });
            }
            Effect::Signal { id, signal } => {
                self.tasks.spawn(async move {
                    if let Err(error) = node.runtime.signal(&id, signal).await {
                        tracing::warn!(%id, ?signal, %error, "signal not sent");
                    }
                });
            }
            Effect::Probe { container, id, kind, action, timeout } => {
                self.tasks.spawn(async move {
                    let outcome = probe(&node.runtime, &id, kind, &action, timeout).await;
                    let _ = sender.send(Event::Probed { container, id, kind, outcome });
                });
            }
            Effect::PostStart { container, id, hook } => {
                self.tasks.spawn(async move {
                    let failure = run_hook(&node.runtime, &id, hook).await.err();
                    let _ = sender.send(Event::PostStartDone { container, id, failure });
                });
            }
            Effect::PreStop { container, id, hook } => {
                self.tasks.spawn(async move {
                    let failure = run_hook(&node.runtime, &id, hook).await.err();
                    let _ = sender.send(Event::PreStopDone { container, id, failure });
                });
            }
            Effect::Remove(id) => {
                self.tasks.spawn(async move {
                    if let Err(error) = node.runtime.remove_container(&id).await {
                        tracing::warn!(%id, %error, "old container not removed");
                    }
                });
            }
            Effect::RemoveSandbox => {
                self.tasks.spawn(async move {
                    let result = node.runtime.remove_sandbox(&pod_ref(&pod)).await;
                    let _ = sender.send(Event::Removed(result.map_err(|error| error.to_string())));
                });
            }
            Effect::Note { container, note } => {
                self.node.note(&pod, container, note);
            }
            Effect::NoteBackOff { container } => {
                let PodRef { namespace, name, uid } = pod_ref(&pod);
                let message = format!(
                    "Back-off restarting failed container {container} in pod {name}_{namespace}({uid})"
                );
                let role = self.machine.container(&container).map(|c| (c.role, container));
                self.node.note(&pod, role, Note::warning("BackOff", message));
            }
            // Done after the last status is published.
            Effect::Finalize => {}
        }
    }

    /// Writes the status if it differs from what was last written; false = has to be tried again.
    async fn publish(&mut self) -> bool {
        let status = match serde_json::to_value(self.machine.status(self.node.host_ip.as_deref())) {
            Ok(status) => with_explicit_removals(status),
            Err(error) => {
                tracing::error!(%error, "status of a pod cannot be encoded");
                return true;
            }
        };
        if self.published.as_ref() == Some(&status) {
            return true;
        }
        let pod = pod_ref(self.machine.pod());
        let pods = Api::<Pod>::namespaced(self.node.client.clone(), &pod.namespace);
        let patch = json!({"metadata": {"uid": pod.uid}, "status": status});
        match pods.patch_status(&pod.name, &by_kubelet(), &Patch::Strategic(&patch)).await {
            Ok(_) => {
                self.published = Some(status);
                true
            }
            // Gone, or another pod of that name: the watch says so as well.
            Err(kube::Error::Api(answer)) if is_gone(&answer) => {
                self.published = Some(status);
                true
            }
            Err(error) => {
                tracing::warn!(%pod, %error, "pod status not written; trying again");
                false
            }
        }
    }

    async fn finalize(&mut self) {
        let pod = pod_ref(self.machine.pod());
        let pods = Api::<Pod>::namespaced(self.node.client.clone(), &pod.namespace);
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let params =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default().grace_period(0) };
        loop {
            match pods.delete(&pod.name, &params).await {
                Ok(_) => return,
                Err(kube::Error::Api(answer)) if is_gone(&answer) => return,
                Err(error) => tracing::warn!(%pod, %error, "finished pod not deleted; trying again"),
            }
            tokio::time::sleep(PUBLISH_RETRY).await;
        }
    }
}

async fn report_reconnects(mut connected: watch::Receiver<bool>, events: mpsc::UnboundedSender<Event>) {
    while connected.changed().await.is_ok() {
        if *connected.borrow_and_update() && events.send(Event::Reconnected).is_err() {
            return;
        }
    }
}

/// Whether a request that names a pod's uid was refused because the pod is no more: its name is free, or is that of another pod, whose uid a delete
/// finds in conflict and a patch immutable.
fn is_gone(answer: &Status) -> bool {
    let other = || {
        let causes = answer.details.iter().flat_map(|details| &details.causes);
        causes.into_iter().any(|cause| cause.field == "metadata.uid")
    };
    matches!(answer.code, 404 | 409) || answer.code == 422 && other()
}

/// Patches of a kubelet carry its name in managedFields.
pub fn by_kubelet() -> PatchParams {
    PatchParams { field_manager: Some("kubelet".into()), ..PatchParams::default() }
}

/// Conditions merge by type, and addresses by themselves: what is absent has to be removed.
fn with_explicit_removals(mut status: Value) -> Value {
    if let Some(addresses) = status.get_mut("podIPs").and_then(Value::as_array_mut) {
        addresses.push(json!({"$patch": "replace"}));
    }
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        for field in ["reason", "message"] {
            if condition.get(field).is_none() {
                condition[field] = Value::Null;
            }
        }
    }
    status
}

fn facts<R>(node: &NodeContext<R>, pod: &Pod, sandbox: Option<&Sandbox>) -> PodFacts {
    PodFacts {
        pod_ips: sandbox.iter().flat_map(|sandbox| &sandbox.addresses).map(ToString::to_string).collect(),
        host_ip: node.host_ip.clone(),
        hostname: hostname(pod),
        node_cpu_millis: node.cpu_millis,
        node_memory_bytes: node.memory_bytes,
    }
}

fn has_file_volumes(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.downward_api.is_some()
            || volume.projected.is_some()
    })
}

async fn prepare<R: Runtime>(
    node: &NodeContext<R>,
    pod: &Pod,
) -> Result<(Sandbox, Tokens), (String, String)> {
    let mount = |message: String| ("FailedMount".to_owned(), message);
    let sources = Sources::of_volumes(&node.client, pod, BTreeMap::new())
        .await
        .map_err(|error| mount(format!("volumes of the pod cannot be read: {error}")))?;
    let volumes = volumes(pod, &sources).map_err(mount)?;
    // Files are worked out twice: before anything is made, to fail early; and with the pod's address.
    files(pod, &facts(node, pod, None), &sources).map_err(mount)?;
    let config = sandbox_config(pod, volumes, &node.dns);
    let sandbox = node.runtime.create_sandbox(&config).await.map_err(|error| {
        ("FailedCreatePodSandBox".to_owned(), format!("Failed to create pod sandbox: {error}"))
    })?;
    for (volume, files) in files(pod, &facts(node, pod, Some(&sandbox)), &sources).map_err(mount)? {
        let written = node.runtime.write_volume(&config.pod, &volume, &files).await;
        written
            .map_err(|error| mount(format!("MountVolume.SetUp failed for volume \"{volume}\" : {error}")))?;
    }
    Ok((sandbox, sources.tokens))
}

/// Brings file volumes up to date again and again, until the pod's worker ends.
async fn refresh_volumes<R: Runtime>(
    node: &NodeContext<R>,
    pod: watch::Receiver<Arc<Pod>>,
    facts: &PodFacts,
    mut tokens: Tokens,
    mut issued: Timestamp,
) {
    let mut written = BTreeMap::new();
    loop {
        tokio::time::sleep(node.volume_refresh).await;
        let pod = pod.borrow().clone();
        if pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        // Renewed after 80 % of their life, as upstream; the shortest decides for all.
        let shortest = tokens.keys().map(|(_, seconds)| *seconds).min().unwrap_or(i64::MAX);
        if elapsed(issued, node.clock.now()).as_secs() as i64 > shortest.saturating_mul(4) / 5 {
            tokens.clear();
        }
        if tokens.is_empty() {
            issued = node.clock.now();
        }
        let Ok(sources) = Sources::of_volumes(&node.client, &pod, tokens.clone()).await else { continue };
        tokens.clone_from(&sources.tokens);
        // A ConfigMap that was deleted meanwhile leaves the files as they are.
        let Ok(all) = files(&pod, facts, &sources) else { continue };
        for (volume, files) in all {
            if written.get(&volume) == Some(&files) {
                continue;
            }
            match node.runtime.write_volume(&pod_ref(&pod), &volume, &files).await {
                Ok(()) => {
                    written.insert(volume, files);
                }
                Err(error) => tracing::warn!(%volume, %error, "volume not refreshed"),
            }
        }
    }
}

async fn start<R: Runtime>(
    node: &NodeContext<R>,
    pod: &Arc<Pod>,
    sandbox: Option<&Sandbox>,
    name: &str,
    attempt: u32,
) -> Result<(ContainerId, Image), StartFailure> {
    let container =
        find(pod, name).ok_or_else(|| StartFailure::Config(format!("container {name} not found")))?;
    let image_name = container.image.as_deref().unwrap_or_default();
    let image = node.runtime.resolve_image(image_name).await.map_err(StartFailure::Image)?;
    let sources = Sources::of_environment(&node.client, pod, container)
        .await
        .map_err(|error| StartFailure::Config(format!("environment cannot be read: {error}")))?;
    let environment = Environment::build(container, pod, &facts(node, pod, sandbox), &sources)
        .map_err(StartFailure::Config)?;
    let spec =
        container_spec(pod, container, attempt, image.clone(), environment).map_err(StartFailure::Config)?;
    let note = Note::normal("Pulled", format!("Container image \"{image_name}\" already present on machine"));
    let role = role_of(pod, name);
    node.note(pod, Some((role, name.to_owned())), note);
    let id = node.runtime.start_container(&pod_ref(pod), &spec).await.map_err(|error| match error {
        RuntimeError::CannotStart { message, code } => StartFailure::Run { message, code },
        other => StartFailure::Create(other.to_string()),
    })?;
    let note = Note::normal("Created", format!("Created container: {name}"));
    node.note(pod, Some((role, name.to_owned())), note);
    Ok((id, image))
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .find(|container| container.name == name)
}

async fn probe<R: Runtime>(
    runtime: &R,
    id: &ContainerId,
    kind: ProbeKind,
    action: &ProbeAction,
    limit: Duration,
) -> ProbeOutcome {
    let late = || match action {
        ProbeAction::Tcp { address } => format!("dial tcp {address}: i/o timeout"),
        ProbeAction::Http { address, path, .. } => {
            format!("Get \"http://{address}{path}\": context deadline exceeded")
        }
        _ => format!("command timed out: it ran longer than {}s", limit.as_secs()),
    };
    timeout(limit, runtime.probe(id, kind, action)).await.unwrap_or_else(|_| ProbeOutcome::Failure(late()))
}

async fn run_hook<R: Runtime>(runtime: &R, id: &ContainerId, hook: Hook) -> Result<(), String> {
    let outcome = match hook {
        Hook::Sleep(duration) => {
            tokio::time::sleep(duration).await;
            ProbeOutcome::Success
        }
        Hook::Action(action) => timeout(HOOK_LIMIT, super::probe::run(runtime, id, &action))
            .await
            .unwrap_or_else(|_| ProbeOutcome::Failure("the hook does not end".into())),
    };
    match outcome {
        ProbeOutcome::Success => Ok(()),
        ProbeOutcome::Failure(message) | ProbeOutcome::Error(message) => Err(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_whose_name_another_has_is_gone() {
        let answer = |code: u16, field: &str| -> Status {
            let cause =
                json!({"reason": "FieldValueInvalid", "field": field, "message": "field is immutable"});
            serde_json::from_value(json!({"code": code, "details": {"causes": [cause]}})).unwrap()
        };
        assert!(is_gone(&answer(404, "")) && is_gone(&answer(409, "")));
        assert!(is_gone(&answer(422, "metadata.uid")));
        assert!(!is_gone(&answer(422, "status.phase")), "a status that is wrong is a bug to be seen");
        assert!(!is_gone(&answer(500, "metadata.uid")));
    }
}
