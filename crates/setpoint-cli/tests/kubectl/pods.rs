//! Logs and commands of pods that are real processes.

use std::io::{Read, Write};
use std::net::TcpStream;
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
    dev.start_command("attach talk -c main").line(&["line "]);

    a_terminal(&dev, "");
    over_spdy(&dev);
    a_pod_with_an_input(&dev);
}

/// As kubectl spoke before WebSockets, and as client-go's `NewSPDYExecutor` does.
fn over_spdy(dev: &Dev) {
    let spdy = [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")];
    let zeros = "0".repeat(3_000_000);
    let counted = dev.run_with("exec -i talk -c main -- wc -c", &zeros, &spdy);
    assert_eq!(text(&counted.stdout).trim(), "3000000", "{}", text(&counted.stderr));
    let produced = dev.run_with("exec talk -c main -- sh -c 'yes | head -c 3000000'", "", &spdy);
    assert_eq!(produced.stdout.len(), 3_000_000, "{}", text(&produced.stderr));
    let failed = dev.run_with("exec talk -c main -- sh -c 'echo out; echo err >&2; exit 7'", "", &spdy);
    assert_eq!((failed.status.code(), text(&failed.stdout).as_str()), (Some(7), "out\n"));
    contains(&text(&failed.stderr), &["err", "command terminated with exit code 7"]);
    contains(&text(&dev.run_with("exec talk -c main -- nope", "", &spdy).stderr), &["nope"]);
    dev.start_command_with("attach talk -c main", &spdy).line(&["line "]);
    a_terminal(dev, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false ");
}

const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: main
    image: 'debian:12'
    ports: [{containerPort: 8080}]
    command:
    - perl
    - -MIO::Socket::INET
    - -e
    - |
      my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die;
      while (my $client = $server->accept) {
        my $line = <$client>;
        while (my $header = <$client>) { last if $header =~ /^\r?\n$/ }
        my $body = "asked: $line";
        print $client "HTTP/1.1 200 OK\r\nX-Mine: yes\r\nConnection: close\r\nContent-Length: ", length $body, "\r\n\r\n$body";
        close $client;
      }
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
"#;

/// An HTTP request over a forwarded port; what comes back.
fn ask(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn connections_to_ports() {
    let Some(dev) = Dev::with_nodes("process") else { return };
    dev.ok_with("apply -f -", WEB);
    dev.ok("wait pod/web --for=condition=Ready --timeout=60s");

    let mut forward = dev.start_command("port-forward pod/web :8080 :81");
    let local = |line: &str| -> u16 {
        line.split(':').nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap()
    };
    let web = local(&forward.line(&["Forwarding from 127.0.0.1:", "-> 8080"]));
    let nothing = local(&forward.line(&["Forwarding from 127.0.0.1:", "-> 81"]));
    for number in 0..20 {
        contains(&ask(web, &format!("/{number}")), &["200 OK", &format!("asked: GET /{number} HTTP/1.1")]);
    }
    // Nothing listens there: this connection ends, and kubectl ends with it.
    let mut refused = TcpStream::connect(("127.0.0.1", nothing)).unwrap();
    let mut said = Vec::new();
    drop(refused.read_to_end(&mut said));
    assert!(said.is_empty(), "{said:?}");
    drop(forward);

    let spdy = [("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];
    let mut forward = dev.start_command_with("port-forward pod/web :8080", &spdy);
    let web = local(&forward.line(&["Forwarding from 127.0.0.1:", "-> 8080"]));
    for number in 0..20 {
        contains(&ask(web, &format!("/{number}")), &["200 OK", &format!("asked: GET /{number} HTTP/1.1")]);
    }
    drop(forward);

    let mut service = dev.start_command("port-forward service/web :80");
    let web = local(&service.line(&["Forwarding from 127.0.0.1:"]));
    contains(&ask(web, "/through-the-service"), &["asked: GET /through-the-service"]);

    let proxied = |path: &str| dev.ok(&format!("get --raw /api/v1/namespaces/default/{path}"));
    assert_eq!(proxied("pods/web/proxy/a/b?c=d"), "asked: GET /a/b?c=d HTTP/1.1\r\n");
    assert_eq!(proxied("pods/web:8080/proxy/"), "asked: GET / HTTP/1.1\r\n");
    assert_eq!(proxied("services/web:http/proxy/x"), "asked: GET /x HTTP/1.1\r\n");
    contains(
        &dev.fails("get --raw /api/v1/namespaces/default/services/web:nope/proxy/", ""),
        &["no service port \"nope\" found for service \"web\""],
    );
    contains(
        &dev.fails("get --raw /api/v1/namespaces/default/pods/web:81/proxy/", ""),
        &["error trying to reach service"],
    );
}

/// `exec -it` in a terminal that `script` makes, with more environment: its size and the status arrive.
fn a_terminal(dev: &Dev, environment: &str) {
    sized(dev, environment, "exec -it talk -c main");
}

/// `kubectl run -i` attaches to the pod that it makes; its input ends with the client's, and so does the pod.
fn a_pod_with_an_input(dev: &Dev) {
    let run = "--rm --quiet --restart=Never --image=debian:12";
    let lines = "a line\n".repeat(20_000);
    let counted = dev.ok_with(&format!("run counts -i {run} -- sh -c 'wc -l; echo counted'"), &lines);
    contains(&counted, &["20000", "counted"]);
    contains(&dev.fails("get pod counts", ""), &["not found"]);
    let failed =
        dev.run(&format!("run fails-too -i {run} -- sh -c 'read line; echo got $line; exit 5'"), "x\n");
    assert_eq!(
        (failed.status.code(), text(&failed.stdout).trim()),
        (Some(5), "got x"),
        "{}",
        text(&failed.stderr)
    );
    sized(dev, "", &format!("run sized -it {run}"));
}

/// What a command says and ends with that has a terminal of a certain size.
fn sized(dev: &Dev, environment: &str, command: &str) {
    // The command may run before the client has told its size.
    let script = "for i in $(seq 200); do test \"$(stty size)\" = \"0 0\" || break; sleep 0.05; done; test -t 0 && stty size; exit 4";
    let line = dev.shell_line(&format!("{command} -- sh -c '{script}'"));
    let output = Command::new("script")
        .args(["-qec", &format!("stty rows 33 cols 77; {environment}{line}"), "/dev/null"])
        .output();
    let Ok(output) = output else {
        println!("skipped: no script in PATH to make a terminal");
        return;
    };
    contains(&text(&output.stdout), &["33 77"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stdout));
}
