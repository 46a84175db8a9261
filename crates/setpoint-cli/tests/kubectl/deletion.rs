//! Deletion, and what goes with it.

use crate::{
    built_in::STATEFUL_SET,
    dev::{Dev, contains},
};

#[test]
fn cascades() {
    let Some(dev) = Dev::start() else { return };
    dev.ok_with("apply -f -", STATEFUL_SET);
    dev.ok("rollout status statefulset/web --timeout=60s");
    dev.ok("delete statefulset web --cascade=orphan --timeout=60s");
    contains(&dev.ok("get pod web-0"), &["Running"]);
    assert_eq!(dev.ok("get pod web-0 -o jsonpath={.metadata.ownerReferences}"), "");
    dev.ok_with("apply -f -", STATEFUL_SET);
    dev.ok("wait sts/web --for=jsonpath={.status.readyReplicas}=2 --timeout=60s");
    // With foreground deletion the pods go first.
    dev.ok("delete statefulset web --cascade=foreground --timeout=60s");
    contains(&dev.fails("get pod web-0", ""), &["NotFound"]);
    contains(&dev.fails("get pod web-1", ""), &["NotFound"]);

    dev.ok("create configmap kept");
    dev.ok("patch configmap kept --type=merge -p '{\"metadata\":{\"finalizers\":[\"example.com/hold\"]}}'");
    contains(&dev.ok("delete configmap kept --wait=false"), &["\"kept\" deleted"]);
    contains(&dev.fails("wait configmap/kept --for=delete --timeout=1s", ""), &["timed out"]);
    dev.ok("patch configmap kept --type=merge -p '{\"metadata\":{\"finalizers\":null}}'");
    dev.ok("wait configmap/kept --for=delete --timeout=30s");
    dev.ok("create configmap one");
    dev.ok("create configmap two");
    dev.ok("label configmap one two gone=yes");
    contains(&dev.ok("delete configmaps -l gone=yes"), &["\"one\" deleted", "\"two\" deleted"]);
    contains(&dev.ok("delete configmap nope --ignore-not-found"), &[""]);
    contains(&dev.fails("delete configmap nope", ""), &["configmaps \"nope\" not found"]);
    dev.ok("create configmap dry");
    contains(&dev.ok("delete configmap dry --dry-run=server"), &["deleted", "server dry run"]);
    dev.ok("get configmap dry");
}

#[test]
fn nodes_are_drained() {
    let Some(dev) = Dev::start() else { return };
    dev.ok_with("apply -f -", STATEFUL_SET);
    dev.ok("rollout status statefulset/web --timeout=60s");
    let before = dev.ok("get pod web-0 -o jsonpath={.metadata.uid}");
    dev.ok("cordon hollow-0");
    contains(&dev.ok("get nodes"), &["Ready,SchedulingDisabled"]);
    contains(&dev.ok("drain hollow-0 --timeout=60s"), &["evicting pod default/web-0", "drained"]);
    // Nowhere to go: the new pods wait.
    dev.ok("wait pod/web-0 --for=jsonpath={.status.phase}=Pending --timeout=30s");
    assert_ne!(dev.ok("get pod web-0 -o jsonpath={.metadata.uid}"), before);
    contains(&dev.ok("uncordon hollow-0"), &["uncordoned"]);
    dev.ok("rollout status statefulset/web --timeout=60s");
}
