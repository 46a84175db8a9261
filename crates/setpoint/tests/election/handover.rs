use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Action, Context, Controller, Election, OperatorError, Reconciler, Result, Task};
use setpoint_apiserver::Identity;
use tokio::time::Instant;

use crate::replicas::{Cluster, LEASE, Way, counter, eventually, pause, simulated};

#[tokio::test(start_paused = true)]
async fn a_standby_is_warm_and_silent_and_takes_over_at_once_after_a_clean_stop() {
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let first = cluster.start("first");
    assert_eq!(cluster.somebody_works().await, "first");
    let second = cluster.start("second");
    pause(60).await;
    assert_eq!(cluster.seen.last_write.lock().clone().unwrap().1, "first");
    first.stop().await.unwrap();
    let released = Instant::now();
    assert_eq!(cluster.somebody_works().await, "second");
    let (elected, holder) = cluster.seen.holders.lock().last().cloned().unwrap();
    assert_eq!(holder, "second");
    assert!(elected.saturating_duration_since(released) < Duration::from_millis(200));
    let lease = cluster.lease().get(LEASE).await.unwrap().spec.unwrap();
    assert_eq!((lease.lease_transitions, lease.lease_duration_seconds), (Some(1), Some(15)));
    assert_eq!(*cluster.seen.violations.lock(), Vec::<String>::new());
    second.stop().await.unwrap();
    assert_eq!(cluster.seen.holder(), "", "given back");
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_given_back_when_the_last_reconcile_has_ended() {
    /// Writes at its end.
    struct Slow;
    impl Reconciler for Slow {
        type Object = ConfigMap;
        async fn reconcile(&self, _: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<Action> {
            tokio::time::sleep(Duration::from_secs(25)).await;
            cx.patch::<ConfigMap>("counter", setpoint::Patch::label("ended", Some("yes"))).await?;
            Ok(Action::await_change())
        }
    }
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let replica = cluster.start_with("a", |operator, election| {
        operator
            .controller(Controller::new(Slow).uses::<ConfigMap>(&[setpoint::Verb::Patch]))
            .election(election)
    });
    pause(10).await;
    replica.stop().await.unwrap();
    assert_eq!(cluster.maps().get("counter").await.unwrap().metadata.labels.unwrap()["ended"], "yes");
    assert_eq!(cluster.seen.holder(), "");
    assert_eq!(*cluster.seen.violations.lock(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn who_loses_the_lease_drops_everything_and_ends() {
    /// Goes on for ever, and says when it is dropped.
    struct Endless(Arc<Mutex<Vec<Duration>>>);
    struct Dropped(Instant, Arc<Mutex<Vec<Duration>>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.1.lock().push(self.0.elapsed());
        }
    }
    impl Reconciler for Endless {
        type Object = ConfigMap;
        async fn reconcile(&self, _: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<Action> {
            let _dropped = Dropped(Instant::now(), Arc::clone(&self.0));
            assert!(cx.term().check().is_ok());
            std::future::pending().await
        }
    }
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let dropped = Arc::new(Mutex::default());
    let watched = Arc::clone(&dropped);
    let mut replica = cluster.start_with("a", |operator, election| {
        operator.controller(Controller::new(Endless(watched))).election(election)
    });
    pause(10).await;
    replica.link.set(Way::Refused);
    let began = Instant::now();
    let error = replica.outcome().await.unwrap_err();
    assert!(matches!(error, OperatorError::LeadershipLost), "{error}");
    assert!(began.elapsed() <= Duration::from_secs(10), "the renew deadline: {:?}", began.elapsed());
    assert_eq!(dropped.lock().len(), 1, "without a grace");
}

#[tokio::test(start_paused = true)]
async fn what_outlives_its_term_cannot_write() {
    /// Leaves a task behind that nobody drops.
    #[derive(Default)]
    struct Leaky(AtomicBool);
    impl Reconciler for Leaky {
        type Object = ConfigMap;
        async fn reconcile(&self, _: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<Action> {
            if !self.0.swap(true, Ordering::Relaxed) {
                let maps: Api<ConfigMap> = Api::namespaced(cx.client(), "default");
                tokio::spawn(async move {
                    let label = Patch::Merge(json!({ "metadata": { "labels": { "leak": "yes" } } }));
                    loop {
                        let _ = maps.patch("counter", &PatchParams::default(), &label).await;
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                });
            }
            Ok(Action::await_change())
        }
    }
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let first = cluster.start_with("first", |operator, election| {
        operator.controller(Controller::new(Leaky::default())).election(election.stand_by())
    });
    assert_eq!(cluster.somebody_works().await, "first");
    let second = cluster.start("second");
    pause(5).await;
    first.link.set(Way::Hanging);
    pause(30).await;
    first.link.set(Way::Open);
    assert_eq!(cluster.somebody_works().await, "second");
    pause(60).await;
    assert_eq!(*cluster.seen.violations.lock(), Vec::<String>::new());
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stands_by_again_keeps_its_caches_and_starts_its_tasks_anew() {
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let starts = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::clone(&starts);
    let replica = cluster.start_with("a", move |operator, election| {
        operator
            .controller(counter("a"))
            .task(Task::leading("poller", move |runtime, stop| {
                started.lock().push(runtime.term().number());
                async move {
                    stop.cancelled().await;
                    Ok(())
                }
            }))
            .election(election.stand_by())
    });
    cluster.somebody_works().await;
    replica.link.set(Way::Hanging);
    pause(30).await;
    replica.link.set(Way::Open);
    cluster.somebody_works().await;
    pause(5).await;
    assert_eq!(*starts.lock(), [0, 1], "one in each term");
    assert_eq!(*cluster.seen.violations.lock(), Vec::<String>::new());
    replica.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_does_not_act_before_its_caches_are_fresh() {
    /// Makes one Secret for each ConfigMap, with a generated name: a stale cache would make a second one.
    struct Once;
    impl Reconciler for Once {
        type Object = ConfigMap;
        async fn reconcile(&self, _: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<Action> {
            if cx.children::<Secret>().await?.is_empty() {
                let generate_name = Some("once-".to_owned());
                let metadata = ObjectMeta { generate_name, ..ObjectMeta::default() };
                cx.create(Secret { metadata, ..Secret::default() }).await?;
            }
            Ok(Action::await_change())
        }
    }
    if !simulated() {
        return;
    }
    let start = |cluster: &Cluster, name: &str| {
        cluster.start_with(name, |operator, election| {
            operator.controller(Controller::new(Once).owns::<Secret>()).election(election)
        })
    };
    let cluster = Cluster::new().await;
    let first = start(&cluster, "first");
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), "default");
    let count = async || secrets.list(&ListParams::default()).await.unwrap().items.len();
    eventually("the first secret", async || match count().await {
        1 => Ok(()),
        other => Err(format!("{other}")),
    })
    .await;
    let second = start(&cluster, "second");
    pause(10).await;

    // What the first one does from now on, the second one does not see.
    second.link.frozen.send_replace(true);
    let another = ConfigMap {
        metadata: ObjectMeta { name: Some("another".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    cluster.maps().create(&PostParams::default(), &another).await.unwrap();
    eventually("the second secret", async || match count().await {
        2 => Ok(()),
        other => Err(format!("{other}")),
    })
    .await;
    let writes = cluster.seen.writes.load(Ordering::Relaxed);
    first.stop().await.unwrap();
    pause(30).await;
    assert_eq!(cluster.seen.holder(), "second");
    assert_eq!(cluster.seen.writes.load(Ordering::Relaxed), writes, "it waits");
    second.link.frozen.send_replace(false);
    pause(30).await;
    assert_eq!(count().await, 2, "it has seen what the first one did");

    // And then it works.
    let last = ConfigMap {
        metadata: ObjectMeta { name: Some("last".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    cluster.maps().create(&PostParams::default(), &last).await.unwrap();
    pause(5).await;
    assert_eq!(count().await, 3);
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_edited_or_deleted_lease_moves_nobody() {
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let (first, second) = (cluster.start("first"), cluster.start("second"));
    let leader = cluster.somebody_works().await;
    pause(10).await;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "team": "web" } } }));
    cluster.lease().patch(LEASE, &PatchParams::default(), &label).await.unwrap();
    pause(30).await;
    assert_eq!(cluster.lease().get(LEASE).await.unwrap().metadata.labels.unwrap()["team"], "web");
    cluster.lease().delete(LEASE, &DeleteParams::default()).await.unwrap();
    pause(30).await;
    assert_eq!((cluster.seen.holder(), cluster.seen.terms()), (leader, 1));
    assert_eq!(*cluster.seen.violations.lock(), Vec::<String>::new());
    first.stop().await.unwrap();
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_operators_with_one_identity_never_write_both() {
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let first = cluster.start("twin");
    cluster.somebody_works().await;
    let mut second = cluster.start("twin");
    pause(120).await;
    assert_eq!(cluster.seen.terms(), 1);
    let transitions = cluster.lease().get(LEASE).await.unwrap().spec.unwrap().lease_transitions;
    assert_eq!(transitions, Some(0), "the second one has not taken it");
    assert!(!second.has_ended());
    first.crash().await;
    pause(20).await;
    let transitions = cluster.lease().get(LEASE).await.unwrap().spec.unwrap().lease_transitions;
    assert_eq!(transitions, Some(1), "but it does when the first one is gone");
    second.link.set(Way::Refused);
    second.outcome().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn impossible_timings_are_refused_at_the_start() {
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let mut replica = cluster.start_with("a", |operator, _| {
        let seconds = Duration::from_secs;
        operator.election(Election::new("web").timings(seconds(10), seconds(15), seconds(2)))
    });
    let error = replica.outcome().await.unwrap_err().to_string();
    let expected = "leader election web: the renew deadline of 15s is not shorter than the lease of 10s";
    assert!(error.starts_with(expected), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_elected_operator_needs_no_more_than_its_generated_rights() {
    if !simulated() {
        return;
    }
    let cluster = Cluster::new().await;
    let operator = || {
        setpoint::Operator::new("counter")
            .controller(counter("a"))
            .election(Election::new(LEASE).namespace("default"))
    };
    for object in operator().manifests("default").access().unwrap() {
        let object: kube::api::DynamicObject = serde_json::from_value(object).unwrap();
        let kind = kube::core::GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
        let resource = kube::api::ApiResource::from_gvk(&kind);
        let api: Api<kube::api::DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(cluster.client(), namespace, &resource),
            None => Api::all_with(cluster.client(), &resource),
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    let account = Identity::service_account("default", "counter", "some-uid");
    let client = kube::Client::new(cluster.api.service(account), "default");
    let operator = operator();
    let metrics = operator.metrics().clone();
    let running = tokio::spawn(operator.client(client).run_until(pause(60)));
    pause(30).await;
    let text = metrics.encode();
    assert!(text.contains("leader_election_master_status{name=\"counter.example.com\"} 1"), "{text}");
    assert!(!text.contains("code=\"403\""), "{text}");
    running.await.unwrap().unwrap();
    let text = metrics.encode();
    assert!(text.contains("leader_election_master_status{name=\"counter.example.com\"} 0"), "{text}");
    assert!(text.contains("leader_election_slowpath_total{name=\"counter.example.com\"} 0"), "{text}");
}
