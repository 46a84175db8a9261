use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use kube::client::Body;
use setpoint_clock::Entropy;
use tower::BoxError;

/// When a request is sent again, and how soon.
///
/// - Reads (GET, HEAD, OPTIONS) are repeated after a failure to answer, a missed deadline, and the statuses 429, 500 (only
///   with `Retry-After`), 502, 503 and 504.
/// - Idempotent writes (PUT, DELETE, apply) only after 429, which says that the server refused to look at
///   them. After any other failure their outcome is unknown, and a repetition would hide it: a PUT that had
///   arrived would come back as a conflict with itself, a DELETE as not found.
/// - Everything else (POST, the other patches) never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Repetitions of one request at most. Default: 3.
    pub retries: u32,
    /// Delay before the first repetition; doubled for each further one, with up to as much again of jitter.
    /// Default: 100 ms.
    pub base: Duration,
    /// Longest delay of our own. Default: 2 s.
    pub cap: Duration,
    /// Longest `Retry-After` that is waited for; who is told to wait longer gets the answer instead and
    /// decides itself. Default: 10 s.
    pub retry_after_cap: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retries: 3,
            base: Duration::from_millis(100),
            cap: Duration::from_secs(2),
            retry_after_cap: Duration::from_secs(10),
        }
    }
}

impl RetryPolicy {
    /// Every request is sent once.
    pub fn never() -> Self {
        Self { retries: 0, ..Self::default() }
    }

    /// The delay before the next attempt after `attempt` repetitions, or `None` to return `answer`.
    pub(super) fn delay(
        &self,
        repeat: Repeat,
        attempt: u32,
        answer: &Answer,
        entropy: &Entropy,
    ) -> Option<Duration> {
        let refused = answer.code() == Some(StatusCode::TOO_MANY_REQUESTS.as_u16());
        let worth_it = match repeat {
            Repeat::Read => answer.is_transient(),
            Repeat::RefusedWrite => refused,
            Repeat::Never => false,
        };
        if !worth_it || attempt >= self.retries {
            return None;
        }
        match answer.retry_after() {
            Some(wait) if wait > self.retry_after_cap => None,
            Some(wait) => Some(wait),
            None => {
                let base = self.base.saturating_mul(2_u32.saturating_pow(attempt)).min(self.cap);
                Some(entropy.jitter(base, 1.0).min(self.cap))
            }
        }
    }
}

/// What may be done with a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Read,
    RefusedWrite,
    Never,
}

impl Repeat {
    pub(super) fn of(request: &Request<Body>) -> Self {
        let apply = || {
            request
                .headers()
                .get(header::CONTENT_TYPE)
                .is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch"))
        };
        match *request.method() {
            Method::GET | Method::HEAD | Method::OPTIONS => Self::Read,
            Method::PUT | Method::DELETE => Self::RefusedWrite,
            Method::PATCH if apply() => Self::RefusedWrite,
            _ => Self::Never,
        }
    }
}

/// What an attempt led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The server answered, perhaps with the seconds of a `Retry-After`.
    Status(u16, Option<u64>),
    /// No answer, or an incomplete or late one.
    None,
}

impl Answer {
    pub(super) fn of(result: &Result<Response<Body>, BoxError>) -> Self {
        match result {
            Ok(response) => {
                // Kubernetes writes seconds, never a date.
                let after = response.headers().get(header::RETRY_AFTER);
                let seconds = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
                Self::Status(response.status().as_u16(), seconds)
            }
            Err(_) => Self::None,
        }
    }

    pub(super) fn code(self) -> Option<u16> {
        match self {
            Self::Status(code, _) => Some(code),
            Self::None => None,
        }
    }

    fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Status(_, seconds) => seconds.map(Duration::from_secs),
            Self::None => None,
        }
    }

    fn is_transient(self) -> bool {
        match self {
            Self::None | Self::Status(429 | 502 | 503 | 504, _) | Self::Status(500, Some(_)) => true,
            Self::Status(..) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, content_type: &str) -> Request<Body> {
        Request::builder()
            .method(method)
            .header(header::CONTENT_TYPE, content_type)
            .body(Body::empty())
            .unwrap()
    }

    #[test]
    fn only_reads_and_refused_idempotent_writes_are_repeated() {
        let json = "application/json";
        assert_eq!(Repeat::of(&request(Method::GET, json)), Repeat::Read);
        assert_eq!(Repeat::of(&request(Method::PUT, json)), Repeat::RefusedWrite);
        assert_eq!(Repeat::of(&request(Method::DELETE, json)), Repeat::RefusedWrite);
        assert_eq!(Repeat::of(&request(Method::PATCH, "application/apply-patch+yaml")), Repeat::RefusedWrite);
        assert_eq!(Repeat::of(&request(Method::PATCH, "application/merge-patch+json")), Repeat::Never);
        assert_eq!(Repeat::of(&request(Method::POST, json)), Repeat::Never);
    }

    #[test]
    fn which_answers_are_worth_another_attempt() {
        let (policy, entropy) = (RetryPolicy::default(), Entropy::seeded(1));
        let again = |repeat, answer| policy.delay(repeat, 0, &answer, &entropy).is_some();
        for answer in
            [Answer::None, Answer::Status(503, None), Answer::Status(504, None), Answer::Status(500, Some(1))]
        {
            assert!(again(Repeat::Read, answer), "{answer:?}");
            assert!(!again(Repeat::RefusedWrite, answer), "{answer:?}: the outcome is unknown");
        }
        for answer in [
            Answer::Status(200, None),
            Answer::Status(404, None),
            Answer::Status(409, None),
            Answer::Status(500, None),
        ] {
            assert!(!again(Repeat::Read, answer), "{answer:?}");
        }
        assert!(again(Repeat::RefusedWrite, Answer::Status(429, Some(1))));
        assert!(!again(Repeat::Never, Answer::Status(429, Some(1))), "an eviction's 429 has a meaning");
    }

    #[test]
    fn delays_grow_are_capped_and_end() {
        let (policy, entropy) = (RetryPolicy::default(), Entropy::seeded(1));
        for attempt in 0..policy.retries {
            let delay = policy.delay(Repeat::Read, attempt, &Answer::None, &entropy).unwrap();
            let base = policy.base * 2_u32.pow(attempt);
            assert!(delay >= base && delay <= base * 2, "{attempt}: {delay:?}");
        }
        assert_eq!(policy.delay(Repeat::Read, policy.retries, &Answer::None, &entropy), None);
        let many = RetryPolicy { retries: 50, ..policy };
        assert_eq!(many.delay(Repeat::Read, 40, &Answer::None, &entropy), Some(policy.cap));
    }

    #[test]
    fn retry_after_is_honoured_up_to_its_cap() {
        let (policy, entropy) = (RetryPolicy::default(), Entropy::seeded(1));
        let wait = |seconds| policy.delay(Repeat::Read, 0, &Answer::Status(429, Some(seconds)), &entropy);
        assert_eq!(wait(7), Some(Duration::from_secs(7)));
        assert_eq!(wait(11), None);
    }
}
