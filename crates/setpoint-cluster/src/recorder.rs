//! Events of built-in controllers and kubelets, written in order by one task, repeated ones counted.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use setpoint_clock::Clock;
use tokio::sync::mpsc;

use crate::kubelet::seconds;

/// Events about one object go out up to this many at once and one more each [`REFILL_SECONDS`], as the spam
/// filter of client-go has it.
const BURST: i64 = 25;
const REFILL_SECONDS: i64 = 300;
/// So many different events are remembered, to count their repetitions.
const REMEMBERED: usize = 1024;

/// Takes events; cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    clock: Clock,
    reports: mpsc::UnboundedSender<Report>,
}

/// Who tells something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reporter {
    /// The component, such as `kubelet`.
    pub component: String,
    /// The node that it runs on, if it belongs to one.
    pub host: String,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is a Warning, else Normal.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Note {
    /// An event of type Normal.
    pub fn normal(reason: &str, message: String) -> Self {
        Self { warning: false, reason: reason.into(), message }
    }

    /// An event of type Warning.
    pub fn warning(reason: &str, message: String) -> Self {
        Self { warning: true, reason: reason.into(), message }
    }
}

#[derive(Debug)]
struct Report {
    reporter: Reporter,
    about: ObjectReference,
    note: Note,
    at: Timestamp,
}

impl Recorder {
    /// A recorder, and the work that writes what it takes; the work ends when all recorders are dropped.
    pub fn new(client: Client, clock: Clock) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (reports, receiver) = mpsc::unbounded_channel();
        let writer = Writer { client, clock, written: BTreeMap::new(), tokens: BTreeMap::new(), sequence: 0 };
        (Self { clock, reports }, writer.run(receiver))
    }

    /// Records an event about an object.
    pub fn record(&self, reporter: &Reporter, about: ObjectReference, note: Note) {
        let report = Report { reporter: reporter.clone(), about, note, at: self.clock.now() };
        // The receiver lives as long as the cluster; a late event of a stopped one has no reader.
        let _ = self.reports.send(report);
    }
}

impl setpoint::Recorder for Recorder {
    fn record(&self, controller: &str, about: &ObjectReference, event: setpoint::Event) {
        let reporter = Reporter { component: controller.to_owned(), host: String::new() };
        let warning = event.severity == setpoint::Severity::Warning;
        let note = Note { warning, reason: event.reason, message: event.note };
        Self::record(self, &reporter, about.clone(), note);
    }
}

/// Object, field, reason and message of an event.
type Fact = (String, Option<String>, String, String);

struct Writer {
    client: Client,
    clock: Clock,
    /// Name and count of the event that was written for each fact.
    written: BTreeMap<Fact, (String, i32)>,
    /// What is left of the burst of an object, and since when.
    tokens: BTreeMap<String, (i64, i64)>,
    sequence: u64,
}

impl Writer {
    async fn run(mut self, mut reports: mpsc::UnboundedReceiver<Report>) {
        while let Some(report) = reports.recv().await {
            if !self.admits(&report) {
                continue;
            }
            if let Err(error) = self.write(&report).await {
                tracing::debug!(%error, reason = report.note.reason, "event not recorded");
            }
        }
    }

    fn admits(&mut self, report: &Report) -> bool {
        let now = report.at.as_second();
        let (tokens, since) = self.tokens.entry(identity(&report.about)).or_insert((BURST, now));
        let refilled = (now - *since) / REFILL_SECONDS;
        *tokens = (*tokens + refilled).min(BURST);
        *since += refilled * REFILL_SECONDS;
        if *tokens == 0 {
            return false;
        }
        *tokens -= 1;
        true
    }

    async fn write(&mut self, report: &Report) -> kube::Result<()> {
        // Events about objects outside namespaces are kept in `default`.
        let namespace = report.about.namespace.clone().unwrap_or_else(|| "default".into());
        let events = Api::<Event>::namespaced(self.client.clone(), &namespace);
        let key = (
            identity(&report.about),
            report.about.field_path.clone(),
            report.note.reason.clone(),
            report.note.message.clone(),
        );
        let now = seconds(report.at);
        if let Some((name, count)) = self.written.get_mut(&key) {
            *count = count.saturating_add(1);
            let patch = json!({"count": *count, "lastTimestamp": now});
            match events.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                // It has expired or its namespace was emptied: write a new one.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => return other.map(drop),
            }
        }
        let name = self.create(&events, report, namespace, now).await?;
        if self.written.len() >= REMEMBERED {
            self.written.clear();
            self.tokens.clear();
        }
        self.written.insert(key, (name, 1));
        Ok(())
    }

    async fn create(
        &mut self,
        events: &Api<Event>,
        report: &Report,
        namespace: String,
        now: Time,
    ) -> kube::Result<String> {
        let Reporter { component, host } = &report.reporter;
        let mut event = Event {
            metadata: ObjectMeta { namespace: Some(namespace), ..ObjectMeta::default() },
            involved_object: report.about.clone(),
            type_: Some(if report.note.warning { "Warning" } else { "Normal" }.into()),
            reason: Some(report.note.reason.clone()),
            message: Some(report.note.message.clone()),
            source: Some(EventSource {
                component: Some(component.clone()),
                host: Some(host.clone()).filter(|host| !host.is_empty()),
            }),
            reporting_component: Some(component.clone()),
            reporting_instance: Some(host.clone()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        };
        loop {
            // As client-go names events: object and time. Simulated time stands still, hence the sequence.
            self.sequence += 1;
            let number = self.clock.now().as_nanosecond() as u64 ^ (self.sequence << 40);
            let name = format!("{}.{number:x}", report.about.name.as_deref().unwrap_or_default());
            event.metadata.name = Some(name.clone());
            match events.create(&PostParams::default(), &event).await {
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
                other => return other.map(|_| name),
            }
        }
    }
}

fn identity(about: &ObjectReference) -> String {
    about.uid.clone().or_else(|| about.name.clone()).unwrap_or_default()
}
