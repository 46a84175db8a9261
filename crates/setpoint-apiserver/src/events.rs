//! Events are one kind with two faces: `v1` and `events.k8s.io/v1`. They are stored as `v1`
//! (`k8s.io/kubernetes/pkg/apis/events/v1/conversion.go`).

use serde_json::Value;

use crate::object::fields;

/// The newer group.
pub(crate) const GROUP: &str = "events.k8s.io";

/// Field names in `v1` and in `events.k8s.io/v1`.
const RENAMED: [(&str, &str); 7] = [
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Turns a `events.k8s.io/v1` Event into the stored form.
pub(crate) fn to_core(event: &mut Value) {
    rename(event, |(core, new)| (new, core));
    event["apiVersion"] = "v1".into();
}

/// Turns a stored Event into `events.k8s.io/v1`.
pub(crate) fn from_core(event: &mut Value) {
    rename(event, |(core, new)| (core, new));
    event["apiVersion"] = "events.k8s.io/v1".into();
}

fn rename(event: &mut Value, direction: fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    let event = fields(event);
    for pair in RENAMED {
        let (from, to) = direction(pair);
        if let Some(value) = event.remove(from) {
            event.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_faces_hold_the_same() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "regarding": {"name": "a"},
            "reportingController": "c", "reason": "R"});
        let mut event = new.clone();
        to_core(&mut event);
        assert_eq!(event["message"], "n");
        assert_eq!(event["involvedObject"]["name"], "a");
        from_core(&mut event);
        assert_eq!(event, new);
    }
}
