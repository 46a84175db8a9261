//! Who may take the lease: a pure machine over what was seen of it.

use jiff::Timestamp;
use std::time::Duration;

use tokio::time::Instant;

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Empty: nobody.
    pub(super) holder: String,
    pub(super) duration: Duration,
    /// How often the holder changed.
    pub(super) transitions: u64,
    pub(super) acquired: Option<Timestamp>,
    pub(super) renewed: Option<Timestamp>,
}

/// One replica that would like to lead.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    /// The last record, and when it was first seen by this machine's clock.
    seen: Option<(Record, Instant)>,
    /// An own claim whose answer did not come, and when it was sent.
    open_claim: Option<(Record, Instant)>,
}

/// What to do about the lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Somebody else holds it.
    Wait,
    /// It is free: try to write this.
    Claim(Record),
    /// A claim whose answer was lost has succeeded: its lease counts from the time at which it was sent.
    Won(Instant),
}

impl Candidate {
    pub(super) fn new(identity: String) -> Self {
        Self { identity, seen: None, open_claim: None }
    }

    /// Decides about the lease as the server has it. `wall` goes into the record only and decides nothing.
    pub(super) fn decide(
        &mut self,
        record: Option<Record>,
        now: Instant,
        wall: Timestamp,
        duration: Duration,
    ) -> Decision {
        let Some(record) = record else {
            // Somebody may have deleted it under its holder's feet: who has seen it waits for its end. Terms go on
            // counting.
            return match &self.seen {
                Some((seen, since)) if seen.is_held(*since, now) => Decision::Wait,
                seen => {
                    let transitions = seen.as_ref().map_or(0, |(seen, _)| seen.transitions + 1);
                    Decision::Claim(self.claim(transitions, wall, duration))
                }
            };
        };
        if let Some((claim, sent)) = self.open_claim.take_if(|(claim, _)| claim.same_term(&record)) {
            self.seen = Some((claim, now));
            return Decision::Won(sent);
        }
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != record) {
            self.seen = Some((record.clone(), now));
        }
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        // Also if it has our identity: another process may have it too, or an earlier life of ours that still has
        // a write under way.
        if record.is_held(since, now) {
            Decision::Wait
        } else {
            Decision::Claim(self.claim(record.transitions + 1, wall, duration))
        }
    }

    /// A claim was sent at `sent`, and nobody knows whether it arrived.
    pub(super) fn unanswered(&mut self, claim: Record, sent: Instant) {
        self.open_claim = Some((claim, sent));
    }

    /// A claim was refused or the term is over: what is seen next is seen anew.
    pub(super) fn forget_claim(&mut self) {
        self.open_claim = None;
    }

    /// When the lease ends that somebody else holds, if it is not renewed.
    pub(super) fn expiry(&self) -> Option<Instant> {
        let (seen, since) = self.seen.as_ref()?;
        Some(*since + seen.duration)
    }

    /// Whether the lease is held under this identity by another process.
    pub(super) fn has_double(&self) -> bool {
        self.seen.as_ref().is_some_and(|(seen, _)| seen.holder == self.identity)
    }

    fn claim(&self, transitions: u64, wall: Timestamp, duration: Duration) -> Record {
        // A Lease has microseconds.
        let wall = Timestamp::from_microsecond(wall.as_microsecond()).unwrap_or(wall);
        Record {
            holder: self.identity.clone(),
            duration,
            transitions,
            acquired: Some(wall),
            renewed: Some(wall),
        }
    }
}

impl Record {
    fn is_held(&self, since: Instant, now: Instant) -> bool {
        !self.holder.is_empty() && now < since + self.duration
    }

    /// The same holder in the same term, perhaps renewed.
    pub(super) fn same_term(&self, other: &Self) -> bool {
        (&self.holder, self.transitions, self.acquired) == (&other.holder, other.transitions, other.acquired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(15);

    fn record(holder: &str, transitions: u64, renewed: i64) -> Record {
        let time = |second| Some(Timestamp::from_second(second).unwrap());
        Record {
            holder: holder.to_owned(),
            duration: LEASE,
            transitions,
            acquired: time(1),
            renewed: time(renewed),
        }
    }

    fn wall() -> Timestamp {
        Timestamp::from_second(1_000_000).unwrap()
    }

    fn claims(decision: &Decision, transitions: u64) -> bool {
        matches!(decision, Decision::Claim(claim) if claim.transitions == transitions && claim.holder == "a")
    }

    #[test]
    fn a_lease_is_over_by_the_own_clock_since_its_last_change() {
        let (mut a, now) = (Candidate::new("a".to_owned()), Instant::now());
        // Its times are long past by our wall clock, which says nothing.
        let mut decide = |record, after| a.decide(record, now + SECOND * after, wall(), LEASE);
        assert_eq!(decide(Some(record("b", 3, 1)), 0), Decision::Wait);
        assert_eq!(decide(Some(record("b", 3, 1)), 14), Decision::Wait);
        assert_eq!(decide(Some(record("b", 3, 2)), 14), Decision::Wait, "renewed");
        assert_eq!(decide(Some(record("b", 3, 2)), 28), Decision::Wait);
        assert!(claims(&decide(Some(record("b", 3, 2)), 29), 4));
    }

    #[test]
    fn a_released_or_absent_lease_is_free() {
        let (mut a, now) = (Candidate::new("a".to_owned()), Instant::now());
        assert!(claims(&a.decide(None, now, wall(), LEASE), 0));
        assert_eq!(a.decide(Some(record("b", 7, 1)), now, wall(), LEASE), Decision::Wait);
        assert!(claims(&a.decide(Some(record("", 7, 1)), now, wall(), LEASE), 8));
    }

    #[test]
    fn a_deleted_lease_is_held_until_its_end_and_sets_no_term_back() {
        let (mut a, now) = (Candidate::new("a".to_owned()), Instant::now());
        assert_eq!(a.decide(Some(record("b", 7, 1)), now, wall(), LEASE), Decision::Wait);
        assert_eq!(a.decide(None, now + SECOND * 14, wall(), LEASE), Decision::Wait);
        assert!(claims(&a.decide(None, now + LEASE, wall(), LEASE), 8));
    }

    #[test]
    fn the_own_identity_is_no_right_to_lead() {
        let (mut a, now) = (Candidate::new("a".to_owned()), Instant::now());
        assert_eq!(a.decide(Some(record("a", 3, 1)), now, wall(), LEASE), Decision::Wait);
        assert!(a.has_double());
        assert!(claims(&a.decide(Some(record("a", 3, 1)), now + LEASE, wall(), LEASE), 4));
    }

    #[test]
    fn a_claim_whose_answer_was_lost_is_recognised() {
        let (mut a, now) = (Candidate::new("a".to_owned()), Instant::now());
        let Decision::Claim(claim) = a.decide(None, now, wall(), LEASE) else { panic!("free") };
        a.unanswered(claim.clone(), now);
        assert_eq!(a.decide(Some(claim.clone()), now + SECOND, wall(), LEASE), Decision::Won(now));
        assert_eq!(a.decide(Some(claim), now + SECOND, wall(), LEASE), Decision::Wait, "once");
    }
}
