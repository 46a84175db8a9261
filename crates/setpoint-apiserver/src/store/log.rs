//! The event log of one resource: what happened, in order, as far back as its limits allow.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};

use super::{Key, LogLimits, Stored};

/// The history that was asked for is gone; `oldest` is the earliest revision that can still be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    pub(crate) oldest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

impl EventKind {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One write: what was there before and what it left.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) key: Key,
    pub(crate) old: Option<Arc<Stored>>,
    /// The object after the write; for a removal its last state, at the removal's revision.
    pub(crate) object: Arc<Stored>,
    line: OnceLock<Bytes>,
    frame: OnceLock<Bytes>,
}

impl Event {
    pub(crate) fn new(key: Key, old: Option<Arc<Stored>>, object: Arc<Stored>, removal: bool) -> Arc<Self> {
        let kind = match (&old, removal) {
            (_, true) => EventKind::Deleted,
            (None, false) => EventKind::Added,
            (Some(_), false) => EventKind::Modified,
        };
        Arc::new(Self { kind, key, old, object, line: OnceLock::new(), frame: OnceLock::new() })
    }

    pub(crate) fn revision(&self) -> u64 {
        self.object.revision
    }

    /// The event as a line of a watch, encoded at most once for all watchers that see it whole.
    pub(crate) fn line(&self) -> Bytes {
        self.line.get_or_init(|| watch_line(self.kind.text(), &self.object.json)).clone()
    }

    /// The event as a frame of protobuf, which `make` makes at most once for all watchers that see it whole.
    pub(crate) fn frame(&self, make: impl FnOnce() -> Bytes) -> Bytes {
        self.frame.get_or_init(make).clone()
    }
}

/// A line of a watch: `{"type":…,"object":…}` and a newline.
pub(crate) fn watch_line(kind: &str, object: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(object.len() + 32);
    line.put_slice(b"{\"type\":\"");
    line.put_slice(kind.as_bytes());
    line.put_slice(b"\",\"object\":");
    line.put_slice(object);
    line.put_slice(b"}\n");
    line.freeze()
}

pub(super) struct Log {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Everything after this revision is still here.
    compacted: u64,
    limits: LogLimits,
}

impl Log {
    /// A log that begins after `base`.
    pub(super) fn new(limits: LogLimits, base: u64) -> Self {
        Self { events: VecDeque::new(), bytes: 0, compacted: base, limits }
    }

    /// Adds an event, and gives back those that no longer fit.
    pub(super) fn push(&mut self, event: Arc<Event>) -> Vec<Arc<Event>> {
        let mut gone = Vec::new();
        self.bytes += event.object.json.len();
        self.events.push_back(event);
        while self.events.len() > 1
            && (self.events.len() > self.limits.events || self.bytes > self.limits.bytes)
        {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= oldest.object.json.len();
                self.compacted = oldest.revision();
                gone.push(oldest);
            }
        }
        gone
    }

    /// The events after `revision`, oldest first.
    pub(super) fn after(&self, revision: u64) -> Result<Vec<Arc<Event>>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted { oldest: self.compacted });
        }
        let start = self.events.partition_point(|event| event.revision() <= revision);
        Ok(self.events.range(start..).cloned().collect())
    }
}
