use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Config, CustomResourceExt};
use serde_json::{Value, json};
use setpoint_bench_sdk::family::{self, RedisCluster};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::Failure;
use crate::Server;
use crate::control_plane::ControlPlane;
use crate::wait::eventually;

const NAMESPACE: &str = "default";
/// How many objects are created at a time.
const CREATORS: usize = 8;

/// A new API server that knows RedisClusters.
pub(crate) struct Cluster {
    client: Client,
    folder: TempDir,
    _processes: Processes,
}

/// They end with this value.
#[expect(dead_code, reason = "held until the end")]
enum Processes {
    Embedded(Child),
    Real(ControlPlane),
}

impl Cluster {
    pub(crate) async fn start(server: Server) -> Result<Self, Failure> {
        let (url, token, processes) = match server {
            Server::Embedded => embedded().await?,
            Server::Binaries => {
                let running = ControlPlane::start(&ControlPlane::assets()?).await?;
                (running.url().to_string(), running.token().to_owned(), Processes::Real(running))
            }
        };
        let folder = tempfile::tempdir().map_err(Failure::io("make a folder"))?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{ "name": "it", "cluster": { "server": url, "insecure-skip-tls-verify": true } }],
            "users": [{ "name": "it", "user": { "token": token } }],
            "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it", "namespace": NAMESPACE } }],
        });
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string())
            .map_err(Failure::io("write a kubeconfig"))?;
        let mut config = Config::new(url.parse().map_err(|_| Failure::Refused(format!("{url} is no URL")))?);
        config.accept_invalid_certs = true;
        config.auth_info.token = Some(token.into());
        let cluster = Self { client: Client::try_from(config)?, folder, _processes: processes };
        let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        crds.create(&PostParams::default(), &RedisCluster::crd()).await?;
        eventually("RedisClusters to be served", Duration::from_secs(30), async || {
            let one = ListParams::default().limit(1);
            cluster.clusters().list(&one).await.map(drop).map_err(|error| error.to_string())
        })
        .await?;
        Ok(cluster)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn clusters(&self) -> Api<RedisCluster> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Creates the objects of these numbers.
    pub(crate) async fn create(&self, numbers: std::ops::Range<u32>) -> Result<(), Failure> {
        let creates = stream::iter(numbers).map(|number| async move {
            self.clusters().create(&PostParams::default(), &family::cluster(&name(number))).await.map(drop)
        });
        creates.buffer_unordered(CREATORS).try_collect::<()>().await?;
        Ok(())
    }
}

/// The object of a number.
pub(crate) fn name(number: u32) -> String {
    format!("cluster-{number:05}")
}

/// This program again, as a server.
async fn embedded() -> Result<(String, String, Processes), Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find this program"))?;
    let mut child = Command::new(program)
        .arg("--serve")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(Failure::io("start this program again"))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).await.map_err(Failure::io("read where it listens"))?;
    }
    let said: Value = serde_json::from_str(&line)
        .map_err(|_| Failure::Refused("the embedded server did not start".into()))?;
    let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
    Ok((format!("https://{}", text("address")), text("token"), Processes::Embedded(child)))
}
