//! A test that has ended, however that happened, leaves no process and no folder.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use setpoint_test::{ControlPlane, TestServer, eventually};

/// The children of a process whose command line names etcd or kube-apiserver, and the folder that they use.
fn servers_of(parent: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(status) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent_is =
            status.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        let Ok(line) = std::fs::read_to_string(entry.path().join("cmdline")) else { continue };
        let folder = line.split('\0').find_map(|argument| {
            let etcd = argument.strip_prefix("--data-dir=").and_then(|path| path.strip_suffix("/etcd"));
            let api = || argument.strip_prefix("--cert-dir=")?.strip_suffix("/certificates");
            etcd.or_else(api)
        });
        if let (true, Some(folder)) = (parent_is == Some(parent), folder) {
            found.push((pid, folder.to_owned()));
        }
    }
    found
}

/// Whether there are processes to look for.
fn on_binaries() -> bool {
    let binaries = TestServer::from_env().unwrap() == TestServer::Binaries;
    if !binaries {
        eprintln!("skipped: only SETPOINT_TEST_SERVER=binaries starts processes");
    }
    binaries
}

async fn nothing_is_left(servers: &[(u32, String)]) {
    eventually("processes and folder to be gone", Duration::from_secs(10), async || {
        for (pid, folder) in servers {
            // A process that nobody waits for any more has no command line.
            if std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
                return Err(format!("process {pid} is there"));
            }
            if Path::new(folder).exists() {
                return Err(format!("{folder} is there"));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_dropped_control_plane_leaves_nothing() {
    if !on_binaries() {
        return;
    }
    let control_plane = ControlPlane::start(&ControlPlane::assets().unwrap()).await.unwrap();
    let servers = servers_of(std::process::id());
    assert_eq!(servers.len(), 2, "{servers:?}");
    drop(control_plane);
    nothing_is_left(&servers).await;
}

/// Starts one and waits to be killed.
#[tokio::test]
#[ignore = "is run by a_killed_test_leaves_nothing"]
async fn waits_to_be_killed() {
    let _control_plane = ControlPlane::start(&ControlPlane::assets().unwrap()).await.unwrap();
    println!("\nstarted");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_test_leaves_nothing() {
    if !on_binaries() {
        return;
    }
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "waits_to_be_killed"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(test.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "started"), "it did not start");
    let servers = servers_of(test.id());
    assert_eq!(servers.len(), 2, "{servers:?}");
    test.kill().unwrap();
    test.wait().unwrap();
    nothing_is_left(&servers).await;
}
