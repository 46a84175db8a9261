use std::convert::Infallible;

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use setpoint_manifests::documents;
use tower::service_fn;

use super::*;
use crate::{Action, Context, Controller, Reconciler};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use std::sync::Arc;
use tokio::sync::oneshot;

struct Config;

impl Reconciler for Config {
    type Object = ConfigMap;

    async fn reconcile(&self, _: Arc<ConfigMap>, _: &Context<ConfigMap>) -> Result<Action> {
        Ok(Action::await_change())
    }
}

/// A server that knows nothing.
fn empty() -> kube::Client {
    let service = service_fn(|_: Request<Body>| async {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": "no", "reason": "NotFound"});
        let response = Response::builder().status(404).body(Body::from(body.to_string().into_bytes()));
        Ok::<_, Infallible>(response.unwrap())
    });
    kube::Client::new(service, "default")
}

#[test]
fn rules_come_from_what_a_controller_declares() {
    let operator = Operator::new("config-operator").controller(
        Controller::new(Config)
            .owns::<StatefulSet>()
            .watches::<Node>(|_, _, _| Vec::new())
            .uses::<Pod>(&[crate::Verb::Get, crate::Verb::Delete]),
    );
    insta::assert_snapshot!(documents(&operator.manifests("config").access().unwrap()).unwrap());
}

#[test]
fn a_restricted_operator_gets_roles() {
    let operator = Operator::new("config-operator")
        .scope(Scope::parse("team-a"))
        .controller(Controller::new(Config).watches::<Node>(|_, _, _| Vec::new()));
    let access = operator.manifests("config").access().unwrap();
    let kinds: Vec<&str> = access.iter().filter_map(|object| object["kind"].as_str()).collect();
    assert_eq!(kinds, ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]);
    let resources = |object: &Value| {
        object["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["resources"].to_string())
            .collect::<String>()
    };
    assert_eq!(resources(&access[1]), "[\"nodes\"]", "cluster-scoped kinds only");
    assert!(!resources(&access[3]).contains("nodes"));
}

#[test]
fn the_pod_outlives_every_grace() {
    let plain = Operator::new("o").grace(Duration::from_secs(20));
    assert_eq!(plain.manifests("o").termination_grace_seconds, 30);
    let with_task = plain.task(Task::always("poll", |_, _| async { Ok(()) }));
    assert_eq!(with_task.manifests("o").termination_grace_seconds, 50);
}

#[test]
fn manifests_are_written_as_one_file_and_for_kustomize() {
    let directory = tempfile::tempdir().unwrap();
    let install = Operator::new("config-operator").controller(Controller::new(Config)).manifests("config");
    let target = directory.path().join("deploy");
    let written = manifests::write(&install, &target).unwrap();
    let names: Vec<String> =
        written.iter().map(|path| path.strip_prefix(&target).unwrap().display().to_string()).collect();
    assert_eq!(
        names,
        [
            "default/kustomization.yaml",
            "install.yaml",
            "manager/kustomization.yaml",
            "manager/manager.yaml",
            "manager/metrics_service.yaml",
            "manager/namespace.yaml",
            "network-policy/kustomization.yaml",
            "network-policy/network_policy.yaml",
            "prometheus/kustomization.yaml",
            "prometheus/monitor.yaml",
            "rbac/cluster_role.yaml",
            "rbac/cluster_role_binding.yaml",
            "rbac/kustomization.yaml",
            "rbac/service_account.yaml",
        ]
    );
    let blocked = directory.path().join("file");
    std::fs::write(&blocked, "").unwrap();
    let error = manifests::write(&install, &blocked).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {}", blocked.display())), "{error}");
}

#[tokio::test(start_paused = true)]
async fn two_controllers_of_one_name_are_refused() {
    let operator = Operator::new("config-operator")
        .client(empty())
        .controller(Controller::new(Config))
        .controller(Controller::new(Config));
    let error = operator.run_until(std::future::pending()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "two controllers are named configmap: tell them apart with Controller::named"
    );
}

#[tokio::test(start_paused = true)]
async fn tasks_run_until_the_stop_and_get_a_grace() {
    let (started, wait_started) = oneshot::channel();
    let operator =
        Operator::new("config-operator").client(empty()).task(Task::always("poll", |_, stop| async move {
            let _ = started.send(());
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(())
        }));
    let start = tokio::time::Instant::now();
    operator.run_until(async { drop(wait_started.await) }).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ignores_the_stop_is_dropped() {
    let operator = Operator::new("config-operator")
        .client(empty())
        .grace(Duration::from_secs(7))
        .task(Task::always("poll", |_, _| std::future::pending()));
    let start = tokio::time::Instant::now();
    operator.run_until(async {}).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_failing_task_stops_the_operator() {
    let failing = Task::always("poll", |_, _| async { Err(crate::Error::msg("no route to the database")) });
    let operator = Operator::new("config-operator").client(empty()).task(failing);
    let error = operator.run_until(std::future::pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "task poll failed: no route to the database");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_task_stops_the_operator() {
    let failing = Task::always("poll", |_, _| async { panic!("oh") });
    let operator = Operator::new("config-operator").client(empty()).task(failing);
    let error = operator.run_until(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("task poll failed: it panicked"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn events_of_the_last_moment_are_sent() {
    let (sent, seen) = tokio::sync::mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<Body>| {
        let sent = sent.clone();
        async move {
            let body = request.into_body().collect_bytes().await.unwrap_or_default();
            let event: Value = serde_json::from_slice(&body).unwrap();
            sent.send(event["reason"].clone()).unwrap();
            Ok::<_, Infallible>(Response::builder().status(201).body(Body::from(body)).unwrap())
        }
    });
    let task = Task::always("say", |runtime, stop| async move {
        stop.cancelled().await;
        let about = k8s_openapi::api::core::v1::ObjectReference::default();
        runtime.recorder().record("say", &about, crate::Event::normal("Bye", "the end"));
        Ok(())
    });
    let operator = Operator::new("o").client(kube::Client::new(service, "default")).task(task);
    operator.run_until(async {}).await.unwrap();
    let mut seen = seen;
    assert_eq!(seen.recv().await, Some(json!("Bye")));
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let operator = Operator::new("o").client(empty()).metrics_address(address.clone());
    let error = operator.run_until(async {}).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot listen on {address} for metrics: Address already in use")),
        "{error}"
    );
    assert!(
        error.ends_with("choose another address with --metrics-bind-address, or 0 to do without"),
        "{error}"
    );
    let error =
        Operator::new("o").client(empty()).health_address("nonsense").run_until(async {}).await.unwrap_err();
    assert!(error.to_string().contains("cannot listen on nonsense for health probes"), "{error}");
}

#[tokio::test]
async fn endpoints_answer_over_http() {
    let listener = endpoint::listen(":0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let health = Health::default();
    health.readiness("caches", || Err("configmaps: not listed yet".to_owned()));
    let server = tokio::spawn(endpoint::serve(listener, endpoint::health(health)));
    let get = async |method: &str, path: &str| {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header("host", "x");
        let response = sender
            .send_request(request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap())
            .await
            .unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    };
    assert_eq!(get("GET", "/healthz").await, (200, "ok".to_owned()));
    let (status, text) = get("GET", "/readyz").await;
    assert_eq!(
        (status, text.as_str()),
        (500, "[-]caches failed: configmaps: not listed yet\nreadyz check failed\n")
    );
    assert_eq!(get("POST", "/healthz").await.0, 405);
    server.abort();
}
