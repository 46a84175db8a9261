use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::failure::Failure;
use crate::measure::Stopwatch;

/// What `setpoint dev --nodes` takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nodes {
    Hollow,
    Process,
}

impl Nodes {
    fn word(self) -> &'static str {
        match self {
            Self::Hollow => "hollow",
            Self::Process => "process",
        }
    }
}

/// A process that ends with this value.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.spawn().map(Self).map_err(Failure::io(format!("start {name}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A sandbox's processes end with their outermost one: the kernel sees to it.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Builds the `setpoint` command in release mode and says where it is: beside this benchmark's folder.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--workspace", "--bins"])
        .stdout(Stdio::null())
        .status()
        .map_err(Failure::io("run cargo"))?;
    let this = std::env::current_exe().map_err(Failure::io("find this program"))?;
    let folder = this.parent().and_then(Path::parent);
    let program = folder.map(|folder| folder.join("setpoint")).filter(|program| program.is_file());
    program.filter(|_| built.success()).ok_or_else(|| {
        Failure::Refused("no target/release/setpoint: cargo build --release --workspace --bins failed".into())
    })
}

/// `setpoint dev` from the start of its process to the answer to a request over HTTPS.
pub(crate) fn first_answer(program: &Path, nodes: Nodes) -> Result<Duration, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::io("make a folder"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::io("make a runtime"))?;
    let watch = Stopwatch::start();
    let mut running = Running::start(
        Command::new(program)
            .args([
                "dev",
                "--output",
                "json",
                "--listen",
                "127.0.0.1:0",
                "--nodes",
                nodes.word(),
                "--data-dir",
            ])
            .arg(folder.path())
            .stdout(Stdio::piped()),
    )?;
    let mut ready = String::new();
    if let Some(output) = running.0.stdout.take() {
        BufReader::new(output).read_line(&mut ready).map_err(Failure::io("read what setpoint dev says"))?;
    }
    if ready.is_empty() {
        return Err(Failure::Refused(format!("setpoint dev --nodes {} did not start", nodes.word())));
    }
    runtime.block_on(async {
        let refused = |error: &dyn std::fmt::Display| Failure::Refused(format!("the kubeconfig: {error}"));
        let kubeconfig =
            Kubeconfig::read_from(folder.path().join("kubeconfig")).map_err(|error| refused(&error))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.map_err(|error| refused(&error))?)?;
        Api::<Namespace>::all(client).get("default").await?;
        Ok(watch.elapsed())
    })
}
