//! One process node: implements the kubelet's runtime.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::api::core::v1::PodSpec;
use parking_lot::Mutex;
use setpoint_cluster::kubelet::{
    Connection, ContainerId, ContainerSpec, ExecRequest, ExecSession, Exit, Image, ImageError, LogOptions,
    LogStream, NodeInfo, PodRef, Runtime, RuntimeError, Sandbox, SandboxConfig, Signal, VolumeFiles,
    VolumeStore,
};
use tokio::net::TcpStream;

use crate::machine::Shared;
use crate::network::GATEWAY;

mod attach;
mod container;
mod exec;
mod files;
mod log;
mod missing;
mod pod;
mod terminal;
mod volumes;

use container::Container;
pub(crate) use pod::Pod;

/// Upstream's default of `--max-pods`.
const MOST_PODS: u64 = 110;

/// A node whose pods are processes of this machine.
pub struct ProcessRuntime {
    shared: Arc<Shared>,
    number: u8,
    address: Ipv4Addr,
    containers: Mutex<BTreeMap<ContainerId, Arc<Container>>>,
    starts: AtomicU64,
}

impl ProcessRuntime {
    pub(crate) fn new(shared: Arc<Shared>, number: u8, address: Ipv4Addr) -> Self {
        Self { shared, number, address, containers: Mutex::default(), starts: AtomicU64::new(0) }
    }

    fn pod(&self, pod: &PodRef) -> Result<Arc<Pod>, RuntimeError> {
        self.shared.pods.lock().get(&pod.uid).cloned().ok_or_else(|| RuntimeError::NoSandbox(pod.clone()))
    }

    fn container(&self, id: &ContainerId) -> Result<Arc<Container>, RuntimeError> {
        self.containers.lock().get(id).cloned().ok_or_else(|| RuntimeError::NoContainer(id.clone()))
    }
}

impl Runtime for ProcessRuntime {
    fn node_info(&self) -> NodeInfo {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim_matches(['"', ' ', '\t', '=']).to_owned()).unwrap_or_default()
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal:");
        let kibibytes: u64 =
            memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        NodeInfo {
            cpu_millis: std::thread::available_parallelism().map_or(1000, |count| count.get() as u64 * 1000),
            memory_bytes: kibibytes * 1024,
            pods: MOST_PODS,
            addresses: vec![IpAddr::V4(self.address)],
            kernel_version: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            os_image: value(&read("/etc/os-release"), "PRETTY_NAME="),
            runtime_version: concat!("process://", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    fn images(&self) -> Vec<String> {
        self.shared.images.names()
    }

    async fn resolve_image(&self, image: &str) -> Result<Image, ImageError> {
        self.shared.images.resolve(image)
    }

    fn without_effect(&self, pod: &PodSpec) -> Vec<String> {
        missing::of_pod(pod)
    }

    async fn create_sandbox(&self, config: &SandboxConfig) -> Result<Sandbox, RuntimeError> {
        let existing = self.shared.pods.lock().get(&config.pod.uid).cloned();
        let pod = match existing {
            Some(pod) if !pod.process.has_ended() => pod,
            ended => {
                if let Some(ended) = ended {
                    // The kernel may still be at it; what comes next uses the same volumes.
                    ended.end().await?;
                }
                Pod::create(&self.shared, self.number, config).await?
            }
        };
        let address = pod.own_address().unwrap_or(self.address);
        Ok(Sandbox { addresses: vec![IpAddr::V4(address)] })
    }

    async fn sandbox_ended(&self, pod: &PodRef) {
        let existing = self.shared.pods.lock().get(&pod.uid).cloned();
        if let Some(existing) = existing {
            existing.process.ended().await;
            if !existing.is_removed() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    async fn remove_sandbox(&self, pod: &PodRef) -> Result<(), RuntimeError> {
        // It stays in the table until it is really gone, so that a dropped future can be repeated.
        let existing = self.shared.pods.lock().get(&pod.uid).cloned();
        if let Some(existing) = existing {
            existing.remove().await?;
            self.shared.pods.lock().remove(&pod.uid);
        }
        self.containers.lock().retain(|_, container| container.pod.name.uid != pod.uid);
        volumes::remove_pod(&self.shared, &pod.uid)
    }

    async fn write_volume(
        &self,
        pod: &PodRef,
        volume: &str,
        files: &VolumeFiles,
    ) -> Result<(), RuntimeError> {
        let directory = self.pod(pod)?.volume(volume)?;
        if self.shared.all_users {
            return VolumeStore::write(&directory, files);
        }
        // Without other users and groups everything belongs to the one that there is.
        let mut files = files.clone();
        files.group = None;
        for file in files.files.values_mut() {
            file.user = None;
        }
        VolumeStore::write(&directory, &files)
    }

    async fn start_container(&self, pod: &PodRef, spec: &ContainerSpec) -> Result<ContainerId, RuntimeError> {
        let pod = self.pod(pod)?;
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let id = ContainerId(format!("process://{}-{}-{}-{start}", pod.name.uid, spec.name, self.number));
        let container = Container::start(&self.shared, pod, spec, &id).await?;
        self.containers.lock().insert(id.clone(), Arc::new(container));
        Ok(id)
    }

    async fn wait(&self, container: &ContainerId) -> Result<Exit, RuntimeError> {
        let running = self.container(container)?;
        running.wait().await.ok_or_else(|| RuntimeError::NoContainer(container.clone()))
    }

    async fn signal(&self, container: &ContainerId, signal: Signal) -> Result<(), RuntimeError> {
        self.container(container)?.signal(signal).await
    }

    async fn remove_container(&self, container: &ContainerId) -> Result<(), RuntimeError> {
        let removed = self.containers.lock().remove(container);
        if let Some(removed) = removed {
            removed.remove();
        }
        Ok(())
    }

    async fn exec(
        &self,
        container: &ContainerId,
        request: &ExecRequest,
    ) -> Result<ExecSession, RuntimeError> {
        let running = self.container(container)?;
        exec::exec(&running, container, request).await
    }

    async fn attach(&self, container: &ContainerId, stdin: bool) -> Result<ExecSession, RuntimeError> {
        attach::attach(&*self.container(container)?, container, stdin)
    }

    async fn logs(&self, container: &ContainerId, options: &LogOptions) -> Result<LogStream, RuntimeError> {
        let container = self.container(container)?;
        log::stream(&container.log, options)
    }

    async fn dial(&self, address: SocketAddr) -> io::Result<Connection> {
        // `127.0.0.1` and the node's address as a probe's host mean the node.
        let address = if address.ip().is_unspecified() { (GATEWAY, address.port()).into() } else { address };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::pin(stream))
    }
}
