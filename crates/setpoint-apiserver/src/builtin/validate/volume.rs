//! Volumes of a pod.

use std::collections::BTreeSet;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::{
    builtin::edit::{list, text},
    object_meta::NameRule,
};

/// Checks the volumes of a pod spec; answers with their names.
pub fn all<'a>(errors: &mut Errors, spec: &'a Value, path: &FieldPath) -> BTreeSet<&'a str> {
    let (mut names, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        let path = path.child("volumes").index(index);
        let (name, before) = (text(volume, "name"), errors.len());
        source(errors, volume, &path);
        let sound = errors.len() == before;
        if errors.present(volume, &path, "name") {
            errors.name(&path.child("name"), name, NameRule::Label);
            if taken.contains(name) {
                errors.duplicate(&path.child("name"), name);
            }
            names.insert(name);
            // As upstream: only a sound volume takes its name.
            if sound {
                taken.insert(name);
            }
        }
    }
    names
}

fn source(errors: &mut Errors, volume: &Value, path: &FieldPath) {
    // The order in which kubernetes looks at them: the first counts, the others are too many.
    const KNOWN: [&str; 8] = [
        "emptyDir",
        "hostPath",
        "secret",
        "persistentVolumeClaim",
        "configMap",
        "downwardAPI",
        "projected",
        "ephemeral",
    ];
    let fields = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let mut given: Vec<_> = fields.filter(|key| *key != "name").collect();
    given.sort_by_key(|key| KNOWN.iter().position(|known| known == key));
    for second in given.iter().skip(1) {
        errors.forbidden(&path.child(second), "may not specify more than 1 volume type");
    }
    let Some(kind) = given.iter().find(|kind| KNOWN.contains(kind)) else { return };
    let (source, path) = (&volume[*kind], path.child(kind));
    match *kind {
        "emptyDir" => {
            let limit = &source["sizeLimit"];
            if limit.as_str().is_some_and(|limit| limit.starts_with('-')) {
                errors
                    .forbidden(&path.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
        }
        "hostPath" if errors.present(source, &path, "path") => {
            no_parent(errors, &path.child("path"), text(source, "path"));
        }
        "secret" => {
            errors.present(source, &path, "secretName");
            files(errors, source, &path, "key");
        }
        "configMap" => {
            errors.present(source, &path, "name");
            files(errors, source, &path, "key");
        }
        "persistentVolumeClaim" => {
            errors.present(source, &path, "claimName");
        }
        "downwardAPI" => files(errors, source, &path, ""),
        "projected" => projected(errors, source, &path),
        "ephemeral" => {
            let template = path.child("volumeClaimTemplate");
            if errors.present(source, &path, "volumeClaimTemplate") {
                super::storage::claim_spec(
                    errors,
                    &source["volumeClaimTemplate"]["spec"],
                    &template.child("spec"),
                );
            }
        }
        _ => {}
    }
}

fn projected(errors: &mut Errors, volume: &Value, path: &FieldPath) {
    mode(errors, volume, path, "defaultMode");
    for (index, source) in list(volume, "sources").iter().enumerate() {
        let item = path.child("sources").index(index);
        for key in ["secret", "configMap"] {
            if source[key].is_object() {
                errors.present(&source[key], &item.child(key), "name");
                files(errors, &source[key], &item.child(key), "key");
            }
        }
        let token = &source["serviceAccountToken"];
        if token.is_object() {
            if token["expirationSeconds"].as_i64().is_some_and(|seconds| seconds < 600) {
                let path = item.child("serviceAccountToken").child("expirationSeconds");
                let detail = "may not specify a duration less than 10 minutes";
                errors.invalid(&path, token["expirationSeconds"].clone(), detail);
            }
            // As upstream, which names the volume here and not the source.
            if text(token, "path").is_empty() {
                errors.required(&path.child("path"), "");
            } else {
                relative(errors, &path.child("path"), text(token, "path"));
            }
        }
    }
}

/// Checks `defaultMode` and `items` of a volume of files.
fn files(errors: &mut Errors, source: &Value, path: &FieldPath, key: &str) {
    mode(errors, source, path, "defaultMode");
    for (index, item) in list(source, "items").iter().enumerate() {
        let path = path.child("items").index(index);
        if !key.is_empty() {
            errors.present(item, &path, key);
        }
        if errors.present(item, &path, "path") {
            relative(errors, &path.child("path"), text(item, "path"));
        }
        mode(errors, item, &path, "mode");
    }
}

fn mode(errors: &mut Errors, object: &Value, path: &FieldPath, key: &str) {
    if let Some(mode) = object[key].as_i64().filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(&path.child(key), mode, detail);
    }
}

fn relative(errors: &mut Errors, path: &FieldPath, given: &str) {
    if given.starts_with('/') {
        errors.invalid(path, given, "must be a relative path");
    }
    no_parent(errors, path, given);
}

/// Refuses `..` as a part of a path.
pub fn no_parent(errors: &mut Errors, path: &FieldPath, given: &str) {
    if given.split('/').any(|part| part == "..") {
        errors.invalid(path, given, "must not contain '..'");
    }
}
