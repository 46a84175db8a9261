//! The example operator as a process: output, exit codes and messages. On the server that `SETPOINT_TEST_SERVER` names.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may fail as tests do"
)]

mod installing;
mod starting;
mod traces;
mod webhooks;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use setpoint_test::TestEnv;

/// The example operator.
fn program() -> Command {
    example("website")
}

/// An example's binary, which cargo builds before it runs the tests of a package.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let profile: PathBuf = test.ancestors().nth(2).unwrap().into();
    let mut command = Command::new(profile.join("examples").join(name));
    command.env_clear().env("HOME", "/nonexistent");
    command
}

fn run(arguments: &[&str]) -> Output {
    program()
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("examples/website: {error}; is it built?"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn manifests_are_written_to_standard_output() {
    let output = run(&["manifests", "--image", "registry.example.com/website:v1", "--namespace", "sites"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}

#[test]
fn without_a_cluster_one_line_says_so() {
    let output = run(&["run"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert_eq!(
        text,
        "error: no cluster to connect to: not inside a pod, and cannot read the kubeconfig /nonexistent/.kube/config: No such \
         file or directory (os error 2); name one with --kubeconfig and --context, or set KUBECONFIG\n"
    );
}

#[test]
fn an_unreachable_cluster_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    // Port 1 is reserved and closed.
    std::fs::write(
        &file,
        "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
         users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n",
    )
    .unwrap();
    let addresses = ["--metrics-bind-address", "0", "--health-probe-bind-address", "0"];
    let output = program().args(["run", "--kubeconfig"]).arg(&file).args(addresses).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.lines()
            .last()
            .unwrap()
            .starts_with("error: cannot reach the API server at http://127.0.0.1:1: "),
        "{text}"
    );
}

#[test]
fn every_binary_tells_its_version() {
    let output = run(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("website-operator {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_flags_end_with_2() {
    for arguments in [&["run", "--nonsense"][..], &["plan", "--output", "xml"], &["bundle"], &[]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["manifests", "--watch-namespaces", "Team_A"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("\"Team_A\" is no name of a namespace"), "{}", stderr(&output));
    let output = run(&["run", "--log-level", "loud"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: log level \"loud\": no such level"), "{}", stderr(&output));
}

/// The administrator's kubeconfig with a token of the ServiceAccount that the example's manifests made in the namespace `sites`.
async fn kubeconfig_of_the_account(env: &TestEnv) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(env.client(), "sites");
    let request = TokenRequest::default();
    let token = accounts.create_token_request("website-operator", &PostParams::default(), &request).await;
    let token = token.unwrap().status.unwrap().token;
    let mut config: Value = serde_saphyr::from_str(&env.kubeconfig().unwrap()).unwrap();
    config["users"][0]["user"] = json!({ "token": token });
    config["contexts"][0]["context"]["namespace"] = json!("sites");
    config.to_string()
}

/// Applies every document of a YAML stream.
async fn apply(client: &Client, yaml: &str) {
    for document in serde_saphyr::from_multiple::<Value>(yaml).unwrap() {
        let object: DynamicObject = serde_json::from_value(document).unwrap();
        let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.patch(&object.name_any(), &PatchParams::apply("test").force(), &Patch::Apply(&object))
            .await
            .unwrap_or_else(|error| panic!("{kind:?} {}: {error}", object.name_any()));
    }
}

/// Asks until there is an answer, for 20 seconds; then shows what the process wrote.
async fn until<T>(what: &str, log: &std::path::Path, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..400 {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what} did not come; the operator wrote:\n{}", std::fs::read_to_string(log).unwrap_or_default());
}

/// A port that was free a moment ago.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The answer to a GET, head and body; empty while nobody listens.
fn get(address: &str, path: &str) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut text));
    }
    text
}

/// Ends the process with the test, whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_works_over_https_and_stops_at_a_signal() {
    let env = TestEnv::without_controllers().await.unwrap();
    let admin = env.client();
    let manifests = String::from_utf8(run(&["manifests", "--namespace", "sites"]).stdout).unwrap();
    apply(&admin, &manifests).await;

    let config = kubeconfig_of_the_account(&env).await;
    let directory = tempfile::tempdir().unwrap();
    let (file, log) = (directory.path().join("kubeconfig"), directory.path().join("log"));
    std::fs::write(&file, config).unwrap();

    let (metrics, health) = (free_address(), free_address());
    let mut running = Running(
        program()
            .args(["run", "--log-format", "json", "--metrics-bind-address", &metrics])
            .args(["--health-probe-bind-address", &health, "--kubeconfig"])
            .arg(&file)
            .stderr(Stdio::from(std::fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap(),
    );
    until("readiness", &log, async || get(&health, "/readyz").starts_with("HTTP/1.1 200").then_some(()))
        .await;
    apply(
        &admin,
        "apiVersion: example.com/v1\nkind: Website\nmetadata: {name: home, namespace: sites}\nspec: {text: hello}\n",
    )
    .await;
    let pages: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(admin.clone(), "sites");
    let page = until("the page", &log, async || pages.get_opt("home-page").await.unwrap()).await;
    assert_eq!(page.data.unwrap()["index.html"], "hello");
    let served = until("a finished reconcile", &log, async || {
        let text = get(&metrics, "/metrics");
        // At least one: the child's event may come before the answer to the write, and cause a second run.
        let success = "controller_reconcile_total{controller=\"website\",result=\"success\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(success)?.parse::<u64>().ok());
        (count >= Some(1)).then_some(text)
    })
    .await;
    assert!(!served.contains("code=\"403\""), "{served}");
    // Why it ran, what it did, what it waits for.
    let debug = get(&metrics, "/debug/objects/website/sites/home");
    let (head, body) = debug.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{debug}");
    let reports: Value = serde_json::from_str(body).unwrap();
    assert_eq!(reports[0]["writes"][0]["verb"], "apply");
    assert_eq!(reports[0]["writes"][0]["object"], "ConfigMap sites/home-page");
    assert_eq!(reports[0]["waitsFor"], "a change");
    // A real API server ends the watches of a new kind once, so that its objects are found by the list that follows.
    let cause = reports[0]["causes"][0].as_str().unwrap();
    assert!(cause.starts_with("added: ") || cause.starts_with("found at the start: "), "{debug}");
    assert!(get(&metrics, "/debug/objects/website/sites/none").starts_with("HTTP/1.1 404"));

    let killed = Command::new("kill").args(["-TERM", &running.0.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut status = None;
    for _ in 0..400 {
        status = running.0.try_wait().unwrap();
        if status.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = status.expect("the operator ends within 20 s of SIGTERM");
    let lines = std::fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(0), "{lines}");
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(line["ts"].is_string() && line["msg"].is_string() && line["level"] != "error", "{line}");
    }
}
