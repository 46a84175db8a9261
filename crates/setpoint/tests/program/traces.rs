//! The example operator sends its spans to a collector in this process.

use std::convert::Infallible;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Any};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span, span::SpanKind, status::StatusCode};
use parking_lot::Mutex;
use prost::Message;
use serde_json::{Value, json};

use super::installing::{SHOP, Site};
use super::{Running, apply, program, stderr, until};

/// What was received, and how often: batches as a collector decodes them.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ResourceSpans>>>);

impl Collector {
    /// Its address.
    async fn serve(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let this = this.clone();
                let service = service_fn(move |request| this.clone().take(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        address
    }

    async fn take(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        assert_eq!(request.uri().path(), "/v1/traces");
        assert_eq!(request.headers()["content-type"], "application/x-protobuf");
        assert_eq!(request.headers()["x-tenant"], "setpoint");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let batch = ExportTraceServiceRequest::decode(body).unwrap();
        self.0.lock().extend(batch.resource_spans);
        Ok(Response::new(Full::default()))
    }

    fn spans(&self) -> Vec<Span> {
        let batches = self.0.lock();
        batches.iter().flat_map(|batch| &batch.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }
}

fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    match attributes.iter().find(|pair| pair.key == key)?.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text.clone()),
        Any::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

fn of(span: &Span, key: &str) -> String {
    attribute(&span.attributes, key).unwrap_or_else(|| panic!("{key} is missing in {span:#?}"))
}

const ADDRESSES: [&str; 4] = ["--metrics-bind-address", "0", "--health-probe-bind-address", "0"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_reach_a_collector() {
    let (site, collector) = (Site::new().await, Collector::default());
    let address = collector.serve().await;
    assert_eq!(site.run(&["install", "--crds"]).status.code(), Some(0));
    apply(&site.admin, SHOP).await;
    let log = site.file.with_file_name("log");
    let mut running = Running(
        program()
            .args(["run", "--log-format", "json", "--kubeconfig"])
            .arg(&site.file)
            .args(ADDRESSES)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"))
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=setpoint")
            .env("OTEL_BSP_SCHEDULE_DELAY", "100")
            .env("POD_NAME", "website-operator-0")
            .stderr(Stdio::from(std::fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap(),
    );
    let reconcile = until("the span of a reconcile that worked", &log, async || {
        let spans = collector.spans();
        let worked =
            |span: &Span| attribute(&span.attributes, "setpoint.result").as_deref() == Some("success");
        spans.into_iter().find(|span| span.name == "reconcile" && worked(span))
    })
    .await;
    assert_eq!(of(&reconcile, "controller"), "website");
    assert_eq!(of(&reconcile, "namespace"), "default");
    assert_eq!(of(&reconcile, "name"), "shop");
    assert!(of(&reconcile, "setpoint.causes").starts_with("found at the start: "), "{reconcile:#?}");
    assert!(reconcile.end_time_unix_nano > reconcile.start_time_unix_nano);

    let spans = collector.spans();
    let below: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id == reconcile.span_id).collect();
    let patch = below.iter().find(|span| span.name == "PATCH configmaps");
    let patch = patch.unwrap_or_else(|| panic!("no request for the page in {below:#?}"));
    assert_eq!(patch.trace_id, reconcile.trace_id);
    assert_eq!(patch.kind(), SpanKind::Client);
    assert_eq!(of(patch, "http.request.method"), "PATCH");
    assert_eq!(of(patch, "http.response.status_code"), "201");
    assert_eq!(of(patch, "url.path"), "/api/v1/namespaces/default/configmaps/shop-page");
    // Watches and lists are no part of a reconcile.
    assert!(
        spans.iter().all(|span| span.name == "reconcile" || !span.parent_span_id.is_empty()),
        "{spans:#?}"
    );

    let resource = collector.0.lock()[0].resource.clone().unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("website-operator"));
    assert_eq!(
        attribute(&resource.attributes, "service.version").as_deref(),
        Some(env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(attribute(&resource.attributes, "k8s.pod.name").as_deref(), Some("website-operator-0"));

    // A failure shows: somebody else's ConfigMap is in the way.
    let theirs = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: blog-page, namespace: default}\n";
    apply(&site.admin, theirs).await;
    apply(&site.admin, &SHOP.replace("shop", "blog")).await;
    let failed = until("the span of a reconcile that failed", &log, async || {
        collector.spans().into_iter().find(|span| span.name == "reconcile" && of(span, "name") == "blog")
    })
    .await;
    assert!(of(&failed, "setpoint.result").ends_with("error"), "{failed:#?}");
    let status = failed.status.clone().unwrap();
    assert_eq!(status.code(), StatusCode::Error);
    assert!(status.message.contains("blog-page"), "{status:?}");

    // Requests are spans, and no log lines. A reconcile's lines have what its span has, to find one by the other.
    let lines = std::fs::read_to_string(&log).unwrap();
    assert!(!lines.contains("url.path"), "{lines}");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |line: &&Value| line["name"] == "blog" && line["reconcile_id"] == of(&failed, "reconcile_id");
    let line = lines.iter().find(said).unwrap_or_else(|| panic!("no line of {failed:#?} in {lines:#?}"));
    assert_eq!((&line["controller"], &line["namespace"]), (&json!("website"), &json!("default")));
    assert!(line["level"].is_string() && line["error"].is_string() && line["ts"].is_string(), "{line}");
    drop(collector);
    let _ = running.0.kill();
}

/// What is left is sent before the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_spans_are_sent_at_the_stop() {
    let (site, collector) = (Site::new().await, Collector::default());
    let address = collector.serve().await;
    assert_eq!(site.run(&["install", "--crds"]).status.code(), Some(0));
    apply(&site.admin, SHOP).await;
    let log = site.file.with_file_name("log");
    let mut running = Running(
        program()
            .args(["run", "--log-level", "error", "--kubeconfig"])
            .arg(&site.file)
            .args(ADDRESSES)
            .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("http://{address}/v1/traces"))
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=setpoint")
            // An hour.
            .env("OTEL_BSP_SCHEDULE_DELAY", "3600000")
            .stderr(Stdio::from(std::fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap(),
    );
    until("the status", &log, async || {
        let shop = site.websites().get("shop").await.unwrap();
        shop.data["status"]["page"].is_string().then_some(())
    })
    .await;
    assert!(collector.spans().is_empty());
    let killed =
        std::process::Command::new("kill").args(["-TERM", &running.0.id().to_string()]).status().unwrap();
    assert!(killed.success());
    until("the end", &log, async || running_ended(&mut running)).await;
    assert!(collector.spans().iter().any(|span| span.name == "reconcile"), "{:#?}", collector.spans());
}

fn running_ended(running: &mut Running) -> Option<()> {
    running.0.try_wait().unwrap().map(|status| assert_eq!(status.code(), Some(0)))
}

/// A collector that is away costs a line, and no reconcile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_is_told_once() {
    let site = Site::new().await;
    assert_eq!(site.run(&["install", "--crds"]).status.code(), Some(0));
    apply(&site.admin, SHOP).await;
    let log = site.file.with_file_name("log");
    let _running = Running(
        program()
            .args(["run", "--kubeconfig"])
            .arg(&site.file)
            .args(ADDRESSES)
            // Port 1 is reserved and closed.
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            .env("OTEL_BSP_SCHEDULE_DELAY", "50")
            .stderr(Stdio::from(std::fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap(),
    );
    let told = || std::fs::read_to_string(&log).unwrap_or_default().matches("spans cannot be sent").count();
    until("the warning", &log, async || (told() > 0).then_some(())).await;
    until("the status", &log, async || {
        let shop = site.websites().get("shop").await.unwrap();
        shop.data["status"]["page"].is_string().then_some(())
    })
    .await;
    for name in ["a", "b", "c"] {
        apply(&site.admin, &SHOP.replace("shop", name)).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(told(), 1, "{}", std::fs::read_to_string(&log).unwrap());
}

#[test]
fn an_endpoint_that_is_none_ends_with_a_line() {
    let output =
        program().arg("run").env("OTEL_EXPORTER_OTLP_ENDPOINT", "collector port 4318").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: spans cannot be exported: "), "{}", stderr(&output));
}
