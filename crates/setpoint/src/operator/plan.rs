//! `plan`: each object is reconciled once against the cluster, with every write only tried.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use setpoint_clock::{Clock, Entropy};

use super::changes::changes;
use super::{Operator, OperatorError, diagnosis};
use crate::{
    AnyController, CacheHealth, Ended, Event, FieldChange, Key, Kind, ObjectRef, Recorder, Report,
    RequestStack, Runtime, Severity, Write,
};

/// Events are part of the reports; nobody else is to see them.
struct Nobody;

impl Recorder for Nobody {
    fn record(&self, _: &str, _: &ObjectReference, _: Event) {}
}

/// Reconciles `keys` of `controller` once, or all objects, of all controllers where none is named, and changes
/// nothing. `waits` is told what is waited for, when that takes longer than two seconds.
pub(super) async fn reports(
    operator: Operator,
    client: kube::Client,
    controller: Option<&str>,
    keys: Option<Vec<Key>>,
    limit: Duration,
    waits: impl Fn(&str),
) -> Result<Vec<Report>, OperatorError> {
    let Operator { name, controllers, clock, entropy, metrics, stack, scope, .. } = operator;
    if let Some(wanted) = controller
        && !controllers.iter().any(|controller| controller.name() == wanted)
    {
        let names: Vec<&str> = controllers.iter().map(crate::AnyController::name).collect();
        let reason = format!("{name} has no controller of this name, only {}", names.join(", "));
        return Err(OperatorError::Failed { what: format!("controller {wanted}"), reason });
    }
    let chosen: Vec<_> = controllers
        .iter()
        .filter(|planned| controller.is_none_or(|wanted| planned.name() == wanted))
        .collect();
    if let Some(key) = keys.iter().flatten().find(|key| !chosen.iter().any(|planned| fits(key, planned))) {
        let kinds: Vec<String> = chosen.iter().map(|planned| planned.kind().to_string()).collect();
        let (has, say) = match key.namespace {
            Some(_) => ("no namespaces", key.name.clone()),
            None => ("namespaces", format!("NAMESPACE/{}", key.name)),
        };
        let reason = format!("objects of {} have {has}: say {say}", kinds.join(" and "));
        return Err(OperatorError::Failed { what: format!("plan {key}"), reason });
    }
    if let Some(scope) = &scope
        && let Some(missing) = diagnosis::missing_namespace(&client, scope).await
    {
        let reason = format!("there is no namespace {missing}, which --watch-namespaces names");
        return Err(OperatorError::Failed { what: "plan".to_owned(), reason });
    }
    let entropy = entropy.unwrap_or_else(Entropy::from_system);
    let mut requests = RequestStack::new(&metrics, entropy.clone()).read_only();
    if let Some(change) = stack {
        requests = change(requests);
    }
    let runtime = Runtime::builder(requests.over(client))
        .clock(clock.unwrap_or_else(Clock::system))
        .entropy(entropy)
        .scope(scope.unwrap_or_default())
        .recorder(Arc::new(Nobody))
        .dry_run(true)
        .build();
    let mut reports = Vec::new();
    for planned in chosen {
        let keys = keys.as_ref().map(|keys| keys.iter().filter(|key| fits(key, planned)).cloned().collect());
        if keys.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let once = std::pin::pin!(planned.once(runtime.clone(), keys));
        reports.extend(within(once, limit, &runtime, planned.name(), &waits).await?);
    }
    Ok(reports)
}

/// Whether a controller's kind has objects of such names.
fn fits(key: &Key, controller: &AnyController) -> bool {
    controller.kind().namespaced == key.namespace.is_some()
}

/// Objects that were asked for by name and that no controller found, as one message.
pub(super) fn missing(reports: &[Report]) -> Option<String> {
    let found = |key: &Key| reports.iter().any(|r| &r.object.key == key && !matches!(r.ended, Ended::Gone));
    let gone: Vec<&ObjectRef> = reports
        .iter()
        .filter(|report| matches!(report.ended, Ended::Gone) && !found(&report.object.key))
        .map(|report| &report.object)
        .collect();
    let first = gone.first()?;
    let names: Vec<String> = gone.iter().map(ToString::to_string).collect();
    let Kind { plural, group, namespaced, .. } = &first.kind;
    let dot = if group.is_empty() { "" } else { "." };
    let all = if *namespaced { " --all-namespaces" } else { "" };
    let does = if gone.len() == 1 { "does" } else { "do" };
    Some(format!("{} {does} not exist: see `kubectl get {plural}{dot}{group}{all}`", names.join(" and ")))
}

/// Waits for the reconciles of a controller, and says which caches are not filled when it takes long.
async fn within(
    mut once: std::pin::Pin<&mut impl Future<Output = crate::Result<Vec<Report>>>>,
    limit: Duration,
    runtime: &Runtime,
    controller: &str,
    waits: &impl Fn(&str),
) -> Result<Vec<Report>, OperatorError> {
    let what = format!("controller {controller}");
    let end = tokio::time::Instant::now() + limit;
    let mut pause = Duration::from_secs(2).min(limit);
    let mut told = None;
    loop {
        if let Ok(result) = tokio::time::timeout(pause, once.as_mut()).await {
            return result.map_err(|error| OperatorError::Failed { what, reason: error.to_string() });
        }
        let caches = runtime.caches().health();
        let missing: Vec<String> = caches.iter().filter(|cache| !cache.synced).map(unfilled).collect();
        let waiting = if missing.is_empty() {
            format!("{what}: still reconciling")
        } else {
            format!("{what}: waits for {}", missing.join(", "))
        };
        if tokio::time::Instant::now() >= end {
            let reason = format!(
                "not done after {limit:?}: {waiting}; are the CRDs installed, and may this account list them? --timeout-seconds waits longer"
            );
            return Err(OperatorError::Failed { what: "plan".to_owned(), reason });
        }
        if told.as_ref() != Some(&waiting) {
            waits(&waiting);
            told = Some(waiting);
        }
        pause = Duration::from_secs(5);
    }
}

fn unfilled(cache: &CacheHealth) -> String {
    match &cache.error {
        Some(error) => format!("{} ({error})", cache.place()),
        None => cache.place(),
    }
}

/// The fields that a write would change; none if it would change nothing, or it cannot be told.
fn fields(write: &Write) -> Vec<FieldChange> {
    write.change.as_ref().map(changes).unwrap_or_default()
}

/// Whether the write would change something. What cannot be compared counts as a change.
fn changes_something(write: &Write) -> bool {
    write.error.is_none() && (write.change.is_none() || !fields(write).is_empty())
}

/// What a plan comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) objects: usize,
    pub(super) writes: usize,
    pub(super) failed: usize,
}

impl Sum {
    pub(super) fn of(reports: &[Report]) -> Self {
        let failed = |report: &&Report| matches!(report.ended, Ended::Failed { .. });
        Self {
            objects: reports.len(),
            writes: reports.iter().flat_map(|report| &report.writes).filter(|w| changes_something(w)).count(),
            failed: reports.iter().filter(failed).count(),
        }
    }
}

/// For people: objects that nothing would be done for are counted only.
pub(super) fn text(reports: &[Report]) -> String {
    let mut out = String::new();
    // Writing into a String cannot fail.
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(out, "{text}");
    };
    for report in reports {
        let quiet = report.writes.iter().all(|write| write.error.is_none() && !changes_something(write));
        if quiet && report.events.is_empty() && matches!(report.ended, Ended::Succeeded(_)) {
            continue;
        }
        line(format_args!("{} ({})", report.object, report.controller));
        for write in report.writes.iter().filter(|write| write.error.is_some() || changes_something(write)) {
            let new = write.change.as_ref().is_some_and(|change| change.before.is_null());
            line(format_args!("  {write}{}", if new { " (new)" } else { "" }));
            for FieldChange { path, before, after } in fields(write) {
                match (before, after) {
                    (Some(before), Some(after)) => line(format_args!("    ~ {path}: {before} -> {after}")),
                    (None, Some(after)) => line(format_args!("    + {path}: {after}")),
                    (Some(before), None) => line(format_args!("    - {path}: {before}")),
                    (None, None) => {}
                }
            }
        }
        for event in &report.events {
            let severity = if event.severity == Severity::Warning { "warning" } else { "event" };
            line(format_args!("  {severity} {}: {}", event.reason, event.note));
        }
        match &report.ended {
            Ended::Failed { error, .. } => line(format_args!("  error: {error}")),
            Ended::Gone => line(format_args!("  does not exist")),
            Ended::Succeeded(_) => {}
        }
    }
    let Sum { objects, writes, failed } = Sum::of(reports);
    let (objects, writes) = (count(objects, "object"), count(writes, "write"));
    line(format_args!("{objects} looked at, {writes} planned, {failed} failed"));
    out
}

/// A number of things.
pub(super) fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// For programs: one entry for each object.
pub(super) fn json(reports: &[Report]) -> Value {
    reports
        .iter()
        .map(|report| {
            let mut entry = report.to_json();
            for (shown, write) in entry["writes"].as_array_mut().into_iter().flatten().zip(&report.writes) {
                shown["changes"] = fields(write)
                    .into_iter()
                    .map(|field| json!({"path": field.path, "before": field.before, "after": field.after}))
                    .collect();
            }
            entry
        })
        .collect()
}
