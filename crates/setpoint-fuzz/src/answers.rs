//! What webhooks answer: a server of webhooks in this process that says what it is told.

use std::cell::RefCell;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use setpoint_apiserver::{WebhookAnswer, WebhookServer};

use crate::server::{JSON, Server, custom_object, definition, split};

/// What stands in an answer for the uid of the review that it answers.
const UID: &str = "@UID";
const HOST: &str = "hooks.example.com";
const OTHERS: &str = "/apis/other.example.com/v2/namespaces/default/others";

/// An answer: its head, a code and headers in lines, and its body.
#[derive(Default)]
struct Answer {
    head: Vec<u8>,
    body: Vec<u8>,
}

/// Gives the same answer to every review.
#[derive(Default)]
struct Parrot(Mutex<Answer>);

impl Parrot {
    fn say(&self, head: &[u8], body: &[u8]) {
        *self.0.lock() = Answer { head: head.to_vec(), body: body.to_vec() };
    }

    fn response(&self, review: &[u8]) -> Option<Response<Bytes>> {
        let answer = self.0.lock();
        let mut lines = answer.head.split(|byte| *byte == b'\n');
        let code = std::str::from_utf8(lines.next()?).ok()?.parse::<u16>().ok()?;
        let mut response = Response::builder().status(code);
        for line in lines {
            let (name, value) = split(line, b":");
            response = response.header(name, value);
        }
        let review: Value = serde_json::from_slice(review).ok()?;
        let uid = review["request"]["uid"].as_str()?;
        // An answer need not be text.
        let body = std::str::from_utf8(&answer.body)
            .map_or_else(|_| Bytes::copy_from_slice(&answer.body), |text| text.replace(UID, uid).into());
        response.body(body).ok()
    }
}

impl WebhookServer for Parrot {
    fn answer(&self, request: Request<Bytes>) -> WebhookAnswer {
        // A head that no response can have is one that says nothing.
        let response = self.response(request.body()).unwrap_or_default();
        Box::pin(std::future::ready(response))
    }
}

struct Hooked {
    server: Server,
    parrot: Arc<Parrot>,
}

impl Hooked {
    fn new() -> Self {
        let mut server = Server::new();
        let parrot = Arc::new(Parrot::default());
        server.api.set_webhook_server(HOST, parrot.clone());
        let mut others = definition(&json!([]));
        others["metadata"]["name"] = "others.other.example.com".into();
        others["spec"]["group"] = "other.example.com".into();
        others["spec"]["names"] =
            json!({"plural": "others", "singular": "other", "kind": "Other", "listKind": "OtherList"});
        let mut second = others["spec"]["versions"][0].clone();
        (second["name"], second["storage"]) = ("v2".into(), false.into());
        others["spec"]["versions"] = json!([others["spec"]["versions"][0], second]);
        others["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"], "clientConfig": {"url": format!("https://{HOST}/convert")}}});
        let mut other = custom_object();
        (other["apiVersion"], other["kind"]) = ("other.example.com/v1".into(), "Other".into());
        let registration = |kind: &str| {
            let rule = json!({"operations": ["CREATE", "UPDATE"], "apiGroups": ["", "fuzz.example.com"],
                "apiVersions": ["v1"], "resources": ["configmaps", "things"]});
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "w"}, "webhooks": [{
                "name": "w.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "reinvocationPolicy": if kind.starts_with('M') { json!("IfNeeded") } else { Value::Null },
                "clientConfig": {"url": format!("https://{HOST}/admit")}, "rules": [rule]}]})
        };
        let admission = "/apis/admissionregistration.k8s.io/v1";
        for (path, object) in [
            ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), others),
            (OTHERS.replace("v2", "v1"), other),
            (
                format!("{admission}/mutatingwebhookconfigurations"),
                registration("MutatingWebhookConfiguration"),
            ),
            (
                format!("{admission}/validatingwebhookconfigurations"),
                registration("ValidatingWebhookConfiguration"),
            ),
        ] {
            let code = server.send(Method::POST, &path, &[JSON], object.to_string().as_bytes());
            assert_eq!(code, 201, "{path} {object}");
        }
        Self { server, parrot }
    }

    /// Has a `ConfigMap` and a custom object admitted.
    fn admit(&mut self) {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": {"a": "b"}});
        let thing = custom_object();
        for (method, path, object) in [
            (Method::POST, "/api/v1/namespaces/default/configmaps", &map),
            (Method::PUT, "/apis/fuzz.example.com/v1/namespaces/default/things/a", &thing),
        ] {
            let path = format!("{path}?dryRun=All");
            self.server.send(method, &path, &[JSON], object.to_string().as_bytes());
        }
    }

    /// Reads a custom object in another version than it is stored in, and patches it there.
    fn convert(&mut self) {
        self.server.send(Method::GET, OTHERS, &[], b"");
        let merge = [("content-type", "application/merge-patch+json")];
        self.server.send(
            Method::PATCH,
            &format!("{OTHERS}/a?dryRun=All"),
            &merge,
            br#"{"spec":{"count":6}}"#,
        );
    }
}

thread_local! {
    static HOOKED: RefCell<Option<Hooked>> = const { RefCell::new(None) };
}

/// Answers of webhooks: the code and headers in lines, an empty line and the body, as they are; then the body alone as the patch and as the
/// converted objects of an answer that is right otherwise.
pub fn answers(data: &[u8]) {
    let (head, body) = split(data, b"\n\n");
    HOOKED.with_borrow_mut(|hooked| {
        let hooked = hooked.get_or_insert_with(Hooked::new);
        hooked.parrot.say(head, body);
        hooked.admit();
        hooked.convert();
        let patched = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response":
            {"uid": UID, "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(body)}});
        hooked.parrot.say(b"200", patched.to_string().as_bytes());
        hooked.admit();
        let mut converted = format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{{"uid":"{UID}","result":{{"status":"Success"}},"convertedObjects":"#
        )
        .into_bytes();
        converted.extend_from_slice(body);
        converted.extend_from_slice(b"}}");
        hooked.parrot.say(b"200", &converted);
        hooked.convert();
    });
}
