use serde_json::{Value, json};

use super::*;
use crate::admission::{protect_storage, tolerate_failing_nodes};

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

/// Removes what others than this module decide: priorities, allocated addresses, taints, random numbers. Go writes some missing lists and times as null, which
/// means the same.
fn comparable(mut object: Value) -> Value {
    remove_nulls(&mut object);
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
        "Pod" => ["priority", "preemptionPolicy"]
            .iter()
            .for_each(|key| drop(edit::remove(&mut object["spec"], key))),
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

/// What admission that nobody can turn off adds before.
fn admit(kind: &str, object: &mut Value) {
    protect_storage(kind, object);
    if kind == "Pod" {
        tolerate_failing_nodes(object);
    }
}

fn remove_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(remove_nulls);
    }
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
        admit(&kind, &mut object);
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

/// A cause without what Go prints otherwise than JSON: structures as values (for some immutable fields: always null), and differences of specs.
fn comparable_cause(field: &str, reason: &str, message: &str) -> String {
    let message = message.split('\n').next().unwrap_or_default();
    let structured = [
        "Invalid value: {",
        "Invalid value: [{",
        "Invalid value: null",
        "Unsupported value: {",
        "Duplicate value: {",
    ];
    let detail = message.rsplit_once(": ").map_or("", |(_, detail)| detail);
    if detail == "field is immutable" || structured.iter().any(|start| message.starts_with(start)) {
        let detail = if message.starts_with("Duplicate") { "" } else { detail };
        return format!("{field} {reason} … {detail}");
    }
    format!("{field} {reason} {message}")
}

/// Objects that kube-apiserver v1.37.2 was given, as creations or as updates of `old`, and the causes that it answered with.
#[test]
fn wrong_fields_are_named_as_kube_apiserver_names_them() {
    // What others check: metadata alike for all kinds, rules of the cluster's policy, and errors of Go's parsers.
    const ELSEWHERE: [&str; 5] = [
        "metadata.name FieldValueInvalid",
        "spec.containers[0].securityContext",
        "subsets[0].addresses[0].ip FieldValueInvalid Invalid value: \"x\": must be a valid IP address, (",
        "subsets[0].addresses[0].ip FieldValueInvalid Invalid value: \"x\": must be a valid IP address",
        "data[.dockerconfigjson] FieldValueInvalid",
    ];
    let elsewhere = |cause: &String| ELSEWHERE.iter().any(|known| cause.starts_with(known));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for line in include_str!("recorded/validate.txt").lines() {
        let case: Value = serde_json::from_str(line).expect("a recorded case");
        count += 1;
        let (group, kind) = group_kind(&case["new"]);
        let old = Some(&case["old"]).filter(|old| old.is_object());
        let subresource = case["subresource"].as_str();
        let mut object = case["new"].clone();
        if old.is_none() {
            object["metadata"]["uid"] = "1".into();
            object["metadata"]["namespace"] = "default".into();
        }
        default(&group, &kind, &mut object);
        if subresource.is_none() {
            admit(&kind, &mut object);
        }
        match old {
            Some(old) => prepare_update(&group, &kind, subresource, &mut object, old),
            None => prepare_create(&group, &kind, &mut object),
        }
        let mut ours: Vec<_> = validate(&group, &kind, &object, old, subresource)
            .iter()
            .map(|e| comparable_cause(e.path.as_str(), e.reason(), &e.cause_message()))
            .filter(|cause| !elsewhere(cause))
            .collect();
        let text = |cause: &Value, key: &str| cause[key].as_str().unwrap_or_default().to_owned();
        let mut theirs: Vec<_> = case["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| comparable_cause(&text(c, "field"), &text(c, "reason"), &text(c, "message")))
            .filter(|cause| !elsewhere(cause))
            .collect();
        ours.sort();
        theirs.sort();
        if ours != theirs {
            wrong.push(format!("{kind} {}:\n  ours   {ours:#?}\n  theirs {theirs:#?}", case["new"]["spec"]));
        }
    }
    assert!(count > 150, "only {count} cases");
    assert!(wrong.is_empty(), "{} of {count} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// The schemas of the facts and the defaults here must agree, or good objects would be refused.
#[test]
fn what_defaults_make_is_valid_by_the_schemas() {
    for (input, output) in recorded() {
        let (group, kind) = group_kind(&input);
        let known = setpoint_kinds::kinds()
            .iter()
            .find(|k| k.group == group && k.kind == kind)
            .expect("a known kind");
        let schema = setpoint_schema::Schema::builtin(known.definition).expect("a schema");
        let mut ours = input;
        default(&group, &kind, &mut ours);
        prepare_create(&group, &kind, &mut ours);
        for mut object in [ours, output] {
            remove_nulls(&mut object);
            let errors = setpoint_schema::validate(&schema, &object, &setpoint_schema::FieldPath::root());
            assert!(errors.is_empty(), "{kind}: {errors:?}");
        }
    }
}
