//! Built-in kinds.

use crate::dev::{Dev, contains};

pub const STATEFUL_SET: &str = r"
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
    let mut names = dev.start_command("get configmaps -w -o name");
    let mut table = dev.start_command("get statefulsets -w --output-watch-events");
    dev.ok("create configmap seen --from-literal=a=1");
    names.line(&["configmap/seen"]);
    dev.ok_with("apply -f -", STATEFUL_SET);
    table.line(&["EVENT", "NAME", "READY", "AGE"]);
    table.line(&["ADDED", "web", "/2"]);
    table.line(&["MODIFIED", "web", "2/2"]);
    dev.ok("delete statefulset web");
    table.line(&["DELETED", "web"]);
}

#[test]
fn every_kind_can_be_described() {
    let Some(dev) = Dev::start() else { return };
    dev.ok_with("apply -f -", STATEFUL_SET);
    dev.ok("create service clusterip web --tcp=80");
    dev.ok_with(
        "apply -f -",
        "---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}",
    );
    dev.ok("create deployment app --image=x");
    dev.ok("create job once --image=x");
    dev.ok("create cronjob often --image=x --schedule='* * * * *'");
    dev.ok("create pdb budget --selector=app=web --min-available=1");
    dev.ok("create ingress front --rule=a.example.com/=web:80");
    dev.ok_with(
        "apply -f -",
        "---\n{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: app}, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: app}}}",
    );
    dev.ok("create secret generic key --from-literal=a=b");
    dev.ok("rollout status statefulset/web --timeout=60s");
    dev.ok("wait pvc/data --for=jsonpath={.status.phase}=Bound --timeout=30s");
    let volume = dev.ok("get pvc data -o jsonpath={.spec.volumeName}");
    for (object, parts) in [
        ("pod/web-0", &["Controlled By:", "StatefulSet/web", "Conditions:", "Events:"][..]),
        ("statefulset/web", &["Replicas:", "2 desired | 2 total", "SuccessfulCreate"]),
        ("service/web", &["Type:", "ClusterIP", "TargetPort:"]),
        ("pvc/data", &["Status:", "Bound", "Capacity:", "1Gi"]),
        (&format!("pv/{volume}"), &["Claim:", "default/data"]),
        ("node/hollow-0", &["Conditions:", "Allocatable:", "Non-terminated Pods:"]),
        ("deployment/app", &["StrategyType:", "RollingUpdate"]),
        ("job/once", &["Pod Template:"]),
        ("cronjob/often", &["Schedule:", "* * * * *"]),
        ("pdb/budget", &["Min available:"]),
        ("ingress/front", &["a.example.com"]),
        ("hpa/app", &["resource cpu", "80%", "Min replicas:"]),
        ("secret/key", &["a:  1 bytes"]),
        ("sa/default", &["Image pull secrets:"]),
        ("ns/default", &["Status:", "Active"]),
        ("sc/standard", &["Provisioner:"]),
    ] {
        contains(&dev.ok(&format!("describe {object}")), parts);
    }
    contains(&dev.ok("get hpa app"), &["REFERENCE", "MINPODS", "Deployment/app", "cpu: <unknown>/80%"]);
    assert_eq!(
        dev.ok("get deploy app --subresource=scale").split_whitespace().take(6).collect::<Vec<_>>(),
        ["NAME", "DESIRED", "AVAILABLE", "AGE", "app", "1"]
    );
    contains(
        &dev.ok("get all"),
        &["pod/web-0", "service/web", "deployment.apps/app", "statefulset.apps/web"],
    );
    contains(&dev.ok("explain sts --recursive"), &["volumeClaimTemplates", "<[]PersistentVolumeClaim>"]);
    contains(&dev.ok("explain deploy.spec.strategy.rollingUpdate"), &["maxSurge", "<IntOrString>"]);
}

#[test]
fn patches_that_do_not_fit() {
    let Some(dev) = Dev::start() else { return };
    dev.ok("create deployment app --image=x");
    for (kind, patch, why) in [
        ("strategic", r#"{"spec":{"replicas":"many"}}"#, "unrecognized type: int32"),
        ("merge", r#"{"spec":{"replicas":"many"}}"#, "spec.replicas"),
        ("json", r#"[{"op":"replace","path":"/spec/replicas","value":"many"}]"#, "spec.replicas"),
    ] {
        let error = dev.fails(&format!("patch deployment app --type={kind} -p '{patch}'"), "");
        contains(&error, &["The request is invalid: patch: Invalid value:", why]);
    }
    let missing =
        dev.fails("patch deployment app --type=json -p '[{\"op\":\"remove\",\"path\":\"/x\"}]'", "");
    contains(&missing, &["The request is invalid"]);
}

#[test]
fn selectors() {
    let Some(dev) = Dev::start() else { return };
    dev.ok("create configmap a");
    dev.ok("create configmap b");
    dev.ok("label configmap a tier=front size=3");
    for (selector, found) in [
        ("tier=front", "configmap/a"),
        ("'tier in (front,back),size>2'", "configmap/a"),
        ("'!tier'", "configmap/b"),
        ("'tier notin (front)'", "configmap/b"),
    ] {
        let names = dev.ok(&format!("get configmaps -o name -l {selector}"));
        assert!(names.lines().any(|name| name == found), "{selector}: {names}");
        assert!(
            !names.contains(if found.ends_with('a') { "configmap/b" } else { "configmap/a" }),
            "{selector}: {names}"
        );
    }
    contains(&dev.fails("get configmaps -l 'a in'", ""), &["found '' expected: '('"]);
    contains(&dev.fails("get configmaps -l 'a=b$'", ""), &["values[0][a]: Invalid value: \"b$\""]);
    contains(&dev.ok("get configmaps --field-selector=metadata.name=b -o name"), &["configmap/b"]);
}
