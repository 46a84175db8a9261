//! The machine against a world that does what it asks for, at chosen times.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodStatus;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

struct World {
    machine: PodMachine,
    now: Timestamp,
    runs: u32,
    sandboxes: u8,
    running: BTreeMap<String, ContainerId>,
    /// Effects that were not answered by the world itself.
    open: Vec<Effect>,
    notes: Vec<Note>,
    /// Containers that do not stop for the first signal.
    stubborn: bool,
}

fn pod(spec: Value) -> Pod {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    serde_json::from_value(
        json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 1}, "spec": spec}),
    )
    .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

impl World {
    fn new(spec: Value) -> Self {
        let now = at(0);
        let mut world = Self {
            machine: PodMachine::new(Arc::new(pod(spec)), now),
            now,
            runs: 0,
            sandboxes: 0,
            running: BTreeMap::new(),
            open: Vec::new(),
            notes: Vec::new(),
            stubborn: false,
        };
        world.send(Event::Tick);
        world
    }

    fn send(&mut self, event: Event) {
        let mut queue = vec![event];
        while let Some(event) = queue.pop() {
            for effect in self.machine.step(event, self.now) {
                match effect {
                    Effect::Prepare => {
                        assert!(self.running.is_empty(), "the sandbox is replaced under {:?}", self.running);
                        self.sandboxes += 1;
                        let addresses = vec![[10, 0, 0, self.sandboxes].into()];
                        queue.insert(0, Event::Prepared(Ok(Sandbox { addresses })));
                    }
                    Effect::Start { container, .. } => {
                        assert!(!self.running.contains_key(&container), "{container} is started twice");
                        self.runs += 1;
                        let id = ContainerId(format!("test://{}", self.runs));
                        self.running.insert(container.clone(), id.clone());
                        let image = Image { name: "i".into(), id: "i".into() };
                        queue.insert(0, Event::Started { container, result: Ok((id, image)) });
                    }
                    Effect::Signal { id, signal } => {
                        if signal == Signal::Kill || !self.stubborn {
                            let code = if signal == Signal::Kill { 137 } else { 0 };
                            queue.extend(self.exit_event(&id, code));
                        }
                    }
                    Effect::RemoveSandbox => queue.insert(0, Event::Removed(Ok(()))),
                    Effect::Note { note, .. } => self.notes.push(note),
                    Effect::NoteBackOff { .. } | Effect::Remove(_) => {}
                    other => self.open.push(other),
                }
            }
        }
    }

    fn exit_event(&mut self, id: &ContainerId, code: i32) -> Option<Event> {
        let container = self.running.iter().find(|(_, running)| *running == id)?.0.clone();
        self.running.remove(&container);
        let exit = Exit { code, signal: None, out_of_memory: false, message: None, finished_at: self.now };
        Some(Event::Exited { container, id: id.clone(), exit })
    }

    fn exit(&mut self, container: &str, code: i32) {
        let id = self.running.get(container).unwrap_or_else(|| panic!("{container} does not run")).clone();
        let event = self.exit_event(&id, code).unwrap();
        self.send(event);
    }

    /// Lets time pass up to `second`, stopping wherever the machine wants to wake.
    fn until(&mut self, second: i64) {
        while let Some(wake) = self.machine.wake_at().filter(|wake| *wake <= at(second)) {
            assert!(
                wake >= self.now || self.machine.wake_at() != Some(wake) || wake > at(-1),
                "wakes in the past"
            );
            let before = (self.now, self.open.len());
            self.now = wake.max(self.now);
            self.send(Event::Tick);
            assert!(
                self.machine.wake_at().is_none_or(|next| next > self.now) || self.open.len() != before.1,
                "does not sleep at {}: {:?}",
                self.now,
                self.machine
            );
        }
        self.now = at(second);
    }

    /// Ends the sandbox and everything in it.
    fn end_sandbox(&mut self) {
        self.send(Event::SandboxEnded);
        for name in self.running.keys().cloned().collect::<Vec<_>>() {
            self.exit(&name, 137);
        }
    }

    fn delete(&mut self, grace: i64) {
        let mut pod = (*self.machine.pod).clone();
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now));
        pod.metadata.deletion_grace_period_seconds = Some(grace);
        self.send(Event::Seen(Arc::new(pod)));
    }

    fn probe(&mut self, kind: ProbeKind, outcome: ProbeOutcome) {
        let at =
            self.open.iter().position(|effect| matches!(effect, Effect::Probe { kind: k, .. } if *k == kind));
        let Some(Effect::Probe { container, id, .. }) = at.map(|at| self.open.remove(at)) else {
            panic!("no {kind:?} probe is open: {:?}", self.open)
        };
        self.send(Event::Probed { container, id, kind, outcome });
    }

    fn status(&self) -> PodStatus {
        self.machine.status(Some("192.168.0.1"))
    }

    fn condition(&self, type_: &str) -> String {
        self.status().conditions.unwrap().into_iter().find(|c| c.type_ == type_).unwrap().status
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap()
    }

    fn json(&self) -> Value {
        serde_json::to_value(self.status()).unwrap()
    }

    fn reasons(&self) -> Vec<&str> {
        self.notes.iter().map(|note| note.reason.as_str()).collect()
    }
}

#[test]
fn runs_and_is_ready_without_probes() {
    let world = World::new(json!({}));
    assert_eq!(world.phase(), "Running");
    assert_eq!(world.condition("Ready"), "True");
    let status = world.json();
    assert_eq!(status["podIP"], "10.0.0.1");
    assert_eq!(status["containerStatuses"][0]["state"]["running"]["startedAt"], "1970-01-01T00:00:00Z");
    assert_eq!(world.machine.wake_at(), None, "a pod at rest needs no timer");
}

#[test]
fn crashed_container_restarts_at_once_and_then_backs_off() {
    let mut world = World::new(json!({}));
    world.exit("c", 1);
    let status = world.json();
    assert_eq!(status["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 1);
    world.now = at(2);
    world.exit("c", 1);
    let waiting = &world.json()["containerStatuses"][0];
    assert_eq!(waiting["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(
        waiting["state"]["waiting"]["message"],
        "back-off 10s restarting failed container=c pod=p_ns(u)"
    );
    assert_eq!(waiting["restartCount"], 1);
    assert_eq!(world.phase(), "Running");
    assert_eq!(world.condition("Ready"), "False");
    world.until(11);
    assert_eq!(world.runs, 2);
    world.until(12);
    assert_eq!((world.runs, world.json()["containerStatuses"][0]["restartCount"].clone()), (3, json!(2)));
}

#[test]
fn restart_policies() {
    for (policy, code, phase, runs) in [
        ("Always", 0, "Running", 2),
        ("OnFailure", 0, "Succeeded", 1),
        ("OnFailure", 1, "Running", 2),
        ("Never", 0, "Succeeded", 1),
        ("Never", 3, "Failed", 1),
    ] {
        let mut world = World::new(json!({"restartPolicy": policy}));
        world.exit("c", code);
        assert_eq!((world.phase().as_str(), world.runs), (phase, runs), "{policy} {code}");
    }
}

#[test]
fn init_containers_run_in_order_and_sidecars_stay() {
    let mut world = World::new(json!({"initContainers": [
        {"name": "a", "image": "i"},
        {"name": "side", "image": "i", "restartPolicy": "Always"},
        {"name": "b", "image": "i"},
    ]}));
    assert_eq!(world.running.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!((world.phase().as_str(), world.condition("Initialized").as_str()), ("Pending", "False"));
    world.exit("a", 0);
    assert_eq!(world.running.keys().collect::<Vec<_>>(), ["b", "side"]);
    world.exit("b", 1);
    assert_eq!(world.runs, 4, "a failed init container runs again");
    world.exit("b", 0);
    assert_eq!(world.running.keys().collect::<Vec<_>>(), ["c", "side"]);
    assert_eq!((world.phase().as_str(), world.condition("Initialized").as_str()), ("Running", "True"));
    world.delete(30);
    assert!(world.running.is_empty() && world.machine.is_over());
}

#[test]
fn probes_decide_readiness_and_restarts() {
    let mut world = World::new(json!({"containers": [{"name": "c", "image": "i",
        "startupProbe": {"exec": {"command": ["s"]}, "periodSeconds": 1, "failureThreshold": 30},
        "livenessProbe": {"exec": {"command": ["l"]}, "periodSeconds": 5, "failureThreshold": 2},
        "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 2, "failureThreshold": 2},
    }]}));
    let failure = || ProbeOutcome::Failure("refused".into());
    world.probe(ProbeKind::Startup, failure());
    assert_eq!(world.json()["containerStatuses"][0]["started"], false);
    world.until(1);
    world.probe(ProbeKind::Startup, ProbeOutcome::Success);
    assert_eq!(world.json()["containerStatuses"][0]["started"], true);
    assert_eq!(world.condition("Ready"), "False");
    world.until(1);
    world.probe(ProbeKind::Readiness, ProbeOutcome::Success);
    assert_eq!(world.condition("Ready"), "True");
    world.until(3);
    world.probe(ProbeKind::Readiness, failure());
    assert_eq!(world.condition("Ready"), "True", "one failure is below the threshold");
    world.until(5);
    world.probe(ProbeKind::Readiness, failure());
    assert_eq!(world.condition("Ready"), "False");
    assert_eq!(world.notes.last().unwrap().message, "Readiness probe failed: refused");
    world.probe(ProbeKind::Liveness, failure());
    world.until(6);
    world.probe(ProbeKind::Liveness, failure());
    assert_eq!(world.runs, 2, "killed and started again");
    assert!(world.reasons().contains(&"Killing"), "{:?}", world.reasons());
}

#[test]
fn stops_with_hook_then_signal_then_kill_then_deletes() {
    let mut world = World::new(json!({"containers": [{"name": "c", "image": "i",
        "lifecycle": {"preStop": {"exec": {"command": ["bye"]}}}}]}));
    world.stubborn = true;
    world.delete(10);
    let Some(Effect::PreStop { container, id, .. }) = world.open.pop() else { panic!("{:?}", world.open) };
    world.until(4);
    world.send(Event::PreStopDone { container, id, failure: None });
    world.until(9);
    assert!(world.running.contains_key("c"), "grace is not over");
    world.until(10);
    assert!(world.running.is_empty());
    assert_eq!(world.phase(), "Failed");
    assert_eq!(world.open, [Effect::Finalize]);
    assert!(world.machine.is_over());
}

#[test]
fn hanging_hook_gets_two_more_seconds() {
    let mut world = World::new(json!({"containers": [{"name": "c", "image": "i",
        "lifecycle": {"preStop": {"sleep": {"seconds": 60}}}}]}));
    world.stubborn = true;
    world.delete(5);
    world.until(6);
    assert!(world.running.contains_key("c"));
    world.until(7);
    assert!(world.running.is_empty());
}

#[test]
fn deletion_while_preparing_waits_for_the_answer() {
    let mut machine = PodMachine::new(Arc::new(pod(json!({}))), at(0));
    assert_eq!(machine.step(Event::Tick, at(0)), [Effect::Prepare]);
    let mut deleted = pod(json!({}));
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    assert_eq!(machine.step(Event::Seen(Arc::new(deleted)), at(1)), []);
    let sandbox = Sandbox { addresses: Vec::new() };
    assert_eq!(machine.step(Event::Prepared(Ok(sandbox)), at(1)), [Effect::RemoveSandbox]);
    assert_eq!(machine.step(Event::Removed(Ok(())), at(1)), [Effect::Finalize]);
}

#[test]
fn missing_image_waits_and_is_asked_for_again() {
    let mut machine = PodMachine::new(Arc::new(pod(json!({}))), at(0));
    machine.step(Event::Tick, at(0));
    let effects = machine.step(Event::Prepared(Ok(Sandbox { addresses: Vec::new() })), at(0));
    assert_eq!(effects, [Effect::Start { container: "c".into(), attempt: 0 }]);
    let missing = || {
        let error =
            ImageError::NotFound { image: "i".into(), message: "not here; this node has: redis:7.0".into() };
        Event::Started { container: "c".into(), result: Err(StartFailure::Image(error)) }
    };
    let reason = |machine: &PodMachine| {
        let status = serde_json::to_value(machine.status(None)).unwrap();
        status["containerStatuses"][0]["state"]["waiting"]["reason"].as_str().unwrap().to_owned()
    };
    let effects = machine.step(missing(), at(0));
    assert!(
        matches!(&effects[0], Effect::Note { note, .. } if note.message.contains("this node has: redis:7.0"))
    );
    assert_eq!(reason(&machine), "ErrImagePull");
    machine.step(Event::Tick, machine.wake_at().unwrap());
    assert_eq!(reason(&machine), "ImagePullBackOff");
    assert_eq!(machine.wake_at(), Some(at(10)));
    assert_eq!(machine.step(Event::Tick, at(10)), [Effect::Start { container: "c".into(), attempt: 0 }]);
    machine.step(missing(), at(10));
    machine.step(Event::Tick, at(11));
    assert_eq!(machine.wake_at(), Some(at(30)));
    assert_eq!(machine.phase(), "Pending");
}

#[test]
fn a_pod_whose_sandbox_ended_begins_again_in_a_new_one() {
    let mut world = World::new(json!({
        "initContainers": [{"name": "init", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}],
    }));
    world.exit("init", 0);
    assert_eq!((world.runs, world.json()["podIP"].clone()), (4, json!("10.0.0.1")));
    world.now = at(100);
    world.end_sandbox();
    assert_eq!(world.json()["podIP"], "10.0.0.2", "another sandbox, another address");
    assert_eq!(world.running.keys().collect::<Vec<_>>(), ["init"], "from the beginning");
    assert_eq!((world.phase().as_str(), world.condition("Ready").as_str()), ("Running", "False"));
    assert_eq!(world.condition("Initialized"), "False");
    world.exit("init", 0);
    assert_eq!(world.running.keys().collect::<Vec<_>>(), ["a", "b", "side"]);
    let status = world.json();
    for (list, index) in [
        ("initContainerStatuses", 0),
        ("initContainerStatuses", 1),
        ("containerStatuses", 0),
        ("containerStatuses", 1),
    ] {
        assert_eq!(status[list][index]["restartCount"], 1, "{status}");
    }
    assert_eq!(status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 137);
    assert_eq!(world.condition("Ready"), "True");
    assert_eq!(world.reasons().iter().filter(|reason| **reason == "SandboxChanged").count(), 1);
    // The second time they back off, in the new sandbox.
    world.end_sandbox();
    world.exit("init", 0);
    assert!(!world.running.contains_key("a"));
    assert_eq!(world.json()["podIP"], "10.0.0.3");
    world.until(110);
    assert!(world.running.contains_key("a"));
}

#[test]
fn a_pod_that_restarts_nothing_fails_with_its_sandbox() {
    for (policy, phase, sandboxes) in [("Never", "Failed", 1), ("OnFailure", "Running", 2)] {
        let mut world = World::new(json!({
            "restartPolicy": policy,
            "containers": [{"name": "done", "image": "i"}, {"name": "c", "image": "i"}],
        }));
        world.exit("done", 0);
        world.end_sandbox();
        assert_eq!((world.phase().as_str(), world.sandboxes), (phase, sandboxes), "{policy}");
        assert!(!world.running.contains_key("done"), "it has succeeded");
    }
}

#[test]
fn a_sandbox_that_ended_is_not_replaced_in_a_pod_on_its_way_out() {
    let mut world = World::new(json!({}));
    world.stubborn = true;
    world.delete(10);
    world.end_sandbox();
    assert!(world.machine.is_over());
    assert_eq!((world.sandboxes, world.open.as_slice()), (1, &[Effect::Finalize][..]));
}

#[derive(Debug, Clone)]
enum Act {
    Exit(usize, i32),
    Wait(i64),
    Delete(i64),
    Probe(bool),
    EndSandbox,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..3usize, 0..2i32).prop_map(|(index, code)| Act::Exit(index, code)),
        3 => (0..400i64).prop_map(Act::Wait),
        1 => (0..60i64).prop_map(Act::Delete),
        3 => any::<bool>().prop_map(Act::Probe),
        1 => Just(Act::EndSandbox),
    ]
}

proptest! {
    /// Whatever happens: containers are never started twice at a time, restart counts only grow, Ready
    /// implies that all containers run, and a deleted pod ends within its grace and two seconds.
    #[test]
    fn holds_its_promises(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        probed in any::<bool>(),
        stubborn in any::<bool>(),
        acts in proptest::collection::vec(act(), 0..40),
    ) {
        let mut first = json!({"name": "a", "image": "i"});
        if probed {
            first["readinessProbe"] = json!({"exec": {"command": ["r"]}});
            first["livenessProbe"] = json!({"exec": {"command": ["l"]}});
        }
        let mut world = World::new(json!({
            "restartPolicy": policy,
            "initContainers": [{"name": "init", "image": "i"}],
            "containers": [first, {"name": "b", "image": "i"}],
        }));
        world.stubborn = stubborn;
        let mut restarts = [0; 3];
        let mut end = None;
        for act in acts {
            match act {
                Act::Exit(index, code) => {
                    if let Some(name) = world.running.keys().nth(index).cloned() {
                        world.exit(&name, code);
                    }
                }
                Act::Wait(seconds) => {
                    let until = world.now.as_second() + seconds;
                    world.until(until);
                }
                Act::Delete(grace) if end.is_none() => {
                    world.delete(grace);
                    end = Some(world.now.as_second() + grace.max(1) + 2);
                }
                Act::Delete(_) => {}
                Act::EndSandbox => world.end_sandbox(),
                Act::Probe(passed) => {
                    if let Some(index) = world.open.iter().position(|effect| matches!(effect, Effect::Probe { .. })) {
                        let Effect::Probe { container, id, kind, .. } = world.open.remove(index) else { unreachable!() };
                        let outcome = if passed { ProbeOutcome::Success } else { ProbeOutcome::Failure(String::new()) };
                        world.send(Event::Probed { container, id, kind, outcome });
                    }
                }
            }
            for (index, container) in world.machine.containers.iter().enumerate() {
                prop_assert!(i64::from(container.restarts) >= restarts[index]);
                restarts[index] = i64::from(container.restarts);
                prop_assert_eq!(container.running(), world.running.get(&container.spec.name));
            }
            if world.condition("Ready") == "True" {
                prop_assert!(world.running.contains_key("a") && world.running.contains_key("b"));
            }
        }
        if let Some(end) = end {
            world.until(end.max(world.now.as_second()));
            prop_assert!(world.machine.is_over(), "{:?}", world.machine);
            prop_assert!(world.running.is_empty());
        }
    }
}
