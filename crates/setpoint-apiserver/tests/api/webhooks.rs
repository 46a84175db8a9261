//! Webhooks in this process: no sockets, on a paused clock.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use serde_json::{Value, json};
use setpoint_apiserver::{WebhookAnswer, WebhookServer};

use crate::client::{Client, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Labels what it is asked about; at `/hangs` it never answers.
struct Labels;

impl WebhookServer for Labels {
    fn answer(&self, request: Request<Bytes>) -> WebhookAnswer {
        Box::pin(async move {
            if request.uri().path() == "/hangs" {
                std::future::pending::<()>().await;
            }
            let review: Value = serde_json::from_slice(request.body()).unwrap();
            // [{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]
            let patch = "W3sib3AiOiAiYWRkIiwgInBhdGgiOiAiL21ldGFkYXRhL2xhYmVscyIsICJ2YWx1ZSI6IHsic2VlbiI6ICJ5ZXMifX1d";
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response":
                {"uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch}});
            Response::new(Bytes::from(answer.to_string()))
        })
    }
}

fn configuration(path: &str) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": "w"},
        "webhooks": [{"name": "labels.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": "default", "name": "hooks", "path": path}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]})
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test(start_paused = true)]
async fn a_webhook_of_this_process_is_asked_without_sockets() {
    let api = server();
    api.set_webhook_server("hooks.default.svc", Arc::new(Labels));
    let client = Client::admin(&api);
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    client.post(configurations, &configuration("/label")).await.expect(201);
    let created = client.post(MAPS, &map("a")).await.expect(201);
    assert_eq!(created["metadata"]["labels"], json!({"seen": "yes"}));
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_hangs_times_out_by_the_paused_clock() {
    let api = server();
    api.set_webhook_server("hooks.default.svc", Arc::new(Labels));
    let client = Client::admin(&api);
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    client.post(configurations, &configuration("/hangs")).await.expect(201);
    let start = tokio::time::Instant::now();
    let refused = client.post(MAPS, &map("a")).await.expect(500);
    assert_eq!(
        refused["message"],
        "Internal error occurred: failed calling webhook \"labels.example.com\": failed to call webhook: Post \"https://hooks.default.svc:443/hangs?timeout=10s\": context deadline exceeded"
    );
    assert_eq!(start.elapsed().as_secs(), 10, "seconds of the paused clock");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_a_webhook_no_longer_than_it_may() {
    let api = server();
    api.set_webhook_server("hooks.default.svc", Arc::new(Labels));
    let client = Client::admin(&api);
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    client.post(configurations, &configuration("/hangs")).await.expect(201);
    let start = tokio::time::Instant::now();
    let refused = client.post(&format!("{MAPS}?timeout=2500ms"), &map("a")).await.expect(504);
    assert_eq!(refused["message"], "Timeout: request did not complete within the allotted timeout");
    assert_eq!(start.elapsed().as_millis(), 2500, "milliseconds of the paused clock");
    client.get(&format!("{MAPS}/a")).await.expect(404);
    // Many that hang one after the other: a minute is all there is.
    let mut slow = configuration("/hangs");
    slow["metadata"]["name"] = "slow".into();
    let hook = slow["webhooks"][0].clone();
    let hooks = (0..9).map(|index| {
        let mut hook = hook.clone();
        hook["name"] = format!("h{index}.example.com").into();
        hook["failurePolicy"] = "Ignore".into();
        hook
    });
    slow["webhooks"] = hooks.collect::<Value>();
    client.delete(&format!("{configurations}/w")).await.expect(200);
    client.post(configurations, &slow).await.expect(201);
    let start = tokio::time::Instant::now();
    client.post(MAPS, &map("a")).await.expect(504);
    assert_eq!(start.elapsed().as_secs(), 60, "seconds of the paused clock");
}
