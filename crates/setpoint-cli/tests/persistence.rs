//! A named data folder: what was acknowledged is there after `kill -9`, again and again, and the next start goes on with it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::{Mutex, Notify};

const PROGRAM: &str = env!("CARGO_BIN_EXE_setpoint");
const KILLS: u32 = 20;
const WRITERS: u32 = 4;
const NAMES: u32 = 8;
/// For anything that is waited for.
const BOUND: Duration = Duration::from_secs(60);

fn dev(folder: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["dev", "--nodes", "hollow", "--listen", "127.0.0.1:0", "--output", "json", "--data-dir"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A process that is killed with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn start(folder: &Path) -> (Running, Client) {
    let mut process = Running(dev(folder).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut process.0.stderr.take().unwrap(), &mut text).unwrap();
        panic!("not started: {text}");
    }
    let kubeconfig = Kubeconfig::read_from(folder.join("kubeconfig")).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    (process, Client::try_from(config).unwrap())
}

/// What a writer knows of an object: its value, or none when there is no such object.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    acknowledged: Option<String>,
    /// What it asked for last, if it got no answer.
    #[expect(clippy::option_option, reason = "asked for nothing, or for there to be nothing")]
    asked: Option<Option<String>>,
}

type Model = Arc<Mutex<BTreeMap<String, Known>>>;

/// Creates, changes and deletes objects of its own until the server is gone.
async fn write(
    client: Client,
    writer: u32,
    round: u32,
    model: Model,
    done: Arc<AtomicU32>,
    told: Arc<Notify>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    for n in 0.. {
        let name = format!("w{writer}-{}", n % NAMES);
        let known = model.lock().await.get(&name).cloned().unwrap_or_default();
        let value = format!("{round}-{n}");
        let wanted = (known.acknowledged.is_none() || n % 5 != 4).then(|| value.clone());
        model.lock().await.entry(name.clone()).or_default().asked = Some(wanted.clone());
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": value}})).unwrap();
        let answer = match (&known.acknowledged, &wanted) {
            (None, _) => maps.create(&PostParams::default(), &map).await.map(drop),
            (Some(_), Some(_)) => maps.replace(&name, &PostParams::default(), &map).await.map(drop),
            (Some(_), None) => maps.delete(&name, &DeleteParams::default()).await.map(drop),
        };
        match answer {
            Ok(()) => {
                model.lock().await.insert(name, Known { acknowledged: wanted, asked: None });
                done.fetch_add(1, Ordering::Relaxed);
                told.notify_one();
            }
            Err(kube::Error::Api(status)) => panic!("{name}: {status:?}"),
            // The server is gone.
            Err(_) => return,
        }
    }
}

/// Compares what is there with what the writers know, which settles what they got no answer to.
async fn compare(client: &Client, model: &Model) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let found = maps.list(&ListParams::default()).await.unwrap();
    let mut found: BTreeMap<String, String> = found
        .into_iter()
        .map(|map| (map.metadata.name.unwrap(), map.data.unwrap_or_default()))
        .filter(|(name, _)| name.starts_with('w'))
        .map(|(name, mut data)| (name, data.remove("value").unwrap()))
        .collect();
    let mut model = model.lock().await;
    for (name, known) in model.iter_mut() {
        let found = found.remove(name);
        let expected = found == known.acknowledged || known.asked.as_ref() == Some(&found);
        assert!(expected, "{name}: found {found:?} where {known:?}");
        *known = Known { acknowledged: found, asked: None };
    }
    assert!(found.is_empty(), "nobody asked for {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::default();
    let mut credentials = None;
    let mut uid = None;
    for round in 0..KILLS {
        let (process, client) = start(folder.path()).await;
        // Clients of the process before go on with what they have, but for the port.
        let text = fs::read_to_string(folder.path().join("kubeconfig")).unwrap();
        let text =
            text.split("\"server\"").next().unwrap().to_owned() + text.split("\"users\"").nth(1).unwrap();
        assert_eq!(*credentials.get_or_insert(text.clone()), text, "round {round}");
        let default = Api::<Namespace>::all(client.clone()).get("default").await.unwrap();
        assert_eq!(*uid.get_or_insert(default.metadata.uid.clone()), default.metadata.uid, "round {round}");
        compare(&client, &model).await;

        let (done, told) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                tokio::spawn(write(client.clone(), writer, round, model.clone(), done.clone(), told.clone()))
            })
            .collect();
        // Another moment each time.
        let enough = 10 + round * 13 % 90;
        let under_load = async {
            while done.load(Ordering::Relaxed) < enough {
                told.notified().await;
            }
        };
        let waited = tokio::time::timeout(BOUND, under_load).await;
        assert!(waited.is_ok(), "round {round}: {} of {enough} writes", done.load(Ordering::Relaxed));
        drop(process);
        for writer in writers {
            writer.await.unwrap();
        }
    }
    let (_process, client) = start(folder.path()).await;
    compare(&client, &model).await;
    assert!(!model.lock().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_run_again_and_old_watches_are_told_to_list() {
    let folder = tempfile::tempdir().unwrap();
    let (process, client) = start(folder.path()).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "image": "any"}]},
    }))
    .unwrap();
    let uid = pods.create(&PostParams::default(), &pod).await.unwrap().metadata.uid;
    let running = |pod: Option<Pod>| pod.and_then(|pod| pod.status?.phase).as_deref() == Some("Running");
    wait(&pods, "a", running).await;
    let version = pods.get("a").await.unwrap().metadata.resource_version.unwrap();
    drop(process);

    let (_process, client) = start(folder.path()).await;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let found = pods.get("a").await.unwrap();
    assert_eq!(found.metadata.uid, uid);
    wait(&pods, "a", running).await;
    assert!(found.metadata.resource_version.unwrap().parse::<u64>().unwrap() >= version.parse().unwrap());
    let mut events = Box::pin(pods.watch(&WatchParams::default(), "2").await.unwrap());
    let first = futures::StreamExt::next(&mut events).await.unwrap();
    let text = format!("{first:?}");
    assert!(text.contains("410") || text.contains("Expired"), "{text}");
}

async fn wait(pods: &Api<Pod>, name: &str, reached: impl Fn(Option<Pod>) -> bool + Copy) {
    let poll = async {
        while !reached(pods.get_opt(name).await.unwrap()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let result = tokio::time::timeout(BOUND, poll).await;
    assert!(result.is_ok(), "last seen: {:?}", pods.get(name).await.map(|pod| pod.status));
}

/// How it ends when it cannot use the folder.
fn refused(folder: &Path) -> String {
    let Output { status, stderr, .. } = dev(folder).output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert!(!status.success() && text.trim_end().lines().count() == 1, "{status} {text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_cannot_be_used_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let (process, _client) = start(folder.path()).await;
    let text = refused(folder.path());
    assert!(text.contains("in use by another process"), "{text}");
    drop(process);
    let file = folder.path().join("objects.redb");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(&file, "hello").unwrap();
    let text = refused(folder.path());
    assert!(text.contains("is damaged"), "{text}");
}
