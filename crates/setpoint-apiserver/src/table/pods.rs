//! The row of a pod: its containers' states as one word.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    age::since,
    sources::{count, list, or_none, text},
};

/// The conditions of a row, by which `kubectl get -w` tells that a pod is done.
pub fn conditions(pod: &Value) -> Option<Value> {
    let message = match text(&pod["status"], "phase") {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(
        json!([{"type": "Completed", "status": "True", "reason": pod["status"]["phase"], "message": message}]),
    )
}

/// The cells of a pod.
pub fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let mut summary = Summary { reason: first_of(status, &["reason", "phase"]), ..Summary::default() };
    let gated =
        |condition: &Value| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated";
    if list(status, "conditions").iter().any(gated) {
        "SchedulingGated".clone_into(&mut summary.reason);
    }
    let sidecars = list(spec, "initContainers").iter().filter(|c| c["restartPolicy"] == "Always").count();
    let total = list(spec, "containers").len() + sidecars;
    let initialising = summary.init_containers(spec, status);
    let initialised =
        list(status, "conditions").iter().any(|c| c["type"] == "Initialized" && c["status"] == "True");
    if !initialising || initialised {
        summary.containers(status);
    }
    let phase = text(status, "phase");
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        if text(status, "reason") == "NodeLost" {
            "Unknown".clone_into(&mut summary.reason);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut summary.reason);
        }
    }
    let mut restarts = summary.restarts.to_string();
    if summary.restarts != 0 && !summary.last_restart.is_empty() {
        restarts = format!("{restarts} ({} ago)", since(&summary.last_restart.into(), now));
    }
    let gates = list(spec, "readinessGates");
    let open = gates
        .iter()
        .filter(|gate| {
            let condition = |c: &&Value| c["type"] == gate["conditionType"];
            list(status, "conditions").iter().find(condition).is_some_and(|c| c["status"] == "True")
        })
        .count();
    let gates = if gates.is_empty() { "<none>".to_owned() } else { format!("{open}/{}", gates.len()) };
    vec![
        pod["metadata"]["name"].clone(),
        format!("{}/{total}", summary.ready).into(),
        summary.reason.into(),
        restarts.into(),
        since(&pod["metadata"]["creationTimestamp"], now).into(),
        or_none(list(status, "podIPs").first().map_or("", |ip| text(ip, "ip"))).into(),
        or_none(text(spec, "nodeName")).into(),
        or_none(text(status, "nominatedNodeName")).into(),
        gates.into(),
    ]
}

#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    /// RFC 3339, which sorts by time.
    last_restart: String,
    sidecar_restarts: i64,
    last_sidecar_restart: String,
}

impl Summary {
    /// Goes through init containers up to the first that isn't done; answers whether there is one.
    fn init_containers(&mut self, spec: &Value, status: &Value) -> bool {
        for (index, container) in list(status, "initContainerStatuses").iter().enumerate() {
            let sidecar = list(spec, "initContainers")
                .iter()
                .any(|c| c["name"] == container["name"] && c["restartPolicy"] == "Always");
            self.restarts += count(container, "restartCount");
            later(&mut self.last_restart, container);
            if sidecar {
                self.sidecar_restarts += count(container, "restartCount");
                later(&mut self.last_sidecar_restart, container);
            }
            let state = &container["state"];
            let (terminated, waiting) = (&state["terminated"], text(&state["waiting"], "reason"));
            if terminated.is_object() && count(terminated, "exitCode") == 0 {
                continue;
            }
            if sidecar && container["started"] == true {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            self.reason = if terminated.is_object() {
                format!("Init:{}", end(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{}", list(spec, "initContainers").len())
            };
            return true;
        }
        false
    }

    fn containers(&mut self, status: &Value) {
        self.restarts = self.sidecar_restarts;
        self.last_restart = std::mem::take(&mut self.last_sidecar_restart);
        let (mut running, mut failed) = (false, String::new());
        for container in list(status, "containerStatuses").iter().rev() {
            self.restarts += count(container, "restartCount");
            later(&mut self.last_restart, container);
            let state = &container["state"];
            let waiting = text(&state["waiting"], "reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if state["terminated"].is_object() {
                self.reason = end(&state["terminated"]);
                if count(&state["terminated"], "exitCode") != 0 {
                    failed.clone_from(&self.reason);
                }
            } else if container["ready"] == true && state["running"].is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            let ready =
                list(status, "conditions").iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
            if running && ready {
                "Running".clone_into(&mut self.reason);
            } else if !failed.is_empty() {
                self.reason = failed;
            } else if running {
                "NotReady".clone_into(&mut self.reason);
            }
        }
    }
}

fn later(last: &mut String, container: &Value) {
    let finished = text(&container["lastState"]["terminated"], "finishedAt");
    if finished > last.as_str() {
        finished.clone_into(last);
    }
}

/// How a container ended.
fn end(terminated: &Value) -> String {
    match (text(terminated, "reason"), count(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", count(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn first_of(value: &Value, keys: &[&str]) -> String {
    keys.iter().map(|key| text(value, key)).find(|text| !text.is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_for_the_state() {
        let running = json!({"running": {}});
        let ready = json!([{"name": "c", "ready": true, "restartCount": 0, "state": running}]);
        for (status, metadata, wanted) in [
            (json!({"phase": "Pending"}), json!({}), "0/1 Pending 0"),
            (json!({"phase": "Running", "containerStatuses": ready}), json!({}), "1/1 Running 0"),
            (
                json!({"phase": "Running", "containerStatuses": ready}),
                json!({"deletionTimestamp": "x"}),
                "1/1 Terminating 0",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [{"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}}}]}),
                json!({}),
                "0/1 CrashLoopBackOff 3 (60s ago)",
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [{"restartCount": 0, "state": {"terminated": {"exitCode": 2}}}]}),
                json!({}),
                "0/1 ExitCode:2 0",
            ),
            (
                json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}]}),
                json!({}),
                "0/1 Init:0/1 0",
            ),
        ] {
            let pod = json!({"metadata": metadata, "status": status,
                "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}});
            let now = "2026-01-01T00:01:00Z".parse().expect("a time");
            let cells: Vec<_> =
                cells(&pod, now)[1..4].iter().map(|c| c.as_str().unwrap_or_default().to_owned()).collect();
            assert_eq!(cells.join(" "), wanted);
        }
    }
}
