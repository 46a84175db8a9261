//! A machine that runs nothing: containers "run" as a script says, in simulated or real time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::FutureExt;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use setpoint_clock::Clock;
use tokio::sync::{mpsc, watch};
use tokio_util::io::StreamReader;

use crate::kubelet::{
    Connection, ContainerId, ContainerSpec, ExecRequest, ExecSession, Exit, Image, ImageError, LogOptions,
    LogStream, NodeInfo, PodRef, ProbeAction, ProbeKind, ProbeOutcome, Runtime, RuntimeError, Sandbox,
    SandboxConfig, Signal, VolumeFiles,
};

/// How the containers of a hollow node behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// From the order to start until the container runs; 0 by default.
    pub start_delay: Duration,
    /// Ends by itself so long after its start, with this code; by default it runs on.
    pub exits: Option<(Duration, i32)>,
    /// From its stop signal until it has ended; none = it has to be killed. 0 by default.
    pub stop_delay: Option<Duration>,
    /// Exit code after a stop signal; 0 by default.
    pub stop_code: i32,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { start_delay: Duration::ZERO, exits: None, stop_delay: Some(Duration::ZERO), stop_code: 0 }
    }
}

/// Something that happened to a container of a hollow node, for model servers that live beside it.
#[derive(Clone, Debug)]
pub enum Run {
    /// A container runs now.
    Started {
        /// Its pod.
        pod: PodRef,
        /// The pod's address.
        address: IpAddr,
        /// This run of it.
        id: ContainerId,
        /// What it was started with.
        spec: Arc<ContainerSpec>,
    },
    /// A container has ended.
    Ended {
        /// Its pod.
        pod: PodRef,
        /// The run that ended.
        id: ContainerId,
        /// Exit code.
        code: i32,
    },
}

/// What a command in a container answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecAnswer {
    /// Exit code.
    pub code: i32,
    /// What it writes to standard output.
    pub stdout: Bytes,
    /// What it writes to standard error.
    pub stderr: Bytes,
}

type Script = Arc<dyn Fn(&PodRef, &ContainerSpec) -> Behaviour + Send + Sync>;
type Probes = Arc<dyn Fn(&PodRef, &str, ProbeKind, &ProbeAction) -> ProbeOutcome + Send + Sync>;
type Execs = Arc<dyn Fn(&PodRef, &str, &ExecRequest) -> Option<ExecAnswer> + Send + Sync>;

/// The runtime of hollow nodes, and the handle with which tests move what runs there. Clones are the same machine.
#[derive(Clone)]
pub struct HollowRuntime(Arc<Shared>);

struct Shared {
    clock: Clock,
    /// First address of this node's pods.
    network: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    script: Option<Script>,
    probes: Option<Probes>,
    execs: Option<Execs>,
    failing: BTreeMap<(String, String, String), BTreeMap<ProbeKind, String>>,
    missing_images: BTreeSet<String>,
    sandboxes: BTreeMap<PodRef, HollowSandbox>,
    containers: BTreeMap<ContainerId, HollowContainer>,
    sequence: u64,
    next_address: u8,
    watchers: Vec<mpsc::UnboundedSender<Run>>,
}

struct HollowSandbox {
    address: IpAddr,
    volumes: BTreeMap<String, VolumeFiles>,
    ended: watch::Sender<bool>,
}

struct HollowContainer {
    pod: PodRef,
    spec: Arc<ContainerSpec>,
    behaviour: Behaviour,
    exit: watch::Sender<Option<Exit>>,
    log: watch::Sender<Vec<(jiff::Timestamp, String)>>,
}

impl HollowRuntime {
    /// The `index`-th machine; its pods get addresses from 10.244.`index`.2 on.
    pub fn new(index: u8, clock: Clock) -> Self {
        let network = u32::from(Ipv4Addr::new(10, 244, index, 0));
        Self(Arc::new(Shared { clock, network, state: Mutex::default() }))
    }

    /// Sets how containers that start from now on behave.
    pub fn script(&self, script: impl Fn(&PodRef, &ContainerSpec) -> Behaviour + Send + Sync + 'static) {
        self.0.state.lock().script = Some(Arc::new(script));
    }

    /// Sets what probes give; by default they pass. [`fail_probe`](Self::fail_probe) wins over it.
    pub fn probes(
        &self,
        probes: impl Fn(&PodRef, &str, ProbeKind, &ProbeAction) -> ProbeOutcome + Send + Sync + 'static,
    ) {
        self.0.state.lock().probes = Some(Arc::new(probes));
    }

    /// Sets what commands in containers answer; for those that give `None`, and by default, exec is refused.
    pub fn execs(
        &self,
        execs: impl Fn(&PodRef, &str, &ExecRequest) -> Option<ExecAnswer> + Send + Sync + 'static,
    ) {
        self.0.state.lock().execs = Some(Arc::new(execs));
    }

    /// Lets a probe of a container fail with `message` from now on.
    pub fn fail_probe(&self, namespace: &str, pod: &str, container: &str, kind: ProbeKind, message: &str) {
        let key = (namespace.to_owned(), pod.to_owned(), container.to_owned());
        self.0.state.lock().failing.entry(key).or_default().insert(kind, message.to_owned());
    }

    /// Ends [`fail_probe`](Self::fail_probe).
    pub fn pass_probe(&self, namespace: &str, pod: &str, container: &str, kind: ProbeKind) {
        let key = (namespace.to_owned(), pod.to_owned(), container.to_owned());
        if let Some(failing) = self.0.state.lock().failing.get_mut(&key) {
            failing.remove(&kind);
        }
    }

    /// From now on this node does not have `image`.
    pub fn remove_image(&self, image: &str) {
        self.0.state.lock().missing_images.insert(image.to_owned());
    }

    /// Ends a running container as SIGKILL would. False when it does not run here.
    pub fn kill(&self, namespace: &str, pod: &str, container: &str) -> bool {
        self.exit(namespace, pod, container, 137)
    }

    /// Lets a running container end by itself with `code`. False when it does not run here.
    pub fn exit(&self, namespace: &str, pod: &str, container: &str, code: i32) -> bool {
        let running = self.running(namespace, pod, container);
        running.is_some_and(|id| self.end(&id, code))
    }

    /// Ends a pod's sandbox by itself, and with it everything in it, as a kill of its first process would. False when it is not
    /// here.
    pub fn end_sandbox(&self, namespace: &str, pod: &str) -> bool {
        let containers: Vec<_> = {
            let state = self.0.state.lock();
            let sandbox =
                state.sandboxes.iter().find(|(key, _)| key.namespace == namespace && key.name == pod);
            let Some((key, sandbox)) = sandbox else { return false };
            sandbox.ended.send_replace(true);
            state.containers.iter().filter(|(_, run)| run.pod == *key).map(|(id, _)| id.clone()).collect()
        };
        for id in &containers {
            self.end(id, 137);
        }
        true
    }

    /// Writes a line to a running container's log. False when it does not run here.
    pub fn log(&self, namespace: &str, pod: &str, container: &str, line: &str) -> bool {
        let Some(id) = self.running(namespace, pod, container) else { return false };
        let now = self.0.clock.now();
        let state = self.0.state.lock();
        state.containers.get(&id).is_some_and(|container| {
            container.log.send_modify(|lines| lines.push((now, line.to_owned())));
            true
        })
    }

    /// The run of a container that goes on now.
    pub fn running(&self, namespace: &str, pod: &str, container: &str) -> Option<ContainerId> {
        let state = self.0.state.lock();
        let runs = state.containers.iter().find(|(_, run)| {
            run.pod.namespace == namespace
                && run.pod.name == pod
                && run.spec.name == container
                && run.exit.borrow().is_none()
        });
        runs.map(|(id, _)| id.clone())
    }

    /// The files of a pod's ConfigMap, Secret, downward API or projected volume as its containers see them.
    pub fn volume(&self, namespace: &str, pod: &str, volume: &str) -> Option<VolumeFiles> {
        let state = self.0.state.lock();
        let sandbox =
            state.sandboxes.iter().find(|(key, _)| key.namespace == namespace && key.name == pod)?.1;
        sandbox.volumes.get(volume).cloned()
    }

    /// Every start and end of a container from now on.
    pub fn watch_runs(&self) -> mpsc::UnboundedReceiver<Run> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.state.lock().watchers.push(sender);
        receiver
    }

    fn end(&self, id: &ContainerId, code: i32) -> bool {
        let mut state = self.0.state.lock();
        let Some(container) = state.containers.get(id) else { return false };
        let exit = Exit {
            code,
            signal: (code > 128).then(|| code - 128),
            out_of_memory: false,
            message: None,
            finished_at: self.0.clock.now(),
        };
        let ended = container.exit.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(exit);
            }
            first
        });
        if ended {
            let run = Run::Ended { pod: container.pod.clone(), id: id.clone(), code };
            state.tell(&run);
        }
        ended
    }

    fn end_later(&self, id: &ContainerId, delay: Duration, code: i32) {
        if delay.is_zero() {
            self.end(id, code);
            return;
        }
        let (runtime, id) = (self.clone(), id.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            runtime.end(&id, code);
        });
    }
}

impl State {
    fn tell(&mut self, run: &Run) {
        self.watchers.retain(|watcher| watcher.send(run.clone()).is_ok());
    }
}

impl Runtime for HollowRuntime {
    fn node_info(&self) -> NodeInfo {
        NodeInfo {
            cpu_millis: 32_000,
            memory_bytes: 128 << 30,
            pods: 110,
            addresses: vec![Ipv4Addr::from(self.0.network | 1).into()],
            kernel_version: "none".into(),
            os_image: "hollow".into(),
            runtime_version: "hollow://1".into(),
        }
    }

    fn images(&self) -> Vec<String> {
        let state = self.0.state.lock();
        let images: BTreeSet<_> = state.containers.values().map(|run| run.spec.image.name.clone()).collect();
        images.into_iter().collect()
    }

    async fn resolve_image(&self, image: &str) -> Result<Image, ImageError> {
        if image.is_empty() {
            return Err(ImageError::Invalid { image: String::new(), message: "it is empty".into() });
        }
        if self.0.state.lock().missing_images.contains(image) {
            let message = format!("this hollow node was told not to have {image}; it has every other image");
            return Err(ImageError::NotFound { image: image.into(), message });
        }
        Ok(Image { name: image.into(), id: format!("hollow://{image}") })
    }

    async fn create_sandbox(&self, config: &SandboxConfig) -> Result<Sandbox, RuntimeError> {
        let mut state = self.0.state.lock();
        if let Some(sandbox) = state.sandboxes.get(&config.pod).filter(|sandbox| !*sandbox.ended.borrow()) {
            return Ok(Sandbox { addresses: vec![sandbox.address] });
        }
        let used: BTreeSet<IpAddr> = state.sandboxes.values().map(|sandbox| sandbox.address).collect();
        let start = state.next_address;
        let address = (0..253).map(|step| 2 + (u32::from(start) + step) % 253).find_map(|host| {
            let address = IpAddr::from(Ipv4Addr::from(self.0.network | host));
            (!used.contains(&address)).then_some((host, address))
        });
        let (host, address) =
            address.ok_or_else(|| RuntimeError::Unsupported("more than 253 pods".into()))?;
        state.next_address = u8::try_from((host - 1) % 253).unwrap_or(0);
        let sandbox = HollowSandbox { address, volumes: BTreeMap::new(), ended: watch::Sender::new(false) };
        state.sandboxes.insert(config.pod.clone(), sandbox);
        Ok(Sandbox { addresses: vec![address] })
    }

    async fn sandbox_ended(&self, pod: &PodRef) {
        let ended = self.0.state.lock().sandboxes.get(pod).map(|sandbox| sandbox.ended.subscribe());
        if let Some(mut ended) = ended
            && ended.wait_for(|ended| *ended).await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    async fn remove_sandbox(&self, pod: &PodRef) -> Result<(), RuntimeError> {
        let ids: Vec<_> = {
            let state = self.0.state.lock();
            state.containers.iter().filter(|(_, run)| run.pod == *pod).map(|(id, _)| id.clone()).collect()
        };
        for id in &ids {
            self.end(id, 137);
        }
        let mut state = self.0.state.lock();
        state.containers.retain(|id, _| !ids.contains(id));
        state.sandboxes.remove(pod);
        Ok(())
    }

    async fn write_volume(
        &self,
        pod: &PodRef,
        volume: &str,
        files: &VolumeFiles,
    ) -> Result<(), RuntimeError> {
        let mut state = self.0.state.lock();
        let sandbox = state.sandboxes.get_mut(pod).ok_or_else(|| RuntimeError::NoSandbox(pod.clone()))?;
        sandbox.volumes.insert(volume.to_owned(), files.clone());
        Ok(())
    }

    async fn start_container(&self, pod: &PodRef, spec: &ContainerSpec) -> Result<ContainerId, RuntimeError> {
        let script = self.0.state.lock().script.clone();
        let behaviour = script.map(|script| script(pod, spec)).unwrap_or_default();
        if !behaviour.start_delay.is_zero() {
            tokio::time::sleep(behaviour.start_delay).await;
        }
        let id = {
            let mut state = self.0.state.lock();
            let sandbox = state.sandboxes.get(pod).ok_or_else(|| RuntimeError::NoSandbox(pod.clone()))?;
            let address = sandbox.address;
            state.sequence += 1;
            let id = ContainerId(format!("hollow://{}-{}-{}", pod.uid, spec.name, state.sequence));
            let spec = Arc::new(spec.clone());
            let run = Run::Started { pod: pod.clone(), address, id: id.clone(), spec: spec.clone() };
            let container = HollowContainer {
                pod: pod.clone(),
                spec,
                behaviour: behaviour.clone(),
                exit: watch::Sender::new(None),
                log: watch::Sender::new(Vec::new()),
            };
            state.containers.insert(id.clone(), container);
            state.tell(&run);
            id
        };
        if let Some((after, code)) = behaviour.exits {
            self.end_later(&id, after, code);
        }
        Ok(id)
    }

    async fn wait(&self, container: &ContainerId) -> Result<Exit, RuntimeError> {
        let gone = || RuntimeError::NoContainer(container.clone());
        let mut exit = {
            let state = self.0.state.lock();
            state.containers.get(container).ok_or_else(gone)?.exit.subscribe()
        };
        let exit = exit.wait_for(Option::is_some).await.map_err(|_| gone())?;
        exit.clone().ok_or_else(gone)
    }

    async fn signal(&self, container: &ContainerId, signal: Signal) -> Result<(), RuntimeError> {
        let behaviour = {
            let state = self.0.state.lock();
            let run = state.containers.get(container);
            run.ok_or_else(|| RuntimeError::NoContainer(container.clone()))?.behaviour.clone()
        };
        match signal {
            Signal::Kill => {
                self.end(container, 137);
            }
            Signal::Term | Signal::Other(_) => {
                if let Some(delay) = behaviour.stop_delay {
                    self.end_later(container, delay, behaviour.stop_code);
                }
            }
            Signal::Stop | Signal::Continue => {
                return Err(RuntimeError::Unsupported(
                    "hollow containers have no processes to stop; let their probes fail instead".into(),
                ));
            }
        }
        Ok(())
    }

    async fn remove_container(&self, container: &ContainerId) -> Result<(), RuntimeError> {
        self.0.state.lock().containers.remove(container);
        Ok(())
    }

    async fn exec(
        &self,
        container: &ContainerId,
        request: &ExecRequest,
    ) -> Result<ExecSession, RuntimeError> {
        let (execs, pod, name) = {
            let state = self.0.state.lock();
            let run = state
                .containers
                .get(container)
                .ok_or_else(|| RuntimeError::NoContainer(container.clone()))?;
            if run.exit.borrow().is_some() {
                return Err(RuntimeError::NotRunning(container.clone()));
            }
            (state.execs.clone(), run.pod.clone(), run.spec.name.clone())
        };
        let answer = execs.and_then(|execs| execs(&pod, &name, request));
        let answer = answer.ok_or_else(|| {
            RuntimeError::Unsupported(
                "hollow nodes run no commands (process nodes do); in a test HollowRuntime::execs gives answers"
                    .into(),
            )
        })?;
        let code = answer.code;
        Ok(ExecSession {
            stdin: request.stdin.then(|| Box::pin(tokio::io::sink()) as _),
            stdout: Box::pin(io::Cursor::new(answer.stdout)),
            stderr: (!request.tty).then(|| Box::pin(io::Cursor::new(answer.stderr)) as _),
            resize: None,
            exit: async move { Ok(code) }.boxed(),
        })
    }

    async fn attach(&self, container: &ContainerId, stdin: bool) -> Result<ExecSession, RuntimeError> {
        if stdin {
            let why =
                "hollow nodes run nothing that could read (process nodes do): attach without standard input";
            return Err(RuntimeError::Unsupported(why.to_owned()));
        }
        let options = LogOptions { follow: true, tail_lines: Some(0), ..LogOptions::default() };
        let log = self.logs(container, &options).await?;
        Ok(ExecSession {
            stdin: None,
            stdout: Box::pin(StreamReader::new(log)),
            stderr: None,
            resize: None,
            exit: async { Ok(0) }.boxed(),
        })
    }

    async fn logs(&self, container: &ContainerId, options: &LogOptions) -> Result<LogStream, RuntimeError> {
        let (log, exit) = {
            let state = self.0.state.lock();
            let run = state
                .containers
                .get(container)
                .ok_or_else(|| RuntimeError::NoContainer(container.clone()))?;
            (run.log.subscribe(), run.exit.subscribe())
        };
        let (since, timestamps, follow) = (options.since, options.timestamps, options.follow);
        let written = log.borrow().len();
        if written == 0 {
            return Err(RuntimeError::Unsupported(
                "hollow nodes run no processes, so that there is no log (process nodes have them); in a test \
                 HollowRuntime::log writes lines"
                    .into(),
            ));
        }
        let skip = options.tail_lines.map_or(0, |lines| written.saturating_sub(lines));
        let lines = stream::unfold((log, exit, skip), move |(mut log, mut exit, at)| async move {
            loop {
                let line = log.borrow_and_update().get(at).cloned();
                if let Some(line) = line {
                    return Some((line, (log, exit, at + 1)));
                }
                if !follow || exit.borrow_and_update().is_some() {
                    return None;
                }
                let (changed, ended) = (std::pin::pin!(log.changed()), std::pin::pin!(exit.changed()));
                futures::future::select(changed, ended).await;
            }
        });
        let mut left = options.limit_bytes.unwrap_or(u64::MAX);
        let pieces = lines
            .filter(move |(at, _)| futures::future::ready(since.is_none_or(|since| *at >= since)))
            .map(move |(at, line)| if timestamps { format!("{at:.9} {line}\n") } else { format!("{line}\n") })
            .map(move |line| {
                let mut line = line.into_bytes();
                line.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= line.len() as u64;
                Ok(Bytes::from(line))
            });
        Ok(pieces.boxed())
    }

    async fn dial(&self, address: SocketAddr) -> io::Result<Connection> {
        let message = format!("nothing listens on {address}: hollow nodes have no network");
        Err(io::Error::new(io::ErrorKind::ConnectionRefused, message))
    }

    async fn probe(&self, container: &ContainerId, kind: ProbeKind, action: &ProbeAction) -> ProbeOutcome {
        let (probes, pod, name) = {
            let state = self.0.state.lock();
            let Some(run) = state.containers.get(container) else {
                return ProbeOutcome::Error(format!("container {container} does not exist"));
            };
            let key = (run.pod.namespace.clone(), run.pod.name.clone(), run.spec.name.clone());
            if let Some(message) = state.failing.get(&key).and_then(|failing| failing.get(&kind)) {
                return ProbeOutcome::Failure(message.clone());
            }
            (state.probes.clone(), run.pod.clone(), run.spec.name.clone())
        };
        probes.map_or(ProbeOutcome::Success, |probes| probes(&pod, &name, kind, action))
    }
}
