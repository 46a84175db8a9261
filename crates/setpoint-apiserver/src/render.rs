//! Answers in the form that was asked for (`k8s.io/apiserver/pkg/endpoints/handlers/response.go`).

mod large;
mod negotiation;

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, stream};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use self::large::{Item, Items, Messages, Part, gzip};
use crate::body::Body;
use crate::catalog::Resource;
use crate::protobuf::{self, ListEncoder};
use crate::registry::{Answer, ListPage, WatchEvent, is_served_as_stored, served};
use crate::status::Status;
use crate::store::{EventKind, Stored, watch_line};
use crate::table;
use crate::warnings::warn_all;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// What an object is turned into.
#[derive(Clone, Debug, PartialEq, Eq)]
enum View {
    Object,
    /// A `meta.k8s.io/v1` Table; how much of each object its rows carry (`None`, `Metadata`, `Object`).
    Table(String),
    /// `meta.k8s.io/v1` PartialObjectMetadata, or a list of them.
    Metadata {
        of_list: bool,
    },
    /// All groups in one `apidiscovery.k8s.io/v2` document, not a list of their names.
    Groups,
}

/// The form that a client asked for.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    encoding: Encoding,
    view: View,
    pretty: bool,
    /// Whether large answers may be compressed.
    gzip: bool,
}

/// How the content type of aggregated discovery says what it is.
const GROUPS: &str = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Larger answers are compressed for those who can read that (upstream: `defaultGzipThresholdBytes`).
const GZIP_FROM: usize = 128 << 10;

impl Form {
    /// Plain JSON.
    pub(crate) fn json() -> Self {
        Self { encoding: Encoding::Json, view: View::Object, pretty: false, gzip: false }
    }

    fn is_plain(&self) -> bool {
        self.encoding == Encoding::Json && self.view == View::Object && !self.pretty
    }

    fn encode(&self, value: &Value) -> Bytes {
        match self.encoding {
            Encoding::Yaml => serde_saphyr::to_string(value).unwrap_or_default().into(),
            Encoding::Json if self.pretty => serde_json::to_string_pretty(value).unwrap_or_default().into(),
            Encoding::Json => value.to_string().into(),
            Encoding::Protobuf => protobuf_of(value),
        }
    }

    fn media(&self) -> &'static str {
        match self.encoding {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => protobuf::MEDIA_TYPE,
        }
    }

    /// Aggregated discovery, if that is what was asked for.
    pub(crate) fn groups(&self, document: impl FnOnce() -> Value) -> Option<Response<Body>> {
        if self.view != View::Groups {
            return None;
        }
        let mut response = self.value(200, &document());
        let media = format!("{};{GROUPS}", self.media());
        // What it is made of is known, and fits a header.
        if let Ok(media) = HeaderValue::from_str(&media) {
            response.headers_mut().insert(CONTENT_TYPE, media);
        }
        Some(response)
    }

    fn response(&self, code: u16, body: Bytes) -> Response<Body> {
        let media = self.media();
        if self.gzip && body.len() > GZIP_FROM {
            return compressed(code, media, stream::iter([body]));
        }
        respond(code, media, Body::from(body))
    }

    /// The content type of a watch.
    pub(crate) fn stream_media(&self) -> &'static str {
        match self.encoding {
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            Encoding::Json | Encoding::Yaml => "application/json",
        }
    }

    /// A value as it is, such as a discovery document or a Status.
    pub(crate) fn value(&self, code: u16, value: &Value) -> Response<Body> {
        self.response(code, self.encode(value))
    }

    /// One object of a resource.
    pub(crate) fn answer(
        &self,
        resource: &Resource,
        code: u16,
        answer: &Answer,
        now: Timestamp,
    ) -> Response<Body> {
        match answer {
            Answer::Other(value) => match &self.view {
                View::Table(include) if value["kind"] == "Scale" => {
                    self.value(code, &table::scale(value, include, now))
                }
                _ => self.value(code, value),
            },
            Answer::Stored(stored) if self.is_plain() => self.response(code, object_json(resource, stored)),
            Answer::Stored(stored) => {
                self.value(code, &self.view(resource, Arc::new(served(resource, stored).into_owned()), now))
            }
            Answer::Draft(value) => self.value(code, &self.view(resource, Arc::new(value.clone()), now)),
        }
    }

    fn view(&self, resource: &Resource, object: Arc<Value>, now: Timestamp) -> Value {
        match &self.view {
            View::Object | View::Groups => Arc::unwrap_or_clone(object),
            View::Metadata { .. } => partial(&object),
            View::Table(include) => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                table::of_one(resource, &object, &meta, include, now)
            }
        }
    }

    /// A list of a resource.
    pub(crate) async fn list(
        &self,
        resource: &Arc<Resource>,
        page: ListPage,
        now: Timestamp,
    ) -> Response<Body> {
        let mut meta = json!({"resourceVersion": page.revision.to_string()});
        if let Some(token) = &page.token {
            meta["continue"] = token.as_str().into();
        } else if resource.custom().is_some() && self.view == View::Object {
            // Lists without a Go type of their own always have it.
            meta["continue"] = "".into();
        }
        if let Some(remaining) = page.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
        let (api_version, kind) = match &self.view {
            View::Metadata { .. } => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList"),
            _ => (resource.api_version(), resource.list_kind.as_str()),
        };
        if self.encoding == Encoding::Protobuf {
            let list = match ListEncoder::new(&api_version, kind, &meta) {
                Ok(list) => large::messages(Arc::clone(resource), page, list).await,
                Err(error) => Err(error),
            };
            return match list {
                Ok(Messages::Whole(whole)) => self.response(200, whole),
                Ok(Messages::Pieces(pieces)) => self.pieces(pieces),
                Err(error) => self.response(200, protobuf_of(&Status::internal(error).to_value())),
            };
        }
        let (part, head, field) = match &self.view {
            View::Table(include) => (Part::Row(include.clone(), now), table::head(resource, &meta), "rows"),
            view => {
                let part = if matches!(view, View::Metadata { .. }) { Part::Metadata } else { Part::Object };
                (part, json!({"kind": kind, "apiVersion": api_version, "metadata": meta}), "items")
            }
        };
        if self.encoding == Encoding::Json && !self.pretty {
            let mut items = Items::new(Arc::clone(resource), page, part, &head, field);
            return match items.whole() {
                Some(whole) => self.response(200, whole),
                None => self.pieces(items),
            };
        }
        // For people: nothing is made of it before all of it is there.
        let items = page.items.iter().map(|stored| {
            let object = served(resource, stored);
            match &part {
                Part::Object => json!(Item { resource, object: &object }),
                Part::Metadata => partial(&object),
                Part::Row(include, now) => table::row(resource, &object, include, *now),
            }
        });
        let items: Vec<_> = items.collect();
        let mut list = head;
        list[field] = items.into();
        self.value(200, &list)
    }

    /// An answer that is made while it is sent.
    fn pieces(&self, pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Response<Body> {
        if self.gzip {
            return compressed(200, self.media(), stream::iter(pieces));
        }
        respond(200, self.media(), Body::stream(stream::iter(pieces)))
    }

    /// The lines of some events of a watch. `first` is true for the first object of the watch, whose table carries
    /// the columns.
    pub(crate) fn watch_lines(
        &self,
        resource: &Resource,
        events: &[WatchEvent],
        first: &mut bool,
        now: Timestamp,
    ) -> Bytes {
        if let [event @ WatchEvent::Whole(whole)] = events {
            // What most wake-ups bring: its bytes are shared by all watchers, not copied.
            return self.watch_line(resource, event, whole.kind, &whole.object, first, now);
        }
        let mut lines = BytesMut::new();
        for event in events {
            let (kind, stored) = match event {
                WatchEvent::Whole(event) => (event.kind, &event.object),
                WatchEvent::Object(kind, stored) => (*kind, stored),
                WatchEvent::Bookmark { revision, initial_events_end } => {
                    let bookmark = self.bookmark(resource, *revision, *initial_events_end);
                    lines.put(self.event("BOOKMARK", &bookmark));
                    continue;
                }
                WatchEvent::Error(status) => {
                    lines.put(self.event("ERROR", &status.to_value()));
                    continue;
                }
            };
            lines.put(self.watch_line(resource, event, kind, stored, first, now));
        }
        lines.freeze()
    }

    /// An event of a watch: a line, or a frame of protobuf.
    fn event(&self, kind: &str, object: &Value) -> Bytes {
        match self.encoding {
            Encoding::Protobuf => protobuf::watch_frame(kind, &protobuf_of(object)),
            Encoding::Json | Encoding::Yaml => watch_line(kind, object.to_string().as_bytes()),
        }
    }

    fn watch_line(
        &self,
        resource: &Resource,
        event: &WatchEvent,
        kind: EventKind,
        stored: &Stored,
        first: &mut bool,
        now: Timestamp,
    ) -> Bytes {
        if self.view == View::Object {
            return match event {
                WatchEvent::Whole(event)
                    if self.encoding == Encoding::Protobuf && is_served_as_stored(resource, stored) =>
                {
                    event.frame(|| self.event(kind.text(), &served(resource, stored)))
                }
                _ if self.encoding == Encoding::Protobuf => {
                    self.event(kind.text(), &served(resource, stored))
                }
                WatchEvent::Whole(event) if is_served_as_stored(resource, stored) => event.line(),
                _ => watch_line(kind.text(), &object_json(resource, stored)),
            };
        }
        let mut view = self.view(resource, Arc::new(served(resource, stored).into_owned()), now);
        if matches!(self.view, View::Table(_)) && !std::mem::take(first) {
            view["columnDefinitions"] = Value::Null;
        }
        self.event(kind.text(), &view)
    }

    fn bookmark(&self, resource: &Resource, revision: u64, initial_events_end: bool) -> Value {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, api_version) = match self.view {
            View::Object | View::Groups => (resource.kind.clone(), resource.api_version()),
            View::Metadata { .. } => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
            View::Table(_) => {
                let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                return json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": revision.to_string()},
                    "columnDefinitions": null, "rows": [{"cells": [], "object": object}],
                });
            }
        };
        json!({"kind": kind, "apiVersion": api_version, "metadata": metadata})
    }
}

/// An object as protobuf; one that has no such form is an error.
fn protobuf_of(value: &Value) -> Bytes {
    protobuf::encode(value)
        .or_else(|error| protobuf::encode(&Status::internal(error).to_value()))
        .unwrap_or_default()
}

/// An answer for those who can read gzip.
fn compressed(
    code: u16,
    media: &'static str,
    body: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let mut response = respond(code, media, Body::stream(gzip(body)));
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

/// An answer with a body of one media type.
pub(crate) fn respond(code: u16, media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert("cache-control", HeaderValue::from_static("no-cache, private"));
    response
}

/// An error as an answer; `form` is [`Form::of_errors`].
pub(crate) fn failure(status: &Status, form: &Form) -> Response<Body> {
    if status.is_plain() {
        let body = Body::from(Bytes::from(format!("{}\n", status.message)));
        return respond(status.code, "text/plain; charset=utf-8", body);
    }
    if status.is_timeout() {
        let message = Value::from(status.message.as_str());
        let body = format!(
            "{{\"metadata\":{{}},\"status\":\"Failure\",\"message\":{message},\"reason\":\"Timeout\",\"details\":{{}},\"code\":504}}\n"
        );
        return respond(status.code, "text/plain; charset=utf-8", Body::from(Bytes::from(body)));
    }
    let mut response = form.value(status.code, &status.to_value());
    if let Some(seconds) = status.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    warn_all(&mut response, &status.warnings);
    response
}

fn object_json(resource: &Resource, stored: &Stored) -> Bytes {
    if is_served_as_stored(resource, stored) {
        return stored.json.clone();
    }
    served(resource, stored).to_string().into()
}

fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
