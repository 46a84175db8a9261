use serde_json::{Value, json};

use super::*;

/// Inputs, and what kube-apiserver v1.37.2 answered to their creation (dry run, without controllers and ServiceAccount admission).
fn recorded() -> impl Iterator<Item = (Value, Value)> {
    include_str!("recorded/create.txt").lines().map(|line| {
        let mut case: Value = serde_json::from_str(line).expect("a recorded case");
        (case["input"].take(), case["output"].take())
    })
}

fn group_kind(object: &Value) -> (String, String) {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    (group.to_owned(), object["kind"].as_str().unwrap_or_default().to_owned())
}

/// Removes what others than this module decide: allocated addresses, taints, random numbers.
fn comparable(mut object: Value) -> Value {
    let (_, kind) = group_kind(&object);
    let random = "controller-uid";
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for key in ["generation", "namespace", "uid"] {
            metadata.remove(key);
        }
    }
    match kind.as_str() {
        "Service" => {
            let spec = object["spec"].as_object_mut().expect("a spec");
            if spec.get("clusterIP").is_some_and(|ip| ip != "None") {
                spec.remove("clusterIP");
                spec.remove("clusterIPs");
            }
            for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                edit::remove(port, "nodePort");
            }
        }
        "Node" => drop(edit::remove(&mut object["spec"], "taints")),
        "PersistentVolume" => drop(edit::remove(&mut object["status"], "lastPhaseTransitionTime")),
        "Job" => {
            for pointer in
                ["/metadata/labels", "/spec/selector/matchLabels", "/spec/template/metadata/labels"]
            {
                for (key, value) in object.pointer_mut(pointer).and_then(Value::as_object_mut).expect(pointer)
                {
                    if key.ends_with(random) {
                        *value = random.into();
                    }
                }
            }
        }
        _ => {}
    }
    object
}

#[test]
fn new_objects_are_what_kube_apiserver_makes_of_them() {
    assert!(recorded().count() > 40);
    let mut wrong = Vec::new();
    for (input, output) in recorded() {
        let (group, kind) = group_kind(&input);
        let mut object = input.clone();
        object["metadata"]["uid"] = "controller-uid".into();
        default(&group, &kind, &mut object);
        prepare_create(&group, &kind, &mut object);
        let (ours, theirs) = (comparable(object), comparable(output));
        if ours != theirs {
            wrong.push(format!("{kind} {}:\n  ours   {ours}\n  theirs {theirs}", input["metadata"]["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn defaults_are_idempotent() {
    for (input, _) in recorded() {
        let (group, kind) = group_kind(&input);
        let mut once = input;
        default(&group, &kind, &mut once);
        let mut twice = once.clone();
        default(&group, &kind, &mut twice);
        assert_eq!(once, twice);
    }
}

#[test]
fn updates_of_services_keep_what_was_allocated() {
    let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
        "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30001}]}});
    let mut new = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]}});
    prepare_update("", "Service", None, &mut new, &old);
    assert_eq!(new["spec"]["clusterIPs"], json!(["10.96.0.7"]));
    assert_eq!(new["spec"]["ports"][0]["nodePort"], 30001);
    assert_eq!(new["spec"]["ports"][1].get("nodePort"), None);
}

#[test]
fn field_selectors_see_the_fields_that_kubernetes_offers() {
    let pod = json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
    let fields = fields("", "pods", &pod);
    assert!(fields.contains(&("spec.nodeName", "n1".to_owned())));
    assert!(fields.contains(&("status.phase", "Running".to_owned())));
    assert!(fields.contains(&("spec.hostNetwork", "false".to_owned())));
    assert_eq!(super::fields("apps", "deployments", &pod), []);
}
