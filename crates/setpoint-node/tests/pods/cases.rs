//! The cases, each a function over one machine.

use std::env;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use setpoint_clock::Clock;
use setpoint_cluster::Cluster;
use setpoint_cluster::kubelet::{
    Runtime, RuntimeError, Signal, Volume, VolumeFile, VolumeFiles, VolumeSource,
};
use setpoint_node::{EnterError, JoinOptions, Machine, MachineOptions, ProxyMode, Sandbox};

use crate::machine::{World, mount};
use crate::{DIRECTORY, REFUSED};

/// Where a stand-in for the API server listens inside.
const API_PORT: u16 = 6443;

type Case = for<'a> fn(&'a World) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Declares the cases with their names.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        const CASES: &[(&str, Case)] = &[$((stringify!($name), |world| Box::pin($name(world)))),*];
    };
}

cases![
    logs_and_exit_code,
    a_missing_program_is_explained,
    kill_and_stop_are_reported,
    a_container_is_closed_off,
    users_and_capabilities,
    volumes_are_shared_and_read_only,
    file_volumes_change_under_a_container,
    exec_with_input_and_terminal,
    termination_message,
    pods_reach_each_other,
    a_cut_pod_is_cut,
    redis_keeps_its_data,
    services_and_names,
    services_without_nftables,
    an_unpacked_image,
    the_nodes_network,
    a_pod_through_the_kubelet,
    a_stateful_set_of_servers,
    creation_is_quick_and_removal_is_complete,
];

pub fn run() -> ExitCode {
    let user = env::var("SETPOINT_NODE_TEST_USER").unwrap_or_default();
    let filter = env::args().nth(1).unwrap_or_default();
    let sandbox = match enter() {
        Ok(sandbox) => sandbox,
        Err(status) => return status,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let failed = runtime.block_on(async {
        let world = world(sandbox, ProxyMode::Nftables).await;
        let mut failed = 0;
        for (name, case) in CASES.iter().filter(|(name, _)| name.contains(&filter)) {
            // A panic's message goes to standard error, before the verdict.
            let passed = std::panic::AssertUnwindSafe(case(&world)).catch_unwind().await.is_ok();
            println!("test {user}::{name} ... {}", if passed { "ok" } else { "FAILED" });
            failed += usize::from(!passed);
        }
        failed
    });
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn enter() -> Result<Sandbox, ExitCode> {
    setpoint_node::enter(vec![]).map_err(|error| match error {
        EnterError::Refused { .. } | EnterError::Tool(_) => {
            println!("test {} ... ignored, {error}", env::var("SETPOINT_NODE_TEST_USER").unwrap_or_default());
            ExitCode::from(REFUSED as u8)
        }
        other => {
            println!("the sandbox cannot be entered: {other}");
            ExitCode::from(2)
        }
    })
}

async fn world(sandbox: Sandbox, proxy_mode: ProxyMode) -> World {
    let data = PathBuf::from(env::var_os(DIRECTORY).unwrap());
    make_image(&data.join("images/tiny_1"));
    let options =
        MachineOptions { data_dir: data.clone(), images_dir: Some(data.join("images")), proxy_mode };
    let machine = Machine::new(sandbox, &options, Clock::system()).unwrap();
    let nodes = vec![machine.add_node().await.unwrap(), machine.add_node().await.unwrap()];
    let cluster = Cluster::builder().hollow_nodes(0).data_dir(&data).start().await.unwrap();
    let options = JoinOptions { nodes: 1, api_port: Some(API_PORT), volume_refresh: None };
    let joined = machine.join(&cluster, &options).await.unwrap();
    assert_eq!(joined.names(), ["node-1"]);
    let client = cluster.client();
    let root = env::var("SETPOINT_NODE_TEST_USER").as_deref() == Ok("root");
    World { machine, nodes, data, root, client, _cluster: cluster, _joined: joined }
}

/// Ends with a status of its own when it gets SIGTERM.
pub fn end_by_signal() -> ExitCode {
    if let Err(status) = enter() {
        return status;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        println!("ready");
        signal.recv().await;
    });
    ExitCode::from(42)
}

/// Starts a pod, says so, and waits to be killed.
pub fn be_a_victim() -> ExitCode {
    let sandbox = match enter() {
        Ok(sandbox) => sandbox,
        Err(status) => return status,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = world(sandbox, ProxyMode::Nftables).await;
        let pod = world.pod("victim").await;
        pod.start(&pod.script("sleep 1000").await).await;
        println!("ready");
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

async fn logs_and_exit_code(world: &World) {
    let pod = world.pod("echo").await;
    let (exit, log) =
        pod.run("echo out; echo err >&2; echo $HOSTNAME $(hostname) $LC_ALL $HOME; exit 3").await;
    assert_eq!((exit.code, exit.signal), (3, None));
    assert!(log.contains("out\n") && log.contains("err\n"), "{log}");
    assert!(log.contains("echo echo C /root\n"), "{log}");
    pod.remove().await;
}

async fn a_missing_program_is_explained(world: &World) {
    let pod = world.pod("missing").await;
    let spec = pod.command("debian:12", &["no-such-program"]).await;
    let error = pod.node.start_container(&pod.pod, &spec).await.unwrap_err();
    assert!(
        matches!(&error, RuntimeError::CannotStart { code: 127, message } if message.contains("no-such-program")),
        "{error}"
    );
    let error = pod.node.resolve_image("nginx:1.25").await.unwrap_err().to_string();
    assert!(error.contains("nginx:1.25"), "{error}");
    pod.remove().await;
}

async fn kill_and_stop_are_reported(world: &World) {
    let pod = world.pod("kill").await;
    let id = pod
        .start(&pod.script("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done").await)
        .await;
    pod.until(&id, &["true"], |_| true).await;
    while !pod.logs(&id).await.contains("up") {
        tokio::task::yield_now().await;
    }
    pod.node.signal(&id, Signal::Term).await.unwrap();
    let exit = pod.wait(&id).await;
    assert_eq!((exit.code, exit.signal), (0, None));
    assert_eq!(pod.logs(&id).await, "up\nbye\n");

    let id = pod.start(&pod.script("sleep 1000 & sleep 1000").await).await;
    pod.until(&id, &["sh", "-c", "cat /proc/[0-9]/stat | grep -c '(sleep)'"], |count| count == "2\n").await;
    world.machine.signal("default", "kill", "main", Signal::Stop).await.unwrap();
    let states = ["sh", "-c", "cat /proc/[0-9]/stat | grep '(sleep)' | cut -d' ' -f3"];
    pod.until(&id, &states, |states| states == "T\nT\n").await;
    world.machine.signal("default", "kill", "main", Signal::Continue).await.unwrap();
    pod.until(&id, &states, |states| states == "S\nS\n").await;
    world.machine.signal("default", "kill", "main", Signal::Kill).await.unwrap();
    let exit = pod.wait(&id).await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    pod.remove().await;
}

async fn a_container_is_closed_off(world: &World) {
    let pod = world.pod("closed").await;
    let mut spec = pod
        .script(
            "echo $$; ls /proc | grep -c '^[0-9]'; touch /usr/x /etc/x; echo etc=$?; touch /proc/sys/vm/swappiness; \
             ls -d /home/* /root/* /var/lib/*; cat /etc/resolv.conf /etc/hostname; ls /dev; awk 'BEGIN{print \"awk\"}'",
        )
        .await;
    let id = pod.start(&spec).await;
    pod.wait(&id).await;
    let log = pod.logs(&id).await;
    assert!(log.starts_with("1\n"), "the first process of its namespace: {log}");
    assert!(log.contains("touch: cannot touch '/usr/x': Read-only file system"), "{log}");
    for expected in
        ["nameserver 10.96.0.10", "search default.svc.cluster.local", "closed\n", "awk\n", "urandom"]
    {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    spec.read_only_root = true;
    let id = pod.start(&spec).await;
    pod.wait(&id).await;
    let log = pod.logs(&id).await;
    assert!(
        log.contains("touch: cannot touch '/etc/x': Read-only file system") && log.contains("etc=1"),
        "{log}"
    );
    pod.remove().await;
}

async fn users_and_capabilities(world: &World) {
    let pod = world.pod("users").await;
    let mut spec = pod
        .script(
            "id -u; id -g; id -G; grep -E 'Cap(Eff|Bnd)|NoNewPrivs' /proc/self/status; echo x >/dev/stderr",
        )
        .await;
    spec.user = Some(999);
    spec.group = Some(998);
    spec.groups = vec![997];
    spec.drop_capabilities = vec!["ALL".into()];
    spec.allow_privilege_escalation = false;
    let id = pod.start(&spec).await;
    pod.wait(&id).await;
    let log = pod.logs(&id).await;
    let ids = if world.root { "999\n998\n998 997\n" } else { "0\n0\n0" };
    assert!(log.starts_with(ids), "{log}");
    for expected in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "x\n"] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    pod.remove().await;
}

async fn volumes_are_shared_and_read_only(world: &World) {
    let persistent = world.data.join("pv-1");
    let volume = Volume {
        name: "data".into(),
        source: VolumeSource::Persistent {
            name: "pv-1".into(),
            path: persistent.clone(),
            capacity: None,
            read_only: false,
        },
    };
    let memory = Volume {
        name: "memory".into(),
        source: VolumeSource::EmptyDir { memory: true, size_limit: Some(1 << 20) },
    };
    let pod = world.pod_with(0, "volumes", vec![volume, memory, World::empty_dir("scratch")]).await;
    let mut spec = pod
        .script("echo one > /data/file; echo two > /deep/er/scratch/file; dd if=/dev/zero of=/memory/big bs=1M count=3; stat -c '%a %g' /data")
        .await;
    spec.user = Some(999);
    spec.groups = vec![999];
    spec.mounts =
        vec![mount("data", "/data"), mount("scratch", "/deep/er/scratch"), mount("memory", "/memory")];
    let id = pod.start(&spec).await;
    assert_eq!(pod.wait(&id).await.code, 0);
    let log = pod.logs(&id).await;
    assert!(log.contains("No space left on device"), "{log}");
    assert_eq!(std::fs::read_to_string(persistent.join("file")).unwrap(), "one\n");

    let mut second = pod
        .script("cat /data/file; echo three > /data/file; cat /sub/file; mknod /sub/disk b 1 0; head -c1 /sub/disk")
        .await;
    second.mounts = vec![mount("data", "/data"), mount("scratch", "/sub")];
    second.mounts[0].read_only = true;
    let id = pod.start(&second).await;
    pod.wait(&id).await;
    let log = pod.logs(&id).await;
    assert!(log.contains("one\n") && log.contains("two\n") && log.contains("Read-only file system"), "{log}");
    let denied = if world.root {
        "head: cannot open '/sub/disk' for reading: Permission denied"
    } else {
        "mknod: /sub/disk: Operation not permitted"
    };
    assert!(log.contains(denied), "no way to the machine's devices: {log}");
    pod.remove().await;
    assert!(persistent.join("file").exists(), "persistent volumes outlive the pod");
}

async fn file_volumes_change_under_a_container(world: &World) {
    let files = |text: &'static str| VolumeFiles {
        files: [("redis.conf".to_owned(), VolumeFile { data: text.into(), mode: 0o640, user: None })].into(),
        group: Some(999),
    };
    let config = Volume { name: "config".into(), source: VolumeSource::Files };
    let pod = world.pod_with(0, "files", vec![config]).await;
    pod.node.write_volume(&pod.pod, "config", &files("old")).await.unwrap();
    let mut spec = pod
        .script("cat /etc/redis/redis.conf; while ! grep -q new /etc/redis/redis.conf; do sleep 0.02; done")
        .await;
    spec.mounts = vec![mount("config", "/etc/redis")];
    spec.mounts[0].read_only = true;
    spec.user = Some(999);
    spec.groups = vec![999];
    let id = pod.start(&spec).await;
    pod.node.write_volume(&pod.pod, "config", &files("new")).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 0);
    pod.remove().await;
}

async fn exec_with_input_and_terminal(world: &World) {
    let pod = world.pod("exec").await;
    let mut spec = pod.script("sleep 1000").await;
    spec.env.push(("COLOUR".into(), "blue".into()));
    let id = pod.start(&spec).await;
    assert_eq!(
        pod.exec(&id, &["sh", "-c", "echo $COLOUR; hostname; exit 5"]).await,
        (5, "blue\nexec\n".to_owned())
    );
    assert_eq!(pod.exec_with_input(&id, &["tr", "a-z", "A-Z"], "shout", false).await, "SHOUT");
    let output =
        pod.exec_with_input(&id, &["sh", "-c", "tty; read line; echo got $line"], "words\n", true).await;
    assert!(output.contains("/dev/pts/0") && output.contains("got words"), "{output}");
    let missing = ["nothing-here".to_owned()];
    let error = setpoint_cluster::kubelet::command_output(pod.node, &id, &missing).await.unwrap_err();
    assert!(matches!(error, RuntimeError::CannotStart { code: 127, .. }), "{error}");
    pod.node.signal(&id, Signal::Kill).await.unwrap();
    pod.wait(&id).await;
    let error = setpoint_cluster::kubelet::command_output(pod.node, &id, &missing).await.unwrap_err();
    assert!(matches!(error, RuntimeError::NotRunning(_)), "{error}");
    pod.remove().await;
}

async fn termination_message(world: &World) {
    let pod = world.pod("message").await;
    let (exit, _) = pod.run("echo why > /dev/termination-log; exit 1").await;
    assert_eq!(exit.message.as_deref(), Some("why\n"));
    let mut spec = pod.script("echo from the log; exit 1").await;
    spec.termination_message_from_log = true;
    let id = pod.start(&spec).await;
    assert_eq!(pod.wait(&id).await.message.as_deref(), Some("from the log\n"));
    pod.remove().await;
}

const SERVER: &str = "exec redis-server --port 7000 --save '' --protected-mode no --bind '*'";

async fn pods_reach_each_other(world: &World) {
    let Some((one, id)) = redis(world, 0, "one").await else { return };
    let other = world.pod_with(1, "other", vec![]).await;
    assert_ne!(one.address, other.address);
    let client = other.start(&other.script("sleep 1000").await).await;
    let address = one.address.to_string();
    other
        .until(&client, &["redis-cli", "-h", &address, "-p", "7000", "ping"], |output| {
            output.contains("PONG")
        })
        .await;
    // The server sees the client's own address.
    let ask = ["redis-cli", "-h", &address, "-p", "7000", "client", "info"];
    let (_, info) = other.exec(&client, &ask).await;
    assert!(info.contains(&format!("addr={}:", other.address)), "{info}");
    one.node.dial((one.address, 7000).into()).await.unwrap();
    drop(id);
    one.remove().await;
    other.remove().await;
}

async fn a_cut_pod_is_cut(world: &World) {
    let Some((one, _)) = redis(world, 0, "cut-one").await else { return };
    let other = world.pod_with(1, "cut-other", vec![]).await;
    let client = other.start(&other.script("sleep 1000").await).await;
    let address = one.address.to_string();
    let ping = ["timeout", "1", "redis-cli", "-h", &address, "-p", "7000", "ping"];
    other.until(&client, &ping, |output| output.contains("PONG")).await;
    let fault = world.machine.partition(("default", "cut-one"), ("default", "cut-other")).await.unwrap();
    assert_eq!(other.exec(&client, &ping).await.0, 124, "no answer before the time is up");
    assert!(one.node.dial((one.address, 7000).into()).await.is_ok(), "others still reach it");
    fault.heal().await.unwrap();
    other.until(&client, &ping, |output| output.contains("PONG")).await;
    let fault = world.machine.isolate("default", "cut-one").await.unwrap();
    let dial =
        tokio::time::timeout(Duration::from_millis(300), one.node.dial((one.address, 7000).into())).await;
    assert!(!matches!(dial, Ok(Ok(_))), "nobody reaches it");
    fault.heal().await.unwrap();
    one.remove().await;
    other.remove().await;
}

async fn redis<'a>(
    world: &'a World,
    node: usize,
    name: &str,
) -> Option<(crate::machine::TestPod<'a>, setpoint_cluster::kubelet::ContainerId)> {
    if !world.nodes[0].images().iter().any(|image| image.starts_with("redis:")) {
        println!("    (redis-server is not installed: skipped)");
        return None;
    }
    let pod = world.pod_with(node, name, vec![World::empty_dir("data")]).await;
    let mut spec = pod.command("redis:7", &["sh", "-c", SERVER]).await;
    spec.user = Some(999);
    spec.groups = vec![999];
    spec.read_only_root = true;
    spec.mounts = vec![mount("data", "/data")];
    spec.drop_capabilities = vec!["ALL".into()];
    let id = pod.start(&spec).await;
    Some((pod, id))
}

async fn redis_keeps_its_data(world: &World) {
    let Some((pod, id)) = redis(world, 0, "keeps").await else { return };
    pod.until(&id, &["redis-cli", "-p", "7000", "set", "key", "value"], |output| output.contains("OK")).await;
    pod.until(&id, &["redis-cli", "-p", "7000", "save"], |output| output.contains("OK")).await;
    pod.node.signal(&id, Signal::Kill).await.unwrap();
    assert_eq!(pod.wait(&id).await.signal, Some(9));
    let mut spec = pod.command("redis:7", &["sh", "-c", SERVER]).await;
    spec.mounts = vec![mount("data", "/data")];
    spec.user = Some(999);
    spec.groups = vec![999];
    let id = pod.start(&spec).await;
    pod.until(&id, &["redis-cli", "-p", "7000", "get", "key"], |output| output.contains("value")).await;
    pod.remove().await;
}

async fn creation_is_quick_and_removal_is_complete(world: &World) {
    let start = tokio::time::Instant::now();
    let mut pods = Vec::new();
    for number in 0..5 {
        let pod = world.pod(&format!("many-{number}")).await;
        pod.start(&pod.script("sleep 1000").await).await;
        pods.push(pod);
    }
    println!("    {:?} for a pod with a container", start.elapsed() / 5);
    let directories = world.data.join("pods");
    let count = || {
        let names = std::fs::read_dir(&directories).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("uid-many-")).count()
    };
    assert_eq!(count(), 5);
    for pod in pods {
        pod.remove().await;
    }
    assert_eq!(count(), 0);
    // Interfaces go with the last reference to a namespace, which the kernel drops a little later.
    let interfaces = || std::fs::read_to_string("/proc/net/dev").unwrap().matches(" pod").count();
    for _ in 0..200 {
        if interfaces() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(interfaces(), 0, "interfaces are left");
}

/// Applies an object as a test's own manager.
async fn apply<K>(world: &World, object: serde_json::Value) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug,
    K: serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(world.client.clone(), "default");
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let mut object = object;
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&object)).await.unwrap()
}

async fn services_and_names(world: &World) {
    let Some((one, first)) = redis(world, 0, "one").await else { return };
    let Some((two, _)) = redis(world, 1, "two").await else { return };
    let client = world.pod("client").await;
    let id = client.start(&client.script("sleep 1000").await).await;
    let ports = json!([{"name": "redis", "port": 6379, "targetPort": 7000}]);
    let service: Service =
        apply(world, json!({"metadata": {"name": "orders"}, "spec": {"ports": ports}})).await;
    let address = service.spec.unwrap().cluster_ip.unwrap();
    apply::<Service>(
        world,
        json!({"metadata": {"name": "nodes"}, "spec": {"clusterIP": "None", "ports": ports}}),
    )
    .await;
    let slice = |service: &str, endpoints: serde_json::Value| {
        json!({
            "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "redis", "port": 7000, "protocol": "TCP"}],
            "endpoints": endpoints,
        })
    };
    let endpoints = json!([
        {"addresses": [one.address], "hostname": "one", "conditions": {"ready": true}},
        {"addresses": [two.address], "hostname": "two", "conditions": {"ready": true}},
    ]);
    apply::<EndpointSlice>(world, slice("orders", endpoints.clone())).await;
    apply::<EndpointSlice>(world, slice("nodes", endpoints)).await;

    // By its short name, from a pod; both endpoints get connections.
    client.until(&id, &["redis-cli", "-h", "orders", "ping"], |output| output.contains("PONG")).await;
    let ids = [
        "sh",
        "-c",
        "for i in $(seq 20); do redis-cli -h orders info server | grep run_id; done | sort -u | wc -l",
    ];
    client.until(&id, &ids, |count| count.trim() == "2").await;
    // A pod reaches itself through the Service, and the server sees the client's own address otherwise.
    one.until(&first, &ids, |count| count.trim() == "2").await;
    let own = client.address.to_string();
    client
        .until(&id, &["redis-cli", "-h", "orders", "client", "info"], |info| {
            info.contains(&format!("addr={own}:"))
        })
        .await;
    // From the main process, where operators run.
    let stream = tokio::net::TcpStream::connect((address.as_str(), 6379)).await;
    assert!(stream.is_ok(), "{stream:?}");

    let (_, hosts) = client.exec(&id, &["getent", "ahostsv4", "one.nodes.default.svc.cluster.local"]).await;
    assert!(hosts.starts_with(&one.address.to_string()), "{hosts}");
    let (_, hosts) = client.exec(&id, &["getent", "hosts", "two.nodes"]).await;
    assert!(hosts.starts_with(&two.address.to_string()), "{hosts}");
    let (_, hosts) = client.exec(&id, &["getent", "hosts", "kubernetes.default"]).await;
    assert!(hosts.starts_with("10.96.0.1 "), "{hosts}");
    let (_, hosts) = client.exec(&id, &["getent", "hosts", &one.address.to_string()]).await;
    assert!(hosts.contains("one.nodes.default.svc.cluster.local"), "{hosts}");
    assert_eq!(client.exec(&id, &["getent", "hosts", "nobody.default.svc.cluster.local"]).await.0, 2);

    // Without endpoints connections are refused, at once.
    apply::<EndpointSlice>(world, slice("orders", json!([]))).await;
    let refused = ["sh", "-c", "timeout 5 redis-cli -h orders ping 2>&1 || true"];
    client.until(&id, &refused, |output| output.contains("Connection refused")).await;
    for pod in [one, two, client] {
        pod.remove().await;
    }
}

async fn a_pod_through_the_kubelet(world: &World) {
    let _server = tokio::net::TcpListener::bind((setpoint_node::GATEWAY, API_PORT)).await.unwrap();
    apply::<ConfigMap>(world, json!({"metadata": {"name": "config"}, "data": {"greeting": "hello\n"}})).await;
    let image = world.nodes[0]
        .images()
        .into_iter()
        .find(|name| name.starts_with("debian") || name.starts_with("ubuntu"))
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let pod = json!({
        "metadata": {"name": "whole"},
        "spec": {
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 999, "fsGroup": 999},
            "containers": [{
                "name": "main", "image": image,
                "command": ["bash", "-c", "trap 'exit 0' TERM; cat /config/greeting; \
                    until exec 3<>/dev/tcp/kubernetes.default/443; do sleep 0.1; done; echo reached the API server; \
                    while :; do sleep 0.05; done"],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "readinessProbe": {"exec": {"command": ["sh", "-c", "test -n \"$POD_IP\""]}, "periodSeconds": 1},
                "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "config"}}, {"name": "data", "emptyDir": {}}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let status = async |what: &str, done: &dyn Fn(&Pod) -> bool| {
        let mut last = None;
        for _ in 0..200 {
            last = pods.get_opt("whole").await.unwrap();
            if last.as_ref().is_some_and(done) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "{what}; at last: {}",
            serde_json::to_string_pretty(&last.and_then(|pod| pod.status)).unwrap()
        );
    };
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    };
    let found = status("ready", &ready).await.unwrap();
    assert!(found.status.as_ref().unwrap().pod_ip.as_ref().unwrap().starts_with("10.244."));
    let logs = world.data.join("pods").join(found.metadata.uid.unwrap()).join("logs");
    let log = || -> String {
        let files = std::fs::read_dir(&logs).unwrap().flatten();
        files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect()
    };
    for _ in 0..200 {
        if log().contains("reached") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        log().contains(" stdout F hello\n") && log().contains(" stdout F reached the API server\n"),
        "{}",
        log()
    );
    world.machine.signal("default", "whole", "main", Signal::Kill).await.unwrap();
    let restarted = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses
            .and_then(|all| all.first()?.last_state.as_ref()?.terminated.as_ref().map(|end| end.exit_code))
            == Some(137)
    };
    status("the exit code of the first run", &restarted).await;
    pods.delete("whole", &DeleteParams::default()).await.unwrap();
    for _ in 0..200 {
        if pods.get_opt("whole").await.unwrap().is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the pod should be gone");
}

/// A second machine cannot be had in one sandbox, so that this runs the proxy beside it, in a process of its own.
async fn services_without_nftables(world: &World) {
    let mut command = tokio::process::Command::new(env::current_exe().unwrap());
    command.env(crate::ROLE, "proxy").env(DIRECTORY, world.data.join("proxy"));
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Serves a Service by the proxy, in a sandbox inside the sandbox.
pub fn proxy() -> ExitCode {
    let sandbox = match enter() {
        Ok(sandbox) => sandbox,
        Err(status) => return status,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = world(sandbox, ProxyMode::Userspace).await;
        let Some((server, id)) = redis(&world, 0, "server").await else { return };
        let ports = json!([{"name": "redis", "port": 6379, "targetPort": 7000}]);
        apply::<Service>(&world, json!({"metadata": {"name": "orders"}, "spec": {"ports": ports}})).await;
        let slice = |ready: bool| {
            json!({
                "metadata": {"name": "orders-1", "labels": {"kubernetes.io/service-name": "orders"}},
                "addressType": "IPv4",
                "ports": [{"name": "redis", "port": 7000, "protocol": "TCP"}],
                "endpoints": [{"addresses": [server.address], "conditions": {"ready": ready}}],
            })
        };
        apply::<EndpointSlice>(&world, slice(true)).await;
        server.until(&id, &["redis-cli", "-h", "orders", "ping"], |output| output.contains("PONG")).await;
        apply::<EndpointSlice>(&world, slice(false)).await;
        let refused = ["sh", "-c", "timeout 5 redis-cli -h orders ping 2>&1 || true"];
        server.until(&id, &refused, |output| output.contains("Connection refused")).await;
        server.remove().await;
    });
    ExitCode::SUCCESS
}

async fn an_unpacked_image(world: &World) {
    let image = world.data.join("images/tiny_1");
    let pod = world.pod("unpacked").await;
    let mut spec = pod.command("tiny:1", &[]).await;
    spec.args =
        vec!["echo written > /file; cat /file /etc/hostname /marker; echo $FROM_IMAGE; ls /usr".into()];
    let id = pod.start(&spec).await;
    pod.wait(&id).await;
    let log = pod.logs(&id).await;
    assert!(log.starts_with("written\nunpacked\nmark\nimage\n"), "{log}");
    assert!(!image.join("file").exists(), "writes stay in memory");
    pod.remove().await;
}

/// An image with a shell, `cat`, `ls` and the libraries that they need, from this machine.
fn make_image(image: &std::path::Path) {
    for program in ["/bin/sh", "/bin/cat", "/bin/ls"] {
        let libraries = std::process::Command::new("ldd").arg(program).output().unwrap();
        let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
        for file in libraries.split_whitespace().filter(|word| word.starts_with('/')).chain([program]) {
            let target = image.join(&file[1..]);
            std::fs::create_dir_all(target.parent().unwrap()).unwrap();
            std::fs::copy(file, target).unwrap();
        }
    }
    std::fs::create_dir_all(image.join("usr")).unwrap();
    std::fs::write(image.join("marker"), "mark\n").unwrap();
    let description = r#"{"entrypoint": ["sh", "-c"], "env": {"FROM_IMAGE": "image"}}"#;
    std::fs::write(image.with_extension("json"), description).unwrap();
}

async fn the_nodes_network(world: &World) {
    let node = &world.nodes[1];
    let config = crate::machine::TestPod::config("hostnet");
    let config = setpoint_cluster::kubelet::SandboxConfig { host_network: true, ..config };
    let sandbox = node.create_sandbox(&config).await.unwrap();
    assert_eq!(sandbox.addresses, node.node_info().addresses);
    let pod = crate::machine::TestPod { node, pod: config.pod.clone(), address: sandbox.addresses[0] };
    let (_, log) = pod.run("grep -c setpoint0 /proc/net/dev").await;
    assert_eq!(log, "1\n");
    pod.remove().await;
}

async fn a_stateful_set_of_servers(world: &World) {
    if !world.nodes[0].images().iter().any(|image| image == "redis:7.0") {
        println!("    (redis-server 7.0 is not installed: skipped)");
        return;
    }
    let labels = json!({"app": "db"});
    let ports = json!([{"name": "redis", "port": 6379, "targetPort": "redis"}]);
    let headless = json!({"clusterIP": "None", "selector": labels, "ports": ports});
    apply::<Service>(world, json!({"metadata": {"name": "db"}, "spec": headless})).await;
    let set = json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "replicas": 2, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "securityContext": {"runAsUser": 999, "runAsNonRoot": true, "fsGroup": 999},
                    "containers": [{
                        "name": "redis", "image": "redis:7.0",
                        "command": ["redis-server", "--appendonly", "yes", "--dir", "/data", "--protected-mode", "no"],
                        "ports": [{"name": "redis", "containerPort": 6379}],
                        "readinessProbe": {"exec": {"command": ["redis-cli", "ping"]}, "periodSeconds": 1},
                        "securityContext": {"readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }],
        },
    });
    apply::<StatefulSet>(world, set).await;
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), "default");
    let ready = async || {
        let mut last = None;
        for _ in 0..400 {
            last = sets.get("db").await.unwrap().status;
            if last.as_ref().is_some_and(|status| status.ready_replicas == Some(2)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
        let pods = pods.list(&kube::api::ListParams::default().labels("app=db")).await.unwrap();
        let pods: Vec<_> = pods
            .items
            .into_iter()
            .map(|pod| (pod.metadata.name, pod.spec.unwrap().node_name, pod.status))
            .collect();
        panic!("two ready replicas; at last: {last:?} {}", serde_json::to_string_pretty(&pods).unwrap());
    };
    ready().await;
    let client = world.pod("db-client").await;
    let id = client.start(&client.script("sleep 1000").await).await;
    client
        .until(&id, &["redis-cli", "-h", "db-1.db", "set", "key", "kept"], |output| output.contains("OK"))
        .await;

    // A new pod of the same name finds its data, at a new address.
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let uid = pods.get("db-1").await.unwrap().metadata.uid;
    pods.delete("db-1", &DeleteParams::default()).await.unwrap();
    for _ in 0..400 {
        if pods.get_opt("db-1").await.unwrap().is_some_and(|pod| pod.metadata.uid != uid) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ready().await;
    client.until(&id, &["redis-cli", "-h", "db-1.db", "get", "key"], |output| output.contains("kept")).await;
    sets.delete("db", &DeleteParams::foreground()).await.unwrap();
    for _ in 0..400 {
        if sets.get_opt("db").await.unwrap().is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(sets.get_opt("db").await.unwrap().is_none(), "the set is deleted with its pods");
    client.remove().await;
}
