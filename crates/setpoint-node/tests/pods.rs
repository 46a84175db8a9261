//! Real pods in a real sandbox, as root and as an ordinary user.
//!
//! Without a test harness, because the sandbox must be entered before the first thread exists. This process stays
//! outside and runs itself again: once for each kind of user with all cases, and once as a victim that it kills.
//! Where the kernel refuses namespaces, the cases are ignored and the reason is printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test, but without the attribute that says so"
)]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

#[path = "pods/cases.rs"]
mod cases;
#[path = "pods/cluster.rs"]
mod cluster;
#[path = "pods/machine.rs"]
mod machine;

/// Says which part a copy of this program plays.
const ROLE: &str = "SETPOINT_NODE_TEST_ROLE";
/// Where a copy may write.
const DIRECTORY: &str = "SETPOINT_NODE_TEST_DIRECTORY";
/// Exit status of a copy that the kernel refused.
const REFUSED: i32 = 77;
/// An ordinary user: Debian's nobody.
const NOBODY: u32 = 65534;

fn main() -> ExitCode {
    if env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    match env::var(ROLE).as_deref() {
        Ok("cases") => cases::run(),
        Ok("victim") => cases::be_a_victim(),
        Ok("proxy") => cluster::proxy(),
        Ok("status") => cases::end_by_signal(),
        _ => outside(),
    }
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
}

fn outside() -> ExitCode {
    let filter = env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let mut tally = Tally::default();
    let root = nix::unistd::geteuid().is_root();
    for (name, ordinary) in [("root", false), ("user", true)] {
        if !root && !ordinary {
            println!("test {name} ... ignored, needs root");
            tally.ignored += 1;
            continue;
        }
        let directory = Directory::new(root && ordinary);
        run_cases(&directory, name, root && ordinary, &filter, &mut tally);
        if "nothing_is_left_behind".contains(&filter) {
            kill_a_victim(&directory, name, root && ordinary, &mut tally);
        }
        if "signals_and_status_pass".contains(&filter) {
            signal_and_status(&directory, name, root && ordinary, &mut tally);
        }
    }
    let Tally { passed, failed, ignored } = tally;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored\n");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A directory of its own for each run, with a copy of this program that any user can execute.
struct Directory {
    temporary: tempfile::TempDir,
    program: PathBuf,
}

impl Directory {
    fn new(for_nobody: bool) -> Self {
        let temporary =
            tempfile::Builder::new().prefix("setpoint-node-").tempdir_in(env::temp_dir()).unwrap();
        let program = temporary.path().join("pods");
        fs::copy(env::current_exe().unwrap(), &program).unwrap();
        let data = temporary.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
        if for_nobody {
            std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Self { temporary, program }
    }

    fn command(&self, role: &str, user: &str, as_nobody: bool) -> Command {
        // The umask of a careful user, which must not reach into containers.
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 077; exec \"$0\" \"$@\""])
            .arg(&self.program)
            .env(ROLE, role)
            .env(DIRECTORY, self.temporary.path().join("data"))
            .env("SETPOINT_NODE_TEST_USER", user);
        command.current_dir("/");
        if as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

fn run_cases(directory: &Directory, name: &str, as_nobody: bool, filter: &str, tally: &mut Tally) {
    let mut child = directory.command("cases", name, as_nobody).arg(filter).spawn().unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        println!("{line}");
        match line.rsplit(" ... ").next() {
            Some("ok") => tally.passed += 1,
            Some("FAILED") => tally.failed += 1,
            Some(end) if end.starts_with("ignored") => tally.ignored += 1,
            _ => {}
        }
    }
    let status = child.wait().unwrap();
    if !matches!(status.code(), Some(0 | 1 | REFUSED)) {
        println!("test {name} ... FAILED\n    the cases ended with {status}");
        tally.failed += 1;
    }
}

/// Kills the outer process of a sandbox with a pod and looks for what is left.
fn kill_a_victim(directory: &Directory, name: &str, as_nobody: bool, tally: &mut Tally) {
    let interfaces = interfaces();
    let mut victim = directory.command("victim", name, as_nobody).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(victim.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let ready = ready.trim();
    if ready != "ready" {
        println!("test {name}::nothing_is_left_behind ... ignored, {ready}");
        tally.ignored += 1;
        let _ = victim.wait();
        return;
    }
    let before = copies(&directory.program);
    // SIGKILL: it gets no chance to clean up.
    victim.kill().unwrap();
    victim.wait().unwrap();
    let mut left = copies(&directory.program);
    for _ in 0..200 {
        if left.is_empty() {
            break;
        }
        let _ = Command::new("sleep").arg("0.01").status();
        left = copies(&directory.program);
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounted = mounts.contains(directory.temporary.path().to_str().unwrap());
    // The outer process, the first one, the main one, a pod's and a container's first one.
    if before.len() >= 4 && left.is_empty() && !mounted && self::interfaces() == interfaces {
        println!("test {name}::nothing_is_left_behind ... ok");
        tally.passed += 1;
    } else {
        println!(
            "test {name}::nothing_is_left_behind ... FAILED\n    before: {before:?}, left: {left:?}, mounted: {mounted}, \
             interfaces: {interfaces:?} and then {:?}",
            self::interfaces()
        );
        tally.failed += 1;
    }
}

/// Sends a signal to the outer process and sees what the main process makes of it.
fn signal_and_status(directory: &Directory, name: &str, as_nobody: bool, tally: &mut Tally) {
    let mut child = directory.command("status", name, as_nobody).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let status = child.wait().unwrap();
    if ready.trim() != "ready" {
        println!("test {name}::signals_and_status_pass ... ignored, {}", ready.trim());
        tally.ignored += 1;
    } else if status.code() == Some(42) {
        println!("test {name}::signals_and_status_pass ... ok");
        tally.passed += 1;
    } else {
        println!("test {name}::signals_and_status_pass ... FAILED\n    it ended with {status}");
        tally.failed += 1;
    }
}

/// Processes of this run: copies of the program, and containers with its mark in their environment.
fn copies(program: &Path) -> Vec<u32> {
    let mark = program.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let copy = fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program);
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if copy || environment.windows(mark.len()).any(|window| window == mark) {
            found.push(pid);
        }
    }
    found
}

fn interfaces() -> Vec<String> {
    let mut names: Vec<String> = fs::read_to_string("/proc/net/dev")
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim().to_owned()))
        .collect();
    names.sort();
    names
}
