//! Dashboards find what they look for before anything has happened, and labels don't grow with what the cluster holds.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::channel::oneshot;
use kube::Client;
use serde_json::json;
use setpoint::{Election, Metrics};
use setpoint_apiserver::Identity;
use setpoint_clock::Entropy;
use setpoint_test::eventually;

use super::world::{BOUND, World, with_webhook};

/// The metrics of controller-runtime and client-go with their labels, and the short names; each starts at 0.
const FROM_THE_START: [&str; 37] = [
    r#"controller_reconcile_total{controller="configmap",result="success"}"#,
    r#"controller_reconcile_total{controller="configmap",result="error"}"#,
    r#"controller_reconcile_total{controller="configmap",result="requeue_after"}"#,
    r#"controller_reconcile_duration_seconds_count{controller="configmap"}"#,
    r#"controller_runtime_reconcile_total{controller="configmap",result="success"}"#,
    r#"controller_runtime_reconcile_total{controller="configmap",result="error"}"#,
    r#"controller_runtime_reconcile_total{controller="configmap",result="requeue"}"#,
    r#"controller_runtime_reconcile_total{controller="configmap",result="requeue_after"}"#,
    r#"controller_runtime_reconcile_errors_total{controller="configmap"}"#,
    r#"controller_runtime_terminal_reconcile_errors_total{controller="configmap"}"#,
    r#"controller_runtime_reconcile_panics_total{controller="configmap"}"#,
    r#"controller_runtime_reconcile_timeouts_total{controller="configmap"}"#,
    r#"controller_runtime_reconcile_time_seconds_count{controller="configmap"}"#,
    r#"controller_runtime_active_workers{controller="configmap"}"#,
    r#"controller_runtime_webhook_requests_total{code="200",webhook="/validate--v1-configmap"}"#,
    r#"controller_runtime_webhook_requests_total{code="500",webhook="/validate--v1-configmap"}"#,
    r#"controller_runtime_webhook_latency_seconds_count{webhook="/validate--v1-configmap"}"#,
    r#"controller_runtime_webhook_requests_in_flight{webhook="/validate--v1-configmap"}"#,
    "controller_runtime_webhook_panics_total",
    "controller_runtime_conversion_webhook_panics_total",
    r#"workqueue_depth{name="configmap",controller="configmap",priority="0"}"#,
    r#"workqueue_depth{name="configmap",controller="configmap",priority="-100"}"#,
    r#"workqueue_adds_total{name="configmap",controller="configmap"}"#,
    r#"workqueue_retries_total{name="configmap",controller="configmap"}"#,
    r#"workqueue_queue_duration_seconds_count{name="configmap",controller="configmap"}"#,
    r#"workqueue_work_duration_seconds_count{name="configmap",controller="configmap"}"#,
    r#"workqueue_unfinished_work_seconds{name="configmap",controller="configmap"}"#,
    r#"workqueue_longest_running_processor_seconds{name="configmap",controller="configmap"}"#,
    r#"leader_election_slowpath_total{name="op.example.com"}"#,
    "certwatcher_read_certificate_total",
    "certwatcher_read_certificate_errors_total",
    r#"setpoint_watch_restarts_total{resource="configmaps"}"#,
    r#"setpoint_cache_undecodable_objects{resource="configmaps"}"#,
    r#"controller_runtime_webhook_latency_seconds_sum{webhook="/validate--v1-configmap"}"#,
    r#"controller_runtime_reconcile_time_seconds_sum{controller="configmap"}"#,
    r#"workqueue_queue_duration_seconds_sum{name="configmap",controller="configmap"}"#,
    r#"workqueue_work_duration_seconds_sum{name="configmap",controller="configmap"}"#,
];

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Every series but those of the client, whose labels are of requests: code, method and host.
fn series(metrics: &Metrics) -> BTreeSet<String> {
    let text = metrics.encode();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("rest_client"));
    lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_scrape_before_the_first_reconcile_has_everything() {
    let world = World::new();
    let operator = with_webhook().election(Election::new("op.example.com"));
    for object in operator.manifests("op-system").objects().unwrap() {
        // No webhook stands in the way of what the test makes.
        if !object["kind"].as_str().unwrap().ends_with("WebhookConfiguration") {
            world.apply(&object).await;
        }
    }
    let metrics = operator.metrics().clone();
    let identity = Identity::service_account("op-system", "op", "some-uid");
    let client = Client::new(world.api.service(identity), "op-system");
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(operator.client(client).entropy(Entropy::seeded(7)).run_until(async {
        let _ = stopped.await;
    }));
    let leads = r#"leader_election_master_status{name="op.example.com"}"#;
    eventually("a leader", BOUND, async || {
        let text = metrics.encode();
        let ready = value(&text, "controller_runtime_max_concurrent_reconciles{controller=\"configmap\"}");
        if value(&text, leads) == Some(1.0) && ready.is_some() { Ok(()) } else { Err(text) }
    })
    .await
    .unwrap();

    let text = metrics.encode();
    for series in FROM_THE_START {
        assert_eq!(value(&text, series), Some(0.0), "{series} in\n{text}");
    }
    assert_eq!(
        value(&text, r#"controller_runtime_max_concurrent_reconciles{controller="configmap"}"#),
        Some(4.0)
    );
    // As controller-runtime and client-go have their buckets, and one for all that is above.
    for (name, buckets) in [
        ("controller_runtime_reconcile_time_seconds", 41),
        ("controller_reconcile_duration_seconds", 41),
        ("workqueue_queue_duration_seconds", 13),
        ("workqueue_work_duration_seconds", 13),
    ] {
        let start = format!("{name}_bucket{{");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&start)).collect();
        assert_eq!(lines.len(), buckets, "{lines:#?}");
        assert!(lines.iter().all(|line| line.ends_with(" 0")), "{lines:#?}");
    }

    // What the cluster holds makes no series.
    let before = series(&metrics);
    for n in 0..40 {
        let namespace = format!("team-{}", n % 4);
        world.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await;
        let metadata = json!({"name": format!("map-{n}"), "namespace": namespace});
        world.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).await;
    }
    eventually("40 reconciles", BOUND, async || {
        let text = metrics.encode();
        let done = value(&text, r#"controller_reconcile_total{controller="configmap",result="success"}"#);
        if done >= Some(40.0) { Ok(()) } else { Err(text) }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(series(&metrics), before);
    let text = metrics.encode();
    let requests = text.lines().filter(|line| line.starts_with("rest_client_requests_total{")).count();
    assert!(requests < 20, "{text}");
    drop(stop);
    task.await.unwrap().unwrap();
}
