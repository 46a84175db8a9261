//! `Warning` headers.

use http::Response;
use http::header::HeaderValue;

use crate::body::Body;

/// The most `Warning` headers of an answer: clients refuse answers with more than 100 headers.
const MAX_WARNINGS: usize = 64;
/// How many characters all warnings may have (upstream: `truncateAtTotalRunes`), and how many each of them may have when that is
/// too little (`truncateItemRunes`).
const MAX_WARNED: usize = 4 << 10;
const MAX_WARNING: usize = 256;

/// Adds what whoever made the request should know, each warning once, and none with control characters. Where that is too much, all are cut short.
pub(crate) fn warn_all(response: &mut Response<Body>, texts: &[String]) {
    let mut different: Vec<&str> = Vec::new();
    for text in texts.iter().map(String::as_str) {
        let fit = !text.is_empty() && !text.contains(char::is_control);
        if fit && !different.contains(&text) {
            different.push(text);
        }
    }
    let total: usize = different.iter().map(|text| text.chars().count()).sum();
    let longest = if total > MAX_WARNED { MAX_WARNING } else { usize::MAX };
    let mut written = 0;
    for text in different.into_iter().take(MAX_WARNINGS) {
        if written >= MAX_WARNED {
            break;
        }
        let cut: String = text.chars().take(longest).collect();
        written += cut.chars().count();
        warn(response, &cut);
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
