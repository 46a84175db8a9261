//! Paths that are no resources: health, version, discovery, OpenAPI.

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method, Response};
use serde_json::Value;

use crate::body::Body;
use crate::discovery;
use crate::openapi;
use crate::registry::Registry;
use crate::render::{Form, respond};
use crate::request::Query;
use crate::status::{Result, Status};

/// Answers a request for a path that names no resource.
pub(crate) fn answer(
    registry: &Registry,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response<Body>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Status::no_path());
    }
    let resources = registry.catalog.all();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        ["healthz" | "livez" | "readyz"] | ["healthz" | "livez" | "readyz", "ping"] => {
            Ok(health(&segments, query))
        }
        ["version"] => Form::negotiate(headers, query).map(|form| form.value(200, &discovery::version())),
        ["api" | "apis"] if wants_aggregated(headers) => {
            let document = discovery::aggregated(&resources, segments[0] == "api");
            tagged(headers, discovery::AGGREGATED_TYPE, &document)
        }
        ["openapi", "v2"] => {
            let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
            if ![openapi::V2_TYPE, openapi::V2_TYPE_OLD].iter().any(|media| accept.contains(media)) {
                return Err(Status::not_acceptable(openapi::V2_REFUSAL));
            }
            Ok(respond(200, openapi::V2_TYPE, Body::from(Bytes::from(openapi::v2()))))
        }
        ["openapi", "v3"] => tagged(headers, "application/json", &openapi::index(&resources)),
        ["openapi", "v3", "api", version] => document(headers, openapi::document(&resources, "", version)),
        ["openapi", "v3", "apis", group, version] => {
            document(headers, openapi::document(&resources, group, version))
        }
        _ => {
            let found = match segments.as_slice() {
                [] => Some(roots()),
                ["api"] => Some(discovery::legacy_versions()),
                ["apis"] => Some(discovery::group_list(&resources)),
                ["api", version] => discovery::resource_list(&resources, "", version),
                ["apis", group] => discovery::group(&resources, group),
                ["apis", group, version] => discovery::resource_list(&resources, group, version),
                _ => None,
            };
            let found = found.ok_or_else(|| {
                // Upstream has routes for whole groups of its own.
                let own = match segments.as_slice() {
                    ["api", _] => true,
                    ["apis", group, _] => {
                        resources.iter().any(|one| one.custom().is_none() && one.group == *group)
                    }
                    _ => false,
                };
                if own { Status::no_resource() } else { Status::no_path() }
            })?;
            Ok(Form::negotiate(headers, query)?.value(200, &found))
        }
    }
}

fn roots() -> Value {
    serde_json::json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})
}

/// The server answers as soon as it exists, so that all its checks have passed.
fn health(segments: &[&str], query: &Query) -> Response<Body> {
    let text = if query.all("verbose").is_empty() {
        "ok".to_owned()
    } else {
        format!("[+]ping ok\n{} check passed\n", segments[0])
    };
    respond(200, "text/plain; charset=utf-8", Body::from(Bytes::from(text)))
}

fn wants_aggregated(headers: &HeaderMap) -> bool {
    headers
        .get_all("accept")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|clause| {
            ["as=APIGroupDiscoveryList", "g=apidiscovery.k8s.io", "v=v2"]
                .iter()
                .all(|part| clause.split(';').any(|given| given.trim() == *part))
        })
}

fn document(headers: &HeaderMap, document: Option<Value>) -> Result<Response<Body>> {
    tagged(headers, "application/json", &document.ok_or_else(Status::no_path)?)
}

/// An answer that a client which has it already need not read again.
fn tagged(headers: &HeaderMap, media: &'static str, document: &Value) -> Result<Response<Body>> {
    let text = document.to_string();
    let tag = discovery::etag(text.as_bytes());
    let known = headers.get(IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let mut response = if known {
        respond(304, media, Body::empty())
    } else {
        respond(200, media, Body::from(Bytes::from(text)))
    };
    let value = HeaderValue::from_str(&tag).map_err(Status::internal)?;
    response.headers_mut().insert(ETAG, value);
    response.headers_mut().insert("vary", HeaderValue::from_static("Accept"));
    Ok(response)
}
