//! Volumes of a pod.

use std::collections::BTreeSet;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{container, errors::Errors};
use crate::{
    builtin::edit::{list, text},
    object_meta::NameRule,
};

/// Checks the volumes of a pod spec; answers with their names.
pub fn all<'a>(errors: &mut Errors, spec: &'a Value, path: &FieldPath) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        let path = path.child("volumes").index(index);
        let (name, before) = (text(volume, "name"), errors.len());
        source(errors, volume, &path);
        if errors.present(volume, &path, "name") {
            errors.name(&path.child("name"), name, NameRule::Label);
            if names.contains(name) {
                errors.duplicate(&path.child("name"), name);
            }
            // As upstream: only a sound volume takes its name, and can be mounted.
            if errors.len() == before {
                names.insert(name);
            }
        }
    }
    names
}

fn source(errors: &mut Errors, volume: &Value, path: &FieldPath) {
    // The order in which kubernetes looks at them: the first counts, the others are too many.
    const KNOWN: [&str; 13] = [
        "emptyDir",
        "hostPath",
        "gitRepo",
        "secret",
        "nfs",
        "iscsi",
        "persistentVolumeClaim",
        "configMap",
        "downwardAPI",
        "projected",
        "csi",
        "ephemeral",
        "image",
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
        "hostPath" => host_path(errors, source, &path),
        "gitRepo" => drop(errors.present(source, &path, "repository")),
        "image" => drop(errors.present(source, &path, "reference")),
        "nfs" => nfs(errors, source, &path),
        "iscsi" => iscsi(errors, source, &path),
        "csi" if errors.present(source, &path, "driver") => {
            errors.name(&path.child("driver"), text(source, "driver"), NameRule::Subdomain);
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
        "downwardAPI" => downward(errors, source, &path),
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

/// Checks a directory of the node.
pub fn host_path(errors: &mut Errors, source: &Value, path: &FieldPath) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if errors.present(source, path, "path") {
        no_parent(errors, &path.child("path"), text(source, "path"));
        errors.one_of(source, path, "type", &TYPES);
    }
}

/// Checks a share of NFS.
pub fn nfs(errors: &mut Errors, source: &Value, path: &FieldPath) {
    errors.present(source, path, "server");
    if errors.present(source, path, "path") && !text(source, "path").starts_with('/') {
        errors.invalid(&path.child("path"), text(source, "path"), "must be an absolute path");
    }
}

fn iscsi(errors: &mut Errors, source: &Value, path: &FieldPath) {
    errors.present(source, path, "targetPortal");
    let name = text(source, "iqn");
    if errors.present(source, path, "iqn")
        && !["iqn", "eui", "naa"].iter().any(|start| name.starts_with(start))
    {
        errors.invalid(&path.child("iqn"), name, "must be valid format starting with iqn, eui, or naa");
    }
    errors.in_range(source, path, "lun", 0, 255);
}

/// Checks the files of a downward API volume. As upstream, errors name the volume and not the file.
fn downward(errors: &mut Errors, source: &Value, path: &FieldPath) {
    const FIELDS: [&str; 5] =
        ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
    mode(errors, source, path, "defaultMode");
    for item in list(source, "items") {
        if text(item, "path").is_empty() {
            errors.required(&path.child("path"), "");
        } else {
            relative(errors, &path.child("path"), text(item, "path"));
        }
        let (field, amount) = (&item["fieldRef"], &item["resourceFieldRef"]);
        if field.is_object() {
            let (at, name) = (path.child("fieldRef"), text(field, "fieldPath"));
            if errors.present(field, &at, "fieldPath") {
                if let Some(key) = container::subscript(name) {
                    errors.qualified(&at, key);
                } else if !FIELDS.contains(&name) {
                    errors.unsupported(&at.child("fieldPath"), name, &FIELDS);
                }
            }
            if amount.is_object() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(path, "resource", detail);
            }
        } else if amount.is_object() {
            container::resource_field(errors, amount, &path.child("resourceFieldRef"), true);
        } else {
            errors.required(path, "one of fieldRef and resourceFieldRef is required");
        }
        mode(errors, item, path, "mode");
    }
}

fn projected(errors: &mut Errors, volume: &Value, path: &FieldPath) {
    const SOURCES: [&str; 5] =
        ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"];
    mode(errors, volume, path, "defaultMode");
    for (index, source) in list(volume, "sources").iter().enumerate() {
        let item = path.child("sources").index(index);
        if SOURCES.iter().filter(|key| source[**key].is_object()).count() > 1 {
            errors.forbidden(&item, "may not specify more than 1 volume type per source");
        }
        let bundle = &source["clusterTrustBundle"];
        if bundle.is_object() && text(bundle, "name").is_empty() && text(bundle, "signerName").is_empty() {
            let detail = "either name or signerName must be specified";
            errors.required(&item.child("clusterTrustBundle"), detail);
        }
        if source["downwardAPI"].is_object() {
            downward(errors, &source["downwardAPI"], &item.child("downwardAPI"));
        }
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
