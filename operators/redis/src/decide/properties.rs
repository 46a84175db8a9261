//! Properties of the decisions over random histories of model servers (P1 to P12 of the design).

mod roll;
mod shrink;
mod survival;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::{Decision, Step, decide};
use crate::model::World;
use crate::observe::{
    Command, Handover, Instance, Ledger, Node, Observation, Place, PodFacts, Process, Server, Target, Track,
    Workload,
};
use crate::render::{PORT, Role, SEALED};
use crate::settings::Settings;

const TICK: Duration = Duration::from_millis(100);

/// What can happen to a cluster.
#[derive(Clone, Debug)]
enum Event {
    /// The operator carries out so many steps, one each 100 ms.
    Run(u8),
    /// A client writes through the Service.
    Write,
    /// A process dies.
    Kill(u32),
    /// The kubelet starts dead processes again.
    Restart,
    /// A server is cut off from everyone.
    Isolate(u32),
    /// The operator doesn't reach a server.
    Hide(u32),
    /// The operator doesn't reach a server for so many milliseconds, and reached it for a while before.
    HideFor(u32, u16),
    /// What a server sends doesn't arrive anywhere, but it receives.
    Mute(u32),
    /// A replica's data comes late.
    Delay(u32, u16),
    /// The network is whole again.
    Heal,
    /// A pod and its volume are deleted; a new pod comes.
    Wipe(u32),
    /// A replica's connection to its primary breaks and doesn't come back for a while.
    Cut(u32, u16),
    /// A server takes long for an answer: what was heard of it before stands.
    Busy(u32, u16),
    /// A human asks for another primary.
    Ask(u32),
    /// A pod is deleted and ends as its `preStop` hook and grace let it.
    Terminate(u32),
    /// The pod template changes.
    Upgrade,
    /// A node is to be emptied.
    Cordon(u32),
    /// The user wants another number of servers, from one to the number at the start.
    Resize(u32),
    /// The operator's process restarts: it forgets all but the ledger.
    Forget,
}

struct Sim {
    now: Instant,
    world: World,
    tracks: BTreeMap<u32, Track>,
    pods: BTreeMap<u32, ModelPod>,
    ledger: Ledger,
    size: u32,
    most: u32,
    replicas: u32,
    persistent: bool,
    settings: Settings,
    steps: Vec<Step>,
    looked: BTreeMap<u32, Instant>,
    busy: BTreeMap<u32, Instant>,
    hidden: BTreeMap<u32, Instant>,
    requested: Option<String>,
    chosen: Option<String>,
    template: u32,
    cordoned: BTreeSet<u32>,
    /// Their containers don't run, as the kubelet says.
    stopped: BTreeSet<u32>,
}

struct ModelPod {
    uid: String,
    terminating: bool,
    /// When its server is stopped at the latest.
    ends: Option<Instant>,
    role: Option<Role>,
    template: u32,
}

fn ip(ordinal: u32) -> String {
    format!("10.0.0.{}", ordinal + 1)
}

fn name(ordinal: u32) -> String {
    format!("orders-{ordinal}")
}

fn ordinal(pod: &str) -> u32 {
    pod.rsplit_once('-').unwrap().1.parse().unwrap()
}

impl Sim {
    fn new(size: u32, persistent: bool) -> Self {
        let mut sim = Self {
            now: Instant::now(),
            world: World::default(),
            tracks: BTreeMap::new(),
            pods: BTreeMap::new(),
            ledger: Ledger::default(),
            size,
            most: size,
            replicas: size,
            persistent,
            settings: Settings::default(),
            steps: Vec::new(),
            looked: BTreeMap::new(),
            busy: BTreeMap::new(),
            hidden: BTreeMap::new(),
            requested: None,
            chosen: None,
            template: 0,
            cordoned: BTreeSet::new(),
            stopped: BTreeSet::new(),
        };
        sim.create_pods();
        sim
    }

    fn create_pods(&mut self) {
        for ordinal in 0..self.replicas {
            if !self.pods.contains_key(&ordinal) {
                let uid = format!("{}-{}", name(ordinal), self.steps.len());
                let template = self.template;
                self.pods
                    .insert(ordinal, ModelPod { uid, terminating: false, ends: None, role: None, template });
                self.world.start(&ip(ordinal), &ip(ordinal), self.persistent, self.now);
                let track =
                    self.tracks.get(&ordinal).map(|track| track.succeeded(self.now)).unwrap_or_default();
                self.tracks.insert(ordinal, track);
            }
        }
    }

    /// How many servers are looked at: those of the StatefulSet and those whose pods still end.
    fn present(&self) -> u32 {
        self.replicas.max(self.pods.keys().max().map_or(0, |highest| highest + 1))
    }

    fn observe(&self) -> Observation {
        let instances = (0..self.present()).map(|ordinal| {
            let facts = self.pods.get(&ordinal).map(|pod| PodFacts {
                uid: pod.uid.clone(),
                ip: Some(ip(ordinal)),
                node: if self.world.servers.get(&ip(ordinal)).is_some_and(|server| server.isolated) {
                    Node::Unknown
                } else {
                    Node::Ready
                },
                cordoned: self.cordoned.contains(&ordinal),
                age: Duration::ZERO,
                terminating: pod.terminating,
                ready: self.world.ready(&ip(ordinal), self.now),
                process: if self.stopped.contains(&ordinal) { Process::Waiting } else { Process::Running },
                role: pod.role,
                template_hash: Some(pod.template.to_string()),
                trouble: None,
            });
            (
                ordinal,
                Instance::of(
                    name(ordinal),
                    facts,
                    self.tracks.get(&ordinal),
                    self.now,
                    self.persistent,
                    false,
                ),
            )
        });
        Observation {
            now: self.now,
            settings: Settings {
                size: self.size,
                image: "redis:7.0".into(),
                persistent: self.persistent,
                ..self.settings.clone()
            },
            ledger: self.ledger.clone(),
            workload: Some(Workload {
                replicas: self.replicas,
                template_hash: self.template.to_string(),
                uid: "set".into(),
                volumes: None,
                terminating: false,
            }),
            volumes: None,
            instances: instances.collect(),
            chosen: self.chosen.clone(),
            requested: self.requested.clone(),
            accept_data_loss: false,
            frozen: false,
        }
    }

    /// Time passes, monitors look, the operator takes one step; the properties of each step are checked.
    fn tick(&mut self) -> Decision {
        self.now += TICK;
        for (ordinal, until) in self.hidden.clone() {
            if until <= self.now {
                self.with(ordinal, |server| server.hidden = false);
            }
        }
        self.world.advance(self.now);
        self.stop_pods();
        // While one hands over, all are looked at often.
        let hands_over = self.tracks.values().any(|track| {
            let answer = track.answer(self.now);
            answer.is_some_and(|(_, server)| server.handover != Handover::None)
        });
        let mut poked = false;
        for ordinal in 0..self.present() {
            let track = self.tracks.entry(ordinal).or_default();
            let busy = self.busy.get(&ordinal).is_some_and(|until| self.now < *until);
            let server = self.world.servers.get(&ip(ordinal));
            match self.world.server(&ip(ordinal), self.now) {
                Some(_) if busy && track.answer(self.now).is_some() => {}
                Some(server) => {
                    // Monitors look each second, or when poked: one that lost its server or saw it change its
                    // role pokes the others. A broken connection shows at once.
                    let due = hands_over
                        || self
                            .looked
                            .get(&ordinal)
                            .is_none_or(|at| self.now - *at >= Duration::from_secs(1));
                    if due || track.answer(self.now).is_none() {
                        let primary = |server: &Server| server.place == Place::Primary;
                        let before = track.answer(self.now).map(|(_, before)| primary(before));
                        poked |= before.is_some_and(|before| before != primary(&server));
                        track.reached(self.now, server);
                        self.looked.insert(ordinal, self.now);
                    }
                }
                None if server.is_some_and(|server| {
                    !server.running && !server.hidden && !server.isolated && !server.muted
                }) =>
                {
                    poked |= track.silent_since().is_none() || track.answer(self.now).is_some();
                    track.refused(self.now);
                }
                None => {
                    poked |= track.failed(self.now);
                }
            }
        }
        if poked {
            self.looked.clear();
        }
        let observation = self.observe();
        let decision = decide(&observation);
        assert_eq!(decision, decide(&observation), "P8: the same observation gives the same decision");
        self.check(&observation, &decision.step);
        self.act(&decision.step);
        let labelled = self.pods.values().filter(|pod| pod.role == Some(Role::Primary)).count();
        assert!(labelled <= 1, "P1: {labelled} pods are labelled as the primary");
        self.steps.push(decision.step.clone());
        decision
    }

    fn check(&self, observation: &Observation, step: &Step) {
        match step {
            Step::Promote { pod, quorum } => {
                assert_eq!(self.ledger.target.as_ref(), Some(pod), "P4: recorded before the promotion");
                assert!(
                    self.ledger.leaving.as_ref() != Some(pod) || self.ledger.current.as_ref() != Some(pod),
                    "P3: {pod} was cut off while the primary served"
                );
                assert!(self.ledger.quorum <= *quorum, "P12: the recorded quorum is not above the server's");
                let server =
                    observation.instance(pod).and_then(Instance::server).expect("P3: only a reached server");
                assert!(!server.loading, "P3: only a loaded server");
                for other in (0..self.replicas).filter(|&other| &name(other) != pod) {
                    assert!(
                        !self.world.accepts_writes(&ip(other), self.now),
                        "P2: {} still accepts writes while {pod} is promoted\n{observation:#?}",
                        name(other)
                    );
                }
            }
            Step::HandOver { from, pod, .. } => {
                assert_eq!(self.ledger.target.as_ref(), Some(pod), "P4: recorded before the hand-over");
                assert!(self.ledger.members.contains(from), "P4: the old primary may receive");
            }
            Step::AbortHandOver { pod } => {
                for (ip, server) in self.world.servers.iter().filter(|(other, _)| **other != ip(ordinal(pod)))
                {
                    let seen = self.world.quorum(ip);
                    assert!(!server.running || seen >= SEALED, "P2: {ip} could take over and accept writes");
                }
            }
            Step::Restart { pod, .. } => self.check_restart(ordinal(pod)),
            Step::Scale(replicas) if *replicas < self.replicas => {
                let primary = observation.primary().expect("somebody serves");
                let synced = |ordinal: &u32| {
                    let instance = &observation.instances[ordinal];
                    instance.name == primary.name || super::in_sync(instance, primary)
                };
                assert!((0..self.size).all(|ordinal| synced(&ordinal)), "P6: {:?}", self.steps);
            }
            Step::Attach { pod, .. } => {
                assert!(self.ledger.members.contains(pod), "P4: recorded before it may receive");
            }
            Step::Label { role: Role::Primary, pod } => {
                let others = self
                    .pods
                    .iter()
                    .filter(|(other, model)| &name(**other) != pod && model.role == Some(Role::Primary));
                assert_eq!(others.count(), 0, "P5: removed before set");
            }
            Step::Record(ledger) => {
                let chosen =
                    self.ledger.current.is_none() && self.ledger.target.is_none() && ledger.target.is_some();
                if chosen {
                    let known = |instance: &Instance| {
                        instance.server().is_some() || (instance.down() && !self.persistent)
                    };
                    assert!(
                        observation.instances.values().all(known),
                        "P7: no first primary without a complete view"
                    );
                }
                assert!(ledger.term >= self.ledger.term);
            }
            _ => {}
        }
    }

    /// P6: one disruptive step at a time, and none that costs the only copy in sync.
    fn check_restart(&self, which: u32) {
        assert_ne!(self.pods[&which].template, self.template, "only outdated pods are replaced");
        if !self.world.ready(&ip(which), self.now) {
            return;
        }
        for other in (0..self.replicas).filter(|&other| other != which) {
            assert!(
                self.world.ready(&ip(other), self.now) && !self.pods[&other].terminating,
                "P6: {} is not in sync while {} is to be replaced; steps: {:?}",
                name(other),
                name(which),
                self.steps
            );
        }
        if self.replicas > 1 {
            assert_ne!(self.service(), Some(ip(which)), "P6: the primary is not replaced");
            let primary = self.service().expect("P6: somebody serves");
            assert!(
                self.world.quorum(&primary) < self.replicas - 1,
                "P6: writes go on without {}",
                name(which)
            );
        } else {
            assert!(self.persistent, "P6: the data outlives the restart");
        }
    }

    fn act(&mut self, step: &Step) {
        let now = self.now;
        let mut command = |pod: &String, command: Command| {
            // An order is followed by a look.
            self.looked.remove(&ordinal(pod));
            self.world.command(&ip(ordinal(pod)), &command, now);
        };
        match step {
            Step::Record(ledger) => self.ledger = ledger.clone(),
            Step::Unlabel { pod } => self.pods.get_mut(&ordinal(pod)).unwrap().role = None,
            Step::Label { pod, role } => self.pods.get_mut(&ordinal(pod)).unwrap().role = Some(*role),
            Step::Demote { pod } => command(pod, Command::Demote),
            Step::Seal { pod } => command(pod, Command::Seal),
            Step::HandOver { from, to, .. } => command(from, Command::HandOver { to: to.clone() }),
            Step::AbortHandOver { pod } => command(pod, Command::AbortHandOver),
            Step::Dismiss => self.requested = None,
            Step::Detach { pod } => command(pod, Command::Follow(Target::Nobody)),
            Step::Attach { pod, to } => {
                assert_eq!(to.port, PORT);
                command(pod, Command::Follow(Target::Server(to.clone())));
            }
            Step::Promote { pod, quorum } => command(pod, Command::Promote { quorum: *quorum }),
            Step::Set { pod, name, value } => command(pod, Command::Set { name, value: value.clone() }),
            Step::Delete { pod, .. } => {
                let ordinal = ordinal(pod);
                let muted = self.world.servers.get(&ip(ordinal)).is_some_and(|server| server.muted);
                if let (true, Some(pod)) = (muted, self.pods.get_mut(&ordinal)) {
                    // The kubelet cannot say that it is done.
                    pod.terminating = true;
                } else {
                    self.replace(ordinal);
                }
            }
            Step::Restart { pod, .. } => self.terminate(ordinal(pod)),
            Step::Scale(replicas) if *replicas > self.replicas => {
                self.replicas = *replicas;
                self.create_pods();
            }
            Step::Scale(replicas) => {
                self.check_removal(*replicas);
                self.replicas = *replicas;
                self.terminate(*replicas);
            }
            Step::GrowClaim { .. } | Step::Renew { .. } => panic!("nobody asked for larger volumes"),
            Step::Wait(_) | Step::Settled => {}
        }
    }

    /// Ends the servers of deleted pods when `prestop.sh` is through.
    fn stop_pods(&mut self) {
        let waits = |ordinal: u32| {
            self.world
                .server(&ip(ordinal), self.now)
                .is_some_and(|server| server.place == Place::Primary && !server.followers.is_empty())
        };
        let ended: Vec<u32> = self
            .pods
            .iter()
            .filter(|(ordinal, pod)| pod.ends.is_some_and(|end| end <= self.now || !waits(**ordinal)))
            .map(|(&ordinal, _)| ordinal)
            .collect();
        for ordinal in ended {
            self.replace(ordinal);
        }
    }

    /// The kubelet of a ready node ends the process; the StatefulSet makes a new pod on the same volume.
    fn replace(&mut self, ordinal: u32) {
        self.world.kill(&ip(ordinal));
        self.pods.remove(&ordinal);
        self.create_pods();
    }

    /// A server is removed only when all that stay are in sync and it receives nothing any more.
    fn check_removal(&self, left: u32) {
        assert_eq!(left + 1, self.replicas, "one at a time");
        assert!(left >= self.size, "never fewer than are asked for");
        assert!(!self.ledger.members.contains(&name(left)), "P4: it no longer counts");
        let role = self.pods.get(&left).and_then(|pod| pod.role);
        assert_eq!(role, None, "no client is led to it");
        let primary = self.service().expect("somebody serves");
        assert_ne!(primary, ip(left), "the primary stays");
        assert!(self.world.quorum(&primary) < self.size, "writes go on without it");
        let waits = |ordinal: &u32| !self.world.ready(&ip(*ordinal), self.now);
        let unready: Vec<u32> = (0..self.size).filter(waits).collect();
        assert!(
            unready.is_empty(),
            "P6: {unready:?} are not in sync while {left} is removed; {:?}",
            self.steps
        );
    }

    /// The server that the Service leads to.
    fn service(&self) -> Option<String> {
        self.pods.iter().find(|(_, pod)| pod.role == Some(Role::Primary)).map(|(&ordinal, _)| ip(ordinal))
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Run(ticks) => {
                for _ in 0..*ticks {
                    self.tick();
                }
            }
            Event::Write => {
                if let Some(ip) = self.service() {
                    self.world.write(&ip, self.now);
                }
            }
            Event::Kill(which) => self.world.kill(&ip(which % self.replicas)),
            Event::Restart => self.restart(),
            Event::Isolate(which) => self.with(*which, |server| server.isolated = true),
            Event::Mute(which) => self.with(*which, |server| {
                server.muted = true;
                server.hidden = true;
            }),
            Event::Delay(which, millis) => {
                self.with(*which, |server| server.delay = Duration::from_millis(u64::from(*millis)));
            }
            Event::Hide(which) => self.with(*which, |server| server.hidden = true),
            Event::HideFor(which, millis) => {
                let which = which % self.replicas;
                let until = self.now + Duration::from_millis(u64::from(*millis));
                if self.hidden.get(&which).is_none_or(|before| *before + Duration::from_secs(2) < self.now) {
                    self.hidden.insert(which, until);
                    self.with(which, |server| server.hidden = true);
                }
            }
            Event::Heal => self.heal(),
            Event::Wipe(which) => {
                let which = which % self.replicas;
                self.world.remove(&ip(which));
                self.pods.remove(&which);
                self.create_pods();
            }
            Event::Cut(which, millis) => {
                let until = self.now + Duration::from_millis(u64::from(*millis));
                self.with(*which, |server| server.cut = Some(until));
            }
            Event::Busy(which, millis) => {
                let until = self.now + Duration::from_millis(u64::from(*millis));
                self.busy.insert(which % self.replicas, until);
            }
            Event::Ask(which) => self.requested = Some(name(which % self.replicas)),
            Event::Terminate(which) => self.terminate(which % self.replicas),
            Event::Upgrade => self.template += 1,
            Event::Cordon(which) => {
                self.cordoned.insert(which % self.replicas);
            }
            Event::Resize(size) => self.size = 1 + size % self.most,
            Event::Forget => self.tracks.clear(),
        }
    }

    fn with(&mut self, which: u32, change: impl FnOnce(&mut crate::model::ModelServer)) {
        if let Some(server) = self.world.servers.get_mut(&ip(which % self.replicas)) {
            change(server);
        }
    }

    /// A pod is deleted and ends as its `preStop` hook and grace let it.
    fn terminate(&mut self, ordinal: u32) {
        let end = self.now + Duration::from_secs(20);
        if let Some(pod) = self.pods.get_mut(&ordinal) {
            pod.terminating = true;
            pod.ends.get_or_insert(end);
        }
    }

    fn restart(&mut self) {
        let dead: Vec<String> = self
            .world
            .servers
            .iter()
            .filter(|(at, server)| !server.running && self.pods.keys().any(|pod| ip(*pod) == **at))
            .map(|(ip, _)| ip.clone())
            .collect();
        for ip in dead {
            self.world.start(&ip, &ip, self.persistent, self.now);
        }
    }

    fn heal(&mut self) {
        self.busy.clear();
        self.hidden.clear();
        self.cordoned.clear();
        for server in self.world.servers.values_mut() {
            server.cut = None;
            server.isolated = false;
            server.hidden = false;
            server.muted = false;
        }
        let ending: Vec<u32> = self
            .pods
            .iter()
            .filter(|(_, pod)| pod.terminating && pod.ends.is_none())
            .map(|(&ordinal, _)| ordinal)
            .collect();
        for ordinal in ending {
            self.replace(ordinal);
        }
    }

    /// After the last fault: runs until nothing is left to do.
    fn converge(&mut self) -> Result<(), String> {
        self.heal();
        self.restart();
        let (mut last, mut calm) = (None, 0);
        for _ in 0..2000 {
            let decision = self.tick();
            calm = if decision.step == Step::Settled { calm + 1 } else { 0 };
            if calm == 30 {
                return Ok(());
            }
            last = Some(decision);
        }
        Err(format!("P11: not settled after 200 s: {last:?}\n{:?}", self.observe()))
    }

    fn settled(&self) {
        let primary = self.service().expect("the Service leads somewhere");
        assert_eq!((self.replicas, self.pods.len()), (self.size, self.size as usize), "as many as asked for");
        assert!(self.world.accepts_writes(&primary, self.now), "the primary accepts writes");
        for ordinal in (0..self.replicas).filter(|&other| ip(other) != primary) {
            assert_eq!(
                self.pods[&ordinal].role,
                Some(Role::Replica),
                "{} is labelled as a replica",
                name(ordinal)
            );
            assert_eq!(self.pods[&ordinal].template, self.template, "{} is up to date", name(ordinal));
            assert_eq!(
                self.world.servers[&ip(ordinal)].log,
                self.world.servers[&primary].log,
                "{} is in sync",
                name(ordinal)
            );
        }
    }

    fn lost(&self) -> usize {
        let primary = self.service().expect("the Service leads somewhere");
        let log: BTreeSet<u64> = self.world.servers[&primary].log.iter().copied().collect();
        self.world.acknowledged.difference(&log).count()
    }
}

fn deaths() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1u8..30).prop_map(Event::Run),
        4 => Just(Event::Write),
        2 => (0u32..5).prop_map(Event::Kill),
        2 => Just(Event::Restart),
        1 => Just(Event::Forget),
        1 => (0u32..5, 0u16..900).prop_map(|(which, millis)| Event::Delay(which, millis)),
        1 => (0u32..5, 0u16..1000).prop_map(|(which, millis)| Event::Busy(which, millis)),
        1 => (0u32..5).prop_map(Event::Ask),
        1 => (0u32..5).prop_map(Event::Terminate),
    ]
}

fn anything() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => deaths(),
        1 => (0u32..5, 0u16..1500).prop_map(|(which, millis)| Event::Cut(which, millis)),
        1 => (0u32..5).prop_map(Event::Isolate),
        1 => (0u32..5).prop_map(Event::Hide),
        1 => (0u32..5).prop_map(Event::Mute),
        1 => (0u32..5, 0u16..3000).prop_map(|(which, millis)| Event::Delay(which, millis)),
        2 => Just(Event::Heal),
        1 => (0u32..5).prop_map(Event::Wipe),
        1 => Just(Event::Upgrade),
        1 => (0u32..5).prop_map(Event::Cordon),
        1 => (0u32..5).prop_map(Event::Resize),
        1 => (30u8..120).prop_map(Event::Run),
    ]
}

fn plans() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1u8..30).prop_map(Event::Run),
        4 => Just(Event::Write),
        2 => (0u32..5).prop_map(Event::Ask),
        1 => (0u32..5).prop_map(Event::Terminate),
        1 => (0u32..5, 0u16..2000).prop_map(|(which, millis)| Event::Delay(which, millis)),
        1 => Just(Event::Forget),
        1 => Just(Event::Upgrade),
        1 => (0u32..5).prop_map(Event::Cordon),
        1 => (0u32..5).prop_map(Event::Resize),
        1 => (50u8..200).prop_map(Event::Run),
    ]
}

proptest! {
    /// Planned moves lose no acknowledged write, and no two servers ever accept writes.
    #[test]
    fn planned_moves_lose_nothing(size in 1u32..=5, events in prop::collection::vec(plans(), 1..40)) {
        let mut sim = Sim::new(size, true);
        sim.converge().unwrap();
        for event in &events {
            sim.happen(event);
            let accepting = (0..size).filter(|which| sim.world.accepts_writes(&ip(*which), sim.now)).count();
            prop_assert!(accepting <= 1, "{} servers accept writes; steps: {:?}", accepting, sim.steps);
        }
        sim.converge().unwrap();
        sim.settled();
        prop_assert_eq!(sim.lost(), 0, "acknowledged writes are gone; steps: {:?}", sim.steps);
    }

    /// Processes that die and come back cost no acknowledged write, and every history ends settled.
    #[test]
    fn deaths_of_processes_lose_nothing(size in 1u32..=5, events in prop::collection::vec(deaths(), 1..40)) {
        let mut sim = Sim::new(size, true);
        for event in &events {
            sim.happen(event);
        }
        sim.converge().unwrap();
        sim.settled();
        prop_assert_eq!(sim.lost(), 0, "acknowledged writes are gone; steps: {:?}", sim.steps);
    }

    /// Whatever happens, the properties of each step hold (see `Sim::check`), and a history without a loss of
    /// volumes ends settled.
    #[test]
    fn every_step_is_safe(size in 1u32..=5, persistent: bool, events in prop::collection::vec(anything(), 1..60)) {
        let mut sim = Sim::new(size, persistent);
        for event in &events {
            sim.happen(event);
        }
        let wiped = events.iter().any(|event| matches!(event, Event::Wipe(_)));
        match sim.converge() {
            Ok(()) => sim.settled(),
            Err(why) => prop_assert!(wiped && why.contains("Blocked"), "{}\nsteps: {:?}", why, sim.steps),
        }
    }
}

#[test]
fn a_new_cluster_settles() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.settled();
    assert_eq!(sim.ledger.current.as_deref(), Some("orders-0"));
    assert_eq!((sim.ledger.term, sim.ledger.quorum, sim.ledger.members.len()), (1, 1, 2));
}

#[test]
fn a_dead_primary_is_replaced_within_a_second() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    for _ in 0..10 {
        assert!(sim.world.write(&ip(0), sim.now));
    }
    sim.world.kill(&ip(0));
    let start = sim.now;
    while !sim.service().is_some_and(|ip| sim.world.accepts_writes(&ip, sim.now)) {
        sim.tick();
        assert!(sim.now - start < Duration::from_millis(1500), "{:?}\n{:?}", sim.steps, sim.observe());
    }
    sim.converge().unwrap();
    sim.settled();
    assert_eq!(sim.lost(), 0);
    assert_ne!(sim.service(), Some(ip(0)), "the old primary comes back as a replica");
}

/// Runs until the pod with `ordinal` serves; returns how long no write was possible.
fn until_serves(sim: &mut Sim, ordinal: u32) -> Duration {
    let (start, mut gap) = (sim.now, Duration::ZERO);
    while sim.service() != Some(ip(ordinal)) || !sim.world.accepts_writes(&ip(ordinal), sim.now) {
        sim.tick();
        if !sim.service().is_some_and(|ip| sim.world.accepts_writes(&ip, sim.now)) {
            gap += TICK;
        }
        assert!(sim.now - start < Duration::from_secs(30), "{:?}\n{:#?}", sim.steps, sim.observe());
    }
    gap
}

#[test]
fn a_primary_moves_where_it_is_asked_to() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.world.write(&ip(0), sim.now);
    sim.happen(&Event::Ask(2));
    let gap = until_serves(&mut sim, 2);
    assert!(gap <= Duration::from_secs(1), "{gap:?}: {:?}", sim.steps);
    sim.converge().unwrap();
    sim.settled();
    assert_eq!((sim.lost(), sim.requested.clone(), sim.ledger.term), (0, None, 2));
    for ordinal in [0, 1] {
        assert_eq!(sim.world.quorum(&ip(ordinal)), SEALED, "{:?}", sim.steps);
    }
}

/// A fail-over that began while the primary was silent went on as a hand-over when that answered again and was to
/// be replaced: the record then lacked that the old primary may receive (P4).
#[test]
fn a_primary_that_answers_again_and_is_outdated_moves_by_a_change_of_its_own() {
    let mut sim = Sim::new(4, false);
    sim.converge().unwrap();
    sim.happen(&Event::Mute(0));
    sim.happen(&Event::Upgrade);
    while sim.ledger.target == sim.ledger.current {
        sim.tick();
        assert!(sim.steps.len() < 500, "no fail-over began: {:?}", sim.steps);
    }
    let term = sim.ledger.term;
    sim.happen(&Event::Heal);
    sim.converge().unwrap();
    sim.settled();
    assert!(sim.ledger.term > term, "the change began anew: {:?}", sim.steps);
}

#[test]
fn a_request_that_cannot_be_met_is_refused() {
    for request in [7, 1] {
        let mut sim = Sim::new(3, true);
        sim.converge().unwrap();
        if request == 1 {
            sim.happen(&Event::Cut(1, 60_000));
            sim.happen(&Event::Run(15));
        }
        sim.requested = Some(name(request));
        let decision = sim.tick();
        assert!(matches!(decision.reasons[..], [super::Reason::SwitchoverRefused { .. }]), "{decision:?}");
        assert_eq!(sim.requested, None);
        sim.converge().unwrap();
        assert_eq!(sim.ledger.term, 1);
    }
}

#[test]
fn a_deleted_primary_hands_over_before_it_ends() {
    for size in [2, 3, 5] {
        let mut sim = Sim::new(size, true);
        sim.converge().unwrap();
        sim.world.write(&ip(0), sim.now);
        sim.happen(&Event::Terminate(0));
        let start = sim.now;
        while sim.service().is_none_or(|primary| primary == ip(0)) {
            sim.tick();
            assert!(sim.now - start < Duration::from_secs(2), "{:?}", sim.steps);
        }
        assert!(sim.steps.iter().any(|step| matches!(step, Step::HandOver { .. })), "{:?}", sim.steps);
        sim.converge().unwrap();
        sim.settled();
        assert_eq!(sim.lost(), 0);
    }
}

#[test]
fn a_hand_over_to_a_silent_successor_is_undone_without_two_primaries() {
    for dies in [false, true] {
        let mut sim = Sim::new(3, true);
        sim.converge().unwrap();
        sim.world.write(&ip(0), sim.now);
        sim.happen(&Event::Ask(1));
        while !sim.steps.iter().any(|step| matches!(step, Step::HandOver { .. })) {
            sim.tick();
        }
        // It has all data but its word that it takes over never arrives.
        assert_eq!(sim.world.server(&ip(0), sim.now).unwrap().handover, Handover::Promoting);
        if dies {
            sim.world.kill(&ip(1));
        } else {
            sim.with(1, |server| server.isolated = true);
        }
        for _ in 0..200 {
            sim.tick();
            let accepting = (0..3).filter(|which| sim.world.accepts_writes(&ip(*which), sim.now)).count();
            assert!(accepting <= 1, "{:?}", sim.steps);
        }
        if dies {
            assert_eq!(sim.service(), Some(ip(0)), "{:?}\n{:#?}", sim.steps, sim.observe());
            assert!(sim.steps.iter().any(|step| matches!(step, Step::AbortHandOver { .. })));
        }
        sim.converge().unwrap();
        sim.settled();
        assert_eq!(sim.lost(), 0);
    }
}

#[test]
fn answers_from_before_the_death_do_not_choose() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    // Both replicas lose their links; then one is back with all writes, but what was heard of it last is older.
    sim.happen(&Event::Cut(1, 30_000));
    sim.happen(&Event::Cut(2, 1_200));
    sim.happen(&Event::Run(11));
    assert!(sim.observe().instances[&2].server().unwrap().link() == Some(crate::observe::Link::Down));
    sim.happen(&Event::Busy(2, 1_000));
    sim.happen(&Event::Run(4));
    for _ in 0..5 {
        assert!(sim.world.write(&ip(0), sim.now));
    }
    sim.world.kill(&ip(0));
    sim.happen(&Event::Run(20));
    assert_eq!(sim.service(), Some(ip(2)), "{:?}", sim.steps);
    sim.converge().unwrap();
    sim.settled();
    assert_eq!(sim.lost(), 0);
}

#[test]
fn an_isolated_primary_is_fenced_before_another_is_promoted() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Isolate(0));
    let start = sim.now;
    while sim.service() != Some(ip(1)) && sim.service() != Some(ip(2)) {
        sim.tick();
        assert!(sim.now - start < Duration::from_secs(15), "{:?}", sim.steps);
    }
    sim.converge().unwrap();
    sim.settled();
}

#[test]
fn a_primary_that_still_hears_its_replicas_is_waited_for() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    // It believes that its replicas follow, so it accepts writes until they were detached for a while.
    sim.happen(&Event::Mute(0));
    let start = sim.now;
    while sim.service().is_none_or(|primary| primary == ip(0)) {
        sim.tick();
        assert!(sim.now - start < Duration::from_secs(20), "{:?}", sim.steps);
    }
    assert!(sim.now - start > Duration::from_secs(8));
    sim.converge().unwrap();
    sim.settled();
}

#[test]
fn the_replica_with_most_of_the_stream_takes_over() {
    for slow in [1, 2] {
        let mut sim = Sim::new(3, true);
        sim.converge().unwrap();
        sim.happen(&Event::Delay(slow, 2500));
        sim.world.write(&ip(0), sim.now);
        sim.happen(&Event::Run(1));
        sim.world.kill(&ip(0));
        sim.happen(&Event::Run(30));
        assert_eq!(sim.service(), Some(ip(3 - slow)), "{:?}", sim.steps);
        sim.converge().unwrap();
        sim.settled();
        assert_eq!(sim.lost(), 0);
    }
}

#[test]
fn what_a_dead_primary_sent_last_is_read_first() {
    let mut sim = Sim::new(2, true);
    sim.converge().unwrap();
    sim.happen(&Event::Delay(1, 700));
    sim.world.write(&ip(0), sim.now);
    sim.world.kill(&ip(0));
    sim.happen(&Event::Run(30));
    assert_eq!(sim.service(), Some(ip(1)), "{:?}", sim.steps);
    assert_eq!(sim.lost(), 0);
}

#[test]
fn replicas_that_hear_the_primary_keep_it() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Hide(0));
    sim.happen(&Event::Run(200));
    assert_eq!(sim.service(), Some(ip(0)));
    assert_eq!(sim.ledger.term, 1);
}

#[test]
fn scaling_up_adds_replicas_and_raises_the_quorum() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.size = 5;
    sim.converge().unwrap();
    sim.settled();
    assert_eq!((sim.replicas, sim.ledger.quorum, sim.ledger.members.len()), (5, 2, 4));
}

#[test]
fn lost_volumes_of_all_servers_stop_for_a_human() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.world.write(&ip(0), sim.now);
    sim.happen(&Event::Run(10));
    for ordinal in 0..3 {
        sim.world.remove(&ip(ordinal));
        sim.pods.remove(&ordinal);
    }
    sim.create_pods();
    let stopped = sim.converge().unwrap_err();
    assert!(stopped.contains("every server is empty"), "{stopped}");
}
