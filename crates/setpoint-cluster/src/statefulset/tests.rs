//! The decision against a small world: pods that come up, fail, and go; claims and revisions that stay.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::decide::Decision;
use super::*;

struct World {
    set: StatefulSet,
    pods: BTreeMap<String, Pod>,
    claims: BTreeMap<String, PersistentVolumeClaim>,
    revisions: BTreeMap<String, ControllerRevision>,
    uids: u32,
    now: i64,
    /// Pods become ready by themselves.
    healthy: bool,
}

fn set(spec: &Value) -> StatefulSet {
    let mut full = json!({
        "replicas": 3,
        "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "v1"}]}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    });
    for (key, value) in spec.as_object().unwrap() {
        full[key] = value.clone();
    }
    serde_json::from_value(
        json!({"metadata": {"name": "web", "namespace": "ns", "uid": "set", "generation": 1}, "spec": full}),
    )
    .unwrap()
}

impl World {
    fn new(spec: &Value) -> Self {
        Self {
            set: set(spec),
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            revisions: BTreeMap::new(),
            uids: 0,
            now: 0,
            healthy: true,
        }
    }

    fn decide(&self) -> Decision {
        let arcs = |pods: &BTreeMap<String, Pod>| pods.values().cloned().map(Arc::new).collect::<Vec<_>>();
        decide(&Observed {
            set: &self.set,
            pods: &arcs(&self.pods),
            claims: &self.claims.values().cloned().map(Arc::new).collect::<Vec<_>>(),
            revisions: &self.revisions.values().cloned().map(Arc::new).collect::<Vec<_>>(),
            now: Timestamp::from_second(self.now).unwrap(),
        })
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        self.uids.to_string()
    }

    /// One pass of the controller; what it did, in short.
    fn pass(&mut self) -> Vec<String> {
        let decision = self.decide();
        let mut did = Vec::new();
        for step in decision.steps {
            match step {
                Step::CreatePod(mut pod) => {
                    let name = pod.metadata.name.clone().unwrap();
                    if self.pods.contains_key(&name) {
                        did.push(format!("!{name}"));
                        break;
                    }
                    pod.metadata.uid = Some(self.uid());
                    pod.status = Some(serde_json::from_value(json!({"phase": "Pending"})).unwrap());
                    did.push(format!("+{name}"));
                    self.pods.insert(name, *pod);
                }
                Step::DeletePod(pod, _) => {
                    let name = pod.metadata.name.clone().unwrap();
                    did.push(format!("-{name}"));
                    self.pods.get_mut(&name).unwrap().metadata.deletion_timestamp =
                        Some(Time(Timestamp::from_second(self.now).unwrap()));
                }
                Step::CreateClaim(mut claim) => {
                    claim.metadata.uid = Some(self.uid());
                    did.push(format!("+{}", claim.metadata.name.clone().unwrap()));
                    self.claims.insert(claim.metadata.name.clone().unwrap(), *claim);
                }
                Step::OwnClaim(claim, owners) => {
                    let name = claim.metadata.name.clone().unwrap();
                    let kinds: Vec<_> = owners.iter().map(|owner| owner.kind.as_str()).collect();
                    did.push(format!("{name}<{}", kinds.join(",")));
                    self.claims.get_mut(&name).unwrap().metadata.owner_references = Some(owners);
                }
                Step::AdoptRevision(revision) => {
                    did.push("adopt a revision".to_owned());
                    let owner = owner_reference(&self.set);
                    let revision = self.revisions.get_mut(revision.metadata.name.as_ref().unwrap()).unwrap();
                    revision.metadata.owner_references = Some(vec![owner]);
                }
                Step::CreateRevision(revision) => {
                    self.revisions.insert(revision.metadata.name.clone().unwrap(), *revision);
                }
                Step::Renumber(name, number) => {
                    self.revisions.get_mut(&name).unwrap().revision = Some(number);
                }

                Step::DeleteRevision(revision) => {
                    self.revisions.remove(revision.metadata.name.as_ref().unwrap());
                }
                Step::Adopt(pod) => {
                    did.push(format!("adopt {}", pod.metadata.name.clone().unwrap()));
                    let owner = owner_reference(&self.set);
                    let pod = self.pods.get_mut(pod.metadata.name.as_ref().unwrap()).unwrap();
                    pod.metadata.owner_references = Some(vec![owner]);
                }
                Step::Release(pod) => {
                    did.push(format!("release {}", pod.metadata.name.clone().unwrap()));
                    self.pods
                        .get_mut(pod.metadata.name.as_ref().unwrap())
                        .unwrap()
                        .metadata
                        .owner_references = None;
                }
                Step::Label(pod, labels) => {
                    let pod = self.pods.get_mut(pod.metadata.name.as_ref().unwrap()).unwrap();
                    for (key, value) in labels {
                        pod.metadata.labels.get_or_insert_default().insert(key.into(), value);
                    }
                }
            }
        }
        self.set.status = Some(decision.status);
        did
    }

    /// What the kubelet does: pods that were deleted go, the others become ready.
    fn kubelet(&mut self) {
        self.pods.retain(|_, pod| pod.metadata.deletion_timestamp.is_none());
        if self.healthy {
            let names: Vec<_> = self.pods.keys().cloned().collect();
            for name in names {
                self.ready(&name, true);
            }
        }
    }

    fn ready(&mut self, name: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let pod = self.pods.get_mut(name).unwrap();
        let was = pod.status.as_ref().and_then(|status| status.conditions.clone());
        if was.is_some_and(|conditions| conditions[0].status == status) {
            return;
        }
        let since = Timestamp::from_second(self.now).unwrap();
        pod.status = Some(
            serde_json::from_value(json!({
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}],
            }))
            .unwrap(),
        );
    }

    /// Passes until nothing happens any more; all that was done.
    fn settle(&mut self) -> Vec<String> {
        let (mut did, mut quiet) = (Vec::new(), 0);
        for _ in 0..200 {
            let now = self.pass();
            self.kubelet();
            quiet = if now.is_empty() { quiet + 1 } else { 0 };
            if quiet == 2 {
                return did;
            }
            did.extend(now);
        }
        panic!("does not settle: {did:?}")
    }

    fn image(&mut self, image: &str) {
        self.set.spec.template.spec.as_mut().unwrap().containers[0].image = Some(image.into());
    }

    fn images(&self) -> Vec<String> {
        self.pods
            .values()
            .map(|pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap())
            .collect()
    }
}

#[test]
fn ordered_one_after_the_other_parallel_at_once() {
    let mut ordered = World::new(&json!({}));
    assert_eq!(ordered.pass(), ["+web-0"]);
    assert_eq!(ordered.pass(), [""; 0], "waits until web-0 is ready");
    ordered.kubelet();
    assert_eq!(ordered.pass(), ["+web-1"]);
    let mut parallel = World::new(&json!({"podManagementPolicy": "Parallel"}));
    assert_eq!(parallel.pass(), ["+web-0", "+web-1", "+web-2"]);
}

#[test]
fn pods_carry_their_identity() {
    let mut world = World::new(&json!({
        "replicas": 1, "ordinals": {"start": 5},
        "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"x": "y"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
    }));
    assert_eq!(world.settle(), ["+data-web-5", "+web-5"]);
    let pod = serde_json::to_value(&world.pods["web-5"]).unwrap();
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "web-5");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "5");
    assert_eq!(
        labels["controller-revision-hash"],
        world.set.status.as_ref().unwrap().update_revision.as_deref().unwrap()
    );
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("web-5"), &json!("web")));
    assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-web-5");
    let claim = &world.claims["data-web-5"];
    assert_eq!(claim.metadata.labels, Some([("x".into(), "y".into()), ("app".into(), "web".into())].into()));
    assert_eq!(claim.metadata.owner_references, None);
}

#[test]
fn scales_down_from_above_one_at_a_time() {
    let mut world = World::new(&json!({"replicas": 5}));
    world.settle();
    world.set.spec.replicas = Some(2);
    assert_eq!(world.pass(), ["-web-4"]);
    assert_eq!(world.pass(), [""; 0]);
    assert_eq!(world.settle(), ["-web-3", "-web-2"]);
    let status = world.set.status.clone().unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (2, Some(2)));
}

#[test]
fn unhealthy_pod_does_not_block_its_own_removal() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.healthy = false;
    world.ready("web-2", false);
    world.set.spec.replicas = Some(1);
    assert_eq!(world.pass(), ["-web-2"]);
    world.kubelet();
    world.ready("web-0", false);
    assert_eq!(world.pass(), [""; 0], "an unhealthy web-0 keeps web-1");
}

#[test]
fn rolls_from_above_while_healthy_down_to_the_partition() {
    let mut world =
        World::new(&json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}));
    world.settle();
    world.image("v2");
    assert_eq!(world.settle(), ["-web-2", "+web-2", "-web-1", "+web-1"]);
    assert_eq!(world.images(), ["v1", "v2", "v2"]);
    let status = world.set.status.clone().unwrap();
    assert_ne!(status.current_revision, status.update_revision);
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(1), Some(2)));
    // A pod below the partition comes back with the old template.
    world.pods.remove("web-0");
    world.settle();
    assert_eq!(world.images(), ["v1", "v2", "v2"]);
    world.set.spec.update_strategy = Some(serde_json::from_value(json!({"type": "RollingUpdate"})).unwrap());
    assert_eq!(world.settle(), ["-web-0", "+web-0"]);
    let status = world.set.status.clone().unwrap();
    assert_eq!(status.current_revision, status.update_revision);
    assert_eq!(world.revisions.len(), 2);
}

#[test]
fn broken_update_stops_at_the_first_pod() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.healthy = false;
    world.image("broken");
    let mut did = world.pass();
    world.kubelet();
    did.extend(world.pass());
    did.extend(world.pass());
    assert_eq!(did, ["-web-2", "+web-2"]);
}

#[test]
fn on_delete_leaves_the_choice_to_others() {
    let mut world =
        World::new(&json!({"updateStrategy": {"type": "OnDelete"}, "podManagementPolicy": "Parallel"}));
    world.settle();
    world.image("v2");
    assert_eq!(world.settle(), [""; 0]);
    let status = world.set.status.clone().unwrap();
    assert_eq!((status.updated_replicas, status.current_replicas), (Some(0), Some(3)));
    world.pods.remove("web-1");
    assert_eq!(world.settle(), ["+web-1"]);
    assert_eq!(world.images(), ["v1", "v2", "v1"]);
}

#[test]
fn rollback_takes_the_old_revision_again() {
    let mut world = World::new(&json!({}));
    world.settle();
    let first = world.set.status.clone().unwrap().update_revision;
    world.image("v2");
    world.settle();
    world.image("v1");
    world.settle();
    assert_eq!(world.set.status.clone().unwrap().update_revision, first);
    assert_eq!(world.revisions[&first.unwrap()].revision, Some(3));
}

#[test]
fn history_is_limited() {
    let mut world = World::new(&json!({"replicas": 1, "revisionHistoryLimit": 2}));
    for version in 0..6 {
        world.image(&format!("v{version}"));
        world.settle();
    }
    assert_eq!(world.revisions.len(), 3, "two old ones and the live one");
}

#[test]
fn ended_pods_are_made_anew() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.pods.get_mut("web-1").unwrap().status.as_mut().unwrap().phase = Some("Failed".into());
    assert_eq!(world.settle(), ["-web-1", "+web-1"]);
}

#[test]
fn adopts_orphans_and_releases_strangers() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.pods.get_mut("web-0").unwrap().metadata.owner_references = None;
    assert_eq!(world.pass(), ["adopt web-0"]);
    world.pods.get_mut("web-1").unwrap().metadata.labels.as_mut().unwrap().insert("app".into(), "x".into());
    assert_eq!(world.pass(), ["release web-1", "!web-1"]);
    let foreign = world.pods.get_mut("web-2").unwrap();
    foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "other".into();
    let steps = world.decide().steps;
    assert!(
        !steps.iter().any(|step| matches!(step, Step::Adopt(_) | Step::Release(_) | Step::DeletePod(..))),
        "{steps:?}"
    );
}

/// The set was deleted without its pods and made again, as operators do to change what cannot be changed in it.
#[test]
fn a_new_set_takes_over_the_history_of_the_one_before() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.set.metadata.uid = Some("another".into());
    for pod in world.pods.values_mut() {
        pod.metadata.owner_references = None;
    }
    for revision in world.revisions.values_mut() {
        revision.metadata.owner_references = None;
    }
    let before: Vec<String> = world.revisions.keys().cloned().collect();
    assert_eq!(world.pass(), ["adopt a revision", "adopt web-0", "adopt web-1", "adopt web-2"]);
    assert!(world.settle().is_empty(), "no pod is replaced");
    assert_eq!(world.revisions.keys().cloned().collect::<Vec<_>>(), before);
}

#[test]
fn claims_follow_the_retention_policy() {
    let mut world = World::new(&json!({
        "replicas": 2,
        "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}],
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
    }));
    world.settle();
    assert_eq!(world.claims["d-web-1"].metadata.owner_references.as_ref().unwrap()[0].kind, "StatefulSet");
    world.set.spec.replicas = Some(1);
    assert_eq!(world.pass(), ["d-web-1<Pod", "-web-1"]);
    world.kubelet();
    // Back before garbage collection came: the set takes its claim again.
    world.set.spec.replicas = Some(2);
    assert_eq!(world.settle(), ["+web-1", "d-web-1<StatefulSet"]);
}

#[test]
fn min_ready_seconds_delays_the_next_one() {
    let mut world = World::new(&json!({"replicas": 2, "minReadySeconds": 10}));
    world.pass();
    world.kubelet();
    let decision = world.decide();
    assert_eq!(
        (decision.again, decision.status.available_replicas),
        (Some(std::time::Duration::from_secs(10)), Some(0))
    );
    world.now = 10;
    assert_eq!(world.pass(), ["+web-1"]);
}

#[test]
fn a_set_that_is_deleted_only_counts() {
    let mut world = World::new(&json!({}));
    world.settle();
    world.set.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    world.pods.clear();
    let decision = world.decide();
    assert_eq!((decision.steps.len(), decision.status.replicas), (0, 0));
}

#[derive(Clone, Debug)]
enum Act {
    Scale(i32),
    Image(u8),
    Kill(usize),
    Unready(usize),
    Kubelet,
    Pass,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => (0..5i32).prop_map(Act::Scale),
        1 => (0..3u8).prop_map(Act::Image),
        1 => (0..5usize).prop_map(Act::Kill),
        1 => (0..5usize).prop_map(Act::Unready),
        3 => Just(Act::Kubelet),
        5 => Just(Act::Pass),
    ]
}

proptest! {
    /// Whatever happens: a pass of an ordered set disturbs at most one pod, claims are never removed, and
    /// when the world is left alone the set has exactly its replicas, all from the template, and rests.
    #[test]
    fn converges(parallel in any::<bool>(), acts in proptest::collection::vec(act(), 0..60)) {
        let policy = if parallel { "Parallel" } else { "OrderedReady" };
        let mut world = World::new(&json!({
            "podManagementPolicy": policy,
            "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}],
        }));
        for act in acts {
            match act {
                Act::Scale(replicas) => world.set.spec.replicas = Some(replicas),
                Act::Image(version) => world.image(&format!("v{version}")),
                Act::Kill(index) => {
                    if let Some(name) = world.pods.keys().nth(index).cloned() {
                        world.pods.remove(&name);
                    }
                }
                Act::Unready(index) => {
                    if let Some(name) = world.pods.keys().nth(index).cloned() {
                        world.ready(&name, false);
                    }
                }
                Act::Kubelet => world.kubelet(),
                Act::Pass => {
                    let claims = world.claims.len();
                    let did = world.pass();
                    let deleted = did.iter().filter(|step| step.starts_with("-web")).count();
                    prop_assert!(parallel || deleted <= 1, "{:?}", did);
                    prop_assert!(world.claims.len() >= claims);
                }
            }
        }
        world.settle();
        let wanted = world.set.spec.replicas.unwrap();
        let names: Vec<_> = (0..wanted).map(|ordinal| format!("web-{ordinal}")).collect();
        prop_assert_eq!(world.pods.keys().cloned().collect::<Vec<_>>(), names);
        let image = world.set.spec.template.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        prop_assert!(world.images().iter().all(|other| *other == image));
        let status = world.set.status.clone().unwrap();
        prop_assert_eq!(status.ready_replicas, Some(wanted));
        prop_assert_eq!(status.current_revision, status.update_revision);
    }
}
