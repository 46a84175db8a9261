use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::context::Conflict;

/// Result of everything that a reconciler calls and returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// A failed reconcile, and what to do about it. Made from any error with `?`; retried with per-key back-off
/// (5 ms doubling up to 1000 s) unless it says otherwise.
///
/// Deliberately no `std::error::Error`, so that it can be made from all of those.
pub struct Error(Box<Inner>);

struct Inner {
    source: Source,
    retry: Retry,
    reason: Option<Cow<'static, str>>,
}

/// When a failed key is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After the key's back-off.
    BackOff,
    /// After a fixed delay; the failure count is reset.
    After(Duration),
    /// Not before the object has a new generation.
    Never,
}

/// Several failures of one pass, reported together.
#[derive(Debug, thiserror::Error)]
#[error("{} failures: {}", .0.len(), join(.0))]
struct Several(Vec<Error>);

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Message(Cow<'static, str>);

fn join(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// An error from a message.
    pub fn msg(message: impl Into<Cow<'static, str>>) -> Self {
        Self::from(Message(message.into()))
    }

    /// All of `errors` as one, none lost. Terminal only if each is; otherwise retried at the earliest
    /// fixed delay, if all that retry have one. `None` when there are no errors.
    pub fn all(errors: impl IntoIterator<Item = Error>) -> Option<Self> {
        let mut errors: Vec<Error> = errors.into_iter().collect();
        if errors.len() < 2 {
            return errors.pop();
        }
        let retry = errors.iter().map(Error::retry).reduce(|a, b| match (a, b) {
            (Retry::Never, other) | (other, Retry::Never) => other,
            (Retry::BackOff, _) | (_, Retry::BackOff) => Retry::BackOff,
            (Retry::After(a), Retry::After(b)) => Retry::After(a.min(b)),
        });
        let mut all = Self::from(Several(errors));
        all.0.retry = retry.unwrap_or(Retry::BackOff);
        Some(all)
    }

    /// Retrying cannot cure it: wait for a new generation of the object.
    pub fn terminal(mut self) -> Self {
        self.0.retry = Retry::Never;
        self
    }

    /// Retry after `delay` instead of the back-off.
    pub fn after(mut self, delay: Duration) -> Self {
        self.0.retry = Retry::After(delay);
        self
    }

    /// A CamelCase reason, for events and conditions.
    pub fn reason(mut self, reason: impl Into<Cow<'static, str>>) -> Self {
        self.0.reason = Some(reason.into());
        self
    }

    /// Retried with back-off even if it was terminal.
    pub(crate) fn retried(mut self) -> Self {
        if self.0.retry == Retry::Never {
            self.0.retry = Retry::BackOff;
        }
        self
    }

    /// When to retry.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// The reason given, or `ReconcileFailed`.
    pub fn reason_or_default(&self) -> &str {
        self.0.reason.as_deref().unwrap_or("ReconcileFailed")
    }

    /// The error inside, if it is a `T`.
    pub fn downcast_ref<T: std::error::Error + 'static>(&self) -> Option<&T> {
        self.0.source.downcast_ref()
    }

    /// Whether the API server refused a write because the object has changed or is another one meanwhile.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409) || self.downcast_ref::<Conflict>().is_some()
    }

    /// Whether the API server does not know the object.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }

    /// The API server's answer, if that is what failed.
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        Self(Box::new(Inner { source: Box::new(error), retry: Retry::BackOff, reason: None }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = match self.status() {
            // kube's own Display repeats the whole status in debug form.
            Some(status) => status.message.clone(),
            None => self.0.source.to_string(),
        };
        let mut cause = if self.status().is_some() { None } else { self.0.source.source() };
        while let Some(error) = cause {
            // What is below a status repeats it.
            let (inner, next) = match error.downcast_ref::<kube::Error>() {
                Some(kube::Error::Api(status)) => (status.message.clone(), None),
                _ => (error.to_string(), error.source()),
            };
            if !text.ends_with(&inner) {
                text = format!("{text}: {inner}");
            }
            cause = next;
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} (retry: {:?}, reason: {})", self.0.retry, self.reason_or_default())
    }
}

/// The server's own words, where it has answered: kube's text repeats the whole status in debug form.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_server_is_shown_in_its_own_words_only() {
        #[derive(Debug, thiserror::Error)]
        #[error("the page was not written")]
        struct Page(#[source] kube::Error);
        let status = kube::core::Status::failure("configmaps \"a\" not found", "NotFound").with_code(404);
        let error = Error::from(Page(kube::Error::Api(Box::new(status))));
        assert_eq!(error.to_string(), "the page was not written: configmaps \"a\" not found");
    }

    #[test]
    fn several_failures_are_reported_together() {
        assert!(Error::all([]).is_none());
        let all = Error::all([
            Error::msg("no disk").terminal(),
            Error::msg("no answer").after(Duration::from_secs(5)),
            Error::msg("no quorum").after(Duration::from_secs(3)),
        ])
        .expect("three");
        assert_eq!(all.to_string(), "3 failures: no disk; no answer; no quorum");
        assert_eq!(all.retry(), Retry::After(Duration::from_secs(3)));
        let all = Error::all([Error::msg("a").terminal(), Error::msg("b").terminal()]).expect("two");
        assert_eq!(all.retry(), Retry::Never);
    }
}
