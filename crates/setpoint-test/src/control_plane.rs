use std::fs::File;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use http::Uri;
use kube::{Client, Config};
use tempfile::TempDir;

use crate::wait::{WaitError, eventually};

/// The environment variable that names the folder with the binaries, as for other test kits of operators.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// How long kube-apiserver may take to be ready.
const BOUND: Duration = Duration::from_secs(60);
/// The user of the token. Requests only come from this machine.
const TOKEN: &str = "setpoint-test";
/// How much of kube-apiserver's log goes into an error, in characters.
const LOG: usize = 2_000;

/// Why there is no real API server.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The folder is not known.
    #[error("KUBEBUILDER_ASSETS names no folder: set it to one with kube-apiserver and etcd")]
    NoAssets,
    /// The folder lacks a program.
    #[error("{folder} has no {program}: KUBEBUILDER_ASSETS has to name a folder with kube-apiserver and etcd", folder = .folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// What it lacks.
        program: &'static str,
    },
    /// The machine refused a step.
    #[error("cannot {what}: {source}")]
    Machine {
        /// The step.
        what: String,
        /// The machine's answer.
        source: io::Error,
    },
    /// The key that signs ServiceAccount tokens could not be made.
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
    /// Its address makes no client.
    #[error("no client for the API server: {0}")]
    Client(#[from] kube::Error),
    /// It does not run.
    #[error("kube-apiserver or etcd ended at once ({status}); the log of kube-apiserver ends:\n{log}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The end of kube-apiserver's log.
        log: String,
    },
    /// It runs but does not answer.
    #[error("{wait}; its log ends:\n{log}")]
    NotReady {
        /// The wait for it.
        wait: WaitError,
        /// The end of kube-apiserver's log.
        log: String,
    },
}

/// A real kube-apiserver and its etcd, as processes of this machine with a folder and ports of their own.
///
/// What they are for: to check against Kubernetes itself what was tested on the embedded cluster. As in
/// envtest there are no controllers: nothing is collected, namespaces stay `Terminating`. Both processes are
/// killed when this value is dropped, and also when this process ends without dropping it, however that happens.
/// Their time is the machine's: don't use them under a paused clock.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: the API server first, the folder last.
    kube_apiserver: Process,
    etcd: Process,
    // Before the folder, which it would remove too.
    _watchdog: Watchdog,
    folder: TempDir,
    url: Uri,
}

impl ControlPlane {
    /// The folder that `KUBEBUILDER_ASSETS` names, if it has both programs.
    ///
    /// # Errors
    /// [`ControlPlaneError::NoAssets`] or [`ControlPlaneError::Missing`]: say why a test is skipped with them.
    pub fn assets() -> Result<PathBuf, ControlPlaneError> {
        let folder = PathBuf::from(std::env::var_os(ASSETS).ok_or(ControlPlaneError::NoAssets)?);
        match ["etcd", "kube-apiserver"].into_iter().find(|program| !folder.join(program).is_file()) {
            Some(program) => Err(ControlPlaneError::Missing { folder, program }),
            None => Ok(folder),
        }
    }

    /// Starts both from the folder `assets` and waits until the API server is ready, at most a minute.
    ///
    /// # Errors
    /// When a process cannot be started, or with the end of the API server's log when it is not ready in time.
    pub async fn start(assets: &Path) -> Result<Self, ControlPlaneError> {
        let folder = tempfile::tempdir().map_err(machine("make a folder"))?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let write = |name: &str, content: String| {
            std::fs::write(path(name), content).map_err(machine(format!("write {}", path(name))))
        };
        write("tokens", format!("{TOKEN},{TOKEN},,system:masters\n"))?;
        // kube-apiserver reads PKCS #8 only where it signs: it checks with the public key.
        let key = rcgen::KeyPair::generate()?;
        write("sa.key", key.serialize_pem())?;
        write("sa.pub", key.public_key_pem())?;
        let [store, peer, port] = [free_port()?, free_port()?, free_port()?];
        let etcd = Process::start(
            assets,
            "etcd",
            folder.path(),
            &[
                "--unsafe-no-fsync".to_owned(),
                format!("--data-dir={}", path("etcd")),
                format!("--listen-client-urls=http://127.0.0.1:{store}"),
                format!("--advertise-client-urls=http://127.0.0.1:{store}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            ],
        )?;
        let kube_apiserver = Process::start(
            assets,
            "kube-apiserver",
            folder.path(),
            &[
                format!("--etcd-servers=http://127.0.0.1:{store}"),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".to_owned(),
                // An advertised loopback address is refused otherwise.
                "--endpoint-reconciler-type=none".to_owned(),
                format!("--cert-dir={}", path("certificates")),
                format!("--service-account-key-file={}", path("sa.pub")),
                format!("--service-account-signing-key-file={}", path("sa.key")),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--token-auth-file={}", path("tokens")),
                "--authorization-mode=RBAC".to_owned(),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                // Nothing makes the default ServiceAccount that it would demand.
                "--disable-admission-plugins=ServiceAccount".to_owned(),
            ],
        )?;
        let watchdog = Watchdog::start(&[&kube_apiserver, &etcd], folder.path())?;
        let mut started = Self {
            kube_apiserver,
            etcd,
            _watchdog: watchdog,
            folder,
            url: format!("https://127.0.0.1:{port}")
                .parse()
                .map_err(|error| kube::Error::HttpError(http::Error::from(error)))?,
        };
        let client = started.client()?;
        let ready = eventually("kube-apiserver to be ready", BOUND, async || {
            for process in [&mut started.kube_apiserver, &mut started.etcd] {
                if let Ok(Some(status)) = process.0.try_wait() {
                    return Ok(Err(status));
                }
            }
            let request =
                http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
            client.request_text(request).await.map(Ok).map_err(|error| error.to_string())
        });
        match ready.await {
            Ok(Ok(_)) => Ok(started),
            Ok(Err(status)) => Err(ControlPlaneError::Ended { status, log: started.log() }),
            Err(wait) => Err(ControlPlaneError::NotReady { wait, log: started.log() }),
        }
    }

    /// `https://127.0.0.1:PORT`. The certificate is the API server's own.
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// The bearer token of a member of `system:masters`.
    pub fn token(&self) -> &'static str {
        TOKEN
    }

    /// A client with all rights.
    ///
    /// # Errors
    /// When no TLS connection can be set up at all.
    pub fn client(&self) -> Result<Client, kube::Error> {
        Client::try_from(self.config())
    }

    /// How to connect with all rights.
    pub fn config(&self) -> Config {
        let mut config = Config::new(self.url.clone());
        // It makes its certificate itself at its start.
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(TOKEN.to_owned().into());
        // Its own retries would hide what the API server says.
        config.default_retry = false;
        config
    }

    /// A kubeconfig with all rights, for other programs of this machine.
    pub fn kubeconfig(&self) -> String {
        // It holds the authority, too.
        let authority = self.folder.path().join("certificates/apiserver.crt");
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": TOKEN, "cluster": {"server": self.url.to_string(), "certificate-authority": authority}}],
            "users": [{"name": TOKEN, "user": {"token": TOKEN}}],
            "contexts": [{"name": TOKEN, "context": {"cluster": TOKEN, "user": TOKEN}}],
            "current-context": TOKEN,
        })
        .to_string()
    }

    /// The end of kube-apiserver's log.
    pub fn log(&self) -> String {
        let path = self.folder.path().join("kube-apiserver.log");
        let log = std::fs::read(&path).unwrap_or_else(|error| error.to_string().into_bytes());
        let log = String::from_utf8_lossy(&log);
        let skipped = log.chars().count().saturating_sub(LOG);
        log.chars().skip(skipped).collect()
    }
}

/// A process that ends with this value.
#[derive(Debug)]
struct Process(Child);

impl Process {
    /// Starts `assets/program`; what it says goes to `PROGRAM.log` in `folder`.
    fn start(
        assets: &Path,
        program: &str,
        folder: &Path,
        arguments: &[String],
    ) -> Result<Self, ControlPlaneError> {
        let log = File::create(folder.join(format!("{program}.log"))).map_err(machine("make a log"))?;
        Command::new(assets.join(program))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map(Self)
            .map_err(machine(format!("start {}", assets.join(program).display())))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Ends processes and removes their folder when this process has ended without doing so: killed, or by a static that is
/// never dropped.
#[derive(Debug)]
struct Watchdog {
    shell: Child,
    /// Its end of file is the end of this process.
    alive: Option<ChildStdin>,
}

impl Watchdog {
    /// A line says that there is nothing left to do. Signals for the whole group are for the others.
    const SCRIPT: &str = "trap '' INT TERM HUP; read -r _ && exit 0; folder=$1; shift; kill -9 \"$@\"; \
                          sleep 1; rm -rf \"$folder\"";

    fn start(processes: &[&Process], folder: &Path) -> Result<Self, ControlPlaneError> {
        let pids = processes.iter().map(|process| process.0.id().to_string());
        let mut shell = Command::new("sh")
            .args(["-c", Self::SCRIPT, "watchdog"])
            .arg(folder)
            .args(pids)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(machine("start sh"))?;
        let alive = shell.stdin.take();
        Ok(Self { shell, alive })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut alive) = self.alive.take() {
            drop(alive.write_all(b"done\n"));
        }
        drop(self.shell.wait());
    }
}

fn free_port() -> Result<u16, ControlPlaneError> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(machine("find a free port"))
}

fn machine(what: impl Into<String>) -> impl FnOnce(io::Error) -> ControlPlaneError {
    let what = what.into();
    move |source| ControlPlaneError::Machine { what, source }
}
