use std::time::Duration;

use super::*;

fn lines<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with(prefix)).collect();
    lines.sort_unstable();
    lines
}

#[tokio::test(start_paused = true)]
async fn every_series_of_a_controller_starts_at_zero() {
    let metrics = Metrics::new();
    metrics.controller_started("website", 4);
    let text = metrics.encode();
    for series in [
        "controller_runtime_reconcile_total{controller=\"website\",result=\"success\"} 0",
        "controller_runtime_reconcile_total{controller=\"website\",result=\"error\"} 0",
        "controller_runtime_reconcile_total{controller=\"website\",result=\"requeue_after\"} 0",
        "controller_runtime_reconcile_total{controller=\"website\",result=\"requeue\"} 0",
        "controller_runtime_reconcile_errors_total{controller=\"website\"} 0",
        "controller_runtime_terminal_reconcile_errors_total{controller=\"website\"} 0",
        "controller_runtime_reconcile_panics_total{controller=\"website\"} 0",
        "controller_runtime_reconcile_timeouts_total{controller=\"website\"} 0",
        "controller_runtime_reconcile_time_seconds_count{controller=\"website\"} 0",
        "controller_runtime_max_concurrent_reconciles{controller=\"website\"} 4",
        "controller_runtime_active_workers{controller=\"website\"} 0",
        "controller_reconcile_total{controller=\"website\",result=\"success\"} 0",
        "controller_reconcile_duration_seconds_count{controller=\"website\"} 0",
        "workqueue_depth{name=\"website\",controller=\"website\",priority=\"0\"} 0",
        "workqueue_depth{name=\"website\",controller=\"website\",priority=\"-100\"} 0",
        "workqueue_adds_total{name=\"website\",controller=\"website\"} 0",
        "workqueue_retries_total{name=\"website\",controller=\"website\"} 0",
        "workqueue_queue_duration_seconds_count{name=\"website\",controller=\"website\"} 0",
        "workqueue_work_duration_seconds_count{name=\"website\",controller=\"website\"} 0",
        "workqueue_unfinished_work_seconds{name=\"website\",controller=\"website\"} 0",
        "workqueue_longest_running_processor_seconds{name=\"website\",controller=\"website\"} 0",
    ] {
        assert!(
            text.lines().any(|line| line == series || line == format!("{series}.0")),
            "{series} not in\n{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_shows_while_it_runs_and_after() {
    let metrics = Metrics::new();
    metrics.controller_started("website", 2);
    metrics.reconcile_started("website");
    tokio::time::advance(Duration::from_secs(3)).await;
    metrics.reconcile_started("website");
    tokio::time::advance(Duration::from_secs(2)).await;

    assert_eq!(metrics.longest_running("website"), Some(Duration::from_secs(5)));
    let text = metrics.encode();
    assert_eq!(
        lines(&text, "workqueue_unfinished_work_seconds{"),
        ["workqueue_unfinished_work_seconds{name=\"website\",controller=\"website\"} 7.0"]
    );
    assert_eq!(
        lines(&text, "workqueue_longest_running_processor_seconds{"),
        ["workqueue_longest_running_processor_seconds{name=\"website\",controller=\"website\"} 5.0"]
    );
    assert_eq!(
        lines(&text, "controller_runtime_active_workers{"),
        ["controller_runtime_active_workers{controller=\"website\"} 2"]
    );

    metrics.reconcile_finished("website", Reconciled::Terminal, Duration::from_secs(5));
    assert_eq!(metrics.longest_running("website"), Some(Duration::from_secs(2)));
    metrics.reconcile_finished("website", Reconciled::Success, Duration::from_secs(2));
    let text = metrics.encode();
    assert_eq!(
        lines(&text, "controller_runtime_reconcile_total{"),
        [
            "controller_runtime_reconcile_total{controller=\"website\",result=\"error\"} 1",
            "controller_runtime_reconcile_total{controller=\"website\",result=\"requeue\"} 0",
            "controller_runtime_reconcile_total{controller=\"website\",result=\"requeue_after\"} 0",
            "controller_runtime_reconcile_total{controller=\"website\",result=\"success\"} 1",
        ]
    );
    assert_eq!(
        lines(&text, "controller_runtime_terminal_reconcile_errors_total{"),
        ["controller_runtime_terminal_reconcile_errors_total{controller=\"website\"} 1"]
    );
    assert_eq!(
        lines(&text, "controller_reconcile_duration_seconds_sum"),
        ["controller_reconcile_duration_seconds_sum{controller=\"website\"} 7.0"]
    );
    assert_eq!(
        lines(&text, "controller_runtime_active_workers{"),
        ["controller_runtime_active_workers{controller=\"website\"} 0"]
    );
    assert_eq!(metrics.longest_running("website"), None);
}

#[test]
fn requests_are_counted_by_code() {
    let metrics = Metrics::new();
    metrics.client().request(Some(200), "GET", "example", Some(Duration::from_millis(3)));
    metrics.client().request(None, "PUT", "example", None);
    let text = metrics.encode();
    assert_eq!(
        lines(&text, "rest_client_requests_total{"),
        [
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"example\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"PUT\",host=\"example\"} 1",
        ]
    );
}

#[test]
fn two_operators_do_not_share_series() {
    let (a, b) = (Metrics::new(), Metrics::new());
    a.controller_started("website", 1);
    assert!(!b.encode().contains("website"));
}

#[test]
#[cfg(target_os = "linux")]
fn the_process_has_memory_files_and_a_start() {
    let text = Metrics::new().encode();
    let value = |name: &str| -> f64 {
        let found = lines(&text, &format!("{name} "));
        assert_eq!(found.len(), 1, "{name} in\n{text}");
        found[0].rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
    assert!(value("process_max_fds") >= value("process_open_fds"));
    assert!(value("process_cpu_seconds_total") >= 0.0);
    // Started today, after the machine was; the machine's own clock is what it is compared with.
    let now = setpoint_clock::Clock::system().now().as_second() as f64;
    let start = value("process_start_time_seconds");
    assert!(start <= now + 1.0 && start > now - 24.0 * 3600.0, "{start} {now}");
}

#[test]
fn watches_count_by_resource() {
    let metrics = Metrics::new();
    let kind = Kind::of::<k8s_openapi::api::apps::v1::StatefulSet>();
    metrics.watch_event(&kind);
    metrics.undecodable(&kind, 2);
    let text = metrics.encode();
    assert_eq!(
        lines(&text, "setpoint_watch_events_total{"),
        ["setpoint_watch_events_total{resource=\"statefulsets.apps\"} 1"]
    );
    assert_eq!(
        lines(&text, "setpoint_cache_undecodable_objects{"),
        ["setpoint_cache_undecodable_objects{resource=\"statefulsets.apps\"} 2"]
    );
}

/// The documentation lists exactly what is served.
#[tokio::test(start_paused = true)]
async fn the_documented_metrics_are_the_served_ones() {
    let metrics = Metrics::new();
    // A family without series is not written: give each one.
    metrics.controller_started("website", 1);
    metrics.client().request(Some(200), "GET", "example", Some(Duration::ZERO));
    metrics.client().retried(Some(503), "GET", "example");
    metrics.client().sizes("GET", "example", Some(0), Some(0));
    let kind = Kind::of::<k8s_openapi::api::core::v1::Pod>();
    metrics.watch_event(&kind);
    metrics.watch_restarted(&kind);
    metrics.undecodable(&kind, 0);
    metrics.leading("website.example.com", true);
    metrics.webhooks().declare("/validate-example-com-v1-website");
    let text = metrics.encode();
    let mut served: Vec<&str> =
        lines(&text, "# TYPE ").iter().filter_map(|line| line.split(' ').nth(2)).collect();
    served.sort_unstable();
    let page = include_str!("../../../../docs/sdk/metrics.md");
    let mut documented: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .flat_map(|row| row.split('|').next().unwrap_or_default().split('`'))
        .filter(|name| name.contains('_'))
        .collect();
    documented.sort_unstable();
    assert_eq!(documented, served);
}
