use std::time::Duration;

use setpoint::Lock;
use setpoint_clock::Entropy;
use tokio::time::Instant;

use crate::replicas::{Cluster, LEASE_DURATION, RETRY, Replica, Way, pause, simulated};

const NAMES: [&str; 3] = ["a", "b", "c"];
const ELECTIONS: usize = 1000;

/// Every other one stands by when it loses, the others end and are started again.
fn start(cluster: &Cluster, name: &str) -> Replica {
    if name == "b" {
        return cluster.start(name);
    }
    cluster.start_with(name, |operator, election| {
        operator.controller(crate::replicas::counter(name)).election(election.stand_by())
    })
}

/// Starts again what has ended.
fn revive(cluster: &Cluster, replicas: &mut [Replica]) {
    for replica in replicas.iter_mut().filter(|replica| replica.has_ended()) {
        *replica = start(cluster, &replica.name.clone());
    }
}

/// When the holder of the lease changed last.
fn elected(cluster: &Cluster) -> Instant {
    cluster.seen.holders.lock().last().expect("somebody").0
}

/// The seed of the faults: that of `SETPOINT_SEED`, to run a failure or another history again.
fn seed() -> u64 {
    let seed =
        std::env::var("SETPOINT_SEED").ok().map(|seed| seed.parse().expect("SETPOINT_SEED is a number"));
    seed.unwrap_or(42)
}

#[tokio::test(start_paused = true)]
async fn in_a_thousand_elections_never_two_write() {
    if !simulated() {
        return;
    }
    elections(Lock::Lease, ELECTIONS).await;
}

#[tokio::test(start_paused = true)]
async fn config_maps_and_endpoints_are_locks_as_good() {
    if !simulated() {
        return;
    }
    for lock in [Lock::ConfigMap, Lock::Endpoints] {
        elections(lock, ELECTIONS / 10).await;
    }
}

/// Chaos until there were so many elections.
async fn elections(lock: Lock, count: usize) {
    let seed = seed();
    println!("again with SETPOINT_SEED={seed}");
    let entropy = Entropy::seeded(seed);
    let cluster = Cluster::with(lock).await;
    let mut replicas: Vec<Replica> = NAMES.iter().map(|name| start(&cluster, name)).collect();
    let mut longest = [Duration::ZERO; 2];
    while cluster.seen.terms() < count {
        revive(&cluster, &mut replicas);
        cluster.somebody_works().await;
        let fault = entropy.below(8);
        // A standby that has just been cut off may have to look for the lease again: that is not measured.
        let rest = if (1..4).contains(&fault) { 10_000 } else { entropy.below(6000) };
        tokio::time::sleep(Duration::from_millis(rest)).await;
        let leader = cluster.somebody_works().await;
        let place = replicas.iter().position(|replica| replica.name == leader).expect("one of them");
        let span = 1 + entropy.below(40);
        match fault {
            // A crash of the leader.
            0 => {
                let crashed = std::mem::replace(&mut replicas[place], start(&cluster, "nobody"));
                replicas[place].link.set(Way::Refused);
                let began = Instant::now();
                crashed.crash().await;
                cluster.somebody_works().await;
                longest[0] = longest[0].max(elected(&cluster) - began);
                replicas[place] = start(&cluster, &leader);
            }
            // A clean stop of the leader.
            1..4 => {
                let stopping = std::mem::replace(&mut replicas[place], start(&cluster, "nobody"));
                replicas[place].link.set(Way::Refused);
                let outcome = stopping.stop().await;
                let released = Instant::now();
                cluster.somebody_works().await;
                // It may have lost its lease a moment ago.
                if outcome.is_ok() {
                    longest[1] = longest[1].max(elected(&cluster).saturating_duration_since(released));
                }
                replicas[place] = start(&cluster, &leader);
            }
            // The leader's way to the server fails, and a standby's is slow.
            4 => {
                replicas[place].link.set(Way::Refused);
                replicas[(place + 1) % 3].link.frozen.send_replace(true);
                pause(span).await;
                replicas[(place + 1) % 3].link.frozen.send_replace(false);
                replicas[place].link.set(Way::Open);
            }
            5 => {
                replicas[place].link.set(Way::Hanging);
                pause(span).await;
                replicas[place].link.set(Way::Open);
            }
            // The server is away for all.
            6 => {
                let way = if entropy.below(2) == 0 { Way::Hanging } else { Way::Refused };
                for replica in &replicas {
                    replica.link.set(way);
                }
                pause(span).await;
                for replica in &replicas {
                    replica.link.set(Way::Open);
                }
            }
            // Time stands still for everybody and then jumps: timers of all replicas are due at once.
            _ => tokio::time::advance(Duration::from_secs(span)).await,
        }
        assert_eq!(*cluster.seen.violations.lock(), Vec::<String>::new());
    }
    let [crash, stop] = longest;
    assert!(crash <= LEASE_DURATION + RETRY, "take-over after a crash: {crash:?}");
    assert!(stop < Duration::from_millis(200), "take-over after a clean stop: {stop:?}");
}
