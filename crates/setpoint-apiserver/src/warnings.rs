//! `Warning` headers.

use http::Response;
use http::header::HeaderValue;

use crate::body::Body;

/// The most `Warning` headers of an answer: clients refuse answers with more than 100 headers.
const MAX_WARNINGS: usize = 64;
/// The most bytes of all warnings together (upstream: `truncateAtTotalRunes`).
const MAX_WARNED: usize = 4 << 10;

/// Adds what whoever made the request should know, as much as fits.
pub(crate) fn warn_all(response: &mut Response<Body>, texts: &[String]) {
    let mut size = 0;
    for text in texts.iter().take(MAX_WARNINGS) {
        size += text.len();
        if size > MAX_WARNED {
            break;
        }
        warn(response, text);
    }
}

/// Adds a `Warning` header (RFC 7234, as `k8s.io/apimachinery/pkg/util/net.NewWarningHeader` writes it).
pub(crate) fn warn(response: &mut Response<Body>, text: &str) {
    let mut quoted = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
        response.headers_mut().append("warning", value);
    }
}
