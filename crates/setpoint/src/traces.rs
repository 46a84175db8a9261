//! Spans of reconciles and of the requests below them, for an OpenTelemetry collector.
//!
//! ```text
//! worker: span reconcile ─┐                        ┌─▶ log lines (fields of the span)
//! request stack: span ────┴▶ tracing's subscriber ─┴▶ Traces ─▶ batches ─▶ OTLP, HTTP with protobuf ─▶ collector
//! ```
//!
//! The export is behind the feature `otlp`. Without it spans are what log lines take their fields from, and cost nothing else.

use http::{Request, Response};
use kube::client::Body;
use setpoint_clock::Clock;
use tower::BoxError;
use tracing::{Span, field};

use crate::{Cause, LogError, LogFormat, Reconciled};

#[cfg(feature = "otlp")]
mod export;
// Compiled by the tests as well, which have the feature.
#[cfg(any(test, not(feature = "otlp")))]
#[cfg_attr(feature = "otlp", expect(dead_code, reason = "the other one is used"))]
mod without;

#[cfg(feature = "otlp")]
use export as exporting;
#[cfg(not(feature = "otlp"))]
use without as exporting;

pub(crate) use exporting::Export;

/// The target of request spans: a filter of its own, so that they don't appear in log lines.
pub(crate) const REQUESTS: &str = "setpoint::requests";

/// Why spans cannot be exported, or logs not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[cfg(feature = "otlp")]
    #[error("spans cannot be exported: {0}; see OTEL_EXPORTER_OTLP_ENDPOINT")]
    Exporter(String),
}

/// Sets up logs, and the export of spans where the environment names a collector. `name` and `version` are the operator's.
pub(crate) fn init(
    name: &str,
    version: Option<&str>,
    (level, format, clock): (&str, LogFormat, Clock),
) -> Result<Export, TraceError> {
    exporting::init(name, version, (level, format, clock))
}

/// The variable that names a collector, if one does.
fn endpoint() -> Option<&'static str> {
    let set = |name: &&'static str| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
    if std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"].into_iter().find(set)
}

/// Notes on a reconcile's span why it runs.
pub(crate) fn causes(span: &Span, causes: &[Cause]) {
    exporting::attribute(span, "setpoint.causes", || {
        causes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    });
}

/// Notes on a reconcile's span how it ended.
pub(crate) fn ended(span: &Span, ended: Reconciled, error: Option<&str>) {
    exporting::attribute(span, "setpoint.result", || {
        let result = match ended {
            Reconciled::Success => "success",
            Reconciled::RequeueAfter => "requeue_after",
            Reconciled::Error => "error",
            Reconciled::Terminal => "terminal_error",
            Reconciled::Panic => "panic",
            Reconciled::TimedOut => "timeout",
        };
        result.to_owned()
    });
    if let Some(error) = error {
        exporting::failed(span, error);
    }
}

/// The span of a request below that of a reconcile; none for the others, which watches and elections send all the time.
pub(crate) fn request(request: &Request<Body>, host: &str) -> Span {
    if Span::current().is_none() {
        return Span::none();
    }
    let (method, path) = (request.method().as_str(), request.uri().path());
    // Never the query or a header: names are enough, and what is secret stays so.
    tracing::debug_span!(
        target: REQUESTS,
        "request",
        otel.name = format_args!("{method} {}", resource(path)),
        otel.kind = "client",
        http.request.method = method,
        url.path = path,
        server.address = host,
        http.request.resend_count = field::Empty,
        http.response.status_code = field::Empty,
        "error.type" = field::Empty,
        otel.status_code = field::Empty,
    )
}

/// Notes on a request's span what came of it.
pub(crate) fn answered(span: &Span, result: &Result<Response<Body>, BoxError>) {
    let Ok(response) = result else {
        span.record("error.type", "no_answer");
        span.record("otel.status_code", "ERROR");
        return;
    };
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_client_error() || status.is_server_error() {
        span.record("error.type", status.as_u16());
        span.record("otel.status_code", "ERROR");
    }
}

/// Plural and sub-resource of a path, which name a span without making one for each object.
fn resource(path: &str) -> String {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let version = if parts.next() == Some("apis") { parts.nth(1) } else { parts.next() };
    let rest: Vec<&str> = parts.collect();
    let rest = match rest.as_slice() {
        // A namespace itself has no more than a sub-resource behind it.
        ["namespaces", _, sub @ ..]
            if sub.len() > 1 || matches!(sub, [plural] if !matches!(*plural, "status" | "finalize")) =>
        {
            sub
        }
        all => all,
    };
    match rest {
        [plural, _, subresource, ..] => format!("{plural}/{subresource}"),
        [plural, ..] => (*plural).to_owned(),
        [] => version.unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_named_by_resource() {
        for (path, name) in [
            ("/api/v1/namespaces/team-a/configmaps/web", "configmaps"),
            ("/api/v1/namespaces/team-a/configmaps", "configmaps"),
            ("/api/v1/namespaces/team-a", "namespaces"),
            ("/api/v1/namespaces/team-a/status", "namespaces/status"),
            ("/api/v1/nodes/n", "nodes"),
            ("/apis/example.com/v1/namespaces/a/websites/w/status", "websites/status"),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "clusterroles"),
            ("/apis/example.com/v1", "v1"),
            ("/version", ""),
        ] {
            assert_eq!(resource(path), name, "{path}");
        }
    }
}
