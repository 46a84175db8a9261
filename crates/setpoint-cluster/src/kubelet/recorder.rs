//! Events about pods, written in order by one task of each node, repeated ones counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use setpoint_clock::Clock;
use tokio::sync::mpsc;

use super::container::{Role, seconds};
use super::pod::Note;

/// Warnings about one pod go out up to this many at once and one more each [`REFILL_SECONDS`], as the spam
/// filter of client-go has it.
const BURST: i64 = 25;
const REFILL_SECONDS: i64 = 300;
/// Repeated events are counted on the first one for this long.
const REMEMBERED: usize = 1024;

/// Takes events; cheap to clone.
#[derive(Clone)]
pub struct Recorder(mpsc::UnboundedSender<Report>);

struct Report {
    pod: Arc<Pod>,
    container: Option<(Role, String)>,
    note: Note,
    at: Timestamp,
}

impl Recorder {
    /// A recorder, and the work that writes what it takes; the work ends when all recorders are dropped.
    pub fn new(
        client: Client,
        clock: Clock,
        component: &str,
        host: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let writer = Writer {
            client,
            clock,
            component: component.to_owned(),
            host: host.to_owned(),
            written: BTreeMap::new(),
            tokens: BTreeMap::new(),
            sequence: 0,
        };
        (Self(sender), writer.run(receiver))
    }

    /// Records an event about the pod or one of its containers.
    pub fn record(&self, pod: &Arc<Pod>, container: Option<(Role, String)>, note: Note, at: Timestamp) {
        // The receiver lives as long as the node; a late event of a stopped node has no reader.
        let _ = self.0.send(Report { pod: pod.clone(), container, note, at });
    }
}

struct Writer {
    client: Client,
    clock: Clock,
    component: String,
    host: String,
    written: BTreeMap<(String, Option<String>, String, String), (String, i32)>,
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
        let uid = report.pod.metadata.uid.clone().unwrap_or_default();
        let now = report.at.as_second();
        let (tokens, since) = self.tokens.entry(uid).or_insert((BURST, now));
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
        let metadata = &report.pod.metadata;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let events = Api::<Event>::namespaced(self.client.clone(), &namespace);
        let field = report.container.as_ref().map(|(role, name)| {
            let list = if *role == Role::Main { "containers" } else { "initContainers" };
            format!("spec.{list}{{{name}}}")
        });
        let uid = metadata.uid.clone().unwrap_or_default();
        let key = (uid, field.clone(), report.note.reason.clone(), report.note.message.clone());
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
        let name = self.create(&events, report, namespace, field, now).await?;
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
        field: Option<String>,
        now: Time,
    ) -> kube::Result<String> {
        let metadata = &report.pod.metadata;
        let mut event = Event {
            metadata: ObjectMeta { namespace: Some(namespace.clone()), ..ObjectMeta::default() },
            involved_object: ObjectReference {
                api_version: Some(Pod::api_version(&()).into_owned()),
                kind: Some(Pod::kind(&()).into_owned()),
                namespace: Some(namespace),
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
                field_path: field,
            },
            type_: Some(if report.note.warning { "Warning" } else { "Normal" }.into()),
            reason: Some(report.note.reason.clone()),
            message: Some(report.note.message.clone()),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: Some(self.host.clone()).filter(|host| !host.is_empty()),
            }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Event::default()
        };
        loop {
            // As client-go names events: object and time. Simulated time stands still, hence the sequence.
            self.sequence += 1;
            let number = self.clock.now().as_nanosecond() as u64 ^ (self.sequence << 40);
            let name = format!("{}.{number:x}", metadata.name.as_deref().unwrap_or_default());
            event.metadata.name = Some(name.clone());
            match events.create(&PostParams::default(), &event).await {
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
                other => return other.map(|_| name),
            }
        }
    }
}
