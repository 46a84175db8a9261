//! A pod on this machine: its first process, its address, its directories.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use setpoint_cluster::kubelet::{PodRef, RuntimeError, SandboxConfig, Signal};

use super::{files, volumes};
use crate::machine::Shared;
use crate::network::{Lease, pod_commands};
use crate::protocol::PodSetup;
use crate::spawner::{PodProcess, Process};

/// A pod's sandbox.
pub(crate) struct Pod {
    pub(crate) name: PodRef,
    pub(super) process: PodProcess,
    /// None with the node's network.
    lease: Option<Lease>,
    /// Where the pod's files are on this machine.
    pub(super) directory: PathBuf,
    volumes: BTreeMap<String, PathBuf>,
    /// `/etc/hostname`, `/etc/hosts` and `/etc/resolv.conf`.
    pub(super) files: Vec<(PathBuf, String)>,
    pub(super) hostname: String,
    /// The newest process of each container.
    pub(super) newest: Mutex<BTreeMap<String, Process>>,
    removed: AtomicBool,
}

impl Pod {
    /// Makes the namespaces, connects the network and makes the volumes' directories.
    pub(super) async fn create(
        shared: &Shared,
        node: u8,
        config: &SandboxConfig,
    ) -> Result<Arc<Self>, RuntimeError> {
        if config.share_process_namespace {
            let what =
                "shareProcessNamespace: each container of a process node has a process namespace of its own";
            return Err(RuntimeError::Unsupported(what.to_owned()));
        }
        let failed = |what: &str| {
            let what = format!("{what} of pod {}", config.pod);
            move |source| RuntimeError::Io { what, source }
        };
        let directory = volumes::make_pod(shared, &config.pod.uid)?;
        // Before the pod's mount namespace exists, which copies the volumes in memory.
        let made = volumes::make(shared, &directory, config)?;
        let process = shared.spawner.create_pod(config.host_network).await?;
        let lease = if config.host_network {
            None
        } else {
            let lease = shared.network.lease(node).map_err(failed("address"))?;
            shared.network.attach(&lease, process.pid).await.map_err(failed("network"))?;
            Some(lease)
        };
        let address = lease.as_ref().map(|lease| lease.address);
        let full_name = config.fqdn.clone().filter(|_| config.hostname_is_fqdn);
        let hostname = full_name.unwrap_or_else(|| config.hostname.clone());
        let network = address.map(pod_commands);
        process.set_up(PodSetup { hostname: hostname.clone(), network, ip: shared.ip.clone() }).await?;
        let pod = Arc::new(Self {
            name: config.pod.clone(),
            process,
            lease,
            directory,
            volumes: made,
            files: files::of_pod(config, &hostname, address),
            hostname,
            newest: Mutex::default(),
            removed: AtomicBool::new(false),
        });
        shared.pods.lock().insert(config.pod.uid.clone(), Arc::clone(&pod));
        Ok(pod)
    }

    /// The pod's own address; none with the node's network.
    pub(crate) fn own_address(&self) -> Option<Ipv4Addr> {
        self.lease.as_ref().map(|lease| lease.address)
    }

    /// The directory of a volume.
    pub(super) fn volume(&self, name: &str) -> Result<PathBuf, RuntimeError> {
        self.volumes.get(name).cloned().ok_or_else(|| RuntimeError::Io {
            what: format!("volume {name:?} of pod {}", self.name),
            source: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Ends it for good.
    pub(super) async fn remove(&self) -> Result<(), RuntimeError> {
        self.removed.store(true, Ordering::Relaxed);
        self.end().await
    }

    /// Whether it ends because it is removed.
    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Kills everything in it.
    pub(super) async fn end(&self) -> Result<(), RuntimeError> {
        let failed = |source| RuntimeError::Io { what: format!("ending pod {}", self.name), source };
        self.process.end().await.map_err(failed)?;
        if let Some(lease) = &self.lease {
            lease.detach().await;
        }
        Ok(())
    }

    /// Sends a signal to the newest process of a container, as a fault.
    pub(crate) async fn signal(&self, container: &str, signal: Signal) -> Result<(), RuntimeError> {
        let newest = self.newest.lock().get(container).cloned();
        let process = newest.ok_or_else(|| RuntimeError::Io {
            what: format!("container {container:?} of pod {}", self.name),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        send(&process, signal).await
    }
}

/// Sends one of the kubelet's signals to a container's process.
pub(super) async fn send(process: &Process, signal: Signal) -> Result<(), RuntimeError> {
    let (number, all) = match signal {
        Signal::Term => (libc::SIGTERM, false),
        Signal::Kill => (libc::SIGKILL, true),
        Signal::Stop => (libc::SIGSTOP, true),
        Signal::Continue => (libc::SIGCONT, true),
        Signal::Other(number) => (number, false),
    };
    let failed = |source| RuntimeError::Io { what: format!("sending signal {number}"), source };
    process.signal(number, all).await.map_err(failed)
}
