//! Whether a TLS secret has a certificate and its key, in the words of Go (`crypto/tls.X509KeyPair`).

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::builtin::edit::text;

/// What is wrong with the pair in a secret.
pub(super) fn fault(secret: &Value) -> Option<String> {
    let part = |name: &str| {
        let bytes = STANDARD.decode(text(&secret["data"], name)).unwrap_or_default();
        blocks(&String::from_utf8_lossy(&bytes))
    };
    check(&part("tls.crt"), &part("tls.key")).err()
}

fn check(certificates: &[(String, Vec<u8>)], keys: &[(String, Vec<u8>)]) -> Result<(), String> {
    let is_key = |kind: &str| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY");
    let kinds = |blocks: &[(String, Vec<u8>)]| {
        format!("[{}]", blocks.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>().join(" "))
    };
    let Some((_, certificate)) = certificates.iter().find(|(kind, _)| kind == "CERTIFICATE") else {
        return Err(match certificates {
            [] => "tls: failed to find any PEM data in certificate input".to_owned(),
            [(kind, _)] if is_key(kind) => "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".to_owned(),
            all => format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: {}", kinds(all)),
        });
    };
    let Some((kind, key)) = keys.iter().find(|(kind, _)| is_key(kind)) else {
        return Err(match keys {
            [] => "tls: failed to find any PEM data in key input".to_owned(),
            [(kind, _)] if kind == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
            }
            all => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: {}",
                kinds(all)
            ),
        });
    };
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Err("x509: malformed certificate".to_owned());
    };
    let key = match kind.as_str() {
        "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(key.clone().into()),
        "EC PRIVATE KEY" => PrivateKeyDer::Sec1(key.clone().into()),
        _ => PrivateKeyDer::Pkcs8(key.clone().into()),
    };
    let Ok(key) = any_supported_type(&key) else { return Err("tls: failed to parse private key".to_owned()) };
    match key.public_key() {
        Some(public) if *public != *certificate.public_key().raw => {
            // What tells the type comes first.
            let same = certificate.public_key().algorithm.algorithm.as_bytes();
            let kind = public.windows(same.len()).any(|part| part == same);
            Err(if kind {
                "tls: private key does not match public key".to_owned()
            } else {
                "tls: private key type does not match public key type".to_owned()
            })
        }
        _ => Ok(()),
    }
}

/// The PEM blocks of a text with their types.
fn blocks(text: &str) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some((kind, after)) =
        rest.split_once("-----BEGIN ").and_then(|(_, after)| after.split_once("-----"))
    {
        rest = after;
        if let Some((body, after)) = after.split_once(&format!("-----END {kind}-----")) {
            let body: String = body.lines().filter(|line| !line.contains(':')).map(str::trim).collect();
            if let Ok(body) = STANDARD.decode(body) {
                found.push((kind.to_owned(), body));
            }
            rest = after;
        }
    }
    found
}
