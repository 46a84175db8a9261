//! `setpoint dev` as a program, without kubectl: its end, its messages, what it leaves behind. Cases with process nodes
//! are skipped, and say so, where the machine refuses them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_setpoint");

/// A user's surroundings: a folder for temporary files of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// `setpoint dev` with these arguments.
    fn dev(&self, arguments: &[&str]) -> Command {
        self.command(PROGRAM, &[&["dev"], arguments].concat())
    }

    /// A shell in namespaces of its own that does `first` and then becomes `setpoint dev`.
    fn dev_after(&self, first: &str, arguments: &[&str]) -> Command {
        let script = format!("{first}; exec \"$0\" dev \"$@\"");
        let unshare = ["--user", "--map-root-user", "--mount", "sh", "-c", &script, PROGRAM];
        self.command("unshare", &[&unshare, arguments].concat())
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("TMPDIR", self.path());
        for name in ["KUBECONFIG", "LISTEN", "NODES", "DATA_DIR", "IMAGES_DIR", "LOG"] {
            command.env_remove(format!("SETPOINT_{name}"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Signals to its whole group reach no one else.
        command.process_group(0);
        command
    }

    /// Starts a cluster and waits until it is ready; none where the machine refuses.
    fn running(&self, arguments: &[&str]) -> Option<Running> {
        let arguments = [&["--listen", "127.0.0.1:0", "--output", "json"], arguments].concat();
        let mut process = self.dev(&arguments).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let output = process.wait_with_output().unwrap();
            assert!(refused(&output), "{output:?}");
            return None;
        }
        Some(Running { ready: serde_json::from_str(&line).unwrap(), process })
    }

    /// Processes that were started here: the place is in their environment.
    fn processes(&self) -> Vec<i32> {
        let mark = format!("TMPDIR={}\0", self.path().display());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|window| window == mark.as_bytes())
        })
        .collect()
    }

    /// What is left here.
    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Waits until no process and no file is left.
    #[track_caller]
    fn nothing_is_left(&self) {
        let mut left = (self.processes(), self.files());
        for _ in 0..500 {
            if left.0.is_empty() && left.1.is_empty() {
                return;
            }
            wait_a_moment();
            left = (self.processes(), self.files());
        }
        panic!("processes and files are left: {left:?}");
    }
}

/// A cluster that is ready.
struct Running {
    process: Child,
    ready: Value,
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn wait_a_moment() {
    drop(Command::new("sleep").arg("0.02").status());
}

/// Whether the machine refuses process nodes; said in the test's output.
fn refused(output: &Output) -> bool {
    let message = text(&output.stderr);
    let refused = message.contains("does not allow") || message.contains("is missing: install");
    if refused {
        println!("skipped: {message}");
    }
    refused
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The one line that a failed command wrote.
#[track_caller]
fn complaint(mut command: Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(err.starts_with("setpoint: ") && err.ends_with('\n'), "{err:?}");
    assert_eq!((err.lines().count(), out.as_str()), (1, ""), "one line and nothing else: {err}");
    err
}

#[track_caller]
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn a_commands_status_is_its_own() {
    for nodes in ["hollow", "process"] {
        for (script, code) in [
            ("exit 0", 0),
            ("exit 7", 7),
            ("kill -9 $$", 137),
            ("grep -q certificate-authority-data \"$KUBECONFIG\" || exit 3", 0),
        ] {
            let place = Place::new();
            let output = place.dev(&["--nodes", nodes, "--", "sh", "-c", script]).output().unwrap();
            if nodes == "process" && refused(&output) {
                return;
            }
            assert_eq!(output.status.code(), Some(code), "{nodes} {script}: {}", text(&output.stderr));
            place.nothing_is_left();
        }
        let place = Place::new();
        let missing = complaint(place.dev(&["--nodes", nodes, "--", "no-such-program"]));
        contains(&missing, &["cannot run no-such-program: ", "No such file"]);
        place.nothing_is_left();
    }
}

#[test]
fn a_taken_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for nodes in ["hollow", "process"] {
        let place = Place::new();
        let line = complaint(place.dev(&["--nodes", nodes, "--listen", &address]));
        contains(&line, &[&format!("cannot listen on {address}: "), "choose another with --listen"]);
        place.nothing_is_left();
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let place = Place::new();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let below = file.join("below").display().to_string();
    for nodes in ["hollow", "process"] {
        let line = complaint(place.dev(&["--nodes", nodes, "--data-dir", &below, "--", "true"]));
        contains(&line, &[&below, "Not a directory", "choose another with --data-dir"]);
        let line = complaint(place.dev(&["--nodes", "hollow", "--kubeconfig", &below, "--", "true"]));
        contains(&line, &[&below, "choose another with --kubeconfig"]);
        let mut command = place.dev(&["--nodes", nodes, "--", "true"]);
        command.env("TMPDIR", "/no/such/folder");
        contains(&complaint(command), &["/no/such/folder", "choose another with --data-dir"]);
    }
    contains(&complaint(place.dev(&["--log", "a=b=c", "--", "true"])), &["--log a=b=c: "]);
}

#[test]
fn a_folder_of_images_that_is_not_there_is_named() {
    for nodes in ["hollow", "process"] {
        let place = Place::new();
        let line = complaint(place.dev(&["--nodes", nodes, "--images-dir", "/no/such/folder", "--", "true"]));
        contains(&line, &["/no/such/folder", "No such file", "--images-dir"]);
        place.nothing_is_left();
    }
}

#[test]
fn an_address_without_a_port_is_explained() {
    let output = Place::new().dev(&["--listen", "6443"]).output().unwrap();
    contains(&text(&output.stderr), &["--listen <ADDR:PORT>", "it must be ADDR:PORT"]);
}

#[test]
fn relative_paths_hold_in_every_folder() {
    for nodes in ["hollow", "process"] {
        let place = Place::new();
        let script = "cd / && grep -q certificate-authority-data \"$KUBECONFIG\" && echo \"$KUBECONFIG\"";
        for (option, path, expected) in
            [("--kubeconfig", "my kubeconfig", "my kubeconfig"), ("--data-dir", "data", "data/kubeconfig")]
        {
            let arguments = ["--nodes", nodes, option, path, "--", "sh", "-c", script];
            let output = place.dev(&arguments).current_dir(place.path()).output().unwrap();
            if refused(&output) {
                return;
            }
            let there = fs::canonicalize(place.path()).unwrap().join(expected);
            assert_eq!(text(&output.stdout).trim(), there.to_str().unwrap(), "{}", text(&output.stderr));
        }
    }
    // What is printed can be pasted into a shell.
    let place = Place::new();
    let arguments = ["--nodes", "hollow", "--listen", "127.0.0.1:0", "--kubeconfig", "my kubeconfig"];
    let mut process = place.dev(&arguments).current_dir(place.path()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let export = lines.find(|line| line.contains("export ")).unwrap();
    let script = format!("{export}; cd /; cat \"$KUBECONFIG\"");
    let output = place.command("sh", &["-c", &script]).output().unwrap();
    kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGTERM).unwrap();
    process.wait().unwrap();
    contains(&text(&output.stdout), &["certificate-authority-data"]);
}

#[test]
fn a_kubeconfig_replaces_nothing_else_and_goes_with_its_cluster() {
    let place = Place::new();
    let file = place.path().join("config");
    let name = file.display().to_string();
    let around =
        |script: &str| place.dev(&["--nodes", "hollow", "--kubeconfig", &name, "--", "sh", "-c", script]);
    let production = "apiVersion: v1\nkind: Config\ncurrent-context: production\n";
    fs::write(&file, production).unwrap();
    let line = complaint(around("true"));
    contains(
        &line,
        &[&name, "something else than a kubeconfig of setpoint", "choose another with --kubeconfig"],
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), production);

    // One that a killed cluster left is replaced.
    fs::remove_file(&file).unwrap();
    let output = around("cp \"$KUBECONFIG\" kept").current_dir(place.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!file.exists(), "it led to a cluster that is gone");
    fs::copy(place.path().join("kept"), &file).unwrap();
    let output = around("echo >> \"$KUBECONFIG\"").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(file.exists(), "somebody has written to it");
}

/// What a command of an ordinary user beside root is run with, when the tests run as root.
const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn a_command_resolves_names_as_a_pod_does() {
    let script = "cat /etc/resolv.conf && getent ahostsv4 kubernetes && getent hosts kubernetes.default.svc \
        && getent hosts kubernetes.default.svc.cluster.local && ! getent hosts no-such-service";
    let place = Place::new();
    let before = fs::read("/etc/resolv.conf").ok();
    let mut commands = vec![place.dev(&["--", "sh", "-c", script])];
    let theirs = Place::new();
    if nix::unistd::geteuid().is_root() {
        let program = theirs.path().join("setpoint");
        fs::copy(PROGRAM, &program).unwrap();
        fs::set_permissions(theirs.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let arguments = [&NOBODY[..], &[program.to_str().unwrap(), "dev", "--", "sh", "-c", script]].concat();
        commands.push(theirs.command("setpriv", &arguments));
    }
    for mut command in commands {
        let output = command.output().unwrap();
        if refused(&output) {
            continue;
        }
        let out = text(&output.stdout);
        assert!(output.status.success(), "{out}{}", text(&output.stderr));
        contains(
            &out,
            &["search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\n"],
        );
        assert_eq!(out.lines().filter(|line| line.starts_with("10.96.0.1 ")).count(), 5, "{out}");
    }
    assert_eq!(fs::read("/etc/resolv.conf").ok(), before, "the machine's own stays");
    place.nothing_is_left();
}

#[test]
fn a_resolving_daemon_of_the_machine_is_not_asked() {
    let place = Place::new();
    let socket = place.path().join("socket");
    let _daemon = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let first = format!(
        "mount -t tmpfs tmpfs /run && mkdir /run/nscd && touch /run/nscd/socket && mount --bind {} /run/nscd/socket && test -S /run/nscd/socket",
        socket.display()
    );
    // One that never answers would hold up every question.
    let script = "! test -S /run/nscd/socket && getent hosts kubernetes";
    let output = place.dev_after(&first, &["--", "timeout", "5", "sh", "-c", script]).output().unwrap();
    if refused(&output) {
        return;
    }
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn what_is_logged_into_a_pipe_has_no_colours() {
    let place = Place::new();
    let arguments = ["--nodes", "hollow", "--log", "trace", "--", "true"];
    let output = place.dev(&arguments).output().unwrap();
    let log = text(&output.stderr);
    assert!(!log.is_empty() && !log.contains('\x1b'), "{log}");
}

#[test]
fn a_data_folder_belongs_to_one_cluster() {
    let (place, other) = (Place::new(), Place::new());
    let folder = place.path().join("data");
    let Some(running) = place.running(&["--data-dir", folder.to_str().unwrap()]) else { return };
    let line = complaint(other.dev(&["--data-dir", folder.to_str().unwrap(), "--", "true"]));
    contains(&line, &[folder.to_str().unwrap(), "is in use by another process"]);
    drop(running);
    assert!(folder.join("kubeconfig").exists(), "a folder that the user named stays");
}

#[test]
fn missing_programs_are_named_or_done_without() {
    let hide = |program: &str| {
        format!(
            "for file in $(which -a {program}) /usr/sbin/{program}; do [ ! -e $file ] || mount --bind /dev/null $file; done"
        )
    };
    let place = Place::new();
    let able = place.dev_after("true", &["--", "true"]).output().unwrap();
    if refused(&able) {
        return;
    }
    assert!(able.status.success(), "{}", text(&able.stderr));
    let line = complaint(place.dev_after(&hide("ip"), &["--", "true"]));
    contains(
        &line,
        &["\"ip\" is missing", "apt-get install iproute2", "`setpoint dev --nodes hollow` works without it"],
    );
    // Service addresses are served by a proxy then.
    let output = place.dev_after(&hide("nft"), &["--", "sh", "-c", "exit 6"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    let output = place.dev_after(&hide("ip"), &["--nodes", "hollow", "--", "sh", "-c", "exit 6"]).output();
    assert_eq!(output.unwrap().status.code(), Some(6));
}

#[test]
fn refused_namespaces_are_explained() {
    let place = Place::new();
    if refused(&place.dev_after("true", &["--", "true"]).output().unwrap()) {
        return;
    }
    // Root, but the machine has no room for namespaces.
    let line = complaint(place.dev_after("echo 0 > /proc/sys/user/max_mnt_namespaces", &["--", "true"]));
    contains(
        &line,
        &[
            "does not allow network, mount and process namespaces: No space left on device",
            "/proc/sys/user",
            "`setpoint dev --nodes hollow` works without it",
        ],
    );
    // Without root's rights.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces; \
        exec setpriv --bounding-set=-all --inh-caps=-all \"$0\" dev \"$@\"";
    let line = complaint(place.dev_after(script, &["--", "true"]));
    contains(
        &line,
        &[
            "does not allow user namespaces: ",
            "sysctl -w user.max_user_namespaces=",
            "`setpoint dev --nodes hollow` works without it",
        ],
    );
    place.nothing_is_left();
}

#[test]
fn json_says_where_it_is() {
    let place = Place::new();
    let mut running = place.running(&["--nodes", "hollow"]).unwrap();
    assert_eq!(running.ready["ready"], true);
    assert!(running.ready["server"].as_str().unwrap().starts_with("https://127.0.0.1:"), "{}", running.ready);
    let kubeconfig = Path::new(running.ready["kubeconfig"].as_str().unwrap());
    assert!(kubeconfig.starts_with(place.path()), "{}", running.ready);
    assert_eq!(fs::metadata(kubeconfig).unwrap().permissions().mode() & 0o777, 0o600, "it has a token");
    let folder = fs::metadata(kubeconfig.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    kill(running.pid(), Signal::SIGTERM).unwrap();
    assert_eq!(running.process.wait().unwrap().code(), Some(0));
    place.nothing_is_left();
}

#[test]
fn signals_end_it_in_order() {
    for nodes in ["hollow", "process"] {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            let place = Place::new();
            let Some(mut running) = place.running(&["--nodes", nodes]) else { return };
            kill(running.pid(), signal).unwrap();
            assert_eq!(running.process.wait().unwrap().code(), Some(0), "{nodes} {signal}");
            place.nothing_is_left();
        }
    }
}

#[test]
fn a_signal_reaches_the_command_and_a_second_kills_it() {
    for nodes in ["hollow", "process"] {
        let place = Place::new();
        let script = "trap 'exit 5' TERM INT; echo up; while :; do sleep 0.05; done";
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let mut process = place.dev(&["--nodes", nodes, "--", "sh", "-c", script]).spawn().unwrap();
            if !wait_for_line(&mut process) {
                assert!(refused(&process.wait_with_output().unwrap()));
                return;
            }
            kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
            assert_eq!(process.wait().unwrap().code(), Some(5), "{nodes} {signal}");
        }
        // One that does not want to end.
        let script = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done";
        let mut process = place.dev(&["--nodes", nodes, "--", "sh", "-c", script]).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let pid = Pid::from_raw(process.id().cast_signed());
        assert_eq!(lines.next().as_deref(), Some("up"));
        kill(pid, Signal::SIGTERM).unwrap();
        assert_eq!(lines.next().as_deref(), Some("asked"));
        kill(pid, Signal::SIGTERM).unwrap();
        assert_eq!(process.wait().unwrap().code(), Some(137), "{nodes}");
        drop(lines);
        place.nothing_is_left();
    }
}

/// Whether the process wrote a line before it ended. What it writes later is not wanted.
fn wait_for_line(process: &mut Child) -> bool {
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    !line.is_empty()
}

#[test]
fn a_kill_leaves_nothing_behind() {
    let interfaces = interfaces();
    for nodes in ["hollow", "process"] {
        for victim in ["program", "group", "main process"] {
            if (nodes, victim) == ("hollow", "main process") {
                // It is the program.
                continue;
            }
            let place = Place::new();
            let Some(mut running) = place.running(&["--nodes", nodes]) else { return };
            let processes = place.processes();
            // Where there is a sandbox: the outer process, the first one, the main one, and the one that removes the folder.
            assert!(processes.len() >= if nodes == "process" { 4 } else { 2 }, "{processes:?}");
            let killed = match victim {
                "program" => kill(running.pid(), Signal::SIGKILL),
                "group" => killpg(running.pid(), Signal::SIGKILL),
                _ => {
                    let grandchild =
                        |pid: &&i32| parent(**pid).and_then(parent) == Some(running.pid().as_raw());
                    let main = processes.iter().find(grandchild);
                    kill(Pid::from_raw(*main.unwrap()), Signal::SIGKILL)
                }
            };
            killed.unwrap();
            let status = running.process.wait().unwrap();
            assert!(!status.success(), "{nodes} {victim} {status}");
            place.nothing_is_left();
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!mounts.contains(place.path().to_str().unwrap()), "{mounts}");
        }
    }
    assert_eq!(self::interfaces(), interfaces);
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

fn interfaces() -> Vec<String> {
    let text = fs::read_to_string("/proc/net/dev").unwrap();
    let mut names: Vec<_> =
        text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect();
    names.sort();
    names
}

#[test]
fn several_run_beside_each_other() {
    let place = Place::new();
    let Some(first) = place.running(&[]) else { return };
    let second = place.running(&[]).unwrap();
    assert_ne!(first.ready["server"], second.ready["server"]);
    assert_ne!(first.ready["kubeconfig"], second.ready["kubeconfig"]);
    // An ordinary user beside them, who has no business in their folders.
    if nix::unistd::geteuid().is_root() {
        let theirs = Place::new();
        let program = theirs.path().join("setpoint");
        fs::copy(PROGRAM, &program).unwrap();
        fs::set_permissions(theirs.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let nobody = [&NOBODY[..], &[program.to_str().unwrap()]].concat();
        let script = "id -u; cat \"$0\" 2>&1 || true; test -r \"$KUBECONFIG\"";
        let theirs_arguments = ["dev", "--", "sh", "-c", script, first.ready["kubeconfig"].as_str().unwrap()];
        let output = theirs.command("setpriv", &[&nobody[..], &theirs_arguments].concat()).output().unwrap();
        if !refused(&output) {
            let out = text(&output.stdout);
            assert!(output.status.success(), "{out}{}", text(&output.stderr));
            contains(&out, &["0\n", "Permission denied"]);
        }
    }
}
