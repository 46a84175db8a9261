//! A real kube-apiserver with its etcd, to compare with.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kube::{Client, Config};

use crate::failure::Failure;
use crate::measure::Stopwatch;
use crate::program::Running;

/// Names the folder with kube-apiserver and etcd, as other tools for tests of operators do.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// How often it is asked whether it is ready.
const POLL: Duration = Duration::from_millis(10);
/// It has failed when it is not ready by then.
const LIMIT: Duration = Duration::from_secs(60);

fn assets() -> Option<PathBuf> {
    std::env::var_os(ASSETS).map(PathBuf::from)
}

/// Why there is none here.
pub(crate) fn unavailable() -> Option<String> {
    let Some(assets) = assets() else {
        return Some(format!("{ASSETS} names no folder with kube-apiserver and etcd"));
    };
    let missing = ["etcd", "kube-apiserver"].into_iter().find(|name| !assets.join(name).is_file());
    missing.map(|name| format!("{} has no {name}", assets.display()))
}

/// From the start of etcd's process until kube-apiserver says that it is ready.
pub(crate) fn ready() -> Result<Duration, Failure> {
    let assets = assets().unwrap_or_default();
    let folder = tempfile::tempdir().map_err(Failure::io("make a folder"))?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let key = rcgen::KeyPair::generate().map_err(|error| Failure::Refused(error.to_string()))?;
    std::fs::write(path("key"), key.serialize_pem()).map_err(Failure::io("write a key"))?;
    let [store, peer, port] = [free_port()?, free_port()?, free_port()?];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::io("make a runtime"))?;

    let watch = Stopwatch::start();
    let etcd = [
        "--unsafe-no-fsync".to_owned(),
        format!("--data-dir={}", path("etcd")),
        format!("--listen-client-urls=http://127.0.0.1:{store}"),
        format!("--advertise-client-urls=http://127.0.0.1:{store}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
    ];
    let _etcd = start(&assets, "etcd", &etcd)?;
    let kube_apiserver = [
        format!("--etcd-servers=http://127.0.0.1:{store}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--cert-dir={}", path("certificates")),
        format!("--service-account-key-file={}", path("key")),
        format!("--service-account-signing-key-file={}", path("key")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
    ];
    let _kube_apiserver = start(&assets, "kube-apiserver", &kube_apiserver)?;
    runtime.block_on(async {
        let url = format!("https://127.0.0.1:{port}").parse();
        let mut config = Config::new(url.map_err(|error| Failure::Refused(format!("{error}")))?);
        // Its certificate is made at its start by itself.
        config.accept_invalid_certs = true;
        let client = Client::try_from(config)?;
        loop {
            // Anybody may ask this.
            let request = http::Request::get("/readyz").body(Vec::new());
            let request = request.map_err(|error| Failure::Refused(error.to_string()))?;
            match client.request_text(request).await {
                Ok(_) => return Ok(watch.elapsed()),
                Err(error) if watch.elapsed() > LIMIT => return Err(error.into()),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    })
}

fn start(assets: &Path, name: &str, arguments: &[String]) -> Result<Running, Failure> {
    let mut command = Command::new(assets.join(name));
    Running::start(command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()))
}

fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(Failure::io("find a free port"))
}
