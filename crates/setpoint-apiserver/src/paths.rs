//! Paths that are no resources: health, version, discovery.

use http::{Method, Response};
use serde_json::json;

use crate::body::Body;
use crate::render::{Form, respond};
use crate::server::Inner;
use crate::status::{Result, Status};

/// Answers a request for a path that names no resource.
pub(crate) fn answer(inner: &Inner, method: &Method, path: &str, form: &Form) -> Result<Response<Body>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Status::no_resource());
    }
    let _ = inner;
    match path.trim_end_matches('/') {
        "/healthz" | "/livez" | "/readyz" => {
            Ok(respond(200, "text/plain; charset=utf-8", Body::from(bytes::Bytes::from_static(b"ok"))))
        }
        "/version" => Ok(form.value(200, &version())),
        _ => Err(Status::no_resource()),
    }
}

fn version() -> serde_json::Value {
    let git = setpoint_kinds::kubernetes_version();
    let mut parts = git.trim_start_matches('v').split('.');
    json!({
        "major": parts.next().unwrap_or_default(), "minor": parts.next().unwrap_or_default(),
        "gitVersion": format!("{git}+setpoint"), "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
