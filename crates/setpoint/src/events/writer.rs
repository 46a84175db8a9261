use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event as EventObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use setpoint_clock::{Clock, Entropy};
use tokio::time::Instant;

use super::correlator::{Correlator, Occurrence, SeriesKey, Step, Tally};
use crate::Severity;

/// How often a request without an answer is tried, and how long between (client-go's `maxTriesPerEvent` and
/// `defaultSleepDuration`).
const TRIES: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);
/// How often finished series are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Limits of the API server's validation of events.k8s.io/v1.
const MAX_NOTE: usize = 1024;
const MAX_WORD: usize = 128;
/// Longest object name.
const MAX_NAME: usize = 253;

/// One request.
enum Write {
    Create(Box<EventObject>),
    Count(Box<Tally>),
}

/// Sends what the correlator decides, one request at a time and in order.
pub(super) struct Writer {
    client: Client,
    clock: Clock,
    entropy: Entropy,
    instance: String,
    correlator: Correlator,
    last_name: i128,
    next_sweep: Instant,
    patient: bool,
}

impl Writer {
    pub(super) fn new(client: Client, clock: Clock, entropy: Entropy, instance: &str) -> Self {
        Self {
            client,
            clock,
            entropy,
            instance: cut(instance, MAX_WORD),
            correlator: Correlator::default(),
            last_name: 0,
            next_sweep: Instant::now() + SWEEP_EVERY,
            patient: true,
        }
    }

    /// When [`sweep`](Self::sweep) is due; `None` while there is nothing to sweep.
    pub(super) fn next_sweep(&self) -> Option<Instant> {
        (!self.correlator.is_empty()).then_some(self.next_sweep)
    }

    pub(super) async fn record(&mut self, occurrence: Occurrence) {
        match self.correlator.observe(&occurrence) {
            Step::Create(key) => self.create(key, occurrence).await,
            Step::Count(tally) => self.count(tally).await,
            Step::Later => {}
            Step::Spam => tracing::debug!(
                object = occurrence.regarding.name,
                reason = occurrence.event.reason,
                "event dropped: too many about this object"
            ),
        }
    }

    pub(super) async fn sweep(&mut self) {
        self.next_sweep = Instant::now() + SWEEP_EVERY;
        for tally in self.correlator.sweep(self.clock.now()) {
            self.count(tally).await;
        }
    }

    /// The last counts, each tried only once: nobody waits long for a process that ends.
    pub(super) async fn finish(&mut self) {
        self.patient = false;
        for tally in self.correlator.finish(self.clock.now()) {
            self.count(tally).await;
        }
    }

    async fn create(&mut self, key: SeriesKey, occurrence: Occurrence) {
        let time = occurrence.time;
        let object = self.object(occurrence);
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        match self.tried(&Write::Create(Box::new(object))).await {
            // "Already exists" is the answer to a request whose first attempt had arrived.
            Ok(()) => self.correlator.created(key, &namespace, &name, time),
            Err(Error::Api(status)) if status.code == 409 => {
                self.correlator.created(key, &namespace, &name, time);
            }
            Err(error) => refused(&name, &error),
        }
    }

    async fn count(&mut self, tally: Tally) {
        let (key, name) = (tally.key.clone(), tally.name.clone());
        match self.tried(&Write::Count(Box::new(tally))).await {
            Ok(()) => {}
            Err(Error::Api(status)) if status.code == 404 => self.correlator.lost(&key),
            Err(error) => refused(&name, &error),
        }
    }

    /// Tries until the server answers, whatever it says: an answer will not change by asking again.
    async fn tried(&self, write: &Write) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            match self.send(write).await {
                Ok(()) => return Ok(()),
                Err(error @ Error::Api(_)) => return Err(error),
                Err(error) if tries == TRIES || !self.patient => return Err(error),
                Err(_) => {
                    // The first pause is a random part of it, so that many operators spread out.
                    let pause = if tries == 1 {
                        Duration::from_millis(self.entropy.below(PAUSE.as_millis() as u64))
                    } else {
                        PAUSE
                    };
                    tokio::time::sleep(pause).await;
                    tries += 1;
                }
            }
        }
    }

    async fn send(&self, write: &Write) -> Result<(), Error> {
        let api = |namespace: &str| Api::<EventObject>::namespaced(self.client.clone(), namespace);
        match write {
            Write::Create(event) => {
                let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
                api(namespace).create(&PostParams::default(), event).await.map(drop)
            }
            Write::Count(tally) => {
                let Tally { namespace, name, total, last, .. } = &**tally;
                let patch = json!({"series": {"count": total, "lastObservedTime": MicroTime(*last)}});
                api(namespace).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
            }
        }
    }

    fn object(&mut self, occurrence: Occurrence) -> EventObject {
        let Occurrence { controller, regarding, event, time } = occurrence;
        EventObject {
            metadata: ObjectMeta {
                name: Some(self.name(regarding.name.as_deref().unwrap_or("event"), time)),
                // Events about cluster-scoped objects live in "default", as client-go puts them.
                namespace: Some(regarding.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(time)),
            type_: Some(kind(event.severity).to_owned()),
            reason: Some(cut(&event.reason, MAX_WORD)),
            action: Some(cut(&event.action, MAX_WORD)),
            note: Some(cut(&event.note, MAX_NOTE)),
            regarding: Some(regarding),
            related: event.related,
            reporting_controller: Some(controller),
            reporting_instance: Some(self.instance.clone()),
            ..EventObject::default()
        }
    }

    /// `<object>.<time in hexadecimal>`, as client-go names events; the time moves on by a nanosecond where
    /// two fall on the same one.
    fn name(&mut self, object: &str, time: Timestamp) -> String {
        self.last_name = time.as_nanosecond().max(self.last_name + 1);
        let suffix = format!(".{:x}", self.last_name);
        format!("{}{suffix}", cut(object, MAX_NAME - suffix.len()))
    }
}

fn kind(severity: Severity) -> &'static str {
    match severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    }
}

fn refused(name: &str, error: &Error) {
    let reason = match error {
        Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    };
    tracing::warn!(event = name, reason, "an event could not be recorded");
}

/// At most `max` bytes of `text`, cut between characters.
fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}
