//! Client-side and server-side apply.

use crate::custom::{CRD, WIDGET};
use crate::dev::{Dev, contains, text};

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
fn fields_that_leave_the_file_leave_the_object() {
    let Some(dev) = Dev::start() else { return };
    let deployment = |more: &str, env: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, labels: {{a: b{more}}}}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec:\n      containers: [{{name: c, image: x, resources: {{}}, env: [{env}]}}]\n"
        )
    };
    let both = deployment(", c: d", "{name: A, value: '1'}, {name: B, value: '2'}");
    contains(&dev.ok_with("apply -f -", &both), &["deployment.apps/d created"]);
    contains(&dev.ok_with("apply -f -", &both), &["unchanged"]);
    assert!(dev.run("diff -f -", &both).status.success(), "no difference");
    // What somebody else adds stays.
    dev.ok("set env deployment/d OTHER=3");
    dev.ok("scale deployment/d --replicas=4");
    let one = deployment("", "{name: B, value: '2'}");
    let difference = dev.run("diff -f -", &one);
    assert_eq!(difference.status.code(), Some(1), "{}", text(&difference.stderr));
    contains(&text(&difference.stdout), &["-        - name: A", "-    c: d"]);
    contains(&dev.ok_with("apply -f -", &one), &["configured"]);
    assert_eq!(dev.ok("get deploy d -o jsonpath={.spec.template.spec.containers[0].env[*].name}"), "B OTHER");
    assert_eq!(dev.ok("get deploy d -o jsonpath={.spec.replicas}{.metadata.labels}"), "4{\"a\":\"b\"}");
    contains(&dev.ok("apply view-last-applied deployment/d"), &["name: B"]);
}

/// kubectl sent a strategic merge patch, since the OpenAPI document of custom resources listed it.
#[test]
fn a_custom_resource_is_applied_again() {
    let Some(dev) = Dev::start() else { return };
    dev.ok_with("apply -f -", CRD);
    dev.ok("wait --for=condition=Established crd/widgets.example.com --timeout=30s");
    contains(&dev.ok_with("apply -f -", WIDGET), &["widget.example.com/one created"]);
    contains(&dev.ok_with("apply -f -", WIDGET), &["unchanged"]);
    let labelled = WIDGET.replace("name: one,", "name: one, labels: {a: b},");
    contains(&dev.ok_with("apply -f -", &labelled), &["configured"]);
    let larger = WIDGET.replace("size: 3", "size: 4, colour: green");
    let difference = dev.run("diff -f -", &larger);
    assert_eq!(difference.status.code(), Some(1), "{}", text(&difference.stderr));
    contains(&text(&difference.stdout), &["-  size: 3", "+  size: 4"]);
    contains(&dev.ok_with("apply -f -", &larger), &["configured"]);
    // The label went with the file, the colour comes back to its default with the next.
    assert_eq!(dev.ok("get widget one -o jsonpath={.metadata.labels}{.spec.size}{.spec.colour}"), "4green");
    contains(&dev.ok_with("apply -f -", &WIDGET.replace("size: 3", "size: 5")), &["configured"]);
    assert_eq!(dev.ok("get widget one -o jsonpath={.spec.size}{.spec.colour}"), "5blue");
}

/// What client-side apply set, server-side apply takes over without conflicts, and back.
#[test]
fn from_client_side_to_server_side() {
    let Some(dev) = Dev::start() else { return };
    let objects = "
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: b, resources: {}}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: service}
spec: {selector: {a: b}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set}
spec:
  replicas: 0
  serviceName: service
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: a, image: b, livenessProbe: {exec: {command: [a]}, initialDelaySeconds: 0}}]}
";
    dev.ok_with("apply -f -", objects);
    for round in ["first", "again"] {
        let output = dev.run("apply --server-side -f -", objects);
        assert!(output.status.success(), "{round}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{round}");
    }
    let output = dev.run("apply -f -", objects);
    assert!(output.status.success(), "{}", text(&output.stderr));
    contains(&text(&output.stdout), &["job.batch/job", "service/service"]);
}

#[test]
fn kinds_that_the_server_lacks() {
    let Some(dev) = Dev::start() else { return };
    let unknown = "---\n{apiVersion: nope.example.com/v1, kind: Foo, metadata: {name: x}}";
    for command in ["apply -f -", "create -f -", "apply --server-side -f -", "diff -f -"] {
        let error = dev.fails(command, unknown);
        contains(&error, &["no matches for kind \"Foo\" in version \"nope.example.com/v1\""]);
        contains(&error, &["ensure CRDs are installed first"]);
    }
    contains(&dev.fails("get foo", ""), &["the server doesn't have a resource type \"foo\""]);
    contains(&dev.fails("top pod", ""), &["Metrics API not available"]);
}
