use std::sync::Arc;

use kube::ResourceExt as _;
use parking_lot::Mutex;
use setpoint::{Action, Context, Reconciler, Result};

use crate::world::Website;

/// Says which site ran, and why.
#[derive(Default)]
pub(crate) struct Seen(Mutex<Vec<String>>);

impl Reconciler for Seen {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let causes: Vec<String> = cx.causes().iter().map(ToString::to_string).collect();
        self.0.lock().push(format!("{}: {}", site.name_any(), causes.join(", ")));
        Ok(Action::await_change())
    }
}

impl Seen {
    /// The runs since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}
