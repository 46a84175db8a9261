//! What a user does with an ordinary kubectl against `setpoint dev`. Runs where a kubectl is in PATH, and says
//! so where it is not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A running `setpoint dev`, ended with the test.
struct Dev {
    process: Child,
    folder: tempfile::TempDir,
}

impl Dev {
    /// Starts hollow nodes on a free port and waits for the line that says it is ready; `None` where there is
    /// no kubectl.
    fn start() -> Option<Self> {
        if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
            println!("skipped: no kubectl in PATH");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_setpoint"))
            .args(["dev", "--nodes", "hollow", "--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(folder.path().join("kubeconfig"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready")));
        assert!(ready.is_some(), "setpoint dev ended before it was ready");
        Some(Self { process, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs kubectl with the words of `command` and `input` on its standard input.
    fn run(&self, command: &str, input: &str) -> Output {
        let mut child = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(self.path("kubeconfig"))
            .args(words(command))
            .env("HOME", self.folder.path())
            .env("KUBE_EDITOR", "sed -i s/colour:.blue/colour:\\ green/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // kubectl that refuses its arguments closes its input early.
        drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
        child.wait_with_output().unwrap()
    }

    /// The standard output of a command that must succeed.
    fn ok(&self, command: &str) -> String {
        self.ok_with(command, "")
    }

    fn ok_with(&self, command: &str, input: &str) -> String {
        let output = self.run(command, input);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {command}\n{out}\n{err}");
        out
    }

    /// The standard error of a command that must fail.
    fn fails(&self, command: &str, input: &str) -> String {
        let output = self.run(command, input);
        assert!(!output.status.success(), "kubectl {command} succeeded:\n{}", text(&output.stdout));
        text(&output.stderr)
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Splits at blanks; single quotes hold words together.
fn words(command: &str) -> Vec<String> {
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
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

const CRD: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Colour, type: string, jsonPath: .spec.colour, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        description: A widget is what the tests make.
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1, maximum: 10, description: How many there are.}
              colour: {type: string, enum: [blue, green], default: blue}
            x-kubernetes-validations:
            - {rule: "self.size >= oldSelf.size", message: size cannot shrink}
          status:
            type: object
            properties: {size: {type: integer}}
"#;

const WIDGET: &str = r"
apiVersion: example.com/v1
kind: Widget
metadata: {name: one, namespace: default}
spec: {size: 3}
";

const STATEFUL_SET: &str = r"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  serviceName: web
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: web:1}]
";

#[test]
fn custom_resources() {
    let Some(dev) = Dev::start() else { return };
    contains(&dev.ok_with("apply -f -", CRD), &["widgets.example.com created"]);
    dev.ok("wait --for=condition=Established crd/widgets.example.com --timeout=30s");
    contains(
        &dev.ok("api-resources --api-group=example.com"),
        &["widgets", "wd", "example.com/v1", "true", "Widget"],
    );
    contains(&dev.ok("explain widget.spec"), &["size", "<integer>", "-required-", "How many there are."]);
    contains(&dev.ok("explain widgets"), &["A widget is what the tests make."]);

    contains(&dev.ok_with("apply -f -", WIDGET), &["widget.example.com/one created"]);
    contains(&dev.ok_with("apply -f -", WIDGET), &["unchanged"]);
    contains(&dev.ok("get wd"), &["NAME", "SIZE", "AGE", "one", "3"]);
    assert!(!dev.ok("get wd").contains("COLOUR"));
    contains(&dev.ok("get wd -o wide"), &["COLOUR", "blue"]);
    contains(&dev.ok("get widget one -o yaml"), &["kind: Widget", "colour: blue", "size: 3"]);
    contains(&dev.ok("get widget one -o json"), &["\"colour\": \"blue\""]);
    contains(&dev.ok("describe widget one"), &["Name:", "one", "Spec:", "Colour:", "blue"]);

    dev.ok("edit widget one");
    contains(&dev.ok("get widget one -o jsonpath={.spec.colour}"), &["green"]);
    dev.ok("patch widget one --type=merge -p '{\"spec\":{\"size\":4}}'");
    dev.ok("patch widget one --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/size\",\"value\":5}]'");
    contains(&dev.ok("get widget one -o jsonpath={.spec.size}"), &["5"]);
    let strategic = dev.fails("patch widget one --type=strategic -p '{\"spec\":{\"size\":6}}'", "");
    contains(&strategic, &["the body of the request was in an unknown format"]);
    dev.ok("label widget one tier=front");
    contains(&dev.ok("get widgets -l tier=front -o name"), &["widget.example.com/one"]);
    dev.ok("scale widget one --replicas=7");
    contains(&dev.ok("get widget one -o jsonpath={.spec.size}"), &["7"]);

    let shrink = dev.fails("patch widget one --type=merge -p '{\"spec\":{\"size\":2}}'", "");
    contains(&shrink, &["spec: Invalid value", "size cannot shrink"]);
    let wrong = "---\n{apiVersion: example.com/v1, kind: Widget, metadata: {name: two}, spec: {size: 99, colour: red}}";
    let both = dev.fails("create -f -", wrong);
    contains(&both, &["spec.size", "less than or equal to 10", "spec.colour", "Unsupported value: \"red\""]);
    let unknown =
        "---\n{apiVersion: example.com/v1, kind: Widget, metadata: {name: two}, spec: {size: 1, weight: 2}}";
    contains(&dev.fails("create -f -", unknown), &["strict decoding error: unknown field \"spec.weight\""]);
    let warned = dev.run("create --validate=warn -f -", unknown);
    assert!(warned.status.success());
    contains(&text(&warned.stderr), &["Warning: unknown field \"spec.weight\""]);

    dev.ok("delete widget one");
    contains(
        &dev.fails("get widget one", ""),
        &["Error from server (NotFound): widgets.example.com \"one\" not found"],
    );
}

#[test]
fn server_side_apply() {
    let Some(dev) = Dev::start() else { return };
    let config = |value: &str| {
        format!("---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c}}, data: {{a: '{value}'}}}}")
    };
    dev.ok_with("apply --server-side --field-manager=first -f -", &config("1"));
    let conflict = dev.fails("apply --server-side --field-manager=second -f -", &config("2"));
    contains(&conflict, &["conflict with \"first\"", ".data.a"]);
    dev.ok_with("apply --server-side --field-manager=second --force-conflicts -f -", &config("2"));
    let managed = dev.ok("get configmap c -o yaml --show-managed-fields");
    contains(&managed, &["manager: second", "operation: Apply", "f:data"]);
    assert!(!managed.contains("manager: first"), "{managed}");
}

#[test]
fn built_in_kinds() {
    let Some(dev) = Dev::start() else { return };
    contains(&dev.ok("get nodes"), &["STATUS", "Ready"]);
    contains(&dev.ok("get ns"), &["default", "kube-system", "Active"]);
    contains(&dev.ok("api-resources"), &["pods", "po", "statefulsets", "sts", "configmaps", "cm"]);
    contains(&dev.ok("api-versions"), &["apps/v1", "v1"]);
    contains(&dev.ok("explain pod.spec.containers"), &["image", "<string>"]);

    dev.ok_with("apply -f -", STATEFUL_SET);
    contains(&dev.ok("rollout status statefulset/web --timeout=60s"), &["partitioned roll out complete"]);
    contains(&dev.ok("get sts web"), &["READY", "2/2"]);
    contains(&dev.ok("get pods -o wide"), &["web-0", "web-1", "Running", "1/1", "NODE"]);
    dev.ok("wait --for=condition=Ready pod/web-1 --timeout=30s");
    contains(&dev.ok("describe pod web-0"), &["Controlled By:", "StatefulSet/web", "Ready"]);
    dev.ok("scale sts web --replicas=3");
    dev.ok("rollout status statefulset/web --timeout=60s");
    contains(&dev.ok("get sts web -o jsonpath={.status.readyReplicas}"), &["3"]);
    dev.ok("patch sts web -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"web\",\"env\":[{\"name\":\"A\",\"value\":\"1\"}]}]}}}}'");
    contains(
        &dev.ok("get sts web -o jsonpath={.spec.template.spec.containers[0]}"),
        &["web:1", "\"name\":\"A\""],
    );
    dev.ok("delete sts web --wait --timeout=60s");
    dev.ok("wait --for=delete pod/web-0 --timeout=60s");

    dev.ok("create namespace shop");
    dev.ok("create configmap c -n shop --from-literal=a=1");
    contains(&dev.ok("get cm c -n shop -o jsonpath={.data.a}"), &["1"]);
    dev.ok("delete namespace shop --timeout=60s");
    contains(&dev.fails("get ns shop", ""), &["NotFound"]);
}

#[test]
fn watching() {
    let Some(dev) = Dev::start() else { return };
    let mut watch = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(dev.path("kubeconfig"))
        .args(["get", "configmaps", "-w", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    dev.ok("create configmap seen --from-literal=a=1");
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let found = lines.find(|line| line.as_ref().is_ok_and(|line| line == "configmap/seen"));
    drop(watch.kill());
    drop(watch.wait());
    assert!(found.is_some(), "the watch ended without the new object");
}

#[test]
fn access() {
    let Some(dev) = Dev::start() else { return };
    assert_eq!(dev.ok("auth can-i '*' '*'").trim(), "yes");
    dev.ok("create serviceaccount reader");
    dev.ok("create role reader --verb=get,list --resource=configmaps");
    dev.ok("create rolebinding reader --role=reader --serviceaccount=default:reader");
    let reader = "--as=system:serviceaccount:default:reader";
    assert_eq!(dev.ok(&format!("auth can-i list configmaps {reader}")).trim(), "yes");
    let refused = dev.run(&format!("auth can-i delete configmaps {reader}"), "");
    assert_eq!(text(&refused.stdout).trim(), "no");
    let token = dev.ok("create token reader");
    let with_token = dev.run(&format!("get secrets --token={}", token.trim()), "");
    // The kubeconfig's own token wins or loses by kubectl's rules; a reader must never see secrets.
    if !with_token.status.success() {
        contains(
            &text(&with_token.stderr),
            &[
                "secrets is forbidden: User \"system:serviceaccount:default:reader\" cannot list resource \"secrets\" in API group \"\" in the namespace \"default\"",
            ],
        );
    }
    contains(
        &dev.fails(&format!("get secrets {reader}"), ""),
        &[
            "secrets is forbidden: User \"system:serviceaccount:default:reader\" cannot list resource \"secrets\"",
        ],
    );
}

#[test]
fn the_kubeconfig_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let Some(dev) = Dev::start() else { return };
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dev.path("kubeconfig")), 0o600);
}
