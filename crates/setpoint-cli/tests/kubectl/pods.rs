//! Logs and commands of pods that are real processes.

use std::process::Command;

use crate::dev::{Dev, contains, text};

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: talk}
spec:
  containers:
  - {name: main, image: 'debian:12', command: [sh, -c, 'i=0; while true; do i=$((i+1)); echo line $i; sleep 0.2; done']}
  - {name: side, image: 'debian:12', command: [sh, -c, 'echo beside; exec sleep 1000']}
---
apiVersion: v1
kind: Pod
metadata: {name: fails}
spec:
  containers:
  - {name: main, image: 'debian:12', command: [sh, -c, 'echo ending; exit 3']}
";

#[test]
fn logs_and_commands() {
    let Some(dev) = Dev::with_nodes("process") else { return };
    dev.ok_with("apply -f -", PODS);
    dev.ok("wait pod/talk --for=condition=Ready --timeout=60s");

    let mut followed = dev.start_command("logs -f talk -c main");
    for line in ["line 1", "line 2", "line 5"] {
        followed.line(&[line]);
    }
    assert_eq!(dev.ok("logs talk -c side"), "beside\n");
    assert_eq!(dev.ok("logs talk -c main --tail=2").lines().count(), 2);
    contains(
        &dev.ok("logs talk --all-containers --prefix"),
        &["[pod/talk/main] line 1", "[pod/talk/side] beside"],
    );
    let stamped = dev.ok("logs talk -c side --timestamps");
    contains(&stamped, &["T", "Z beside"]);
    assert_eq!(dev.ok("logs talk -c main --limit-bytes=4"), "line");
    contains(&dev.fails("logs talk -c nope", ""), &["container nope is not valid for pod talk"]);

    dev.ok("wait pod/fails --for=jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}=3 --timeout=60s");
    assert_eq!(dev.ok("logs fails --previous"), "ending\n");

    assert_eq!(dev.ok("exec talk -c main -- echo hi"), "hi\n");
    assert_eq!(dev.ok_with("exec -i talk -c main -- tr a-z A-Z", "some input"), "SOME INPUT");
    let failed = dev.run("exec talk -c main -- sh -c 'echo out; echo err >&2; exit 7'", "");
    assert_eq!(failed.status.code(), Some(7));
    assert_eq!(text(&failed.stdout), "out\n");
    contains(&text(&failed.stderr), &["err", "command terminated with exit code 7"]);
    let zeros = "0".repeat(3_000_000);
    assert_eq!(dev.ok_with("exec -i talk -c main -- wc -c", &zeros).trim(), "3000000");
    contains(&dev.fails("exec talk -c main -- nope", ""), &["nope"]);
    contains(&dev.fails("exec nope -- ls", ""), &["pods \"nope\" not found"]);

    let file = dev.file("there", "and back\n");
    dev.ok(&format!("cp {file} talk:/tmp/there -c main"));
    assert_eq!(dev.ok("exec talk -c main -- cat /tmp/there"), "and back\n");
    let back = dev.path("back").display().to_string();
    dev.ok(&format!("cp talk:/tmp/there {back} -c main"));
    assert_eq!(std::fs::read_to_string(back).unwrap(), "and back\n");
    contains(&dev.fails("attach talk -c main", ""), &["not implemented by this API server"]);
    contains(&dev.fails("port-forward pod/talk :80", ""), &["not implemented by this API server"]);

    a_terminal(&dev);
}

/// `exec -it` in a terminal that `script` makes: its size and the status arrive.
fn a_terminal(dev: &Dev) {
    // The command may run before the client has told its size.
    let script = "for i in $(seq 200); do test \"$(stty size)\" = \"0 0\" || break; sleep 0.05; done; test -t 0 && stty size; exit 4";
    let line = dev.shell_line(&format!("exec -it talk -c main -- sh -c '{script}'"));
    let output =
        Command::new("script").args(["-qec", &format!("stty rows 33 cols 77; {line}"), "/dev/null"]).output();
    let Ok(output) = output else {
        println!("skipped: no script in PATH to make a terminal");
        return;
    };
    contains(&text(&output.stdout), &["33 77"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stdout));
}
