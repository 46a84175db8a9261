//! Bodies of writes. Everything is a dry run: the server's objects stay what they are.

use http::Method;
use serde_json::json;

use crate::server::{self, JSON};

/// What patches are tried on.
const TARGETS: [&str; 3] = [
    "/api/v1/namespaces/default/configmaps/a",
    "/apis/apps/v1/namespaces/default/deployments/a",
    "/apis/fuzz.example.com/v1/namespaces/default/things/a",
];
const DRY: &str = "dryRun=All";

fn patch(media: &str, more: &str, data: &[u8]) {
    server::with(|server| {
        for path in TARGETS {
            let path = format!("{path}?{DRY}{more}");
            server.send(Method::PATCH, &path, &[("content-type", media)], data);
        }
    });
}

/// JSON patches (RFC 6902).
pub fn json_patch(data: &[u8]) {
    patch("application/json-patch+json", "", data);
}

/// JSON merge patches (RFC 7396).
pub fn merge_patch(data: &[u8]) {
    patch("application/merge-patch+json", "&fieldValidation=Strict", data);
}

/// Strategic merge patches with their directives.
pub fn strategic_patch(data: &[u8]) {
    patch("application/strategic-merge-patch+json", "", data);
}

/// Server-side apply: YAML, once as a manager that is new and once forced as the one that made the objects.
pub fn apply(data: &[u8]) {
    patch("application/apply-patch+yaml", "&fieldManager=fuzz", data);
    patch("application/apply-patch+yaml", "&fieldManager=unknown&force=true", data);
}

/// Objects in JSON and YAML, as creations and as updates.
pub fn bodies(data: &[u8]) {
    let collections = [
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/pods",
        "/apis/apps/v1/namespaces/default/deployments",
        "/apis/fuzz.example.com/v1/namespaces/default/things",
    ];
    server::with(|server| {
        for media in ["application/json", "application/yaml"] {
            for collection in collections {
                let headers = [("content-type", media)];
                let path = format!("{collection}?{DRY}&fieldValidation=Warn");
                server.send(Method::POST, &path, &headers, data);
                server.send(Method::PUT, &format!("{collection}/a?{DRY}"), &headers, data);
            }
        }
        server.send(Method::DELETE, &format!("{}?{DRY}", TARGETS[0]), &[JSON], data);
    });
}

/// Protobuf: whole bodies, and messages that are put into the envelope of a kind that the first byte chooses.
pub fn protobuf(data: &[u8]) {
    const KINDS: [(&str, &str, &str); 8] = [
        ("v1", "Pod", "/api/v1/namespaces/default/pods"),
        ("v1", "ConfigMap", "/api/v1/namespaces/default/configmaps"),
        ("v1", "Service", "/api/v1/namespaces/default/services"),
        ("v1", "Node", "/api/v1/nodes"),
        ("apps/v1", "Deployment", "/apis/apps/v1/namespaces/default/deployments"),
        ("apps/v1", "StatefulSet", "/apis/apps/v1/namespaces/default/statefulsets"),
        ("batch/v1", "Job", "/apis/batch/v1/namespaces/default/jobs"),
        ("coordination.k8s.io/v1", "Lease", "/apis/coordination.k8s.io/v1/namespaces/default/leases"),
    ];
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    let Some((first, rest)) = data.split_first() else { return };
    let (version, kind, path) = KINDS[usize::from(*first) % KINDS.len()];
    // `runtime.Unknown`: 1 = TypeMeta {1 = apiVersion, 2 = kind}, 2 = the object's bytes.
    let mut meta = Vec::new();
    field(&mut meta, 1, version.as_bytes());
    field(&mut meta, 2, kind.as_bytes());
    let mut envelope = b"k8s\0".to_vec();
    field(&mut envelope, 1, &meta);
    field(&mut envelope, 2, rest);
    server::with(|server| {
        let path = format!("{path}?{DRY}");
        server.send(Method::POST, &path, &headers, &envelope);
        server.send(Method::POST, &path, &headers, data);
        server.send(Method::POST, &path, &headers, &[b"k8s\0", rest].concat());
    });
}

/// Writes a field of bytes.
fn field(message: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    message.push(number << 3 | 2);
    let mut length = bytes.len();
    while length > 127 {
        message.push((length & 127) as u8 | 128);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(bytes);
}

/// `JSONPath`s of printer columns, and the table that they make.
pub fn columns(data: &[u8]) {
    let path = String::from_utf8_lossy(data);
    let columns: Vec<_> = ["string", "date", "integer"]
        .iter()
        .map(|kind| json!({"name": kind, "type": kind, "jsonPath": path}))
        .collect();
    let definition = server::definition(&json!(columns)).to_string();
    server::with(|server| {
        let at = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.fuzz.example.com";
        let patch = [("content-type", "application/merge-patch+json")];
        if server.send(Method::PATCH, at, &patch, definition.as_bytes()) == 200 {
            let table = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
            let code = server.send(Method::GET, "/apis/fuzz.example.com/v1/things", &table, b"");
            assert_eq!(code, 200, "{path}");
        }
    });
}
