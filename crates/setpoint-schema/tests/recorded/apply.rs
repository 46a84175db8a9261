//! Server-side apply and update tracking, step by step, against what a kube-apiserver v1.37.2 answered.
//!
//! `recorded/apply.json` holds the schema of a custom resource and cases of steps: the request, and the status, message
//! and object of the answer. A step's live object is the object of the last successful step, as the real server left it.

use serde_json::{Value, json};
use setpoint_schema::{
    FieldSet, Schema, default,
    managed::{self, ApplyError, ApplyRequest, UpdateRequest},
};

fn timeless(entries: &Value) -> Value {
    let mut entries = entries.clone();
    for entry in entries.as_array_mut().into_iter().flatten() {
        if let Some(entry) = entry.as_object_mut()
            && entry.contains_key("time")
        {
            entry["time"] = json!("some time");
        }
    }
    // The order within a second depends on the clock of the recording.
    let mut sorted: Vec<Value> = entries.as_array().cloned().unwrap_or_default();
    sorted.sort_by_key(ToString::to_string);
    Value::from(sorted)
}

/// The lines of a message, sorted: upstream walks maps in a random order.
fn lines(message: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = message.lines().collect();
    lines.sort_unstable();
    lines
}

fn entries(object: &Value) -> Value {
    object.pointer("/metadata/managedFields").cloned().unwrap_or_else(|| json!([]))
}

#[test]
fn steps_end_as_on_a_real_server() {
    let recorded: Value = serde_json::from_str(include_str!("apply.json")).unwrap();
    let custom = Schema::from_openapi(&recorded["crd"]).unwrap();
    let mut failures = Vec::new();
    let random: Value = serde_json::from_str(include_str!("apply_random.json")).unwrap();
    for case in [&recorded, &random].into_iter().flat_map(|recorded| recorded["cases"].as_array().unwrap()) {
        let kind = case["kind"].as_str().unwrap();
        let schema = match kind {
            "Deployment" => Schema::builtin("io.k8s.api.apps.v1.Deployment").unwrap(),
            "Service" => Schema::builtin("io.k8s.api.core.v1.Service").unwrap(),
            "ConfigMap" => Schema::builtin("io.k8s.api.core.v1.ConfigMap").unwrap(),
            _ => custom.clone(),
        };
        let mut live: Option<&Value> = None;
        for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
            let place = format!("{} step {index} ({} by {})", case["name"], text("op"), text("manager"));
            let ignored = match (text("sub"), kind) {
                ("status", _) => FieldSet::of_fields(&[&["spec"], &["metadata"]]),
                (_, "ConfigMap") => FieldSet::default(),
                _ => FieldSet::of_fields(&[&["status"]]),
            };
            let code = step["code"].as_u64().unwrap();
            let now = "2035-01-02T03:04:05Z".parse().unwrap();
            let api_version = case["gv"].as_str().unwrap();
            let ours = if text("op") == "apply" {
                let outcome = managed::apply(&ApplyRequest {
                    schema: &schema,
                    live,
                    intent: &step["body"],
                    manager: text("manager"),
                    force: step["force"] == json!(true),
                    subresource: text("sub"),
                    api_version,
                    ignored: &ignored,
                    now,
                });
                match outcome {
                    Ok(applied) => applied.object,
                    Err(ApplyError::BadRequest(_)) if code == 400 => continue,
                    Err(problem) => {
                        if code < 300 || lines(&problem.to_string()) != lines(text("message")) {
                            failures.push(format!("{place}: {code} {}\n  ours: {problem}", text("message")));
                        }
                        if let ApplyError::Conflicts(conflicts) = problem {
                            let mut causes: Vec<Value> = conflicts
                                .0
                                .iter()
                                .map(|conflict| {
                                    json!({
                                        "field": conflict.path.to_string(),
                                        "message": conflict.message(),
                                        "reason": "FieldManagerConflict",
                                    })
                                })
                                .collect();
                            // Upstream walks the managers in a random order.
                            let mut expected = step["causes"].as_array().unwrap().clone();
                            expected.sort_by_key(ToString::to_string);
                            causes.sort_by_key(ToString::to_string);
                            if causes != expected {
                                failures
                                    .push(format!("{place}: causes {}\n  ours: {causes:?}", step["causes"]));
                            }
                        }
                        continue;
                    }
                }
            } else {
                let mut new = step["object"].clone();
                let sent = match (text("op"), live) {
                    ("merge", Some(live)) => live.pointer("/metadata/managedFields").cloned(),
                    _ => step["body"].pointer("/metadata/managedFields").cloned(),
                };
                let metadata = new["metadata"].as_object_mut().unwrap();
                metadata.remove("managedFields");
                metadata.extend(sent.map(|sent| ("managedFields".to_owned(), sent)));
                let request = UpdateRequest {
                    schema: &schema,
                    live,
                    manager: text("manager"),
                    subresource: text("sub"),
                    api_version,
                    ignored: &ignored,
                    now,
                };
                managed::update(&request, &mut new);
                new
            };
            if code >= 300 {
                // Validation that comes after the apply refused it.
                assert_eq!(code, 422, "{place}: {} but we apply", text("message"));
                continue;
            }
            let object = &step["object"];
            let (theirs, ours_entries) = (timeless(&entries(object)), timeless(&entries(&ours)));
            if theirs != ours_entries {
                failures
                    .push(format!("{place}: managedFields\n  theirs: {theirs}\n  ours:   {ours_entries}"));
            }
            if text("op") == "apply" && kind == "Widget" {
                let mut ours = ours;
                default(&schema, &mut ours);
                for key in ["spec", "metadata"] {
                    let mut theirs = object[key].clone();
                    let mut ours = ours.get(key).cloned().unwrap_or_default();
                    for fields in [&mut theirs, &mut ours].into_iter().filter_map(Value::as_object_mut) {
                        let kept =
                            ["managedFields", "uid", "resourceVersion", "generation", "creationTimestamp"];
                        fields.retain(|key, _| !kept.contains(&key.as_str()));
                    }
                    if theirs != ours {
                        failures.push(format!("{place}: {key}\n  theirs: {theirs}\n  ours:   {ours}"));
                    }
                }
            }
            live = Some(object);
        }
    }
    assert!(failures.is_empty(), "{} deviations:\n{}", failures.len(), failures.join("\n"));
}
