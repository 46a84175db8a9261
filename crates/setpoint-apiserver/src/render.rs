//! The form of an answer: what `Accept` asks for, of what we have
//! (`k8s.io/apiserver/pkg/endpoints/handlers/{negotiation,response.go}`).

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::body::Body;
use crate::catalog::Resource;
use crate::registry::{Answer, ListPage, WatchEvent, is_served_as_stored, served};
use crate::request::{Query, ResourceRequest};
use crate::status::{Result, Status};
use crate::store::{EventKind, Stored, watch_line};
use crate::table;
use crate::warnings::warn_all;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Json,
    Yaml,
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
}

/// The form that a client asked for.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    encoding: Encoding,
    view: View,
    pretty: bool,
}

impl Form {
    /// Plain JSON.
    pub(crate) fn json() -> Self {
        Self { encoding: Encoding::Json, view: View::Object, pretty: false }
    }

    /// The form of the answer to a request for a resource: the acceptable one that fits it.
    pub(crate) fn of(
        request: &ResourceRequest,
        resource: &Resource,
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Self> {
        let lists = matches!(request.verb, "list" | "watch");
        let form = Self::negotiate(headers, query).map_err(|status| {
            if lists && status.is_no_representation() { Status::no_representation(true) } else { status }
        })?;
        match &form.view {
            View::Metadata { of_list: false } if request.verb == "list" => {
                let package =
                    resource.group.split('.').next().filter(|name| !name.is_empty()).unwrap_or("core");
                let what = match resource.custom() {
                    Some(_) => "*unstructured.UnstructuredList".to_owned(),
                    None => format!("*{package}.{}", resource.list_kind),
                };
                Err(Status::not_acceptable(format!(
                    "you requested PartialObjectMetadata, but the requested object is a list ({what})"
                )))
            }
            View::Table(include) if !matches!(include.as_str(), "None" | "Metadata" | "Object") => {
                Err(Status::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {include:?}: must be 'Metadata', 'Object', 'None', or empty"
                )))
            }
            _ => Ok(form),
        }
    }

    /// The acceptable form that the `Accept` header prefers: by quality, then by order.
    pub(crate) fn negotiate(headers: &HeaderMap, query: &Query) -> Result<Self> {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let pretty = query.flag("pretty");
        if accept.trim().is_empty() {
            return Ok(Self { pretty, ..Self::json() });
        }
        let mut clauses: Vec<&str> = accept.split(',').collect();
        let media = |clause: &&str| clause.split(';').next().unwrap_or_default().trim().to_owned();
        let known = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "*/*"];
        if !clauses.iter().any(|clause| known.contains(&media(clause).as_str())) {
            return Err(Status::no_representation(false));
        }
        clauses.sort_by_key(|clause| std::cmp::Reverse(quality(clause)));
        let found = clauses.into_iter().find_map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let encoding = match parts.next().unwrap_or_default() {
                "application/json" | "application/*" | "*/*" => Encoding::Json,
                "application/yaml" => Encoding::Yaml,
                _ => return None,
            };
            let parameter = |name: &str| {
                clause.split(';').skip(1).find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
            };
            let view = match (parameter("as"), parameter("g"), parameter("v")) {
                (None, ..) => View::Object,
                (Some("Table"), Some("meta.k8s.io"), Some("v1")) => {
                    View::Table(query.get("includeObject").unwrap_or("Metadata").to_owned())
                }
                (
                    Some(kind @ ("PartialObjectMetadata" | "PartialObjectMetadataList")),
                    Some("meta.k8s.io"),
                    Some("v1"),
                ) => View::Metadata { of_list: kind == "PartialObjectMetadataList" },
                _ => return None,
            };
            Some(Self { encoding, view, pretty })
        });
        found.ok_or_else(|| {
            let protobuf = if accept.contains("protobuf") && !accept.contains("json") {
                " (protobuf is not implemented in answers yet)"
            } else {
                ""
            };
            Status::not_acceptable(format!(
                "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf{protobuf}"
            ))
        })
    }

    fn is_plain(&self) -> bool {
        self.encoding == Encoding::Json && self.view == View::Object && !self.pretty
    }

    fn encode(&self, value: &Value) -> Bytes {
        match self.encoding {
            Encoding::Yaml => serde_saphyr::to_string(value).unwrap_or_default().into(),
            Encoding::Json if self.pretty => serde_json::to_string_pretty(value).unwrap_or_default().into(),
            Encoding::Json => value.to_string().into(),
        }
    }

    fn response(&self, code: u16, body: Bytes) -> Response<Body> {
        let media = match self.encoding {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
        };
        respond(code, media, Body::from(body))
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
            View::Object => Arc::unwrap_or_clone(object),
            View::Metadata { .. } => partial(&object),
            View::Table(include) => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                table::table(resource, &[object], meta, include, now)
            }
        }
    }

    /// A list of a resource.
    pub(crate) fn list(&self, resource: &Resource, page: &ListPage, now: Timestamp) -> Response<Body> {
        let mut meta = json!({"resourceVersion": page.revision.to_string()});
        if let Some(token) = &page.token {
            meta["continue"] = token.as_str().into();
        }
        if let Some(remaining) = page.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
        if self.is_plain() {
            return self.response(200, list_json(resource, page, &meta));
        }
        let objects = || {
            page.items
                .iter()
                .map(|stored| Arc::new(served(resource, stored).into_owned()))
                .collect::<Vec<_>>()
        };
        let value = match &self.view {
            View::Object => json!({
                "kind": resource.list_kind, "apiVersion": resource.api_version(), "metadata": meta,
                "items": objects().iter().map(|object| Item { resource, object }).collect::<Vec<_>>(),
            }),
            View::Metadata { .. } => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
                "items": objects().iter().map(|object| partial(object)).collect::<Vec<_>>(),
            }),
            View::Table(include) => table::table(resource, &objects(), meta, include, now),
        };
        self.value(200, &value)
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
        let mut lines = BytesMut::new();
        for event in events {
            let (kind, stored) = match event {
                WatchEvent::Whole(event) => (event.kind, &event.object),
                WatchEvent::Object(kind, stored) => (*kind, stored),
                WatchEvent::Bookmark { revision, initial_events_end } => {
                    let bookmark = self.bookmark(resource, *revision, *initial_events_end);
                    lines.put(watch_line("BOOKMARK", bookmark.to_string().as_bytes()));
                    continue;
                }
                WatchEvent::Error(status) => {
                    lines.put(watch_line("ERROR", status.to_value().to_string().as_bytes()));
                    continue;
                }
            };
            lines.put(self.watch_line(resource, event, kind, stored, first, now));
        }
        lines.freeze()
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
                WatchEvent::Whole(event) if is_served_as_stored(resource, stored) => event.line(),
                _ => watch_line(kind.text(), &object_json(resource, stored)),
            };
        }
        let mut view = self.view(resource, Arc::new(served(resource, stored).into_owned()), now);
        if matches!(self.view, View::Table(_)) && !std::mem::take(first) {
            view["columnDefinitions"] = Value::Null;
        }
        watch_line(kind.text(), view.to_string().as_bytes())
    }

    fn bookmark(&self, resource: &Resource, revision: u64, initial_events_end: bool) -> Value {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, api_version) = match self.view {
            View::Object => (resource.kind.clone(), resource.api_version()),
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

/// The quality of a clause of an `Accept` header, in thousandths.
fn quality(clause: &str) -> u32 {
    let given = clause.split(';').skip(1).find_map(|part| part.trim().strip_prefix("q="));
    given.and_then(|text| text.trim().parse::<f32>().ok()).map_or(1000, |quality| (quality * 1000.0) as u32)
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

/// An error as an answer.
pub(crate) fn failure(status: &Status) -> Response<Body> {
    if status.is_plain() {
        let body = Body::from(Bytes::from(format!("{}\n", status.message)));
        return respond(status.code, "text/plain; charset=utf-8", body);
    }
    let mut response = Form::json().value(status.code, &status.to_value());
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

fn list_json(resource: &Resource, page: &ListPage, meta: &Value) -> Bytes {
    let size: usize = page.items.iter().map(|item| item.json.len() + 1).sum();
    let mut body = BytesMut::with_capacity(size + 256);
    let head = format!(
        "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{meta},\"items\":[",
        json!(resource.list_kind),
        json!(resource.api_version()),
    );
    body.put_slice(head.as_bytes());
    for (index, item) in page.items.iter().enumerate() {
        if index > 0 {
            body.put_u8(b',');
        }
        if resource.custom().is_some() {
            body.put(object_json(resource, item));
        } else if let Some(pieces) = item.without_kind().filter(|_| is_served_as_stored(resource, item)) {
            body.put_u8(b'{');
            body.put_slice(pieces[0]);
            body.put_slice(pieces[1]);
        } else {
            let object = served(resource, item);
            // Writing an object of JSON values to memory does not fail.
            let _ = serde_json::to_writer((&mut body).writer(), &Item { resource, object: &object });
        }
    }
    body.put_slice(b"]}");
    body.freeze()
}

/// An item of a list. The list of a built-in kind says what its items are; custom resources, whose items upstream keeps as
/// they were stored, say it themselves.
struct Item<'a> {
    resource: &'a Resource,
    object: &'a Value,
}

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.object {
            Value::Object(fields) if self.resource.custom().is_none() => serializer
                .collect_map(fields.iter().filter(|(key, _)| *key != "kind" && *key != "apiVersion")),
            other => other.serialize(serializer),
        }
    }
}

fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
