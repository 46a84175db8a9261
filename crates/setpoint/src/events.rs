//! Kubernetes Events (`events.k8s.io/v1`), recorded in the background:
//!
//! ```text
//! cx.event ─▶ bounded queue ─▶ Correlator: series, spam filter (pure) ─▶ writer: create / patch the series
//! ```
//!
//! Recording never blocks or fails a reconcile: an event too many is dropped and counted in the log. At the
//! end of the process the queue is drained and open series get their final count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use setpoint_clock::{Clock, Entropy};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::{Event, Recorder};

mod correlator;
mod writer;

use correlator::Occurrence;
use writer::Writer;

/// Events that wait to be sent; more are dropped. As in client-go's event broadcaster.
const QUEUE: usize = 1000;

/// How often it is said, in a burst that goes on, how many were dropped.
const WORD_EVERY: Duration = Duration::from_secs(60);

/// Sends events to the API server. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct EventRecorder {
    queue: mpsc::Sender<Occurrence>,
    dropped: Arc<AtomicU64>,
    clock: Clock,
}

/// The background part of an [`EventRecorder`]: a future to be run until it ends, which it does when the
/// recorder and its clones are dropped and what they recorded was sent.
pub(crate) struct EventSender {
    queue: mpsc::Receiver<Occurrence>,
    dropped: Arc<AtomicU64>,
    writer: Writer,
}

/// A recorder whose events name `instance` as the reporting instance, and the part that sends them.
pub(crate) fn recorder(
    client: Client,
    clock: Clock,
    entropy: Entropy,
    instance: &str,
) -> (EventRecorder, EventSender) {
    let (send, receive) = mpsc::channel(QUEUE);
    let dropped = Arc::<AtomicU64>::default();
    let writer = Writer::new(client, clock, entropy, instance);
    (
        EventRecorder { queue: send, dropped: dropped.clone(), clock },
        EventSender { queue: receive, dropped, writer },
    )
}

impl Recorder for EventRecorder {
    fn record(&self, controller: &str, about: &ObjectReference, event: Event) {
        let occurrence = Occurrence {
            controller: controller.to_owned(),
            regarding: about.clone(),
            event,
            time: self.clock.now(),
        };
        if self.queue.try_send(occurrence).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EventSender {
    /// Sends until every recorder is dropped and the queue is empty; then gives open series their final
    /// count. Bound the time of that end from outside.
    pub(crate) async fn run(mut self) {
        let mut next_word = Instant::now() + WORD_EVERY;
        loop {
            let next = match self.writer.next_sweep() {
                Some(at) => tokio::time::timeout_at(at, self.queue.recv()).await,
                None => Ok(self.queue.recv().await),
            };
            match next {
                Ok(Some(occurrence)) => self.writer.record(occurrence).await,
                Ok(None) => break,
                Err(_) => self.writer.sweep().await,
            }
            // One line for a burst, not one for each event that made room for the next.
            if self.queue.is_empty() || Instant::now() >= next_word {
                self.tell_dropped();
                next_word = Instant::now() + WORD_EVERY;
            }
        }
        self.tell_dropped();
        self.writer.finish().await;
    }

    fn tell_dropped(&self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "events were dropped: more than {QUEUE} waited to be sent");
        }
    }
}

/// How long the end of [`EventSender::run`] is waited for when an operator stops.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
