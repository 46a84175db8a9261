//! The delay before a failed container is started, or a missing image asked for, again.

use std::time::Duration;

use jiff::Timestamp;

/// Exponential back-off with upstream's rule (`k8s.io/client-go/util/flowcontrol.Backoff`): the first try
/// after a failure comes at once, the next ones wait `first`, twice that, and so on up to `longest`; an entry
/// that was not touched for twice `longest` starts over.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    delay: Duration,
    touched: Option<Timestamp>,
}

impl Backoff {
    /// A back-off that has seen no failure.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, delay: Duration::ZERO, touched: None }
    }

    /// The kubelet's for containers and images: 10 s doubling to 5 min.
    pub fn kubelet() -> Self {
        Self::new(Duration::from_secs(10), Duration::from_secs(300))
    }

    /// How long to wait after a failure at `failed`.
    pub fn delay(&self, failed: Timestamp) -> Duration {
        if self.expired(failed) { Duration::ZERO } else { self.delay }
    }

    /// Notes a new try at `now` after a failure at `failed`, which makes the next delay longer.
    pub fn next(&mut self, failed: Timestamp, now: Timestamp) {
        self.delay = if self.expired(failed) { self.first } else { (self.delay * 2).min(self.longest) };
        self.touched = Some(now);
    }

    fn expired(&self, at: Timestamp) -> bool {
        self.touched.is_none_or(|touched| elapsed(touched, at) > self.longest * 2)
    }
}

/// Time from `from` to `to`; zero when `to` is earlier.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or(Duration::ZERO)
}

/// `from` and a while later; the calendar's end where that would be passed.
pub fn later(from: Timestamp, by: Duration) -> Timestamp {
    from.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_restart_at_once_then_doubling_then_reset() {
        let mut backoff = Backoff::kubelet();
        let mut now = Timestamp::UNIX_EPOCH;
        let mut delays = Vec::new();
        for _ in 0..8 {
            let failed = later(now, Duration::from_secs(1));
            let delay = backoff.delay(failed);
            delays.push(delay.as_secs());
            now = later(failed, delay);
            backoff.next(failed, now);
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
        let failed = later(now, Duration::from_secs(601));
        assert_eq!(backoff.delay(failed), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn delay_never_leaves_its_range(gaps in proptest::collection::vec(0u64..2000, 1..40)) {
            let mut backoff = Backoff::kubelet();
            let mut now = Timestamp::UNIX_EPOCH;
            for gap in gaps {
                let failed = later(now, Duration::from_secs(gap));
                let delay = backoff.delay(failed);
                prop_assert!(delay == Duration::ZERO || (10..=300).contains(&delay.as_secs()));
                now = later(failed, delay);
                backoff.next(failed, now);
            }
        }
    }
}
