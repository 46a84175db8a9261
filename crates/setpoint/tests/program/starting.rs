//! What others see of an operator before it works.

use std::net::TcpListener;
use std::process::Stdio;

use super::{Running, free_address, get, program, until};

/// An API server that takes connections and says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_has_not_reached_the_api_server_is_alive_and_not_ready() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (file, log) = (directory.path().join("kubeconfig"), directory.path().join("log"));
    let server = format!("http://{}", silent.local_addr().unwrap());
    std::fs::write(
        &file,
        format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\n"
        ),
    )
    .unwrap();
    let health = free_address();
    let _running = Running(
        program()
            .args([
                "run",
                "--metrics-bind-address",
                "0",
                "--health-probe-bind-address",
                &health,
                "--kubeconfig",
            ])
            .arg(&file)
            .stderr(Stdio::from(std::fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap(),
    );
    let answer = until("an answer", &log, async || {
        let answer = get(&health, "/readyz");
        (!answer.is_empty()).then_some(answer)
    })
    .await;
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(answer.contains("[-]caches failed: the API server has not been reached yet"), "{answer}");
    assert!(get(&health, "/healthz").starts_with("HTTP/1.1 200"));
}
