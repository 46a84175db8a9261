use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn node(name: &str, extra: &Value) -> Arc<Node> {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    merge(&mut node, extra);
    Arc::new(serde_json::from_value(node).unwrap())
}

fn pod(name: &str, spec: &Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c"}]},
    });
    merge(&mut pod["spec"], spec);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn cpu(amount: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]})
}

fn anti(kind: &str) -> Value {
    let term =
        json!({"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"});
    let terms =
        if kind == "required" { json!([term]) } else { json!([{"weight": 100, "podAffinityTerm": term}]) };
    let field = format!("{kind}DuringSchedulingIgnoredDuringExecution");
    json!({"affinity": {"podAntiAffinity": {field: terms}}})
}

fn view(nodes: Vec<Arc<Node>>) -> View {
    View { nodes, ..View::default() }
}

fn nowhere(view: &View, pod: &Pod) -> String {
    match place(view, pod) {
        Placement::Nowhere(message) => message,
        Placement::Node(node) => panic!("placed on {node}"),
    }
}

/// Places pods one after the other; the nodes they get.
fn place_all(view: &mut View, pods: Vec<Arc<Pod>>) -> Vec<String> {
    let mut nodes = Vec::new();
    for pod in pods {
        match place(view, &pod) {
            Placement::Node(node) => {
                nodes.push(node.clone());
                view.placed.push((pod, node));
            }
            Placement::Nowhere(message) => nodes.push(message),
        }
    }
    nodes
}

#[test]
fn spreads_over_nodes() {
    let mut view = view(vec![node("a", &json!({})), node("b", &json!({})), node("c", &json!({}))]);
    let placed = place_all(&mut view, (0..6).map(|index| pod(&format!("p{index}"), &json!({}))).collect());
    assert_eq!(placed, ["a", "b", "c", "a", "b", "c"]);
}

#[test]
fn says_for_each_reason_how_many_nodes() {
    let view = view(vec![
        node("a", &json!({"spec": {"unschedulable": true}})),
        node("b", &json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}})),
        node("c", &json!({})),
        node("d", &json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})),
    ]);
    assert_eq!(
        nowhere(&view, &pod("p", &cpu("5"))),
        "0/4 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s), 1 node(s) were not ready, \
         1 node(s) were unschedulable."
    );
    assert_eq!(nowhere(&View::default(), &pod("p", &json!({}))), "no nodes available to schedule pods");
}

#[test]
fn tolerations() {
    let view = view(vec![node(
        "a",
        &json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}),
    )]);
    for (toleration, fits) in [
        (json!({"operator": "Exists"}), true),
        (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), true),
        (json!({"key": "k", "value": "v"}), true),
        (json!({"key": "k", "value": "x"}), false),
        (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), false),
    ] {
        let placed = place(&view, &pod("p", &json!({"tolerations": [toleration]})));
        assert_eq!(matches!(placed, Placement::Node(_)), fits, "{toleration}");
    }
}

#[test]
fn full_node_takes_no_more() {
    let mut view = view(vec![node("a", &json!({"status": {"allocatable": {"pods": "2"}}}))]);
    let placed = place_all(&mut view, (0..3).map(|index| pod(&format!("p{index}"), &json!({}))).collect());
    assert_eq!(placed, ["a", "a", "0/1 nodes are available: 1 Too many pods."]);
}

#[test]
fn required_anti_affinity_wants_a_node_each() {
    let mut view = view(vec![node("a", &json!({})), node("b", &json!({}))]);
    let placed =
        place_all(&mut view, (0..3).map(|index| pod(&format!("p{index}"), &anti("required"))).collect());
    assert_eq!(
        placed,
        ["a", "b", "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."]
    );
    // And a pod without such a rule is kept away by theirs.
    assert_eq!(
        nowhere(&view, &pod("q", &json!({}))),
        "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
    );
}

#[test]
fn preferred_anti_affinity_gives_way() {
    let mut view =
        view(vec![node("a", &json!({"status": {"allocatable": {"cpu": "64"}}})), node("b", &json!({}))]);
    let placed =
        place_all(&mut view, (0..3).map(|index| pod(&format!("p{index}"), &anti("preferred"))).collect());
    assert_eq!(placed, ["a", "b", "a"]);
}

#[test]
fn affinity_brings_together() {
    let term =
        json!({"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"});
    let spec =
        json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
    let mut view = view(vec![node("a", &json!({})), node("b", &json!({}))]);
    let placed = place_all(&mut view, (0..3).map(|index| pod(&format!("p{index}"), &spec)).collect());
    assert_eq!(placed, ["a", "a", "a"]);
}

#[test]
fn node_selectors_and_spread() {
    let zone = |name, zone| node(name, &json!({"metadata": {"labels": {"zone": zone}}}));
    let mut view = view(vec![zone("a", "1"), zone("b", "1"), zone("c", "2")]);
    assert_eq!(place(&view, &pod("p", &json!({"nodeSelector": {"zone": "2"}}))), Placement::Node("c".into()));
    let spread = json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }]});
    let placed = place_all(&mut view, (0..4).map(|index| pod(&format!("p{index}"), &spread)).collect());
    let zones: Vec<_> = placed.iter().map(|node| if node == "c" { "2" } else { "1" }).collect();
    assert_eq!((zones[0] == zones[1], zones[2] == zones[3]), (false, false), "{placed:?}");
}

#[test]
fn claims_have_to_be_bound() {
    let mut view = view(vec![node("a", &json!({}))]);
    let pod = pod("p", &json!({"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d-p"}}]}));
    assert_eq!(nowhere(&view, &pod), "0/1 nodes are available: persistentvolumeclaim \"d-p\" not found.");
    let claim = |phase: &str| {
        Arc::new(
            serde_json::from_value(json!({"spec": {"volumeName": "v"}, "status": {"phase": phase}})).unwrap(),
        )
    };
    view.claims.insert("d-p".into(), claim("Pending"));
    assert_eq!(
        nowhere(&view, &pod),
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    );
    view.claims.insert("d-p".into(), claim("Bound"));
    let elsewhere = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}}}});
    view.volumes.insert("v".into(), Arc::new(serde_json::from_value(elsewhere).unwrap()));
    assert_eq!(
        nowhere(&view, &pod),
        "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
    );
    view.volumes.clear();
    assert_eq!(place(&view, &pod), Placement::Node("a".into()));
}

proptest! {
    /// No node ever gets more than it offers, and a pod is refused only if it fits nowhere.
    #[test]
    fn never_overcommits(
        nodes in proptest::collection::vec(1..8u32, 1..5),
        pods in proptest::collection::vec(100..3000u32, 0..30),
    ) {
        let offered: Vec<_> = nodes.iter().enumerate().map(|(index, cpus)| {
            node(&format!("n{index}"), &json!({"status": {"allocatable": {"cpu": cpus.to_string(), "pods": "100"}}}))
        }).collect();
        let mut view = view(offered);
        for (index, millis) in pods.iter().enumerate() {
            let free = |view: &View, node: usize| {
                i128::from(nodes[node]) * 1000 - view.used(&format!("n{node}")).get("cpu").copied().unwrap_or(0)
            };
            let placed = place_all(&mut view, vec![pod(&format!("p{index}"), &cpu(&format!("{millis}m")))]);
            let fits = (0..nodes.len()).any(|node| free(&view, node) >= i128::from(*millis));
            prop_assert!(placed[0].starts_with('n') || !fits, "{placed:?}");
            for node in 0..nodes.len() {
                prop_assert!(free(&view, node) >= 0);
            }
        }
    }
}
