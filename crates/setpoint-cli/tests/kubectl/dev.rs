//! A running `setpoint dev` and a kubectl.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long a line of a command that goes on may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The kubectl under test.
pub fn kubectl() -> String {
    std::env::var("SETPOINT_KUBECTL").unwrap_or_else(|_| "kubectl".to_owned())
}

/// A running `setpoint dev`, ended with the test.
pub struct Dev {
    process: Child,
    folder: tempfile::TempDir,
}

impl Dev {
    /// Starts hollow nodes on a free port and waits for the line that says it is ready; `None` where there is
    /// no kubectl.
    pub fn start() -> Option<Self> {
        Self::with_nodes("hollow")
    }

    pub fn with_nodes(nodes: &str) -> Option<Self> {
        if Command::new(kubectl()).args(["version", "--client"]).output().is_err() {
            // Written past the test program, which hides what a passing test prints.
            let _ = writeln!(std::io::stderr(), "skipped: no {} in PATH", kubectl());
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_setpoint"))
            .args(["dev", "--nodes", nodes, "--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(folder.path().join("kubeconfig"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready")));
        assert!(ready.is_some(), "setpoint dev ended before it was ready");
        Some(Self { process, folder })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the folder of the test; its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(kubectl());
        command
            .arg("--kubeconfig")
            .arg(self.path("kubeconfig"))
            .args(words)
            .env("HOME", self.folder.path())
            .env("KUBE_EDITOR", "sed -i s/colour:.blue/colour:\\ green/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs kubectl with the words of `command` and `input` on its standard input.
    pub fn run(&self, command: &str, input: &str) -> Output {
        self.run_with(command, input, &[])
    }

    /// [`Self::run`] with more environment.
    pub fn run_with(&self, command: &str, input: &str, environment: &[(&str, &str)]) -> Output {
        let mut child = self.command(&words(command)).envs(environment.iter().copied()).spawn().unwrap();
        // kubectl that refuses its arguments closes its input early.
        drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
        child.wait_with_output().unwrap()
    }

    /// The standard output of a command that must succeed.
    pub fn ok(&self, command: &str) -> String {
        self.ok_with(command, "")
    }

    pub fn ok_with(&self, command: &str, input: &str) -> String {
        let output = self.run(command, input);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {command}\n{out}\n{err}");
        out
    }

    /// The standard error of a command that must fail.
    pub fn fails(&self, command: &str, input: &str) -> String {
        let output = self.run(command, input);
        assert!(!output.status.success(), "kubectl {command} succeeded:\n{}", text(&output.stdout));
        text(&output.stderr)
    }

    /// Starts a command that goes on until it is dropped.
    pub fn start_command(&self, command: &str) -> Running {
        self.start_command_with(command, &[])
    }

    /// [`Self::start_command`] with more environment.
    #[expect(clippy::disallowed_methods, reason = "a read with a time limit from a pipe")]
    pub fn start_command_with(&self, command: &str, environment: &[(&str, &str)]) -> Running {
        let mut command = self.command(&words(command));
        let mut process = command.envs(environment.iter().copied()).stderr(Stdio::inherit()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Running { process, lines, seen: Vec::new() }
    }

    /// The words of a command line for a shell.
    pub fn shell_line(&self, command: &str) -> String {
        format!("{} --kubeconfig {} {command}", kubectl(), self.path("kubeconfig").display())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // A signal that it can act on: a process node takes its pods down with it.
        drop(Command::new("kill").arg(self.process.id().to_string()).status());
        drop(self.process.wait());
    }
}

/// A kubectl that goes on, such as a watch.
pub struct Running {
    process: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    /// The next line that holds all of `parts`.
    #[track_caller]
    pub fn line(&mut self, parts: &[&str]) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("no line with {parts:?}; there were:\n{}", self.seen.join("\n"));
            };
            self.seen.push(line.clone());
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Splits at blanks; single quotes hold words together.
pub fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in command.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().unwrap().push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[track_caller]
pub fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

/// The words of the first line of a table.
pub fn header(table: &str) -> Vec<&str> {
    table.lines().next().unwrap_or_default().split_whitespace().collect()
}
