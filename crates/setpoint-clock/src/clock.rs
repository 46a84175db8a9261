use jiff::Timestamp;
use tokio::time::Instant;

/// Wall-clock time that follows tokio's clock: an epoch plus the time elapsed since, so that it stands
/// still when the runtime's clock is paused and jumps when that is advanced.
///
/// Cheap to copy. Create it inside a tokio runtime: under a paused one, tokio's clock is only known there.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Timestamp,
    start: Instant,
}

impl Clock {
    /// A clock that starts at the machine's current time.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place where the machine's clock is read")]
        Self::at(Timestamp::now())
    }

    /// A clock that starts at `epoch`, for tests that compare times.
    pub fn at(epoch: Timestamp) -> Self {
        Self { epoch, start: Instant::now() }
    }

    /// The current time. Times past the calendar's end stay at its end.
    pub fn now(&self) -> Timestamp {
        self.timestamp(Instant::now())
    }

    /// The wall-clock time at `instant`. Instants before this clock's start are its epoch.
    pub fn timestamp(&self, instant: Instant) -> Timestamp {
        let elapsed = instant.saturating_duration_since(self.start);
        self.epoch.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_the_paused_clock() {
        let clock = Clock::at(Timestamp::UNIX_EPOCH);
        assert_eq!(clock.now(), Timestamp::UNIX_EPOCH);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().as_second(), 90);
    }
}
