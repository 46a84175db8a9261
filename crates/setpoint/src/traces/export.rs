use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Status, TracerProvider as _};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;

use super::{REQUESTS, TraceError, endpoint};
use crate::logs::init_logs_beside;
use crate::{Clock, LogFormat, init_logs};

/// How long the last spans may take to be sent.
const FLUSH: Duration = Duration::from_secs(5);
/// How long a batch may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most of a collector's answer that is read.
const ANSWER: usize = 1 << 20;

/// The export, if the environment names a collector.
pub(crate) struct Export(Option<SdkTracerProvider>);

impl Export {
    /// Sends what is left. Blocks meanwhile: other threads of the runtime do the sending.
    pub(crate) fn stop(self) {
        if let Some(provider) = self.0
            && let Err(error) = provider.shutdown_with_timeout(FLUSH)
        {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

/// Call inside a tokio runtime of several threads: batches are sent from it.
pub(super) fn init(
    name: &str,
    version: Option<&str>,
    (level, format, clock): (&str, LogFormat, Clock),
) -> Result<Export, TraceError> {
    if endpoint().is_none() {
        init_logs(level, format, clock)?;
        return Ok(Export(None));
    }
    let failed = |error: &dyn fmt::Display| TraceError::Exporter(error.to_string());
    let sender = Sender::new().map_err(|error| failed(&error))?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(sender)
        .build()
        .map_err(|error| failed(&error))?;
    // Batches, sampling and their limits are as the variables OTEL_BSP_… and OTEL_TRACES_SAMPLER say.
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource(name, version))
        .build();
    // What libraries do below a request is none of the operator's story.
    let spans = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target(REQUESTS, LevelFilter::DEBUG)
        .with_targets(
            ["hyper", "hyper_util", "h2", "tower", "rustls", "kube_client"]
                .map(|library| (library, LevelFilter::OFF)),
        );
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("setpoint"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(spans);
    init_logs_beside(level, format, clock, layer)?;
    Ok(Export(Some(provider)))
}

/// Who sends the spans: by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, and else the operator and its pod.
fn resource(name: &str, version: Option<&str>) -> Resource {
    let said = Resource::builder().build();
    let unknown = |value: &opentelemetry::Value| value.as_str().starts_with("unknown_service");
    let mut resource = Resource::builder();
    if said.get_ref(&"service.name".into()).is_none_or(unknown) {
        resource = resource.with_service_name(name.to_owned());
    }
    let environment = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
    let ours = [
        ("service.version", version.map(str::to_owned)),
        ("k8s.pod.name", environment("POD_NAME")),
        ("k8s.namespace.name", environment("POD_NAMESPACE")),
    ];
    for (key, value) in ours {
        if let Some(value) = value.filter(|_| said.get_ref(&key.into()).is_none()) {
            resource = resource.with_attribute(KeyValue::new(key, value));
        }
    }
    resource.build()
}

pub(super) fn attribute(span: &Span, key: &'static str, value: impl FnOnce() -> String) {
    if !span.is_disabled() {
        span.set_attribute(key, value());
    }
}

pub(super) fn failed(span: &Span, error: &str) {
    span.set_status(Status::error(error.to_owned()));
}

/// Sends batches on the operator's runtime: the exporter's own thread has none.
struct Sender {
    runtime: Handle,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Whether the last batch was lost: each such time is told once.
    failing: Arc<AtomicBool>,
}

impl Sender {
    fn new() -> Result<Self, HttpError> {
        let mut roots = RootCertStore::empty();
        // A machine without any is enough for a collector without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(file) = std::env::var_os("OTEL_EXPORTER_OTLP_CERTIFICATE") {
            let read = |error: &dyn fmt::Display| {
                format!("OTEL_EXPORTER_OTLP_CERTIFICATE {}: {error}", file.display())
            };
            for certificate in CertificateDer::pem_file_iter(&file).map_err(|error| read(&error))? {
                roots.add(certificate.map_err(|error| read(&error))?)?;
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { runtime: Handle::current(), client, failing: Arc::default() })
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

type Sent<'f> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>;

impl HttpClient for Sender {
    fn send_bytes<'this, 'sent>(&'this self, request: Request<Bytes>) -> Sent<'sent>
    where
        'this: 'sent,
        Self: 'sent,
    {
        let (client, failing) = (self.client.clone(), Arc::clone(&self.failing));
        let to = request.uri().to_string();
        let exchange = async move {
            let (parts, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(parts, body))
        };
        let sending = self.runtime.spawn(async move {
            let result =
                tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|error| Err(error.into()));
            let problem = match &result {
                Ok(response) if response.status().is_success() => None,
                Ok(response) => Some(format!("it answers {}", response.status())),
                Err(error) => Some(words(&**error)),
            };
            let failed_before = failing.swap(problem.is_some(), Ordering::Relaxed);
            if let Some(problem) = problem.filter(|_| !failed_before) {
                tracing::warn!(collector = to, problem, "spans cannot be sent");
            }
            result
        });
        Box::pin(async move { sending.await? })
    }
}

/// An error with what it comes from: hyper's own words are only "client error".
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
