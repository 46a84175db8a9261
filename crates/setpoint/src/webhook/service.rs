use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Webhook;
use super::request::Asked;
use super::review::{refusing, status};
use super::versions::AnyVersions;
use crate::Metrics;

/// Requests that are worked on at a time; more wait within their time limit.
const IN_FLIGHT: usize = 256;
/// How long a review may take whose caller does not say how long it waits.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of an AdmissionReview, which holds an object twice: as controller-runtime has it.
const ADMISSION_LIMIT: usize = 7 << 20;
/// The most bytes of a ConversionReview, which holds a page of a list.
const CONVERSION_LIMIT: usize = 256 << 20;
/// Where objects are converted, as in kubebuilder's projects.
const CONVERT: &str = "/convert";
/// Objects that are converted before other requests get their turn.
const STRETCH: usize = 16;
/// The part of the caller's patience that a webhook may use up: the answer has to be there before it ends.
const SHARE: f64 = 0.9;

/// All webhooks of an operator: a server without sockets, from request to response. Cheap to clone.
///
/// One bad handler disturbs nobody else: its panic, or its running out of time, is an answer that says so.
#[derive(Clone)]
pub struct Webhooks(Arc<Inner>);

struct Inner {
    routes: BTreeMap<String, Webhook>,
    versions: Vec<AnyVersions>,
    metrics: Metrics,
    permits: Semaphore,
}

/// An `AdmissionReview` as it comes.
#[derive(Deserialize)]
struct Envelope {
    #[serde(default, rename = "apiVersion")]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Asked>,
}

impl Webhooks {
    /// Of several webhooks at one path the last is served.
    pub(crate) fn new(webhooks: Vec<Webhook>, versions: Vec<AnyVersions>, metrics: &Metrics) -> Self {
        let routes: BTreeMap<String, Webhook> =
            webhooks.into_iter().map(|webhook| (webhook.path(), webhook)).collect();
        for path in routes.keys() {
            metrics.webhooks().declare(path);
        }
        if !versions.is_empty() {
            metrics.webhooks().declare(CONVERT);
        }
        Self(Arc::new(Inner {
            routes,
            versions,
            metrics: metrics.clone(),
            permits: Semaphore::new(IN_FLIGHT),
        }))
    }

    /// Whether nothing is served at all.
    pub fn is_empty(&self) -> bool {
        self.0.routes.is_empty() && self.0.versions.is_empty()
    }

    /// Whether something is served at a path, and how many bytes it takes.
    pub(crate) fn limit(&self, path: &str) -> Option<usize> {
        if path == CONVERT && !self.0.versions.is_empty() {
            return Some(CONVERSION_LIMIT);
        }
        self.0.routes.contains_key(path).then_some(ADMISSION_LIMIT)
    }

    /// Answers a POST of an `AdmissionReview` or `ConversionReview`.
    pub fn answer(&self, request: Request<Bytes>) -> BoxFuture<'static, Response<Bytes>> {
        let this = self.clone();
        async move {
            let path = request.uri().path().to_owned();
            let Some(limit) = this.limit(&path) else {
                return text(StatusCode::NOT_FOUND, format!("no webhook is served at {path}\n"));
            };
            let counted = this.0.metrics.webhooks().started(&path);
            let response = if request.body().len() > limit {
                too_large(limit)
            } else {
                this.reviewed(&path, &request).await
            };
            counted.finished(response.status().as_u16());
            response
        }
        .boxed()
    }

    async fn reviewed(&self, path: &str, request: &Request<Bytes>) -> Response<Bytes> {
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "reviews are posted\n".to_owned());
        }
        let deadline = Instant::now() + patience(request.uri().query().unwrap_or_default()).mul_f64(SHARE);
        let Ok(permit) = tokio::time::timeout_at(deadline, self.0.permits.acquire()).await else {
            return text(StatusCode::TOO_MANY_REQUESTS, "too many reviews are under way\n".to_owned());
        };
        // Closed by nobody: then there is no bound.
        let _permit = permit.ok();
        if path == CONVERT {
            self.conversion(request.body(), deadline).await
        } else {
            self.admission(path, request.body(), deadline).await
        }
    }

    async fn admission(&self, path: &str, body: &[u8], deadline: Instant) -> Response<Bytes> {
        let envelope: Envelope = match serde_json::from_slice(body) {
            Ok(envelope) => envelope,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}\n")),
        };
        let (api_version, kind) = (envelope.api_version, envelope.kind);
        if (api_version.as_str(), kind.as_str()) != ("admission.k8s.io/v1", "AdmissionReview") {
            let message = format!(
                "an AdmissionReview of admission.k8s.io/v1 is answered here, not {kind:?} of {api_version:?}\n"
            );
            return text(StatusCode::BAD_REQUEST, message);
        }
        let Some(asked) = envelope.request else {
            return text(StatusCode::BAD_REQUEST, "the AdmissionReview has no request\n".to_owned());
        };
        let Some(webhook) = self.0.routes.get(path) else {
            return text(StatusCode::NOT_FOUND, format!("no webhook is served at {path}\n"));
        };
        let uid = asked.request.uid.clone();
        let failed = |code, reason, message: &str| refusing(&uid, &status(code, reason, message));
        let admitted = AssertUnwindSafe(webhook.admit.clone().admit(asked)).catch_unwind();
        let response = match tokio::time::timeout_at(deadline, admitted).await {
            Ok(Ok(response)) => response,
            Ok(Err(panic)) => {
                self.0.metrics.webhooks().panicked();
                let message = said(panic.as_ref());
                tracing::error!(webhook = path, "the webhook panicked: {message}");
                failed(500, "InternalError", &format!("the webhook {path} panicked: {message}"))
            }
            Err(_) => {
                tracing::error!(webhook = path, "the webhook ran out of time");
                failed(504, "Timeout", &format!("the webhook {path} did not decide in time"))
            }
        };
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        reviewed(&review)
    }
}

/// A `ConversionReview` as it comes.
#[derive(Deserialize)]
struct Conversion {
    #[serde(default, rename = "apiVersion")]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Convert>,
}

/// What is to be converted.
#[derive(Deserialize)]
struct Convert {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired: String,
    objects: Vec<Value>,
}

impl Webhooks {
    async fn conversion(&self, body: &[u8], deadline: Instant) -> Response<Bytes> {
        let review: Conversion = match serde_json::from_slice(body) {
            Ok(review) => review,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("not a ConversionReview: {error}\n")),
        };
        let (api_version, kind) = (review.api_version, review.kind);
        if (api_version.as_str(), kind.as_str()) != ("apiextensions.k8s.io/v1", "ConversionReview") {
            let message = format!(
                "a ConversionReview of apiextensions.k8s.io/v1 is answered here, not {kind:?} of {api_version:?}\n"
            );
            return text(StatusCode::BAD_REQUEST, message);
        }
        let Some(request) = review.request else {
            return text(StatusCode::BAD_REQUEST, "the ConversionReview has no request\n".to_owned());
        };
        let converted = AssertUnwindSafe(self.convert(&request)).catch_unwind();
        let outcome = match tokio::time::timeout_at(deadline, converted).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => {
                self.0.metrics.webhooks().conversion_panicked();
                let message = said(panic.as_ref());
                tracing::error!(to = request.desired, "the conversion panicked: {message}");
                Err(format!("the conversion to {} panicked: {message}", request.desired))
            }
            Err(_) => Err(format!("the conversion to {} did not end in time", request.desired)),
        };
        let response = match outcome {
            Ok(objects) => {
                json!({"uid": request.uid, "result": {"status": "Success"}, "convertedObjects": objects})
            }
            Err(message) => json!({"uid": request.uid, "result": status(500, "InternalError", &message)}),
        };
        let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
        reviewed(&review)
    }

    /// All objects or none, as the API server wants it.
    async fn convert(&self, request: &Convert) -> Result<Vec<Value>, String> {
        let (group, version) = request.desired.rsplit_once('/').unwrap_or(("", &request.desired));
        let mut converted = Vec::with_capacity(request.objects.len());
        for (count, object) in request.objects.iter().enumerate() {
            if count % STRETCH == STRETCH - 1 {
                tokio::task::yield_now().await;
            }
            let (api_version, kind) = (&object["apiVersion"], &object["kind"]);
            let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
            let versions = self.0.versions.iter().find(|versions| {
                versions.kind().group == group
                    && versions.kind().same_group_kind(&text(api_version), &text(kind))
            });
            let versions = versions.ok_or_else(|| {
                format!("{kind} of {api_version} is not converted to {} here", request.desired)
            })?;
            converted.push(versions.convert(object, version).map_err(|error| error.to_string())?);
        }
        Ok(converted)
    }
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Webhooks").field(&self.0.routes.keys()).finish()
    }
}

/// How long the API server waits: it says so in `?timeout=10s`.
fn patience(query: &str) -> Duration {
    let given = query.split('&').find_map(|pair| pair.strip_prefix("timeout="));
    let seconds = given.and_then(|given| given.strip_suffix('s')).and_then(|seconds| seconds.parse().ok());
    // Nobody waits longer than 30 s upstream.
    seconds.map_or(TIME_LIMIT, |seconds: u64| Duration::from_secs(seconds.min(60)))
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// What a request gets whose body is larger than is read.
pub(super) fn too_large(limit: usize) -> Response<Bytes> {
    text(StatusCode::PAYLOAD_TOO_LARGE, format!("more than {limit} bytes are not read\n"))
}

fn reviewed(review: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(review.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn text(status: StatusCode, message: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(message));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests;
