use std::sync::Arc;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use parking_lot::Mutex;

use super::Trigger;

/// A source that speaks from anywhere: a webhook receiver, another controller, a task. Cheap to clone; clones are the
/// same channel. Give it to [`crate::Controller::channel`].
///
/// What is sent while no controller listens (it has not started, or another replica leads) is dropped:
/// all objects are reconciled when one begins to.
#[derive(Clone, Debug, Default)]
pub struct Channel(Arc<Mutex<Vec<UnboundedSender<Trigger>>>>);

impl Channel {
    /// A channel that nobody listens to yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells all controllers that listen. Never waits.
    pub fn send(&self, trigger: impl Into<Trigger>) {
        let trigger = trigger.into();
        self.0.lock().retain(|listener| listener.unbounded_send(trigger.clone()).is_ok());
    }

    /// Listens, until what this gives is dropped.
    pub(super) fn listen(&self) -> UnboundedReceiver<Trigger> {
        let (sender, receiver) = unbounded();
        self.0.lock().push(sender);
        receiver
    }
}
