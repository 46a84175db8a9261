//! Random faults on real processes for as long as wanted, a client that writes throughout, and a summary.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use redis_operator::api::RedisCluster;
use serde_json::json;
use setpoint_cluster::Cluster;
use setpoint_cluster::kubelet::Signal;
use setpoint_node::Machine;
use setpoint_test::eventually;
use tokio::time::{Instant, sleep};

use super::{BOUND, NAMESPACE, Writer, api, change, create, other_primary, ready, settings};

/// How long, in seconds; without it the fixed story is played.
const SECONDS: &str = "REDIS_SOAK_SECONDS";

/// What chooses the faults. The same one gives the same faults in the same order.
const SEED: &str = "REDIS_SOAK_SEED";

const PODS: [&str; 3] = ["orders-0", "orders-1", "orders-2"];

/// How long to go on, if that was asked for.
pub fn wanted() -> Option<Duration> {
    std::env::var(SECONDS).ok()?.parse().ok().map(Duration::from_secs)
}

/// What happens to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    PrimaryKilled,
    ReplicaKilled,
    AllKilled,
    PrimaryHangs,
    ReplicaHangs,
    PrimaryCutOff,
    ReplicaCutOff,
    ReplicaApartFromPrimary,
    PrimaryPodDeleted,
    ReplicaPodDeleted,
    SwitchOver,
    SettingChanged,
}

const FAULTS: [Fault; 12] = [
    Fault::PrimaryKilled,
    Fault::ReplicaKilled,
    Fault::AllKilled,
    Fault::PrimaryHangs,
    Fault::ReplicaHangs,
    Fault::PrimaryCutOff,
    Fault::ReplicaCutOff,
    Fault::ReplicaApartFromPrimary,
    Fault::PrimaryPodDeleted,
    Fault::ReplicaPodDeleted,
    Fault::SwitchOver,
    Fault::SettingChanged,
];

/// Numbers that look random (xorshift), from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn moment(&mut self, most: u64) -> Duration {
        Duration::from_millis(200 + self.below(most))
    }
}

/// Faults for `time`, one after another, each until all servers are in sync again.
pub async fn soak(cluster: &Cluster, machine: &Machine, time: Duration) {
    let seed = std::env::var(SEED)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()));
    println!("faults for {} s; {SEED}={seed} plays the same ones", time.as_secs());
    let mut dice = Dice(u64::max(seed, 1));
    create(cluster).await;
    let watch = tokio::spawn(one_primary(cluster.client()));
    let (end, mut writes) = (Instant::now() + time, 0);
    let mut gaps: BTreeMap<Fault, Vec<Duration>> = BTreeMap::new();
    while Instant::now() < end {
        let primary = ready(cluster, 3).await;
        let fault = FAULTS[usize::try_from(dice.below(FAULTS.len() as u64)).unwrap()];
        let writer = Writer::start(cluster).await;
        sleep(dice.moment(1000)).await;
        strike(cluster, machine, fault, &primary, &mut dice).await;
        ready(cluster, 3).await;
        let (confirmed, gap) = writer.finish(cluster, &format!("{fault:?}")).await;
        println!(
            "{:6} s left  {fault:?}: {confirmed} confirmed writes, longest gap {gap:?}",
            (end - Instant::now()).as_secs()
        );
        writes += confirmed;
        gaps.entry(fault).or_default().push(gap);
        assert!(!watch.is_finished(), "two pods were labelled as the primary: {:?}", watch.await);
    }
    watch.abort();
    at_rest(cluster).await;
    println!("\n| fault | times | median of the longest gap | worst |\n|---|---|---|---|");
    for (fault, mut gaps) in gaps {
        gaps.sort();
        let seconds = |gap: Duration| format!("{:.1} s", gap.as_secs_f32());
        println!(
            "| {fault:?} | {} | {} | {} |",
            gaps.len(),
            seconds(gaps[gaps.len() / 2]),
            seconds(gaps[gaps.len() - 1])
        );
    }
    println!(
        "{writes} confirmed writes, none lost; never two pods labelled as the primary; nothing written at rest"
    );
}

async fn strike(cluster: &Cluster, machine: &Machine, fault: Fault, primary: &str, dice: &mut Dice) {
    let replicas: Vec<&str> = PODS.into_iter().filter(|pod| *pod != primary).collect();
    let replica = replicas[usize::try_from(dice.below(2)).unwrap()];
    let signal = async |pod: &str, signal| machine.signal(NAMESPACE, pod, "redis", signal).await;
    match fault {
        Fault::PrimaryKilled => signal(primary, Signal::Kill).await.unwrap(),
        Fault::ReplicaKilled => signal(replica, Signal::Kill).await.unwrap(),
        Fault::AllKilled => {
            for pod in PODS {
                signal(pod, Signal::Kill).await.unwrap();
            }
        }
        Fault::PrimaryHangs => {
            signal(primary, Signal::Stop).await.unwrap();
            other_primary(cluster, primary).await;
            // Its pod was deleted by then.
            let _ = signal(primary, Signal::Continue).await;
        }
        Fault::ReplicaHangs => {
            signal(replica, Signal::Stop).await.unwrap();
            sleep(dice.moment(8000)).await;
            signal(replica, Signal::Continue).await.unwrap();
        }
        Fault::PrimaryCutOff => {
            let fault = machine.isolate(NAMESPACE, primary).await.unwrap();
            other_primary(cluster, primary).await;
            fault.heal().await.unwrap();
        }
        Fault::ReplicaCutOff => {
            let fault = machine.isolate(NAMESPACE, replica).await.unwrap();
            sleep(dice.moment(8000)).await;
            fault.heal().await.unwrap();
        }
        Fault::ReplicaApartFromPrimary => {
            let fault = machine.partition((NAMESPACE, primary), (NAMESPACE, replica)).await.unwrap();
            sleep(dice.moment(8000)).await;
            fault.heal().await.unwrap();
        }
        Fault::PrimaryPodDeleted | Fault::ReplicaPodDeleted => {
            let pod = if fault == Fault::PrimaryPodDeleted { primary } else { replica };
            let uid = api::<Pod>(cluster).get(pod).await.unwrap().uid();
            api::<Pod>(cluster).delete(pod, &DeleteParams::default()).await.unwrap();
            eventually("another pod", BOUND, async || {
                let found = api::<Pod>(cluster).get_opt(pod).await.unwrap();
                let other = found.as_ref().is_some_and(|pod| pod.uid() != uid);
                if other { Ok(()) } else { Err(format!("{:?}", found.map(|pod| pod.metadata))) }
            })
            .await
            .unwrap();
        }
        Fault::SwitchOver => {
            let asked = json!({"metadata": {"annotations": {"cache.example.com/switchover": replica}}});
            let clusters = api::<RedisCluster>(cluster);
            clusters.patch("orders", &PatchParams::default(), &Patch::Merge(asked)).await.unwrap();
            other_primary(cluster, primary).await;
        }
        Fault::SettingChanged => {
            let hz = (10 + dice.below(20)).to_string();
            change(cluster, json!({"config": {"parameters": {"hz": hz}}})).await;
            settings(cluster, &hz, "67108864").await;
        }
    }
    // What was struck must have been noticed before "ready" says anything.
    sleep(Duration::from_secs(2)).await;
}

/// Ends as soon as two pods are labelled as the primary, with their names.
async fn one_primary(client: kube::Client) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let primaries = ListParams::default().labels("cache.example.com/role=primary");
    loop {
        let found = pods.list(&primaries).await.unwrap();
        if found.items.len() > 1 {
            return found.iter().map(ResourceExt::name_any).collect();
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Once all is in sync nothing is written any more.
async fn at_rest(cluster: &Cluster) {
    ready(cluster, 3).await;
    sleep(Duration::from_secs(20)).await;
    let versions = async || {
        let mut versions = vec![
            api::<RedisCluster>(cluster).get("orders").await.unwrap().resource_version(),
            api::<StatefulSet>(cluster).get("orders").await.unwrap().resource_version(),
        ];
        for pod in api::<Pod>(cluster).list(&ListParams::default()).await.unwrap() {
            versions.push(pod.resource_version());
        }
        versions
    };
    let before = versions().await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(versions().await, before, "nothing is written at rest");
}
