//! Requests for certificates (`pkg/apis/certificates/validation`).

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use setpoint_schema::{ErrorKind, FieldPath};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::errors::{Errors, IMMUTABLE};
use crate::builtin::{
    edit::{list, text},
    go::GoValue,
};
use crate::distinguished_name::{Name, ORGANIZATION};
use crate::object_meta::NameRule;

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub fn request(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let given = text(spec, "request");
    if block(given, "CERTIFICATE REQUEST").is_none() {
        errors.invalid(&path.child("request"), given, "PEM block type must be CERTIFICATE REQUEST");
    }
    if list(spec, "usages").is_empty() {
        errors.required(&path.child("usages"), "");
    }
    for (index, usage) in list(spec, "usages").iter().filter_map(Value::as_str).enumerate() {
        let path = path.child("usages").index(index);
        if !USAGES.contains(&usage) {
            errors.unsupported(&path, usage, &USAGES);
        }
        if list(spec, "usages")[..index].iter().any(|other| other == usage) {
            errors.duplicate(&path, usage);
        }
    }
    signer(errors, &path.child("signerName"), text(spec, "signerName"));
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < 600) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(&path.child("expirationSeconds"), seconds, detail);
    }
    if old.is_some_and(|old| old["spec"] != *spec) {
        errors.invalid(&path, spec.clone(), IMMUTABLE);
    }
}

fn signer(errors: &mut Errors, path: &FieldPath, name: &str) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    let form = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
    match name.split_once('/') {
        Some((domain, rest)) if !rest.is_empty() && !rest.contains('/') => {
            errors.name(path, domain, NameRule::Subdomain);
            if !domain.contains('.') {
                errors.invalid(
                    path,
                    domain,
                    "should be a domain with at least two segments separated by dots",
                );
            }
            errors.name(path, rest, NameRule::Subdomain);
        }
        _ => errors.invalid(path, name, form),
    }
}

/// The organizations in a request for a certificate, as base64 of PEM. If there are several requests in it, those of all: a signer might read another
/// one than the first.
///
/// # Errors
/// Why it is none.
pub fn organizations(encoded: &str) -> Result<Vec<String>, String> {
    let blocks = blocks(encoded, "CERTIFICATE REQUEST");
    if blocks.is_empty() {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    }
    let mut organizations = Vec::new();
    for der in blocks {
        let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|why| why.to_string())?;
        if !rest.is_empty() {
            return Err("asn1: syntax error: trailing data".to_owned());
        }
        let subject = request.certification_request_info.subject.as_raw();
        let name =
            Name::read(subject).ok_or_else(|| "asn1: structure error: a subject that is none".to_owned())?;
        organizations.extend(name.all(ORGANIZATION).map(str::to_owned));
    }
    Ok(organizations)
}

/// The content of the first PEM block of a kind, in base64 of base64.
fn block(encoded: &str, kind: &str) -> Option<Vec<u8>> {
    blocks(encoded, kind).into_iter().next()
}

/// The contents of all that can be read.
fn blocks(encoded: &str, kind: &str) -> Vec<Vec<u8>> {
    let Some(text) = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else {
        return Vec::new();
    };
    let (begin, end) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let read = text.split(&begin).skip(1).filter_map(|begun| {
        let (body, _) = begun.split_once(&end)?;
        let body: String = body.split_whitespace().collect();
        STANDARD.decode(body).ok().filter(|bytes| !bytes.is_empty())
    });
    read.collect()
}

/// What a write to /status or /approval may say.
pub fn conditions(errors: &mut Errors, new: &Value, old: &Value) {
    let path = FieldPath::from("status.conditions");
    let has = |object: &Value, kind: &str| {
        list(&object["status"], "conditions").iter().any(|one| text(one, "type") == kind)
    };
    if has(new, "Approved") && has(new, "Denied") {
        let shown =
            GoValue::Plain(r#"{conditions[{"type": "Approved"}], conditions[{"type": "Denied"}]}"#.into());
        let detail = r#"must specify at most one of: `conditions[{"type": "Approved"}]`, `conditions[{"type": "Denied"}]`"#;
        errors.push_shown(ErrorKind::Invalid, &path, &shown, detail);
    }
    for kind in ["Approved", "Denied", "Failed"] {
        if has(old, kind) && !has(new, kind) {
            errors.forbidden(&path, &format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    let certificate = text(&new["status"], "certificate");
    if !certificate.is_empty() && block(certificate, "CERTIFICATE").is_none() {
        let path = FieldPath::from("status.certificate");
        errors.invalid(&path, "<certificate data>", "must contain at least one CERTIFICATE PEM block");
    }
}
