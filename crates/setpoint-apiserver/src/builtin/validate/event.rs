//! Events, in the form of `v1` (`pkg/apis/core/validation/events.go`).

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::builtin::edit::text;
use crate::events;

const LIMITS: [(&str, usize); 4] =
    [("reportingInstance", 128), ("action", 128), ("reason", 128), ("message", 1024)];
/// What a client of the newer API may not change; a series is how it says that an event goes on.
const FIXED: [&str; 12] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingInstance",
];

/// An event that came by the old API, which takes nearly everything.
pub fn core(errors: &mut Errors, new: &Value) {
    legacy(errors, new, "reportingComponent");
}

/// An event that came by `events.k8s.io/v1`.
pub fn new_api(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let as_core = |event: &Value| {
        let mut event = event.clone();
        events::to_core(&mut event);
        event
    };
    let (new, old, root) = (as_core(new), old.map(as_core), FieldPath::root());
    legacy(errors, &new, "reportingController");
    let Some(old) = old else {
        series(errors, &new);
        if new["eventTime"].is_null() {
            errors.required(&root.child("eventTime"), "");
        }
        let kind = text(&new, "type");
        if !matches!(kind, "Normal" | "Warning") {
            errors.invalid(&root.child("type"), "", format!("has invalid value: {kind}"));
        }
        let source = &new["source"];
        let set = [
            ("firstTimestamp", !new["firstTimestamp"].is_null()),
            ("lastTimestamp", !new["lastTimestamp"].is_null()),
            ("count", new["count"].as_i64().unwrap_or(0) != 0),
            ("source", !(text(source, "component").is_empty() && text(source, "host").is_empty())),
        ];
        for (key, _) in set.into_iter().filter(|(_, set)| *set) {
            errors.invalid(&root.child(key), "", "needs to be unset");
        }
        return;
    };
    if new["series"] != old["series"] {
        series(errors, &new);
    }
    for key in FIXED {
        errors.immutable(&new, &old, &root, key);
    }
    if text(&new, "reportingComponent") != text(&old, "reportingComponent") {
        errors.changed(&root.child("reportingController"), &new["reportingComponent"]);
    }
}

fn legacy(errors: &mut Errors, new: &Value, reporter: &str) {
    let root = FieldPath::root();
    let (involved, namespace) =
        (text(&new["involvedObject"], "namespace"), text(&new["metadata"], "namespace"));
    let mut misplaced = || {
        errors.invalid(&root.child("involvedObject.namespace"), involved, "does not match event.namespace");
    };
    if new["eventTime"].is_null() {
        // The default namespace stands for none, for old clients.
        if if involved.is_empty() { !matches!(namespace, "" | "default") } else { namespace != involved } {
            misplaced();
        }
        return;
    }
    if involved.is_empty() && !matches!(namespace, "default" | "kube-system") {
        misplaced();
    }
    let controller = text(new, "reportingComponent");
    if controller.is_empty() {
        errors.required(&root.child(reporter), "");
    }
    errors.qualified(&root.child(reporter), controller);
    for key in ["reportingInstance", "action", "reason"] {
        errors.present(new, &root, key);
    }
    for (key, most) in LIMITS {
        if text(new, key).len() > most {
            errors.invalid(&root.child(key), "", format!("can have at most {most} characters"));
        }
    }
}

fn series(errors: &mut Errors, event: &Value) {
    let (series, path) = (&event["series"], FieldPath::from("series"));
    if series.is_null() {
        return;
    }
    if series["count"].as_i64().unwrap_or(0) < 2 {
        errors.invalid(&path.child("count"), "", "should be at least 2");
    }
    if series["lastObservedTime"].is_null() {
        errors.required(&path.child("lastObservedTime"), "");
    }
}
