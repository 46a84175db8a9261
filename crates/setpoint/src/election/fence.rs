use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Timings;

/// Lets writes through only while this process leads. Time alone shuts it: nobody has to run for that.
#[derive(Clone)]
pub(crate) struct Fence(Arc<Shared>);

struct Shared {
    timings: Timings,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The present term, or the last one.
    term: u64,
    /// When the request that renewed the lease last was sent.
    renewed: Option<Instant>,
}

/// This process does not lead, so it must not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not lead, or not any more: another one does the work")]
pub struct NotLeading;

impl Fence {
    pub(crate) fn new(timings: Timings) -> Self {
        Self(Arc::new(Shared { timings, state: Mutex::default() }))
    }

    /// A term begins, with a lease that was asked for at `sent`.
    pub(super) fn open(&self, term: u64, sent: Instant) {
        *self.0.state.lock() = State { term, renewed: Some(sent) };
    }

    /// The lease was renewed by a request of `sent`.
    pub(super) fn renewed(&self, sent: Instant) {
        if let Some(renewed) = &mut self.0.state.lock().renewed {
            *renewed = sent;
        }
    }

    /// The term is over.
    pub(super) fn shut(&self) {
        self.0.state.lock().renewed = None;
    }

    /// Until when writes may start unless the lease is renewed; `None` if they may not.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let renewed = self.0.state.lock().renewed?;
        Some(renewed + self.0.timings.renew)
    }

    /// Whether a write may start now, and how long it may take.
    pub(crate) fn admit(&self, now: Instant) -> Result<Duration, NotLeading> {
        let renewed = self.0.state.lock().renewed.ok_or(NotLeading)?;
        if now < renewed + self.0.timings.renew {
            Ok(renewed + self.0.timings.usable() - now)
        } else {
            Err(NotLeading)
        }
    }

    /// The present term, or the last one.
    pub(crate) fn term(&self) -> Term {
        Term { number: self.0.state.lock().term, fence: Some(self.clone()) }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&*self.0.state.lock()).finish()
    }
}

/// A term of leadership, for effects outside the cluster (commands to a database): [`check`](Self::check)
/// before each, and end each by its [`deadline`](Self::deadline). Writes through the context are fenced as they are.
///
/// A reconcile is dropped when its term ends. Without an election there is one term without an end.
#[derive(Clone)]
pub struct Term {
    number: u64,
    fence: Option<Fence>,
}

impl Term {
    pub(crate) fn endless() -> Self {
        Self { number: 0, fence: None }
    }

    /// A number that grows from term to term, whoever leads: the Lease's count of transitions. Who keeps it
    /// knows when to cut what the leader of an earlier term has left open. 0 without an election.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether this process leads in this term, until the renew deadline.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(&self) -> Result<(), NotLeading> {
        let Some(fence) = &self.fence else { return Ok(()) };
        if fence.0.state.lock().term != self.number {
            return Err(NotLeading);
        }
        fence.admit(Instant::now()).map(drop)
    }

    /// When an effect that begins now must have ended, so that the next leader does not meet it. It moves on with
    /// each renewal; now, when the term is over.
    pub fn deadline(&self) -> Instant {
        let now = Instant::now();
        let Some(fence) = &self.fence else { return now + Duration::from_secs(365 * 24 * 3600) };
        let state = *fence.0.state.lock();
        match state.renewed {
            Some(renewed) if state.term == self.number => now.max(renewed + fence.0.timings.usable()),
            _ => now,
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Term").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fence() -> Fence {
        Fence::new(Timings { lease: SECOND * 20, renew: SECOND * 10, retry: SECOND * 2 })
    }

    #[test]
    fn writes_start_before_the_renew_deadline_and_end_before_the_lease_does() {
        let (fence, sent) = (fence(), Instant::now());
        assert_eq!(fence.admit(sent), Err(NotLeading));
        fence.open(3, sent);
        assert_eq!(fence.admit(sent + SECOND), Ok(SECOND * 18));
        assert_eq!(fence.admit(sent + SECOND * 9), Ok(SECOND * 10));
        assert_eq!(fence.admit(sent + SECOND * 10), Err(NotLeading), "by time alone");
        fence.renewed(sent + SECOND * 8);
        assert_eq!(fence.admit(sent + SECOND * 10), Ok(SECOND * 17));
        fence.shut();
        fence.renewed(sent + SECOND * 10);
        assert_eq!(fence.admit(sent + SECOND * 10), Err(NotLeading), "a late renewal opens nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_with_its_lease_and_does_not_come_back() {
        let fence = fence();
        fence.open(3, Instant::now());
        let term = fence.term();
        assert_eq!((term.number(), term.check()), (3, Ok(())));
        assert_eq!(term.deadline() - Instant::now(), SECOND * 19);
        tokio::time::advance(SECOND * 10).await;
        assert_eq!(term.check(), Err(NotLeading));
        fence.open(5, Instant::now());
        assert_eq!((term.check(), fence.term().check()), (Err(NotLeading), Ok(())));
        assert_eq!(term.deadline(), Instant::now());
        assert_eq!(Term::endless().check(), Ok(()));
    }
}
