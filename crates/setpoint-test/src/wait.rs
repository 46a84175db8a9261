use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// What a probe of [`eventually`] saw: the awaited value, or why it isn't there yet.
pub type Seen<T> = Result<T, String>;

/// A wait that ended without the awaited state.
#[derive(Debug, thiserror::Error)]
#[error("{what}: not so after {within:?}; last seen: {last}")]
pub struct WaitError {
    /// What was waited for, in the caller's words.
    pub what: String,
    /// The bound.
    pub within: Duration,
    /// What the last probe saw.
    pub last: String,
}

/// The pause before the second probe; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Probes until it gives `Ok`, at most for `within` of tokio's time (which a paused clock skips).
///
/// # Errors
/// [`WaitError`] with the message of the last probe. A probe that hangs is cut off at the bound.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// use std::time::Duration;
/// let mut asked = 0;
/// let answer = setpoint_test::eventually("the third answer", Duration::from_secs(5), async || {
///     asked += 1;
///     if asked == 3 { Ok(asked) } else { Err(format!("answer {asked}")) }
/// });
/// assert_eq!(answer.await.unwrap(), 3);
/// # });
/// ```
pub async fn eventually<T>(
    what: impl Display,
    within: Duration,
    mut probe: impl AsyncFnMut() -> Seen<T>,
) -> Result<T, WaitError> {
    let deadline = Instant::now() + within;
    let mut pause = FIRST_PAUSE;
    let mut last = "nothing: the first probe did not end".to_owned();
    loop {
        match timeout_at(deadline, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = seen,
            Err(_) => return Err(WaitError { what: what.to_string(), within, last }),
        }
        if Instant::now() + pause > deadline {
            return Err(WaitError { what: what.to_string(), within, last });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Probes for the whole of `during` and fails at the first `Err`: for what must stay so.
///
/// # Errors
/// [`WaitError`] with what the failing probe saw.
pub async fn throughout(
    what: impl Display,
    during: Duration,
    mut probe: impl AsyncFnMut() -> Seen<()>,
) -> Result<(), WaitError> {
    let end = Instant::now() + during;
    loop {
        match timeout_at(end, probe()).await {
            Ok(Ok(())) => {}
            Ok(Err(last)) => return Err(WaitError { what: what.to_string(), within: during, last }),
            Err(_) => return Ok(()),
        }
        if Instant::now() + LONGEST_PAUSE > end {
            return Ok(());
        }
        sleep(LONGEST_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn says_what_it_saw_last() {
        let mut count = 0;
        let error = eventually("three replicas", Duration::from_secs(2), async || {
            count += 1;
            Err::<(), _>(format!("{count} probes"))
        })
        .await
        .expect_err("the probe never gives Ok");
        assert!(error.to_string().starts_with("three replicas: not so after 2s; last seen: "), "{error}");
        assert_eq!(error.last, format!("{count} probes"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_probe_is_cut_off_at_the_bound() {
        let started = Instant::now();
        let error = eventually("an answer", Duration::from_secs(3), async || {
            std::future::pending::<()>().await;
            Ok(())
        })
        .await
        .expect_err("the probe hangs");
        assert_eq!(started.elapsed(), Duration::from_secs(3));
        assert!(error.last.contains("did not end"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn throughout_fails_at_the_first_deviation() {
        let mut count = 0;
        let error = throughout("nothing changes", Duration::from_secs(60), async || {
            count += 1;
            if count < 4 { Ok(()) } else { Err("a change".to_owned()) }
        })
        .await
        .expect_err("the fourth probe deviates");
        assert_eq!((error.last.as_str(), count), ("a change", 4));
    }
}
