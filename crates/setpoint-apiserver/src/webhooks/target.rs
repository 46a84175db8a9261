//! Where a webhook is, from the `clientConfig` of its configuration.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde_json::Value;

/// A webhook's place.
#[derive(Debug)]
pub(super) struct Target {
    /// Host and port as errors and the `Host` header show them; a port that a URL leaves out stays out.
    pub(super) authority: String,
    /// The name that the certificate must be good for.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
    /// Namespace and name, of a Service.
    pub(super) service: Option<(String, String)>,
    /// The certificates that may have signed its own, in PEM; without them, those of the machine.
    pub(super) ca: Option<Vec<u8>>,
}

impl Target {
    /// Reads a `clientConfig` that creation has checked.
    pub(super) fn of(config: &Value) -> Result<Self, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let bundle = STANDARD.decode(config["caBundle"].as_str().unwrap_or_default()).unwrap_or_default();
        let ca = (!bundle.is_empty()).then_some(bundle);
        let service = &config["service"];
        if service.is_object() {
            let (namespace, name) = (text(&service["namespace"]), text(&service["name"]));
            let port = service["port"].as_u64().and_then(|port| port.try_into().ok()).unwrap_or(443);
            let host = format!("{name}.{namespace}.svc");
            return Ok(Self {
                authority: format!("{host}:{port}"),
                host,
                port,
                path: absolute(&text(&service["path"])),
                service: Some((namespace, name)),
                ca,
            });
        }
        let url = text(&config["url"]);
        if url.is_empty() {
            return Err("webhook configuration must have either service or URL".to_owned());
        }
        let uri: Uri = url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        Ok(Self { authority, host, port, path: absolute(uri.path()), service: None, ca })
    }
}

/// A path as Go's client sends it: from the root, without a slash at its end.
fn absolute(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn urls_and_services_are_read() {
        let url = Target::of(&json!({"url": "https://127.0.0.1:9443/a/b"})).unwrap();
        assert_eq!((&*url.authority, &*url.host, url.port), ("127.0.0.1:9443", "127.0.0.1", 9443));
        assert_eq!((&*url.path, url.ca), ("/a/b", None));
        let short = Target::of(&json!({"url": "https://hooks.example.com", "caBundle": "eA=="})).unwrap();
        assert_eq!((&*short.authority, short.port, &*short.path), ("hooks.example.com", 443, "/"));
        assert_eq!(short.ca, Some(b"x".to_vec()));
        let v6 = Target::of(&json!({"url": "https://[::1]:1/x/"})).unwrap();
        assert_eq!((&*v6.authority, &*v6.host, &*v6.path), ("[::1]:1", "::1", "/x"));
        let service = json!({"service": {"namespace": "a", "name": "b", "path": "/c", "port": 8443}});
        let service = Target::of(&service).unwrap();
        assert_eq!((&*service.authority, &*service.host), ("b.a.svc:8443", "b.a.svc"));
        assert_eq!(service.service, Some(("a".to_owned(), "b".to_owned())));
        Target::of(&json!({})).unwrap_err();
    }
}
