//! Volumes of a pod.

use std::collections::BTreeSet;

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::volume_source::{self, ORDER, Of, no_parent, relative};
use super::{container, errors::Errors, projected};
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
    let fields = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let mut given: Vec<_> = fields.filter(|key| *key != "name").collect();
    given.sort_by_key(|key| ORDER.iter().position(|known| known == key));
    for second in given.iter().skip(1) {
        errors.forbidden(&path.child(second), "may not specify more than 1 volume type");
    }
    let Some(kind) = given.iter().find(|kind| ORDER.contains(kind)) else { return };
    let (source, path) = (&volume[*kind], path.child(kind));
    match *kind {
        "emptyDir" => {
            let limit = &source["sizeLimit"];
            if limit.as_str().is_some_and(|limit| limit.starts_with('-')) {
                errors
                    .forbidden(&path.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
            if let Some(mode) = source["mode"].as_i64().filter(|mode| !(0..=0o1777).contains(mode)) {
                let detail = "must be a number between 0 and 01777 (octal), both inclusive";
                errors.invalid(&path.child("mode"), mode, detail);
            }
        }
        "gitRepo" => {
            errors.present(source, &path, "repository");
            let directory = text(source, "directory");
            if directory.starts_with('/') {
                errors.invalid(&path.child("directory"), directory, "must be a relative path");
            }
            no_parent(errors, &path.child("directory"), directory);
        }
        "image" => drop(errors.present(source, &path, "reference")),
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
        "projected" => {
            mode(errors, source, &path, "defaultMode");
            projected::check(errors, source, &path);
        }
        "ephemeral" => {
            let (template, path) = (&source["volumeClaimTemplate"], path.child("volumeClaimTemplate"));
            if template.is_object() {
                errors.labels(&path.child("metadata.labels"), &template["metadata"]["labels"]);
                super::storage::claim_spec(errors, &template["spec"], &path.child("spec"));
            } else {
                errors.required(&path, "");
            }
        }
        kind => volume_source::check(errors, kind, source, &path, Of::Pod(text(volume, "name"))),
    }
}

/// Checks the files of a downward API volume. As upstream, errors name the volume and not the file.
pub fn downward(errors: &mut Errors, source: &Value, path: &FieldPath) {
    const FIELDS: [&str; 5] =
        ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
    mode(errors, source, path, "defaultMode");
    for item in list(source, "items") {
        if text(item, "path").is_empty() {
            errors.required(&path.child("path"), "");
        }
        relative(errors, &path.child("path"), text(item, "path"));
        let (field, amount) = (&item["fieldRef"], &item["resourceFieldRef"]);
        if field.is_object() {
            let (at, name) = (path.child("fieldRef"), text(field, "fieldPath"));
            if errors.present(field, &at, "fieldPath") {
                if let Some(key) = container::subscript(name) {
                    errors.qualified(&at, key);
                } else if !container::is_field(name) {
                    let detail = format!("error converting fieldPath: field label not supported: {name}");
                    errors.invalid(&at.child("fieldPath"), name, detail);
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

/// Checks `defaultMode` and `items` of a volume of files.
pub fn files(errors: &mut Errors, source: &Value, path: &FieldPath, key: &str) {
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
