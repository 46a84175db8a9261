use std::future::Future;
use std::sync::Arc;

use crate::{Action, Context, Object, Result};

/// Drives one object towards its spec. Write the method as `async fn`.
///
/// Level-triggered: it gets the object as it is, not what happened to it, and may run at any time, again
/// after a crash, and be dropped at any await (time limit, loss of leadership).
pub trait Reconciler: Send + Sync + 'static {
    /// The kind that is reconciled.
    type Object: Object;

    /// Looks at `object` and its children, writes what differs, and says when to come back.
    fn reconcile(
        &self,
        object: Arc<Self::Object>,
        cx: &Context<Self::Object>,
    ) -> impl Future<Output = Result<Action>> + Send;
}

/// Cleans up outside the cluster before an object goes; see [`crate::Controller::finalizer`].
pub trait Cleanup: Reconciler {
    /// Runs when the object is being deleted, again and again until it succeeds.
    /// [`Action::await_change`] means that nothing is left: the finalizer is removed.
    /// [`Action::requeue`] means that it is not done yet: it comes back after the delay.
    fn cleanup(
        &self,
        object: Arc<Self::Object>,
        cx: &Context<Self::Object>,
    ) -> impl Future<Output = Result<Action>> + Send;
}
