//! Lists a kind and follows its changes into a cache, for ever.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::AsyncBufReadExt as _;
use http::Method;
use kube::Client;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;
use setpoint_clock::Entropy;
use tokio::time::Instant;

use crate::cache::{Cache, Origin, SILENCE};
use crate::decode::{Peek, decode, decode_text};
use crate::request::{Form, request};
use crate::store::{Seen, StaleList, Store, Transition, Version};
use crate::{Error, Key, Object, Observer};

/// The annotation of the bookmark that ends the initial events of a streaming list (KEP-3157).
const INITIAL_EVENTS_END: &str = "/metadata/annotations/k8s.io~1initial-events-end";
const PAGE: &str = "500";
/// How long the server keeps a watch: between this and twice as long, as client-go asks for.
const WATCH: Duration = Duration::from_secs(300);
const FIRST_BACK_OFF: Duration = Duration::from_millis(800);
const BACK_OFF_LIMIT: Duration = Duration::from_secs(30);
/// A back-off starts again after so long without a failure.
const QUIET: Duration = Duration::from_secs(120);

pub(crate) struct Reflector<T: Object> {
    client: Client,
    cache: Arc<Cache<T>>,
    namespace: Option<String>,
    entropy: Entropy,
    observer: Arc<dyn Observer>,
    /// Whether the server can stream a list.
    streams: bool,
    /// Objects that could not be decoded, as last reported.
    bad: usize,
    /// The failure that was logged last, until the watch is well again.
    told: Option<String>,
}

/// What to ask the server next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Go on from what was seen.
    Watch,
    /// A new list, not older than what was seen.
    List,
    /// A new list of the newest state.
    QuorumList,
}

/// Why a stream or a list ended early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", describe(.0))]
    Request(#[from] kube::Error),
    #[error("the server sent an error into the watch: {message}")]
    Event { code: u16, message: String },
    #[error("reading the watch failed")]
    Read(#[from] std::io::Error),
    #[error("the server sent what is no JSON")]
    Json(#[from] serde_json::Error),
    #[error("the server was silent for {} s", SILENCE.as_secs())]
    Silent,
    #[error(transparent)]
    Stale(#[from] StaleList),
    #[error("the server closed the watch at once")]
    Closed,
    #[error("{0}")]
    Build(String),
}

/// One line of a watch: what happened, and the object's text.
fn line(text: &str) -> Result<(Cow<'_, str>, Cow<'_, str>), serde_json::Error> {
    #[derive(Deserialize)]
    struct Line {
        r#type: String,
        object: Value,
    }
    // As every API server writes it.
    let usual = || {
        let (change, rest) = text.trim_end().strip_prefix("{\"type\":\"")?.split_once('"')?;
        Some((change, rest.strip_prefix(",\"object\":")?.strip_suffix('}')?))
    };
    if let Some((change, object)) = usual() {
        return Ok((change.into(), object.into()));
    }
    let Line { r#type, object } = serde_json::from_str(text)?;
    Ok((r#type.into(), object.to_string().into()))
}

/// Pauses between attempts: doubling from 800 ms to 30 s, each up to twice as long by chance.
#[derive(Debug, Default)]
struct BackOff {
    failures: u32,
    last: Option<Instant>,
}

impl BackOff {
    fn pause(&mut self, entropy: &Entropy, now: Instant) -> Duration {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= QUIET) {
            self.failures = 0;
        }
        let base = FIRST_BACK_OFF.saturating_mul(1 << self.failures.min(10)).min(BACK_OFF_LIMIT);
        self.failures += 1;
        self.last = Some(now);
        entropy.jitter(base, 1.0)
    }
}

/// The server's own words, where it has answered.
fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("the server answered {}: {}", status.code, status.message),
        other => other.to_string(),
    }
}

impl Failure {
    /// From the Status in an ERROR event.
    fn event(status: &Value) -> Self {
        let code = status.get("code").and_then(Value::as_u64).unwrap_or_default() as u16;
        let message = status.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self::Event { code, message }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Request(kube::Error::Api(status)) => Some(status.code),
            Self::Event { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// What to do after it, and whether to pause before.
    fn next(&self, asked: Next) -> (Next, bool) {
        match (asked, self.code()) {
            // The version is compacted: no fault of the server's.
            (Next::Watch, Some(410)) => (Next::List, false),
            // Not even a list reaches back to what was seen, or the server has not caught up with it.
            (Next::List, Some(410 | 504)) => (Next::QuorumList, true),
            _ if matches!(self, Self::Stale(_)) => (Next::QuorumList, true),
            _ => (asked, true),
        }
    }
}

impl<T: Object> Reflector<T> {
    pub(crate) fn new(
        client: Client,
        cache: Arc<Cache<T>>,
        namespace: Option<String>,
        entropy: Entropy,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { client, cache, namespace, entropy, observer, streams: true, bad: 0, told: None }
    }

    pub(crate) async fn run(mut self) {
        let mut next = Next::List;
        let mut back_off = BackOff::default();
        self.observer.watch_started(self.cache.kind());
        loop {
            let begun = Instant::now();
            let streams = next == Next::Watch || self.streams;
            let outcome = if streams { self.watch(&mut next).await } else { self.list(&mut next).await };
            let failure = match outcome {
                // A server that closes every watch at once must not be asked in a tight loop.
                Ok(()) if next == Next::Watch && streams && begun.elapsed() < FIRST_BACK_OFF => {
                    Failure::Closed
                }
                Ok(()) => continue,
                Err(failure) => failure,
            };
            if next != Next::Watch && streams && matches!(failure.code(), Some(400 | 422)) {
                // The feature WatchList is off.
                self.streams = false;
                continue;
            }
            let (then, pause) = failure.next(next);
            next = then;
            self.observer.watch_restarted(self.cache.kind());
            if pause {
                let kind = self.cache.kind();
                let error = match failure.code() {
                    Some(404) => {
                        format!(
                            "the cluster does not serve {kind} in version {}: install its CRD",
                            kind.version
                        )
                    }
                    Some(403) => {
                        let error = Error::from(failure);
                        format!("{error}: grant what the operator's command `manifests` writes")
                    }
                    _ => Error::from(failure).to_string(),
                };
                if self.told.as_ref() != Some(&error) {
                    tracing::warn!(%kind, namespace = self.namespace, error, "the watch failed and is tried again");
                    self.told = Some(error.clone());
                }
                self.cache.pulse(self.namespace.as_deref(), Some(error));
                tokio::time::sleep(back_off.pause(&self.entropy, Instant::now())).await;
            }
        }
    }

    /// Follows changes until the server closes the stream. Unless `next` is to go on, the stream begins with
    /// a list; when that is complete, `next` is to go on.
    async fn watch(&mut self, next: &mut Next) -> Result<(), Failure> {
        let progress = self.progress().unwrap_or_default();
        let version = if *next == Next::QuorumList { "" } else { &progress };
        let timeout = self.entropy.jitter(WATCH, 1.0).as_secs().to_string();
        let mut query = vec![
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", timeout.as_str()),
            ("resourceVersion", version),
        ];
        if *next != Next::Watch {
            query.extend([("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]);
        }
        let request = self.request(&query, if T::metadata_api() { Form::Metadata } else { Form::Whole })?;
        let stream = timed(self.client.request_stream(request)).await??;
        let mut stream = std::pin::pin!(stream);
        let mut initial: Option<BTreeMap<Arc<Key>, Seen<T>>> = (*next != Next::Watch).then(BTreeMap::new);
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            if timed(stream.read_until(b'\n', &mut buffer)).await?? == 0 {
                return if initial.is_some() { Err(Failure::Closed) } else { Ok(()) };
            }
            let (change, object) = line(std::str::from_utf8(&buffer).map_err(serde_json::Error::custom)?)?;
            self.cache.pulse(self.namespace.as_deref(), None);
            if change == "ERROR" {
                return Err(Failure::event(&serde_json::from_str(&object)?));
            }
            self.works();
            if change == "BOOKMARK" {
                let bookmark: Value = serde_json::from_str(&object)?;
                let version = version_of(&bookmark);
                let ends_list = bookmark.pointer(INITIAL_EVENTS_END).and_then(Value::as_str) == Some("true");
                match initial.take() {
                    Some(items) if ends_list => {
                        self.listed(items, &version, *next)?;
                        *next = Next::Watch;
                    }
                    unfinished @ Some(_) => initial = unfinished,
                    None => self.change(|store| {
                        store.bookmark(&version);
                        None
                    }),
                }
                continue;
            }
            let Peek { key, uid, version, .. } = match Peek::of(&object) {
                Ok(peek) => peek,
                Err(error) if error.is_data() => continue,
                Err(error) => return Err(error.into()),
            };
            let deleted = change == "DELETED";
            if initial.is_none() && !deleted && self.cache.knows(&key, &uid, &version) {
                // Our own write, most likely.
                self.observer.watch_event(self.cache.kind());
                self.change(|store| {
                    store.bookmark(&version);
                    None
                });
                continue;
            }
            let Some(seen) = decode_text::<T>(self.cache.kind(), &object) else { continue };
            if let Some(items) = &mut initial {
                if deleted {
                    items.remove(&seen.key);
                } else {
                    items.insert(Arc::clone(&seen.key), seen.pack());
                }
                continue;
            }
            self.observer.watch_event(self.cache.kind());
            let undecodable = seen.payload.is_undecodable();
            self.change(|store| {
                if deleted { store.deleted(&seen.key, &seen.uid, &version) } else { store.applied(seen) }
            });
            if undecodable || self.bad > 0 {
                self.count_undecodable();
            }
        }
    }

    /// Takes a list page by page, for servers that cannot stream it.
    async fn list(&mut self, next: &mut Next) -> Result<(), Failure> {
        let progress = self.progress().filter(|_| *next != Next::QuorumList);
        let (mut items, mut version, mut token) = (BTreeMap::new(), None, String::new());
        loop {
            let mut query = vec![("limit", PAGE)];
            if token.is_empty() {
                if let Some(progress) = &progress {
                    query.extend([
                        ("resourceVersion", progress.as_str()),
                        ("resourceVersionMatch", "NotOlderThan"),
                    ]);
                }
            } else {
                query.push(("continue", token.as_str()));
            }
            let request =
                self.request(&query, if T::metadata_api() { Form::MetadataList } else { Form::Whole })?;
            let mut list: Value = timed(self.client.request(request)).await??;
            self.cache.pulse(self.namespace.as_deref(), None);
            version.get_or_insert_with(|| version_of(&list));
            if let Some(Value::Array(page)) = list.get_mut("items").map(Value::take) {
                let seen = page.into_iter().filter_map(|item| decode::<T>(self.cache.kind(), item));
                items.extend(seen.map(|seen| (Arc::clone(&seen.key), seen.pack())));
            }
            match list.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(further) if !further.is_empty() => further.clone_into(&mut token),
                _ => break,
            }
        }
        self.listed(items, &version.unwrap_or_else(|| Version::new("")), *next)?;
        *next = Next::Watch;
        Ok(())
    }

    fn listed(
        &mut self,
        items: BTreeMap<Arc<Key>, Seen<T>>,
        version: &Version,
        next: Next,
    ) -> Result<(), Failure> {
        // Without progress there is nothing that a list could be older than.
        let quorum = next == Next::QuorumList || self.progress().is_none();
        self.cache.listed(self.namespace.as_deref(), |store| store.listed(items, version, quorum))?;
        self.observer.watch_event(self.cache.kind());
        self.count_undecodable();
        Ok(())
    }

    /// What was told is over.
    fn works(&mut self) {
        if self.told.take().is_some() {
            tracing::info!(kind = %self.cache.kind(), namespace = self.namespace, "the watch works again");
        }
    }

    fn change(&self, change: impl FnOnce(&mut Store<T>) -> Option<Transition<T>>) {
        self.cache
            .change(self.namespace.as_deref(), &Origin::Watch, |store| change(store).into_iter().collect());
    }

    fn count_undecodable(&mut self) {
        let bad = self.cache.undecodable();
        if bad != self.bad {
            self.bad = bad;
            self.observer.undecodable(self.cache.kind(), bad);
        }
    }

    fn progress(&self) -> Option<String> {
        let part = Key { namespace: self.namespace.clone(), name: String::new() };
        self.cache.read(&part, |store| store.progress().map(Version::text)).flatten()
    }

    fn request(&self, query: &[(&str, &str)], form: Form) -> Result<http::Request<Vec<u8>>, Failure> {
        let mut query = query.to_vec();
        let selector = self.cache.selector();
        query.extend(selector.label_selector().map(|selector| ("labelSelector", selector)));
        query.extend(selector.field_selector().map(|selector| ("fieldSelector", selector)));
        let path = self.cache.kind().collection_path(self.namespace.as_deref());
        request(Method::GET, &path, &query, form, None).map_err(|error| Failure::Build(error.to_string()))
    }
}

fn version_of(object: &Value) -> Version {
    Version::new(object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default())
}

async fn timed<F: Future>(future: F) -> Result<F::Output, Failure> {
    tokio::time::timeout(SILENCE, future).await.map_err(|_| Failure::Silent)
}

#[cfg(test)]
mod tests;
