//! Leader election: of several replicas of an operator one works, the others stand by with warm caches.
//!
//! ```text
//! Lease ◀── get / create / update ── Campaign ──▶ Fence ──▶ every attempt of a write asks it
//!   │                                   ▲                └──▶ Term, for effects outside the cluster
//!   └──────────── watch ────────────────┘
//! ```
//!
//! No write starts after the renew deadline, and each write's deadline ends before the lease can be taken
//! over; what is already at the server may still land, and a paused process may send one late; only
//! preconditions fence completely. So: `cx.apply(x).if_unchanged()`, and before a disruptive step a
//! compare-and-swap on the owner's status.

use std::time::Duration;

mod campaign;
mod candidate;
mod fence;
mod lock;

pub(crate) use campaign::{Campaign, Ended};
pub(crate) use fence::Fence;
pub use fence::{NotLeading, Term};
pub use lock::Lock;

/// How replicas of an operator elect the one that works; see [`crate::Operator::election`].
///
/// The lock is a Lease of `coordination.k8s.io/v1` unless [`lock`](Self::lock) says otherwise. Whether the lease of another replica is over is judged by
/// this machine's clock since the lease was last seen to change; clocks are never compared.
#[derive(Clone, Debug)]
pub struct Election {
    pub(crate) name: String,
    pub(crate) lock: Lock,
    pub(crate) namespace: Option<String>,
    pub(crate) identity: Option<String>,
    pub(crate) timings: Timings,
    pub(crate) stands_by: bool,
}

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timings {
    pub(crate) lease: Duration,
    pub(crate) renew: Duration,
    pub(crate) retry: Duration,
}

/// Up to so much longer than the retry period is waited by chance, so that replicas don't ask in step.
pub(crate) const JITTER: f64 = 1.2;

/// Why an election cannot work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Impossible {
    #[error("the lease's duration of {0:?} is no whole number of seconds above 0")]
    Lease(Duration),
    #[error("the renew deadline of {renew:?} is not shorter than the lease of {lease:?} less a twentieth")]
    Renew { renew: Duration, lease: Duration },
    #[error(
        "the retry period of {retry:?}, {jittered:?} with jitter, is not shorter than the renew deadline of {renew:?}, or is 0"
    )]
    Retry { retry: Duration, jittered: Duration, renew: Duration },
}

impl Election {
    /// An election whose Lease has this name, such as `website-operator.example.com`, in the namespace that the
    /// client works in: in a pod the pod's own. A lease lasts 15 s, is renewed every 2 s, and given up
    /// when it could not be renewed for 10 s.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            lock: Lock::default(),
            namespace: None,
            identity: None,
            timings: Timings {
                lease: Duration::from_secs(15),
                renew: Duration::from_secs(10),
                retry: Duration::from_secs(2),
            },
            stands_by: false,
        }
    }

    /// What to compete for; a Lease unless set. All replicas have to agree: those with another lock form an election of their own.
    pub fn lock(mut self, lock: Lock) -> Self {
        self.lock = lock;
        self
    }

    /// The namespace of the lock.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The name of this replica in the Lease, another one in each process. Default: the pod's or host's name
    /// with something random.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// How long a lease lasts (whole seconds), after how long without a renewal its holder gives up, and how
    /// often it is renewed or, by the others, asked for. Each must be clearly shorter than the one before.
    pub fn timings(mut self, lease: Duration, renew_deadline: Duration, retry_period: Duration) -> Self {
        self.timings = Timings { lease, renew: renew_deadline, retry: retry_period };
        self
    }

    /// A replica that loses its lease stands by again, with its caches. Default: the operator ends with an
    /// error, and the process starts afresh.
    pub fn stand_by(mut self) -> Self {
        self.stands_by = true;
        self
    }
}

impl Timings {
    pub(crate) fn check(&self) -> Result<(), Impossible> {
        let Self { lease, renew, retry } = *self;
        if lease < Duration::from_secs(1) || lease.subsec_nanos() != 0 {
            return Err(Impossible::Lease(lease));
        }
        if renew >= self.usable() {
            return Err(Impossible::Renew { renew, lease });
        }
        let jittered = retry.mul_f64(JITTER);
        if retry.is_zero() || jittered >= renew {
            return Err(Impossible::Retry { retry, jittered, renew });
        }
        Ok(())
    }

    /// How long after its last renewal a lease may be relied on: a twentieth less than it lasts, for clocks
    /// that run at different speeds.
    pub(crate) fn usable(&self) -> Duration {
        self.lease.saturating_sub(self.lease / 20)
    }

    /// How long one request about the lease may take: half of the renew deadline, at least a second.
    pub(crate) fn request(&self) -> Duration {
        (self.renew / 2).max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_timings_say_what_is_wrong() {
        let check = |lease, renew, retry| {
            let election = Election::new("web").timings(
                Duration::from_millis(lease),
                Duration::from_millis(renew),
                Duration::from_millis(retry),
            );
            election.timings.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(15_000, 10_000, 2000), Ok(()));
        for (times, expected) in [
            ((500, 400, 100), "no whole number"),
            ((1500, 1000, 100), "no whole number"),
            ((10_000, 9500, 2000), "renew deadline of 9.5s is not shorter"),
            ((15_000, 10_000, 9000), "10.8s with jitter"),
            ((15_000, 10_000, 0), "or is 0"),
        ] {
            let error = check(times.0, times.1, times.2).expect_err("impossible");
            assert!(error.contains(expected), "{error}");
        }
    }
}
