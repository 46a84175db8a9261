use std::time::Duration;

/// When a successfully reconciled object is looked at again.
///
/// kube's type of the same name and constructors, readable so that tests can look inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    after: Option<Duration>,
}

impl Action {
    /// Come back after `after`, or earlier when something changes. Resets the failure count.
    pub fn requeue(after: Duration) -> Self {
        Self { after: Some(after) }
    }

    /// Come back when something that is watched changes.
    ///
    /// Returned from [`crate::Cleanup::cleanup`] it means that nothing is left to clean up: the finalizer goes.
    pub fn await_change() -> Self {
        Self { after: None }
    }

    /// The delay asked for, if any.
    pub fn delay(&self) -> Option<Duration> {
        self.after
    }
}

/// `count` minutes.
pub const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

/// `count` seconds.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
