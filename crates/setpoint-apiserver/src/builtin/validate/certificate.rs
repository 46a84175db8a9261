//! Requests for certificates (`pkg/apis/certificates/validation`).

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use setpoint_schema::{ErrorKind, FieldError, FieldPath};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::errors::{Errors, IMMUTABLE};
use crate::builtin::{
    edit::{list, text},
    go::GoValue,
};
use crate::distinguished_name::{Name, ORGANIZATION};
use crate::object::Metadata;
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
    signer_name(errors, &path.child("signerName"), text(spec, "signerName"));
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < 600) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(&path.child("expirationSeconds"), seconds, detail);
    }
    if old.is_some_and(|old| old["spec"] != *spec) {
        errors.invalid(&path, spec.clone(), IMMUTABLE);
    }
}

/// Checks the name of a signer, such as `example.com/signer`.
pub fn signer_name(errors: &mut Errors, path: &FieldPath, name: &str) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let form = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return errors.invalid(path, name, form);
    };
    if domain.len() > 253 {
        errors.push(FieldError::too_long(path, 253));
    }
    // The first part that is wrong says it for all.
    let mut part = |of: &str, rule: NameRule| {
        let wrong =
            of.split('.').map(|part| (part, rule.check(part, false))).find(|(_, wrong)| !wrong.is_empty());
        for (part, problem) in
            wrong.into_iter().flat_map(|(part, all)| all.into_iter().map(move |one| (part, one)))
        {
            errors.invalid(path, of, format!("validating label {part:?}: {problem}"));
        }
    };
    part(domain, NameRule::Label);
    part(rest, NameRule::Subdomain);
    if !domain.contains('.') {
        errors.invalid(path, domain, "should be a domain with at least two segments separated by dots");
    }
    if name.len() > 571 {
        errors.push(FieldError::too_long(path, 571));
    }
}

/// What is wrong with the name of a `ClusterTrustBundle` that a pod refers to: the part before the last colon tells the signer.
pub fn bundle_name(name: &str) -> Vec<String> {
    let signer = name.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/"));
    bundle_name_of(name, &signer.unwrap_or_default())
}

fn bundle_name_of(name: &str, signer: &str) -> Vec<String> {
    if signer.is_empty() {
        if name.contains(':') {
            return vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()];
        }
        return NameRule::Subdomain.check(name, false);
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => NameRule::Subdomain.check(rest, false),
        None => {
            vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")]
        }
    }
}

/// Checks a `ClusterTrustBundle`. Certificates that did not change are not read again.
pub fn bundle(errors: &mut Errors, new: &Value, old: Option<&Value>) {
    const SIZE: u64 = 1 << 20;
    let (spec, path) = (&new["spec"], FieldPath::from("spec"));
    let (name, signer) = (new.meta("name"), text(spec, "signerName"));
    if !name.is_empty() {
        for problem in bundle_name_of(name, signer) {
            errors.invalid(&FieldPath::from("metadata.name"), name, problem);
        }
    }
    if !signer.is_empty() {
        signer_name(errors, &path.child("signerName"), signer);
    }
    if let Some(old) = old {
        errors.immutable(spec, &old["spec"], &path, "signerName");
    }
    let given = text(spec, "trustBundle");
    if old.is_some_and(|old| text(&old["spec"], "trustBundle") == given) {
        return;
    }
    let path = path.child("trustBundle");
    if given.len() as u64 > SIZE {
        return errors.push(FieldError::too_long(&path, SIZE));
    }
    let (mut seen, before) = (BTreeMap::<Vec<u8>, Vec<usize>>::new(), errors.len());
    for (index, (kind, headers, body)) in entries(given).enumerate() {
        let fault = if kind != "CERTIFICATE" {
            format!("entry {index} has bad block type: {kind}")
        } else if headers {
            format!("entry {index} has PEM block headers")
        } else {
            match X509Certificate::from_der(&body) {
                Err(_) => format!("entry {index} does not parse as X.509"),
                Ok((_, certificate)) if !certificate.is_ca() => {
                    format!("entry {index} does not have the CA bit set")
                }
                Ok(_) => {
                    seen.entry(body).or_default().push(index);
                    continue;
                }
            }
        };
        errors.invalid(&path, "<value omitted>", fault);
    }
    if errors.len() > before {
        return;
    }
    if seen.is_empty() {
        errors.invalid(&path, "<value omitted>", "at least one trust anchor must be provided");
    }
    for same in seen.values().filter(|same| same.len() > 1) {
        let indices: Vec<String> = same.iter().map(usize::to_string).collect();
        let detail = format!("duplicate trust anchor (indices [{}])", indices.join(" "));
        errors.invalid(&path, "<value omitted>", detail);
    }
}

/// The PEM blocks of a text: their types, whether they have headers, and what is in them.
fn entries(text: &str) -> impl Iterator<Item = (String, bool, Vec<u8>)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (_, after) = rest.split_once("-----BEGIN ")?;
            let (kind, after) = after.split_once("-----")?;
            let end = format!("-----END {kind}-----");
            let Some((body, after)) = after.split_once(&end) else {
                rest = after;
                continue;
            };
            rest = after;
            let headers = body.contains(':');
            let body: String = body.lines().filter(|line| !line.contains(':')).map(str::trim).collect();
            if let Ok(body) = STANDARD.decode(body) {
                return Some((kind.to_owned(), headers, body));
            }
        }
    })
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
