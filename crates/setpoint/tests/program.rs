//! The example operator as a process: output, exit codes and messages.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The example's binary, which cargo builds before it runs the tests of a package.
fn program() -> Command {
    let test = std::env::current_exe().unwrap();
    let profile: PathBuf = test.ancestors().nth(2).unwrap().into();
    let mut command = Command::new(profile.join("examples/website"));
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
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.starts_with("error: no cluster to connect to: not inside a pod, and failed to read kubeconfig"),
        "{text}"
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
fn bad_flags_end_with_2() {
    for arguments in [&["run", "--nonsense"][..], &["plan"], &[]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["run", "--log-level", "loud"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: log level \"loud\": no such level"), "{}", stderr(&output));
}
