use std::fmt;

use crate::ObjectRef;

/// Why a key was put into the queue. All causes of the adds that merged are in [`crate::Context::causes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What happened.
    pub reason: Reason,
    /// To which object, where there is one.
    pub object: Option<ObjectRef>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object was there when the watch started.
    Initial,
    /// All objects are looked at from time to time; see [`crate::Controller::resync`].
    Resync,
    /// The object appeared.
    Added,
    /// The object changed.
    Changed,
    /// The object went away.
    Deleted,
    /// The delay that the last reconcile asked for is over.
    After,
    /// The back-off after the given number of failures in a row is over.
    Retry(u32),
    /// A source said so, in its own words.
    Source(String),
}

impl Cause {
    /// A cause outside the API server, in the source's own words.
    pub fn source(text: impl Into<String>) -> Self {
        Self { reason: Reason::Source(text.into()), object: None }
    }

    pub(crate) fn new(reason: Reason, object: Option<ObjectRef>) -> Self {
        Self { reason, object }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Initial => f.write_str("found at the start")?,
            Reason::Resync => f.write_str("resync")?,
            Reason::Added => f.write_str("added")?,
            Reason::Changed => f.write_str("changed")?,
            Reason::Deleted => f.write_str("deleted")?,
            Reason::After => f.write_str("delay over")?,
            Reason::Retry(failures) => write!(f, "retry after {failures} failures")?,
            Reason::Source(text) => f.write_str(text)?,
        }
        match &self.object {
            Some(object) => write!(f, ": {object}"),
            None => Ok(()),
        }
    }
}
