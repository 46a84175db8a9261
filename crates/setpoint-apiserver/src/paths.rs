//! Paths that are no resources: health, version, discovery, OpenAPI.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderMap, Method, Response};
use serde_json::Value;

use crate::body::Body;
use crate::catalog::Resource;
use crate::discovery;
use crate::headers::text;
use crate::openapi;
use crate::registry::Registry;
use crate::render::{Form, respond};
use crate::request::Query;
use crate::status::{Result, Status};
use crate::tokens::{ISSUER, Tokens};

/// Answers a request for a path that names no resource.
pub(crate) async fn answer(
    registry: &Registry,
    tokens: &Tokens,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response<Body>> {
    let resources = registry.catalog.all();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    if *method != Method::GET && only_read(&resources, &segments) {
        return Err(Status::method_not_allowed());
    }
    if let ["api" | "apis"] = segments[..]
        && let Some(answer) = aggregated(headers, query, &resources, segments[0] == "api")
    {
        return answer;
    }
    match segments.as_slice() {
        ["healthz" | "livez" | "readyz"] | ["healthz" | "livez" | "readyz", "ping"] => {
            Ok(health(&segments, query))
        }
        ["version"] => {
            check_accept(headers, "application/json")?;
            Ok(Form::of_errors(headers, None).value(200, &discovery::version()))
        }
        [".well-known", "openid-configuration"] => of_issuer(headers, "application/json", &issuer()),
        ["openid", "v1", "jwks"] => {
            of_issuer(headers, "application/jwk-set+json", &tokens.key_set(&registry.store)?)
        }
        ["openapi", "v2"] => {
            let Some(media) = choose(headers, ["application/json", openapi::V2_TYPE, openapi::V2_TYPE_OLD])
            else {
                return Ok(bare(406));
            };
            let json = media == "application/json";
            let (document, tag) = registry.openapi.get(&resources, !json).await;
            let known = headers.get(IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
            let media = if json { media } else { openapi::V2_TYPE };
            let mut response = if known { bare(304) } else { respond(200, media, Body::from(document)) };
            tag_with(&mut response, &tag)?;
            Ok(response)
        }
        ["openapi", "v3"] => {
            let index = openapi::index(&resources).await.to_string();
            Ok(respond(200, "text/plain; charset=utf-8", Body::from(Bytes::from(index))))
        }
        ["openapi", "v3", ..] => {
            // As it is written: with a slash at its end it is another.
            let name = path.trim_start_matches("/openapi/v3/");
            document(headers, query, path, &resources, name)
        }
        _ => {
            let found = match segments.as_slice() {
                [] => Some(roots(&resources)),
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

/// How others may check the tokens of service accounts (OpenID Connect Discovery 1.0). Pods reach this server by the issuer's name.
fn issuer() -> Value {
    serde_json::json!({
        "issuer": ISSUER,
        "jwks_uri": format!("{ISSUER}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// An answer about the issuer of tokens, which may be kept for an hour.
fn of_issuer(headers: &HeaderMap, media: &'static str, document: &Value) -> Result<Response<Body>> {
    check_accept(headers, media)?;
    let mut response = respond(200, media, Body::from(Bytes::from(document.to_string())));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Ok(response)
}

/// Whether upstream routes a path by its method; other paths that are no resources answer whatever the method is.
fn only_read(resources: &[Arc<Resource>], segments: &[&str]) -> bool {
    match segments {
        ["api" | "version"] | [".well-known", "openid-configuration"] | ["openid", "v1", "jwks"] => true,
        ["api", version] => *version == "v1",
        ["apis", group, version] => {
            let built_in = |one: &Arc<Resource>| {
                one.custom().is_none() && one.group == *group && one.version == *version
            };
            resources.iter().any(built_in)
        }
        _ => false,
    }
}

/// What this server has: discovery, its documents, and whether it is well.
fn roots(resources: &[Arc<Resource>]) -> Value {
    let own = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/apis/",
        "/openapi/v2",
        "/openapi/v3",
    ];
    let others = ["/openid/v1/jwks", "/version"].into_iter().map(str::to_owned);
    let health = ["/healthz", "/livez", "/readyz"]
        .into_iter()
        .flat_map(|path| [path.to_owned(), format!("{path}/ping")]);
    let groups = resources.iter().filter(|resource| !resource.group.is_empty()).flat_map(|resource| {
        let group = format!("/apis/{}", resource.group);
        [format!("{group}/{}", resource.version), group]
    });
    let all = own.into_iter().map(str::to_owned).chain(others).chain(health).chain(groups);
    serde_json::json!({"paths": all.collect::<BTreeSet<_>>()})
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

/// Aggregated discovery, if it is asked for: tagged by what it says, whatever its form.
fn aggregated(
    headers: &HeaderMap,
    query: &Query,
    resources: &[Arc<Resource>],
    core: bool,
) -> Option<Result<Response<Body>>> {
    let document = || discovery::aggregated(resources, core);
    let mut response = Form::negotiate_groups(headers, query)?.groups(document)?;
    let tag = discovery::etag(document().to_string().as_bytes());
    if headers.get(IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes()) {
        response = bare(304);
    }
    Some(tag_with(&mut response, &tag).map(|()| response))
}

/// Refuses a client that takes nothing of the one media type that there is.
fn check_accept(headers: &HeaderMap, media: &str) -> Result<()> {
    let accept = text(headers, ACCEPT);
    if accept.is_empty() || accepts(&accept, media) {
        return Ok(());
    }
    Err(Status::no_representation_but(media))
}

/// Whether an `Accept` header has a clause for a media type.
fn accepts(accept: &str, media: &str) -> bool {
    let any = media.split_once('/').map(|(kind, _)| format!("{kind}/*")).unwrap_or_default();
    clauses(accept).any(|clause| clause == media || clause == any || clause == "*/*")
}

/// The media types of an `Accept` header.
fn clauses(accept: &str) -> impl Iterator<Item = &str> {
    accept.split(',').map(|clause| clause.split(';').next().unwrap_or_default().trim())
}

/// The first clause of the `Accept` header that one of the media types of OpenAPI fits.
fn choose<const N: usize>(headers: &HeaderMap, offered: [&'static str; N]) -> Option<&'static str> {
    let accept = text(headers, ACCEPT);
    if accept.is_empty() {
        return offered.first().copied();
    }
    clauses(&accept).find_map(|clause| {
        let fits = |media: &&&str| clause == **media || matches!(clause, "application/*" | "*/*");
        offered.iter().find(fits).copied()
    })
}

/// An answer of a code alone.
fn bare(code: u16) -> Response<Body> {
    let mut response = respond(code, "application/json", Body::empty());
    response.headers_mut().remove(CONTENT_TYPE);
    response
}

/// A document of OpenAPI v3. Under the address with its hash it may be kept for ever; a wrong hash leads to the right one.
fn document(
    headers: &HeaderMap,
    query: &Query,
    path: &str,
    resources: &[Arc<Resource>],
    name: &str,
) -> Result<Response<Body>> {
    let Some(hash) = openapi::hash(resources, name) else { return Ok(bare(404)) };
    let Some(media) = choose(headers, ["application/json", openapi::V3_TYPE, openapi::V3_TYPE_OLD]) else {
        return Ok(bare(406));
    };
    let asked = query.get("hash");
    let tag = format!("\"{hash}\"");
    let known = headers.get(IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let mut response = if asked.is_some_and(|asked| asked != hash) {
        let media = if media == "application/json" { media } else { openapi::V3_TYPE };
        let mut moved = respond(301, media, Body::empty());
        let location = HeaderValue::from_str(&format!("{path}?hash={hash}")).map_err(Status::internal)?;
        moved.headers_mut().insert(LOCATION, location);
        moved
    } else if known {
        bare(304)
    } else {
        let document = openapi::document(resources, name).ok_or_else(Status::no_path)?;
        if media == "application/json" {
            respond(200, media, Body::from(Bytes::from(document.to_string())))
        } else {
            respond(200, openapi::V3_TYPE, Body::from(Bytes::from(openapi::v3_protobuf(&document))))
        }
    };
    if asked == Some(hash.as_str()) {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    tag_with(&mut response, &tag)?;
    Ok(response)
}

fn tag_with(response: &mut Response<Body>, tag: &str) -> Result<()> {
    let value = HeaderValue::from_str(tag).map_err(Status::internal)?;
    response.headers_mut().insert(ETAG, value);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(())
}
