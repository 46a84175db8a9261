//! What a failed step leaves to look at: events, pods and the last lines that the servers wrote.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt};

use crate::report::print_line;

/// How many of the newest events and log lines to show.
const NEWEST: usize = 20;

/// Prints the namespace's newest events, its pods and the end of each pod's log.
pub(crate) async fn explain(client: &Client, namespace: &str) {
    print_line(&format!("\nThe newest events in namespace {namespace}:"));
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    match events.list(&ListParams::default()).await {
        Ok(list) => {
            let mut events = list.items;
            events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
            for event in events.iter().rev().take(NEWEST).rev() {
                let about = event.regarding.as_ref().and_then(|object| object.name.as_deref()).unwrap_or("?");
                let reason = event.reason.as_deref().unwrap_or_default();
                let note = event.note.as_deref().unwrap_or_default();
                print_line(&format!("  {about}: {reason}: {note}"));
            }
        }
        Err(error) => print_line(&format!("  could not be read: {error}")),
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match pods.list(&ListParams::default()).await {
        Ok(list) => {
            for pod in list {
                explain_pod(&pods, &pod).await;
            }
        }
        Err(error) => print_line(&format!("The pods could not be read: {error}")),
    }
}

async fn explain_pod(pods: &Api<Pod>, pod: &Pod) {
    let name = pod.name_any();
    let status = pod.status.clone().unwrap_or_default();
    let states: Vec<_> = status
        .container_statuses
        .iter()
        .flatten()
        .map(|container| {
            let state = serde_json::to_string(&container.state).unwrap_or_default();
            format!("{} restarts {} {state}", container.name, container.restart_count)
        })
        .collect();
    let phase = status.phase.as_deref().unwrap_or("no phase");
    print_line(&format!("Pod {name}: {phase} {}", states.join("; ")));
    let tail = LogParams { tail_lines: i64::try_from(NEWEST).ok(), ..LogParams::default() };
    match pods.logs(&name, &tail).await {
        Ok(log) => log.lines().for_each(|line| print_line(&format!("  {line}"))),
        Err(error) => print_line(&format!("  no log: {error}")),
    }
}
