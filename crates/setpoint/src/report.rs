use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{Action, Cause, Event, Key, ObjectRef};

/// Reports that are kept by a process, of all its controllers together.
const KEPT: usize = 500;
/// Writes that are kept of one report; a reconcile may make thousands.
const WRITES_KEPT: usize = 50;

/// One reconcile: why it ran, what it wrote, how it ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// The controller.
    pub controller: String,
    /// The reconciled object.
    pub object: ObjectRef,
    /// Names this run in every line of its log.
    pub id: String,
    /// Why it ran: the causes of all adds that merged into it, at most 16.
    pub causes: Vec<Cause>,
    /// How many causes there were beyond `causes`.
    pub more_causes: usize,
    /// The requests that write, in their order. A converged object has none.
    pub writes: Vec<Write>,
    /// How many writes there were beyond `writes`. Only what [`Reports`] keeps is shortened.
    pub more_writes: usize,
    /// The events that it recorded, in their order.
    pub events: Vec<Event>,
    /// When it began.
    pub began: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub ended: Ended,
}

/// A request that writes.
#[derive(Clone, Debug)]
pub struct Write {
    /// What it does.
    pub verb: WriteVerb,
    /// To which object.
    pub object: ObjectRef,
    /// Sub-resource, such as `status`.
    pub subresource: Option<String>,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// The object before and after; only where writes are tried (see [`crate::Runtime::dry_run`]).
    pub change: Option<WriteChange>,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerb {
    /// Creates an object, or posts to a sub-resource.
    Create,
    /// Replaces an object.
    Update,
    /// Patches an object.
    Patch,
    /// Applies fields (server-side apply).
    Apply,
    /// Deletes an object.
    Delete,
}

/// An object before and after a write that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteChange {
    /// As it is; null if it does not exist.
    pub before: Value,
    /// As it would be; null if it would be gone.
    pub after: Value,
}

/// How a reconcile ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Well, and it says when to come back.
    Succeeded(Action),
    /// The object does not exist.
    Gone,
    /// With an error, a panic, or at its time limit.
    Failed {
        /// What happened.
        error: String,
        /// Retrying does not help: it waits for a new generation.
        terminal: bool,
    },
}

/// What happens during a reconcile, while it runs.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) writes: Vec<Write>,
    pub(crate) events: Vec<Event>,
}

/// The last 500 reconciles of a process. Cheap to clone; clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Reports(Arc<Mutex<VecDeque<Arc<Report>>>>);

impl Reports {
    /// All that are kept, the oldest first.
    pub fn all(&self) -> Vec<Arc<Report>> {
        self.0.lock().iter().cloned().collect()
    }

    /// Those of one object, the oldest first.
    pub fn of(&self, controller: &str, key: &Key) -> Vec<Arc<Report>> {
        let reports = self.0.lock();
        let wanted = |report: &&Arc<Report>| report.controller == controller && &report.object.key == key;
        reports.iter().filter(wanted).cloned().collect()
    }

    pub(crate) fn note(&self, mut report: Report) {
        report.more_writes = report.writes.len().saturating_sub(WRITES_KEPT);
        report.writes.truncate(WRITES_KEPT);
        let mut reports = self.0.lock();
        if reports.len() == KEPT {
            reports.pop_front();
        }
        reports.push_back(Arc::new(report));
    }
}

impl Report {
    /// The report as JSON, for tools: names and field-free facts only, no content of objects.
    pub(crate) fn to_json(&self) -> Value {
        let writes = self.writes.iter().map(|write| {
            json!({
                "verb": write.verb.as_str(),
                "object": write.object.to_string(),
                "subresource": write.subresource,
                "error": write.error,
            })
        });
        let events = self.events.iter().map(|event| {
            json!({ "type": format!("{:?}", event.severity), "reason": event.reason, "note": event.note })
        });
        json!({
            "controller": self.controller,
            "object": self.object.to_string(),
            "reconcileID": self.id,
            "causes": self.causes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "moreCauses": self.more_causes,
            "writes": writes.collect::<Vec<_>>(),
            "moreWrites": self.more_writes,
            "events": events.collect::<Vec<_>>(),
            "began": self.began.to_string(),
            "seconds": self.took.as_secs_f64(),
            "ended": self.ended.as_str(),
            "error": match &self.ended {
                Ended::Failed { error, .. } => Some(error),
                Ended::Succeeded(_) | Ended::Gone => None,
            },
            "waitsFor": self.ended.to_string(),
        })
    }
}

impl WriteVerb {
    /// In lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Apply => "apply",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb.as_str(), self.object)?;
        if let Some(subresource) = &self.subresource {
            write!(f, " ({subresource})")?;
        }
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl Ended {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Succeeded(_) => "success",
            Self::Gone => "gone",
            Self::Failed { .. } => "error",
        }
    }
}

/// What the object waits for then.
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("an object of this name"),
            Self::Failed { terminal: true, .. } => f.write_str("a new generation"),
            Self::Failed { terminal: false, .. } => f.write_str("the end of its back-off, or a change"),
            Self::Succeeded(action) => match action.delay() {
                Some(delay) => write!(f, "{delay:?}, or a change"),
                None => f.write_str("a change"),
            },
        }
    }
}
