//! Watches: from a version, through a selector, with bookmarks and initial events.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, Sleep, sleep_until};

use super::Registry;
use super::conversion::{Unreadable, by_webhook};
use super::fields::check_fields;
use super::list::{ListOptions, READ_AT_ONCE};
use crate::catalog::Resource;
use crate::status::{Result, Status};
use crate::store::{Event, EventKind, Stored};

/// How often an idle watch hears from the server, if it wants to.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A watch without a time limit ends after a random time between this and its double (upstream: `--min-request-timeout`).
const MIN_TIMEOUT: Duration = Duration::from_secs(1800);

/// How long a version that is not there yet is waited for (upstream: `blockTimeout` of the watch cache).
const FRESH_WITHIN: Duration = Duration::from_secs(3);

/// No watch is longer: no clock counts to the largest number that a client may write.
const MAX_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);

/// One line of a watch, before it is put into the form that the client asked for.
#[derive(Clone, Debug)]
pub(crate) enum WatchEvent {
    /// An event that every watcher sees the same way: its encoded line can be shared.
    Whole(Arc<Event>),
    /// An object that the watcher sees as added or deleted, whatever the write was.
    Object(EventKind, Arc<Stored>),
    Bookmark {
        revision: u64,
        initial_events_end: bool,
    },
    /// The last line: why the watch cannot go on.
    Error(Status),
}

impl WatchEvent {
    /// About how many bytes its line has.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Whole(event) => event.object.json.len(),
            Self::Object(_, stored) => stored.json.len(),
            Self::Bookmark { .. } | Self::Error(_) => 0,
        }
    }
}

/// A running watch. Nothing runs on its behalf: it moves when it is asked for the next events.
pub(crate) struct WatchStream {
    registry: Arc<Registry>,
    pub(crate) resource: Arc<Resource>,
    namespace: String,
    options: ListOptions,
    /// Everything up to this revision was delivered, or is not wanted: it may lie in the future.
    position: u64,
    /// Objects that were there at the start, selected or not, and what follows them.
    initial: Vec<WatchEvent>,
    /// When the initial events are given.
    begin_at: Instant,
    changed: Receiver<u64>,
    bookmark_at: Instant,
    end_at: Instant,
    /// Runs until the next of the two. One that stays: all watches share the lock under which timers start and stop.
    timer: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl Registry {
    /// Starts a watch. Without a version, or from version 0, it begins with the objects that are there.
    pub(crate) fn watch(
        self: &Arc<Self>,
        resource: &Arc<Resource>,
        namespace: &str,
        options: ListOptions,
    ) -> Result<WatchStream> {
        options.check(true)?;
        check_fields(resource, &options.fields)?;
        // The version of a watch is read in another place upstream, which gives neither code nor reason.
        let wanted = options.revision().map_err(|status| {
            Status::unknown(status.message.trim_start_matches("invalid resource version: "))
        })?;
        let changed = self.store.subscribe(&resource.storage);
        let now = self.store.snapshot(&resource.storage);
        let streaming_list = options.send_initial_events == Some(true);
        let from_now = streaming_list || (wanted == 0 && options.send_initial_events.is_none());
        let mut position = wanted;
        let mut initial = Vec::new();
        let mut ended = false;
        let mut begins_in = Duration::ZERO;
        if options.timeout.is_some_and(|seconds| seconds < 0) {
            initial.push(WatchEvent::Error(Status::deadline_exceeded()));
            ended = true;
        } else if from_now && wanted > now.revision {
            // Upstream waits for the version to come, and says so in the stream when it does not.
            initial.push(WatchEvent::Error(Status::too_large_version(wanted, now.revision)));
            begins_in = FRESH_WITHIN;
            ended = true;
        } else if from_now {
            position = now.revision;
            initial = now
                .range(namespace, None)
                .map(|(_, stored)| WatchEvent::Object(EventKind::Added, Arc::clone(stored)))
                .collect();
            // Without a version it is a list, too (`SetListOptionsDefaults`).
            if options.bookmarks {
                initial.push(WatchEvent::Bookmark { revision: position, initial_events_end: true });
            }
        } else if wanted == 0 {
            position = now.revision;
        } else if let Err(compacted) = self.store.events_after(&resource.storage, wanted) {
            // Upstream answers 200 and says so in the stream.
            let message = format!("too old resource version: {wanted} ({})", compacted.oldest);
            initial.push(WatchEvent::Error(Status::expired(message)));
            ended = true;
        }
        let start = Instant::now();
        let limit = match options.timeout {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()).min(MAX_TIMEOUT),
            _ => self.entropy.jitter(MIN_TIMEOUT, 1.0),
        };
        Ok(WatchStream {
            registry: Arc::clone(self),
            resource: Arc::clone(resource),
            namespace: namespace.to_owned(),
            options,
            position,
            initial,
            begin_at: start + begins_in,
            changed,
            bookmark_at: start + BOOKMARK_EVERY,
            end_at: start + limit,
            timer: None,
            ended,
        })
    }
}

impl WatchStream {
    /// The next events, at least one; `None` when the watch is over.
    pub(crate) async fn next(&mut self) -> Option<Vec<WatchEvent>> {
        let events = self.next_written().await?;
        // A watch shows nothing that a crash could undo. When the disk fails it ends.
        self.registry.store.kept(self.position).await.ok()?;
        Some(events)
    }

    async fn next_written(&mut self) -> Option<Vec<WatchEvent>> {
        if !self.initial.is_empty() {
            if self.begin_at > Instant::now() {
                sleep_until(self.begin_at.min(self.end_at)).await;
            }
            let initial = std::mem::take(&mut self.initial);
            let initial = self.converted_initial(initial).await;
            if !initial.is_empty() {
                return Some(initial);
            }
        }
        loop {
            if self.ended {
                return None;
            }
            // Marked as seen before reading, so that no write falls between reading and waiting.
            self.changed.borrow_and_update();
            match self.registry.store.events_after(&self.resource.storage, self.position) {
                Ok((events, revision)) => {
                    self.position = revision.max(self.position);
                    let events = match self.converted(events).await {
                        Ok(events) => events,
                        Err(status) => return Some(self.end(status)),
                    };
                    let events: Vec<_> = events.into_iter().filter_map(|event| self.see(event)).collect();
                    if !events.is_empty() {
                        return Some(events);
                    }
                }
                Err(compacted) => {
                    self.ended = true;
                    let message =
                        format!("too old resource version: {} ({})", self.position, compacted.oldest);
                    return Some(vec![WatchEvent::Error(Status::expired(message))]);
                }
            }
            if self.is_removed() {
                return None;
            }
            if let Some(due) = self.wait().await {
                return Some(vec![due]);
            }
        }
    }

    /// The last line.
    fn end(&mut self, status: Status) -> Vec<WatchEvent> {
        self.ended = true;
        vec![WatchEvent::Error(status)]
    }

    /// The objects that are there, in the version of the watch, as far as they are selected then.
    async fn converted_initial(&mut self, initial: Vec<WatchEvent>) -> Vec<WatchEvent> {
        if by_webhook(&self.resource).is_none() {
            return self.selected(initial).await;
        }
        let mut rest = Vec::new();
        let mut objects = Vec::new();
        for event in initial {
            match event {
                WatchEvent::Object(_, stored) => objects.push(stored),
                other => rest.push(other),
            }
        }
        match self.registry.all_in_version(&self.resource, objects).await {
            Ok(objects) => objects
                .into_iter()
                .filter(|stored| self.options.selects(&self.resource, &stored.value))
                .map(|stored| WatchEvent::Object(EventKind::Added, stored))
                .chain(rest)
                .collect(),
            Err(all) => self.end(Unreadable::first_on_read(&all, &self.resource)),
        }
    }

    /// Those that are selected. All objects of a kind come by here, so others have a turn in between.
    async fn selected(&self, initial: Vec<WatchEvent>) -> Vec<WatchEvent> {
        if self.options.selects_all() {
            return initial;
        }
        let mut selected = Vec::new();
        for (seen, event) in initial.into_iter().enumerate() {
            if seen % READ_AT_ONCE == 0 && seen > 0 {
                tokio::task::yield_now().await;
            }
            match &event {
                WatchEvent::Object(_, stored) if !self.options.selects_stored(&self.resource, stored) => {}
                _ => selected.push(event),
            }
        }
        selected
    }

    /// Events in the version of the watch.
    async fn converted(&self, events: Vec<Arc<Event>>) -> Result<Vec<Arc<Event>>> {
        if by_webhook(&self.resource).is_none() {
            return Ok(events);
        }
        let objects =
            events.iter().flat_map(|event| event.old.iter().chain([&event.object])).cloned().collect();
        let converted = self.registry.all_in_version(&self.resource, objects).await;
        let converted = converted.map_err(|all| Unreadable::first_on_read(&all, &self.resource))?;
        let mut converted = converted.into_iter();
        let mut next = || converted.next();
        let with = |event: &Arc<Event>| {
            let old = event.old.as_ref().and_then(|_| next());
            let object = next().unwrap_or_else(|| Arc::clone(&event.object));
            Event::new(event.key.clone(), old, object, event.kind == EventKind::Deleted)
        };
        Ok(events.iter().map(with).collect())
    }

    /// Waits for a write, a due bookmark (which it returns) or the end.
    async fn wait(&mut self) -> Option<WatchEvent> {
        let wake_at = if self.options.bookmarks { self.bookmark_at.min(self.end_at) } else { self.end_at };
        let timed_out = {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(wake_at)));
            if timer.deadline() != wake_at {
                timer.as_mut().reset(wake_at);
            }
            let changed = std::pin::pin!(self.changed.changed());
            match select(changed, timer.as_mut()).await {
                Either::Left((Ok(()), _)) => false,
                // The store is gone.
                Either::Left((Err(_), _)) => {
                    self.ended = true;
                    false
                }
                Either::Right(_) => true,
            }
        };
        if !timed_out {
            return None;
        }
        if wake_at == self.end_at {
            self.ended = true;
            return None;
        }
        self.bookmark_at = wake_at + BOOKMARK_EVERY;
        // Nothing of this resource happened since `position`, so the present is as good and lets clients resume later.
        let (events, revision) =
            self.registry.store.events_after(&self.resource.storage, self.position).ok()?;
        if !events.is_empty() || revision < self.position {
            return None;
        }
        self.position = revision;
        Some(WatchEvent::Bookmark { revision, initial_events_end: false })
    }

    /// The event as this watch sees it: an object may enter or leave the selection by a change.
    fn see(&self, event: Arc<Event>) -> Option<WatchEvent> {
        if !self.namespace.is_empty() && event.key.namespace != self.namespace {
            return None;
        }
        if self.options.selects_all() {
            return Some(WatchEvent::Whole(event));
        }
        let selects = |stored: &Stored| self.options.selects_stored(&self.resource, stored);
        let before = event.old.as_deref().is_some_and(selects);
        let after = event.kind != EventKind::Deleted && selects(&event.object);
        match (before, after) {
            (true, true) => Some(WatchEvent::Whole(event)),
            (false, true) => Some(WatchEvent::Object(EventKind::Added, Arc::clone(&event.object))),
            (true, false) if event.kind == EventKind::Deleted => Some(WatchEvent::Whole(event)),
            (true, false) => {
                // The state in which it was last seen, at the version at which it left.
                let old = event.old.as_ref()?;
                let left = Stored::encode(&old.decode(), event.revision());
                Some(WatchEvent::Object(EventKind::Deleted, left))
            }
            (false, false) => None,
        }
    }

    fn is_removed(&self) -> bool {
        let Resource { group, version, plural, .. } = &*self.resource;
        self.resource.custom().is_some_and(|custom| {
            custom.removed.is_cancelled() || self.registry.catalog.find(group, version, plural).is_none()
        })
    }
}
