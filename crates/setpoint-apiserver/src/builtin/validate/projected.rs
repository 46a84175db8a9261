//! Projected volumes: files from several sources below one root.

use std::collections::BTreeSet;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use super::volume::{downward, files};
use super::volume_source::relative;
use super::{certificate, selector};
use crate::builtin::edit::{list, text};

const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
const SOURCES: [&str; 6] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];

/// The paths of files so far. Upstream names the volume where two are the same.
struct Paths<'a> {
    seen: BTreeSet<&'a str>,
    volume: &'a FieldPath,
}

impl<'a> Paths<'a> {
    fn take(&mut self, errors: &mut Errors, path: &'a str, shown: &str) {
        if !self.seen.insert(path) {
            errors.invalid(self.volume, shown, "conflicting duplicate paths");
        }
    }
}

/// Checks the sources of a projected volume.
pub fn check(errors: &mut Errors, volume: &Value, path: &FieldPath) {
    let mut paths = Paths { seen: BTreeSet::new(), volume: path };
    for (index, source) in list(volume, "sources").iter().enumerate() {
        let item = path.child("sources").index(index);
        for key in ["secret", "configMap"] {
            let (of, at) = (&source[key], item.child(key));
            if of.is_object() {
                errors.present(of, &at, "name");
                files(errors, of, &at, "key");
                for file in list(of, "items").iter().map(|file| text(file, "path")).filter(|p| !p.is_empty())
                {
                    paths.take(errors, file, text(of, "name"));
                }
            }
        }
        if source["downwardAPI"].is_object() {
            downward(errors, &source["downwardAPI"], &item.child("downwardAPI"));
            let given = list(&source["downwardAPI"], "items").iter().map(|file| text(file, "path"));
            for file in given.filter(|path| !path.is_empty()) {
                paths.take(errors, file, file);
            }
        }
        let token = &source["serviceAccountToken"];
        if token.is_object() {
            let seconds = token["expirationSeconds"].as_i64().unwrap_or_default();
            let at = item.child("serviceAccountToken").child("expirationSeconds");
            if seconds < 600 {
                errors.invalid(&at, seconds, "may not specify a duration less than 10 minutes");
            } else if seconds > 1 << 32 {
                errors.invalid(&at, seconds, "may not specify a duration larger than 2^32 seconds");
            }
            // As upstream, which names the volume here and not the source.
            if text(token, "path").is_empty() {
                errors.required(&path.child("path"), "");
            } else {
                relative(errors, &path.child("path"), text(token, "path"));
            }
        }
        if source["clusterTrustBundle"].is_object() {
            bundle(errors, &source["clusterTrustBundle"], &item.child("clusterTrustBundle"), &mut paths);
        }
        if source["podCertificate"].is_object() {
            pod_certificate(errors, &source["podCertificate"], &item.child("podCertificate"), &mut paths);
        }
        if SOURCES.iter().filter(|key| source[**key].is_object()).count() > 1 {
            errors.forbidden(&item, "may not specify more than 1 volume type per source");
        }
    }
}

fn bundle<'a>(errors: &mut Errors, bundle: &'a Value, path: &FieldPath, paths: &mut Paths<'a>) {
    match (bundle["name"].as_str(), bundle["signerName"].as_str()) {
        (Some(_), Some(_)) => {
            errors.invalid(path, bundle.clone(), "only one of name and signerName may be used");
        }
        (Some(name), None) => {
            if name.is_empty() {
                errors.required(&path.child("name"), "must be a valid object name");
            }
            for problem in certificate::bundle_name(name) {
                let detail = format!("not a valid clustertrustbundlename: {problem}");
                errors.invalid(&path.child("name"), name, detail);
            }
            if bundle["labelSelector"].is_object() {
                let detail = "labelSelector must be unset if name is specified";
                errors.invalid(&path.child("labelSelector"), bundle["labelSelector"].clone(), detail);
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                errors.required(&path.child("signerName"), "must be a valid signer name");
            }
            certificate::signer_name(errors, &path.child("signerName"), signer);
            if bundle["labelSelector"].is_object() {
                selector::check(errors, &bundle["labelSelector"], &path.child("labelSelector"));
            }
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    let file = text(bundle, "path");
    errors.present(bundle, path, "path");
    relative(errors, &path.child("path"), file);
    paths.take(errors, file, file);
}

fn pod_certificate<'a>(errors: &mut Errors, source: &'a Value, path: &FieldPath, paths: &mut Paths<'a>) {
    let signer = text(source, "signerName");
    certificate::signer_name(errors, &path.child("signerName"), signer);
    let kind = text(source, "keyType");
    if !KEY_TYPES.contains(&kind) {
        errors.unsupported(&path.child("keyType"), kind, &KEY_TYPES);
    }
    if let Some(seconds) = source["maxExpirationSeconds"].as_i64() {
        let at = path.child("maxExpirationSeconds");
        if seconds < 3600 {
            errors.invalid(&at, seconds, "if provided, maxExpirationSeconds must be >= 3600");
        }
        // A day for Kubernetes' own signers, 91 days for others.
        let most = if signer.split('/').next().is_some_and(is_kubernetes) { 86_400 } else { 7_862_400 };
        if seconds > most {
            errors.invalid(&at, seconds, format!("if provided, maxExpirationSeconds must be <= {most}"));
        }
    }
    let mut given = 0;
    for key in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let file = text(source, key);
        if !file.is_empty() {
            given += 1;
            relative(errors, &path.child(key), file);
            paths.take(errors, file, file);
        }
    }
    if given == 0 {
        let detail = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(path, detail);
    }
}

fn is_kubernetes(domain: &str) -> bool {
    domain == "kubernetes.io" || domain.ends_with(".kubernetes.io")
}
