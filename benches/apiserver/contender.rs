use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use setpoint_test::ControlPlane;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::memory;
use crate::multiplexed::Multiplexed;
use crate::samples::now;

/// The embedded server's name in the results.
pub(crate) const EMBEDDED: &str = "embedded";
/// The same, with its objects on disk.
pub(crate) const DURABLE: &str = "embedded with a data folder";
/// What writes and does nothing else.
pub(crate) const BARE: &str = "bare writes";
/// The real one's name in the results.
pub(crate) const KUBE: &str = "kube-apiserver";

/// A running API server in processes of its own.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    address: SocketAddr,
    token: String,
    processes: Processes,
}

enum Processes {
    Embedded(Running),
    Real { _running: ControlPlane, pids: Vec<u32> },
}

/// A process that ends with this value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Whether there is a kube-apiserver here.
pub(crate) fn is_available() -> bool {
    match ControlPlane::assets() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("without kube-apiserver: {error}");
            false
        }
    }
}

impl Contender {
    /// Starts this program as a server; also how long it took from the start of its process until it said that it is ready.
    pub(crate) async fn embedded(folder: Option<&Path>) -> Result<(Self, Duration), Failure> {
        let program = std::env::current_exe().map_err(Failure::io("find this program"))?;
        let start = now();
        let mut child = Command::new(program)
            .arg("--serve")
            .args(folder)
            .stdout(Stdio::piped())
            .spawn()
            .map(Running)
            .map_err(Failure::io("start this program again"))?;
        let mut line = String::new();
        if let Some(output) = child.0.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(Failure::io("read where it listens"))?;
        }
        let refused = || Failure::Refused("the embedded server did not start".into());
        let said: Value = serde_json::from_str(&line).map_err(|_| refused())?;
        let address = said["address"].as_str().and_then(|text| text.parse().ok()).ok_or_else(refused)?;
        let token = said["token"].as_str().unwrap_or_default().to_owned();
        let name = if folder.is_some() { DURABLE } else { EMBEDDED };
        let contender = Self { name, address, token, processes: Processes::Embedded(child) };
        contender.connect().await?.get("/readyz").await?;
        Ok((contender, start.elapsed()))
    }

    /// Starts etcd and kube-apiserver; also how long it took from the start of etcd's process until kube-apiserver said that it is ready.
    pub(crate) async fn kube_apiserver() -> Result<(Self, Duration), Failure> {
        let assets = ControlPlane::assets()?;
        let before = memory::children();
        let start = now();
        let running = ControlPlane::start(&assets).await?;
        let elapsed = start.elapsed();
        let port = running.url().port_u16().unwrap_or_default();
        let token = running.token().to_owned();
        let pids = memory::children().into_iter().filter(|pid| !before.contains(pid)).collect();
        let processes = Processes::Real { _running: running, pids };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Ok((Self { name: KUBE, address, token, processes }, elapsed))
    }

    /// A new TLS connection with HTTP/1.1.
    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        Connection::open(self.address, &self.token).await
    }

    /// A new TLS connection with HTTP/2.
    pub(crate) async fn multiplexed(&self) -> Result<Multiplexed, Failure> {
        Multiplexed::open(self.address, &self.token).await
    }

    /// Resident memory of all of its processes, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.pids().into_iter().map(memory::resident).sum()
    }

    /// How much processor time all of its processes have used.
    pub(crate) fn processor_time(&self) -> Duration {
        self.pids().into_iter().map(memory::processor_time).sum()
    }

    fn pids(&self) -> Vec<u32> {
        match &self.processes {
            Processes::Embedded(child) => vec![child.0.id()],
            Processes::Real { pids, .. } => pids.clone(),
        }
    }
}
