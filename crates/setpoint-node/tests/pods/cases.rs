//! The cases, each a function over one machine.

use std::env;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use futures::FutureExt;
use setpoint_cluster::kubelet::{
    ContainerId, Runtime, RuntimeError, Signal, Volume, VolumeFile, VolumeFiles, VolumeSource,
};
use setpoint_node::{EnterError, JoinOptions, MachineOptions, ProcessCluster, ProxyMode, Sandbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{
    a_pod_through_the_kubelet, a_pod_whose_first_process_is_killed, a_stateful_set_of_servers,
    clients_of_a_removed_endpoint, services_and_names, services_without_nftables,
};
use crate::machine::{TestPod, World, mount};
use crate::{DIRECTORY, REFUSED};

/// Where a stand-in for the API server listens inside.
pub const API_PORT: u16 = 6443;

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
    an_input_waits_for_who_attaches,
    termination_message,
    pods_reach_each_other,
    the_gateway_keeps_its_hardware_address,
    a_cut_pod_is_cut,
    redis_keeps_its_data,
    services_and_names,
    services_without_nftables,
    clients_of_a_removed_endpoint,
    an_unpacked_image,
    the_nodes_network,
    a_pod_through_the_kubelet,
    a_pod_whose_first_process_is_killed,
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

pub fn enter() -> Result<Sandbox, ExitCode> {
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

pub async fn world(sandbox: Sandbox, proxy_mode: ProxyMode) -> World {
    let data = PathBuf::from(env::var_os(DIRECTORY).unwrap());
    make_image(&data.join("images/tiny_1"));
    let options = MachineOptions {
        images_dir: Some(data.join("images")),
        proxy_mode,
        ..MachineOptions::new(data.clone())
    };
    let join = JoinOptions { nodes: 1, api_port: Some(API_PORT), volume_refresh: None };
    let running = ProcessCluster::start(sandbox, &options, &join).await.unwrap();
    let ProcessCluster { cluster, machine, nodes: joined, .. } = running;
    assert_eq!(joined.names(), ["node-1"]);
    let nodes = vec![machine.add_node().await.unwrap(), machine.add_node().await.unwrap()];
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
    // The devices are the machine's: whoever the container is, it uses them and changes nothing about them.
    let of_null = || {
        let meta = std::fs::metadata("/dev/null").unwrap();
        (meta.mode(), meta.uid(), meta.gid())
    };
    let before = of_null();
    for user in [0, 999] {
        let mut spec = pod
            .script("echo x > /dev/null && head -c 1 /dev/zero >> /dev/null && echo used; chmod 600 /dev/null; chmod 600 /proc/self/fd/0; chown 5 /dev/null; sleep 0.1")
            .await;
        spec.user = Some(user);
        let id = pod.start(&spec).await;
        assert_eq!(of_null(), before, "user {user}");
        pod.wait(&id).await;
        let log = pod.logs(&id).await;
        assert!(log.contains("used\n") && log.contains("Read-only file system"), "{log}");
        assert_eq!(of_null(), before, "user {user}: {log}");
    }
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

/// Says a line to a container, reads one, and goes.
async fn says(pod: &TestPod<'_>, id: &ContainerId, line: &str) -> String {
    let mut session = pod.node.attach(id, true).await.unwrap();
    session.stdin.as_mut().expect("an input").write_all(line.as_bytes()).await.unwrap();
    let mut answer = String::new();
    while !answer.ends_with('\n') {
        answer.push(session.stdout.read_u8().await.unwrap().into());
    }
    answer
}

async fn an_input_waits_for_who_attaches(world: &World) {
    let pod = world.pod("attach").await;
    let mut spec = pod.script("while read line; do echo got $line; done; echo the end").await;
    let without = pod.start(&spec).await;
    assert_eq!(pod.wait(&without).await.code, 0);
    let error = pod.node.attach(&without, true).await.err();
    assert!(matches!(error, Some(RuntimeError::NotRunning(_))), "{error:?}");

    // One input for all, one after another.
    spec.stdin = true;
    let id = pod.start(&spec).await;
    assert_eq!(says(&pod, &id, "one\n").await, "got one\n");
    assert_eq!(says(&pod, &id, "two\n").await, "got two\n");
    pod.node.signal(&id, Signal::Kill).await.unwrap();
    assert_eq!(pod.wait(&id).await.code, 137);

    // One for the first: the container sees its end.
    spec.stdin_once = true;
    let once = pod.start(&spec).await;
    assert_eq!(says(&pod, &once, "one\n").await, "got one\n");
    assert_eq!(pod.wait(&once).await.code, 0);
    assert_eq!(pod.logs(&once).await, "got one\nthe end\n");

    // What it writes is shown before its line ends; errors apart from the rest.
    let mut spec = pod.script("read line; printf 'a prompt: '; printf trouble >&2; read line; exit 3").await;
    spec.stdin = true;
    let id = pod.start(&spec).await;
    let mut session = pod.node.attach(&id, true).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"\n").await.unwrap();
    let mut prompt = [0; 10];
    session.stdout.read_exact(&mut prompt).await.unwrap();
    assert_eq!(&prompt, b"a prompt: ");
    stdin.write_all(b"\n").await.unwrap();
    let mut errors = String::new();
    session.stderr.take().unwrap().read_to_string(&mut errors).await.unwrap();
    assert_eq!((errors.as_str(), session.exit.await.unwrap()), ("trouble", 0));
    assert_eq!(pod.wait(&id).await.code, 3);
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

/// Pods remember it for tens of seconds, while other pods come and go.
async fn the_gateway_keeps_its_hardware_address(world: &World) {
    let ip = |arguments: &str| {
        let output = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let remembered = async |pod: &crate::machine::TestPod<'_>| {
        let gateway = setpoint_node::GATEWAY;
        let script = format!(
            "getent hosts kubernetes.default; while read -r address _ _ hardware _; do \
             [ $address != {gateway} ] || echo $hardware; done < /proc/net/arp"
        );
        let (_, log) = pod.run(&script).await;
        log.lines().last().unwrap_or_default().to_owned()
    };
    let before = world.pod("before").await;
    let expected = remembered(&before).await;
    assert_eq!(expected.matches(':').count(), 5, "a hardware address: {expected}");
    // Lower than any pod's, so that a bridge which chooses for itself would choose it.
    ip("link add low address 02:00:00:00:00:01 type veth peer name low-peer");
    ip("link set low master setpoint0 up");
    let after = world.pod("after").await;
    let found = remembered(&after).await;
    ip("link del low");
    assert_eq!(found, expected);
    before.remove().await;
    after.remove().await;
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

pub async fn redis<'a>(
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
    // Also those of earlier cases, whatever connections were open.
    let devices = std::fs::read_to_string("/proc/net/dev").unwrap();
    let names = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let left: Vec<_> = names.filter(|name| name.starts_with("pod")).collect();
    assert!(left.is_empty(), "interfaces are left: {left:?}");
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
