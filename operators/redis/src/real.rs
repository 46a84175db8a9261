//! Decisions and monitors against real redis-server processes, started with the rendered files on addresses
//! of the loopback network. Skipped, saying so, where no redis-server is installed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use setpoint::Key;
use tempfile::TempDir;
use tokio::process::{Child, Command as Process};
use tokio::time::{Instant, sleep};

use crate::api::{RedisCluster, RedisClusterSpec};
use crate::decide::{Decision, Step, decide};
use crate::observe::{
    Command, Credentials, Instance, Ledger, Monitored, Monitors, Node, Observation, PodFacts,
    Process as State, Resp, Target, Workload,
};
use crate::render::{self, First, Identity, PORT, Passwords, Revision, Role};
use crate::settings::Settings;

/// How long something that is bound to happen may take on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// A cluster without Kubernetes: processes, and labels in memory.
struct Rig {
    folder: TempDir,
    net: u8,
    monitors: Monitors,
    passwords: Passwords,
    ledger: Ledger,
    settings: Settings,
    requested: Option<String>,
    /// What Kubernetes knows of the nodes.
    node: Node,
    pods: BTreeMap<u32, (Child, Option<Role>)>,
}

fn installed() -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("redis-server").exists()));
    if !found {
        // Written past the test program, which hides what a passing test prints.
        let _ = writeln!(std::io::stderr(), "skipped: no redis-server is installed");
    }
    found
}

impl Rig {
    fn new(net: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec: RedisClusterSpec = serde_json::from_value(
            serde_json::json!({"size": 3, "image": "redis:7.0", "storage": {"size": "1Gi"}}),
        )
        .unwrap();
        let cluster = RedisCluster::new("orders", spec);
        let identity = Identity::of(&cluster);
        let (settings, _) = Settings::of(&cluster.spec);
        let passwords = Passwords::generate().unwrap();
        let system = folder.path().join("system");
        std::fs::create_dir(&system).unwrap();
        for (name, text) in First.system_secret(&identity, &passwords).data.unwrap() {
            std::fs::write(system.join(name), text.0).unwrap();
        }
        let config = First.config_map(&identity, &settings, 805_306_368).data.unwrap()["redis.conf"].clone();
        let config = config.replace("/etc/redis-system", system.to_str().unwrap()).replace("dir /data\n", "");
        std::fs::write(folder.path().join("redis.conf"), config).unwrap();
        for (name, text) in First.scripts(&identity).config_map.data.unwrap() {
            let text = text.replace("/etc/redis-system", system.to_str().unwrap());
            std::fs::write(
                folder.path().join(name),
                text.replace("/etc/redis/", &format!("{}/", folder.path().display())),
            )
            .unwrap();
        }
        let mut rig = Self {
            folder,
            net,
            monitors: Monitors::new(Arc::new(Resp)),
            passwords,
            ledger: Ledger::default(),
            settings,
            requested: None,
            node: Node::Ready,
            pods: BTreeMap::new(),
        };
        for ordinal in 0..3 {
            rig.start(ordinal);
        }
        rig
    }

    fn ip(&self, ordinal: u32) -> String {
        format!("127.91.{}.{}", self.net, ordinal + 1)
    }

    /// Starts the server as `start.sh` does; the address and folder that a pod's namespaces give come as flags.
    fn start(&mut self, ordinal: u32) {
        let data = self.folder.path().join(format!("data-{ordinal}"));
        std::fs::create_dir_all(&data).unwrap();
        let ip = self.ip(ordinal);
        let child = Process::new("redis-server")
            .arg(self.folder.path().join("redis.conf"))
            .args([
                "--replica-announce-ip",
                &ip,
                "--bind",
                &ip,
                "--bind-source-addr",
                &ip,
                "--logfile",
                "log",
            ])
            .arg("--dir")
            .arg(&data)
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let role = self.pods.remove(&ordinal).and_then(|(_, role)| role);
        self.pods.insert(ordinal, (child, role));
    }

    fn key() -> Key {
        Key::new("shop", "orders")
    }

    fn observe(&mut self) -> Observation {
        let key = Self::key();
        let monitored: Vec<Monitored> = (0..3)
            .map(|ordinal| Monitored {
                name: format!("orders-{ordinal}"),
                uid: format!("uid-{ordinal}"),
                ip: self.ip(ordinal),
            })
            .collect();
        let credentials = Credentials { user: "setpoint".into(), password: self.passwords.operator.clone() };
        self.monitors.watch(&key, &monitored, &credentials, &self.passwords);
        let tracks = self.monitors.tracks(&key);
        let now = Instant::now();
        let instances = monitored.iter().zip(0..).map(|(pod, ordinal)| {
            let facts = PodFacts {
                uid: pod.uid.clone(),
                ip: Some(pod.ip.clone()),
                node: self.node,
                cordoned: false,
                age: Duration::ZERO,
                terminating: false,
                ready: true,
                process: State::Running,
                role: self.pods[&ordinal].1,
                template_hash: Some(String::new()),
                trouble: None,
            };
            let track = tracks.get(&pod.name).map(|(_, track)| track);
            (ordinal, Instance::of(pod.name.clone(), Some(facts), track, now, true, false))
        });
        Observation {
            now,
            settings: self.settings.clone(),
            ledger: self.ledger.clone(),
            workload: Some(Workload {
                replicas: 3,
                template_hash: String::new(),
                uid: "set".into(),
                volumes: None,
                terminating: false,
            }),
            volumes: None,
            instances: instances.collect(),
            chosen: None,
            requested: self.requested.clone(),
            accept_data_loss: false,
            frozen: false,
        }
    }

    /// One pass of the operator.
    async fn step(&mut self) -> Decision {
        let decision = decide(&self.observe());
        self.act(&decision.step).await;
        decision
    }

    async fn act(&mut self, step: &Step) {
        let (key, monitors) = (Self::key(), self.monitors.clone());
        let order = async |pod: &str, command: Command| {
            if let Err(error) = monitors.order(&key, pod, command).await {
                eprintln!("{pod}: {error}");
            }
        };
        let ordinal = |pod: &str| pod.rsplit_once('-').unwrap().1.parse::<u32>().unwrap();
        match step {
            Step::Record(ledger) => self.ledger = ledger.clone(),
            Step::Unlabel { pod } => self.pods.get_mut(&ordinal(pod)).unwrap().1 = None,
            Step::Label { pod, role } => self.pods.get_mut(&ordinal(pod)).unwrap().1 = Some(*role),
            Step::Demote { pod } => order(pod, Command::Demote).await,
            Step::Seal { pod } => order(pod, Command::Seal).await,
            Step::HandOver { from, to, .. } => order(from, Command::HandOver { to: to.clone() }).await,
            Step::AbortHandOver { pod } => order(pod, Command::AbortHandOver).await,
            Step::Dismiss => self.requested = None,
            Step::Detach { pod } => order(pod, Command::Follow(Target::Nobody)).await,
            Step::Attach { pod, to } => order(pod, Command::Follow(Target::Server(to.clone()))).await,
            Step::Promote { pod, quorum } => order(pod, Command::Promote { quorum: *quorum }).await,
            Step::Set { pod, name, value } => order(pod, Command::Set { name, value: value.clone() }).await,
            Step::Delete { pod, .. } => panic!("{pod} is to be deleted, but every server answers or is dead"),
            Step::Restart { pod, .. } => panic!("nothing is outdated, but {pod} is to be restarted"),
            Step::Scale(_) | Step::GrowClaim { .. } | Step::Renew { .. } => {
                panic!("nobody asked for another size: {step:?}")
            }
            Step::Wait(_) | Step::Settled => sleep(Duration::from_millis(10)).await,
        }
    }

    /// Passes until `done`, for [`BOUND`] at most.
    async fn until(&mut self, what: &str, mut done: impl AsyncFnMut(&mut Self) -> bool) {
        let end = Instant::now() + BOUND;
        loop {
            let decision = self.step().await;
            if done(self).await {
                return;
            }
            assert!(Instant::now() < end, "{what}: {decision:?}\n{:#?}", self.observe());
        }
    }

    async fn settled(&mut self) {
        self.until("settled", async |rig| {
            let observation = rig.observe();
            let in_sync = observation.primary().is_some_and(|primary| {
                let mut others = observation.instances.values().filter(|other| other.name != primary.name);
                others.all(|other| crate::decide::in_sync(other, primary))
            });
            in_sync && decide(&observation).step == Step::Settled
        })
        .await;
    }

    fn primary(&self) -> Option<u32> {
        self.pods.iter().find(|(_, (_, role))| *role == Some(Role::Primary)).map(|(ordinal, _)| *ordinal)
    }

    async fn client(&self, ordinal: u32) -> Option<redis::aio::MultiplexedConnection> {
        let client = redis::Client::open(format!("redis://{}:{PORT}", self.ip(ordinal))).ok()?;
        client.get_multiplexed_async_connection().await.ok()
    }

    fn signal(&self, ordinal: u32, signal: &str) {
        let pid = self.pods[&ordinal].0.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    async fn kill(&mut self, ordinal: u32) {
        self.pods.get_mut(&ordinal).unwrap().0.kill().await.unwrap();
    }

    async fn write(connection: &mut redis::aio::MultiplexedConnection, number: u32) -> bool {
        redis::cmd("SET").arg(number).arg("x").exec_async(connection).await.is_ok()
    }

    /// Passes until `pod` is the primary, asking for it again when an attempt was given up: a hand-over has
    /// seconds only, which a busy machine may not grant.
    async fn moved(&mut self, pod: u32) {
        self.until("the asked one is the primary", async |rig| {
            let moved = rig.primary() == Some(pod);
            if !moved {
                rig.requested = Some(format!("orders-{pod}"));
            }
            moved
        })
        .await;
    }
}

/// Writes a key until the server accepts it: on a busy machine confirmations of replicas come late at times, and
/// writes are refused as long.
async fn accepted_write(connection: &mut redis::aio::MultiplexedConnection, number: u32) {
    let end = Instant::now() + BOUND;
    loop {
        let Err(error) = redis::cmd("SET").arg(number).arg("x").exec_async(connection).await else { return };
        assert!(Instant::now() < end, "write {number}: {error}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_is_replaced_and_no_acknowledged_write_is_lost() {
    if !installed() {
        return;
    }
    let mut rig = Rig::new(1);
    rig.settled().await;
    let old = rig.primary().unwrap();
    let mut connection = rig.client(old).await.unwrap();
    for number in 0..1000 {
        accepted_write(&mut connection, number).await;
    }
    // Nobody but the operator may change what protects the data.
    assert!(redis::cmd("CONFIG").arg("GET").arg("*").exec_async(&mut connection).await.is_err());

    rig.kill(old).await;
    let died = Instant::now();
    rig.until("a write after the death", async |rig| {
        let Some(primary) = rig.primary().filter(|primary| *primary != old) else { return false };
        let Some(mut connection) = rig.client(primary).await else { return false };
        Rig::write(&mut connection, 1000).await
    })
    .await;
    eprintln!("first write {:?} after the death", died.elapsed());

    rig.start(old);
    rig.settled().await;
    let primary = rig.primary().unwrap();
    assert_ne!(primary, old, "the old primary comes back as a replica");
    let mut connection = rig.client(primary).await.unwrap();
    let keys: u32 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert_eq!(keys, 1001, "every acknowledged write is there");
    let mut replica = rig.client(old).await.unwrap();
    assert!(!Rig::write(&mut replica, 2000).await, "a replica accepts no write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_restart_and_settings_change_without_a_restart() {
    if !installed() {
        return;
    }
    let mut rig = Rig::new(2);
    rig.settled().await;
    let old = rig.primary().unwrap();
    let mut connection = rig.client(old).await.unwrap();
    accepted_write(&mut connection, 1).await;
    rig.settled().await;
    for ordinal in 0..3 {
        rig.kill(ordinal).await;
    }
    for ordinal in 0..3 {
        rig.start(ordinal);
    }
    rig.settled().await;
    let primary = rig.primary().unwrap();
    let mut connection = rig.client(primary).await.unwrap();
    let keys: u32 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert_eq!(keys, 1, "the data outlives a restart of everything");

    rig.settings.maxmemory = Some(100 << 20);
    rig.settings.policy = crate::api::MaxmemoryPolicy::AllkeysLru;
    let runs = |observation: &Observation| -> Vec<String> {
        observation
            .instances
            .values()
            .filter_map(|instance| instance.server().map(|server| server.run_id.clone()))
            .collect()
    };
    let before = runs(&rig.observe());
    rig.settled().await;
    let after = rig.observe();
    assert_eq!(runs(&after), before, "no process restarted");
    for instance in after.instances.values() {
        let server = instance.server().unwrap();
        assert_eq!(
            (server.maxmemory, server.policy.as_str()),
            (100 << 20, "allkeys-lru"),
            "{}",
            instance.name
        );
    }
}

/// The readiness probe as pods run it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_probe_tells_an_admitted_server_from_a_waiting_one() {
    if !installed() {
        return;
    }
    let mut rig = Rig::new(3);
    // The script asks the server at the default address: one client at 127.0.0.1 would find another's server,
    // so it is pointed at the pod's.
    let probe = async |rig: &Rig, ordinal: u32| {
        let script = std::fs::read_to_string(rig.folder.path().join("probe.sh")).unwrap();
        let script = script.replace("--user probe", &format!("-h {} --user probe", rig.ip(ordinal)));
        let output =
            Process::new("sh").arg("-c").arg(script).current_dir(Path::new("/")).output().await.unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let waiting = loop {
        let seen = probe(&rig, 1).await;
        if seen.1.contains("loading") || seen.1.contains("role") {
            break seen;
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert!(!waiting.0 && waiting.1.contains("never linked"), "{waiting:?}");
    rig.settled().await;
    for ordinal in 0..3 {
        let seen = probe(&rig, ordinal).await;
        assert!(seen.0, "{seen:?}");
    }
    let primary = rig.primary().unwrap();
    rig.kill(primary).await;
    assert!(!probe(&rig, primary).await.0, "a dead server is not ready");
}

/// The primary moves while clients write: every acknowledged write is there, and the gap is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_over_loses_no_write() {
    if !installed() {
        return;
    }
    let mut rig = Rig::new(4);
    rig.settled().await;
    let old = rig.primary().unwrap();
    let new = (old + 1) % 3;
    let addresses: Vec<String> = (0..3).map(|ordinal| rig.ip(ordinal)).collect();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            let (mut number, mut acknowledged, mut gap) = (0, Vec::new(), Duration::ZERO);
            let mut last = Instant::now();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // A client that goes round the servers until one accepts its write.
                for ip in &addresses {
                    let Ok(client) = redis::Client::open(format!("redis://{ip}:{PORT}")) else { continue };
                    let Ok(mut connection) = client.get_multiplexed_async_connection().await else {
                        continue;
                    };
                    while Rig::write(&mut connection, number).await {
                        acknowledged.push(number);
                        number += 1;
                        gap = gap.max(last.elapsed());
                        last = Instant::now();
                        if stop.load(std::sync::atomic::Ordering::Relaxed) {
                            break;
                        }
                    }
                }
            }
            (acknowledged, gap)
        }
    });
    rig.moved(new).await;
    rig.settled().await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (acknowledged, gap) = writer.await.unwrap();
    eprintln!("{} writes, longest gap {gap:?}", acknowledged.len());
    assert!(rig.requested.is_none() && rig.ledger.term >= 2, "{:?}", rig.ledger);
    let mut connection = rig.client(new).await.unwrap();
    let keys: Vec<u32> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let keys: std::collections::BTreeSet<u32> = keys.into_iter().collect();
    let lost: Vec<&u32> = acknowledged.iter().filter(|number| !keys.contains(number)).collect();
    assert!(lost.is_empty(), "acknowledged writes are gone: {lost:?}");
    for instance in
        rig.observe().instances.values().filter(|instance| instance.name != format!("orders-{new}"))
    {
        assert_eq!(instance.server().unwrap().quorum, render::SEALED, "{} is sealed", instance.name);
    }
}

/// The successor freezes in the middle: the old primary is the primary again, with every write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_to_a_dead_successor_is_undone() {
    if !installed() {
        return;
    }
    let mut rig = Rig::new(5);
    rig.settled().await;
    let old = rig.primary().unwrap();
    let new = (old + 1) % 3;
    let mut connection = rig.client(old).await.unwrap();
    accepted_write(&mut connection, 1).await;
    rig.settled().await;
    let end = Instant::now() + BOUND;
    loop {
        rig.requested = Some(format!("orders-{new}"));
        let decision = decide(&rig.observe());
        if matches!(decision.step, Step::HandOver { .. }) {
            break;
        }
        rig.act(&decision.step).await;
        assert!(Instant::now() < end, "no hand-over: {decision:?}\n{:#?}", rig.observe());
    }
    // The primary has been told, but nobody is there to take over.
    rig.signal(new, "-STOP");
    let order = Command::HandOver { to: crate::observe::Address { ip: rig.ip(new), port: PORT } };
    rig.monitors.order(&Rig::key(), &format!("orders-{old}"), order).await.unwrap();
    rig.kill(new).await;
    rig.until("the old primary serves again", async |rig| {
        let observation = rig.observe();
        observation.primary().is_some_and(|primary| {
            primary.name == format!("orders-{old}")
                && primary.server().is_some_and(crate::observe::Server::writable)
        })
    })
    .await;
    rig.start(new);
    rig.settled().await;
    assert_eq!(rig.primary(), Some(old));
    let mut connection = rig.client(old).await.unwrap();
    let keys: u32 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert_eq!(keys, 1);
    accepted_write(&mut connection, 2).await;
}

/// Writes a key and waits for one replica to have it: what a client does that must know. A connection that was
/// opened before stays in use.
async fn confirmed_write(connection: &mut redis::aio::MultiplexedConnection, number: u32) -> bool {
    let write = async {
        redis::cmd("SET").arg(number).arg("x").exec_async(connection).await?;
        redis::cmd("WAIT").arg(1).arg(400).query_async::<u32>(connection).await
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), write).await, Ok(Ok(confirmed)) if confirmed >= 1)
}

/// The primary freezes on a machine of which nobody knows whether it lives, as a paused virtual machine: it is
/// fenced by its replicas, not by the end of its pod. When it wakes it must not confirm a write, and it becomes a
/// replica; what was confirmed before and after is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_that_wakes_confirms_nothing() {
    if !installed() {
        return;
    }
    let mut rig = Rig::new(6);
    rig.settled().await;
    let old = rig.primary().unwrap();
    // These connections outlive the freeze: their commands are read when the process wakes.
    let mut sticky = Vec::new();
    for _ in 0..20 {
        sticky.push(rig.client(old).await.unwrap());
    }
    let mut confirmed = Vec::new();
    let end = Instant::now() + BOUND;
    for number in 0..200 {
        while !confirmed_write(&mut sticky[0], number).await {
            assert!(Instant::now() < end, "write {number} is not confirmed");
        }
        confirmed.push(number);
    }
    rig.settled().await;
    rig.node = Node::Unknown;
    rig.signal(old, "-STOP");
    let froze = Instant::now();
    let sleepers: Vec<_> = sticky
        .into_iter()
        .zip(1000..)
        .map(|(mut connection, number)| {
            tokio::spawn(async move {
                let write = async {
                    redis::cmd("SET").arg(number).arg("x").exec_async(&mut connection).await?;
                    redis::cmd("WAIT").arg(1).arg(400).query_async::<u32>(&mut connection).await
                };
                matches!(tokio::time::timeout(Duration::from_secs(40), write).await, Ok(Ok(confirmed)) if confirmed >= 1)
            })
        })
        .collect();
    rig.until("another primary", async |rig| rig.primary().is_some_and(|primary| primary != old)).await;
    eprintln!("another primary {:?} after the freeze", froze.elapsed());
    let new = rig.primary().unwrap();
    let mut connection = rig.client(new).await.unwrap();
    for number in 2000..2100 {
        if confirmed_write(&mut connection, number).await {
            confirmed.push(number);
        }
    }
    rig.signal(old, "-CONT");
    rig.node = Node::Ready;
    rig.until("the old primary follows", async |rig| {
        let observation = rig.observe();
        let (old, new) = (&observation.instances[&old], &observation.instances[&new]);
        crate::decide::in_sync(old, new)
    })
    .await;
    for sleeper in sleepers {
        assert!(!sleeper.await.unwrap(), "the frozen primary confirmed a write after the fail-over");
    }
    rig.settled().await;
    assert_eq!(rig.primary(), Some(new));
    let keys: Vec<u32> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let lost: Vec<&u32> = confirmed.iter().filter(|number| !keys.contains(number)).collect();
    assert!(lost.is_empty(), "confirmed writes are gone: {lost:?}");
    let mut old = rig.client(old).await.unwrap();
    assert!(!Rig::write(&mut old, 3000).await, "it is a replica");
}

/// A replica that freezes costs neither writes nor the primary's role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_replica_does_not_stop_writes() {
    if !installed() {
        return;
    }
    let mut rig = Rig::new(7);
    rig.settled().await;
    let primary = rig.primary().unwrap();
    rig.node = Node::Unknown;
    rig.signal((primary + 1) % 3, "-STOP");
    let mut connection = rig.client(primary).await.unwrap();
    let end = Instant::now() + Duration::from_secs(8);
    let (mut number, mut gap, mut last) = (0, Duration::ZERO, Instant::now());
    while Instant::now() < end {
        rig.step().await;
        if confirmed_write(&mut connection, number).await {
            gap = gap.max(last.elapsed());
            last = Instant::now();
        }
        number += 1;
    }
    assert!(
        last.elapsed() < Duration::from_secs(5) && gap < Duration::from_secs(5),
        "{gap:?} without a confirmed write"
    );
    rig.signal((primary + 1) % 3, "-CONT");
    rig.node = Node::Ready;
    rig.settled().await;
    assert_eq!((rig.primary(), rig.ledger.term), (Some(primary), 1));
}
