//! A server in this process with something of everything in it, and the parts of requests that are not bodies.

use std::cell::RefCell;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::{Value, json};
use setpoint_apiserver::{ApiServer, Identity, InProcess};
use tokio::runtime::{Builder, Runtime};
use tower::Service;

/// After so many requests that may have written, a server is replaced by a fresh one: its memory stays small.
const FRESH_AFTER: u32 = 500;
/// The most of an answer that is read.
const READ_LIMIT: usize = 4 << 20;

/// A server and what calls it.
pub(crate) struct Server {
    pub(crate) runtime: Runtime,
    pub(crate) api: ApiServer,
    pub(crate) service: InProcess,
    requests: u32,
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// Lends the thread's server.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut Server) -> T) -> T {
    SERVER.with_borrow_mut(|server| use_it(server.get_or_insert_with(Server::new)))
}

impl Server {
    #[expect(clippy::expect_used, reason = "without a server there is nothing to test")]
    pub(crate) fn new() -> Self {
        // Nobody waits for time to pass.
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime can be made");
        let api = ApiServer::builder().build();
        let service = api.service(Identity::admin());
        let mut server = Self { runtime, api, service, requests: 0 };
        for (path, object) in objects() {
            let code = server.send(Method::POST, path, &[JSON], object.to_string().as_bytes());
            assert_eq!(code, 201, "{path} {object}");
        }
        server
    }

    /// Sends a request and reads the first piece of the answer; gives its code. A path that no URI can have is not sent: 0.
    pub(crate) fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let Ok(request) = request.body(Full::new(Bytes::copy_from_slice(body))) else { return 0 };
        let service = &mut self.service;
        self.runtime.block_on(async {
            let response = match service.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            let code = response.status().as_u16();
            // A watch has nothing to say for now.
            let mut body = response.into_body();
            let mut read = Vec::new();
            while let Some(Some(Ok(frame))) = body.frame().now_or_never() {
                read.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
                if read.len() > READ_LIMIT {
                    break;
                }
            }
            let text = String::from_utf8_lossy(&read);
            assert!(code != 500 || !text.contains("a bug in Setpoint"), "{path}: {text}");
            code
        })
    }
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// The custom resource's schema: something of every kind.
pub(crate) fn schema() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "text": {"type": "string", "maxLength": 50},
            "count": {"type": "integer", "format": "int32", "default": 3},
            "share": {"type": "number"},
            "when": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
            "names": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 9},
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "maxItems": 9, "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string", "maxLength": 9}, "size": {"type": "integer", "default": 1}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 9}, "maxProperties": 9},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }})
}

pub(crate) fn custom_object() -> Value {
    json!({"apiVersion": "fuzz.example.com/v1", "kind": "Thing", "metadata": {"name": "a", "labels": {"app": "x"}}, "spec": {
        "text": "hello", "count": 5, "share": 0.5, "when": "2026-01-02T03:04:05Z", "port": "http", "names": ["a", "b"],
        "parts": [{"name": "a", "size": 2}, {"name": "b"}], "labels": {"a.b/c": "d"}, "whole": {"x": [1, {"y": null}]},
    }})
}

pub(crate) fn definition(columns: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.fuzz.example.com"}, "spec": {
            "group": "fuzz.example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema()},
                "subresources": {"status": {}}, "selectableFields": [{"jsonPath": ".spec.text"}],
                "additionalPrinterColumns": columns}],
    }})
}

fn objects() -> Vec<(&'static str, Value)> {
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [
        {"name": "a", "image": "i", "ports": [{"containerPort": 80, "name": "http"}], "env": [{"name": "E", "value": "v"}]},
        {"name": "b", "image": "j"}], "tolerations": [{"key": "k", "operator": "Exists"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "labels": {"app": "x"}},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"app": "x", "tier": "y"}},
        "data": {"k": "v"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    // The smallest that is taken for a request: nobody reads it as long as no user is asked for.
    let block =
        STANDARD.encode("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n");
    let signing = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "a"},
        "spec": {"request": block, "signerName": "example.com/signer", "usages": ["client auth"]}});
    vec![
        ("/api/v1/namespaces/default/configmaps", map),
        ("/api/v1/namespaces/default/pods", pod),
        ("/apis/apps/v1/namespaces/default/deployments", deployment),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(&json!([]))),
        ("/apis/fuzz.example.com/v1/namespaces/default/things", custom_object()),
        ("/apis/certificates.k8s.io/v1/certificatesigningrequests", signing),
    ]
}

fn encoded(data: &[u8]) -> String {
    percent_encode(data, NON_ALPHANUMERIC).to_string()
}

/// Label and field selectors: the text, as label selector and as field selector of built-in and custom kinds.
pub fn selectors(data: &[u8]) {
    let text = encoded(data);
    let paths = ["/api/v1/pods", "/api/v1/configmaps", "/apis/fuzz.example.com/v1/things", "/api/v1/events"];
    with(|server| {
        for (path, parameter) in
            [(0, "label"), (2, "label"), (0, "field"), (1, "field"), (2, "field"), (3, "field")]
        {
            let path: &str = paths[path];
            let path = format!("{path}?{parameter}Selector={text}");
            let code = server.send(Method::GET, &path, &[], b"");
            assert!(matches!(code, 200 | 400), "{code} for {path}");
        }
    });
}

/// Continue tokens: the bytes as they are, and as the content of a well-formed token; with versions and limits.
pub fn pages(data: &[u8]) {
    use std::fmt::Write as _;
    let token = encoded(data);
    let inner: String = data.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String never fails.
        let _ = write!(text, "{}", char::from(*byte));
        text
    });
    let well_formed = base64_url(inner.as_bytes());
    let number = data.first().copied().unwrap_or_default();
    with(|server| {
        for token in [token.as_str(), &well_formed] {
            for more in ["", "&resourceVersion=5", "&resourceVersion=0&resourceVersionMatch=Exact"] {
                let path = format!("/api/v1/namespaces?limit={number}&continue={token}{more}");
                server.send(Method::GET, &path, &[], b"");
            }
        }
        let text = encoded(data);
        for parameter in
            ["resourceVersion", "limit", "timeoutSeconds", "resourceVersionMatch", "sendInitialEvents"]
        {
            server.send(Method::GET, &format!("/api/v1/namespaces?watch=1&{parameter}={text}"), &[], b"");
            server.send(Method::GET, &format!("/api/v1/namespaces?{parameter}={text}"), &[], b"");
        }
    });
}

/// As in tokens: URL-safe, without padding.
fn base64_url(data: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in data.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// A whole request: on the first line the method and the path with its query, then headers, an empty line and a body.
pub fn request(data: &[u8]) {
    let (head, body) = split(data, b"\n\n");
    let mut lines = head.split(|byte| *byte == b'\n');
    let (method, path) = split(lines.next().unwrap_or_default(), b" ");
    let Ok(method) = Method::from_bytes(method) else { return };
    let path = String::from_utf8_lossy(path);
    let lines: Vec<(String, String)> = lines
        .map(|line| split(line, b":"))
        .map(|(name, value)| {
            (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).trim().to_owned())
        })
        .collect();
    let headers: Vec<(&str, &str)> =
        lines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    with(|server| {
        server.send(method, &path, &headers, body);
        server.requests += 1;
        if server.requests > FRESH_AFTER {
            *server = Server::new();
        }
    });
}

/// What stands before and after the first `separator`.
pub(crate) fn split<'a>(data: &'a [u8], separator: &[u8]) -> (&'a [u8], &'a [u8]) {
    let at = data.windows(separator.len()).position(|window| window == separator);
    at.map_or((data, &[]), |at| (&data[..at], &data[at + separator.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_written_in_base64() {
        assert_eq!(base64_url(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw");
        assert_eq!(base64_url(&[0xfb, 0xff]), "-_8");
    }
}
