//! Where volumes come from: the sources that pods and persistent volumes share, and those of the time before CSI.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::errors::Errors;
use crate::builtin::edit::{list, text};
use crate::object_meta::NameRule;

/// What a source belongs to. Some have more to say for a persistent volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of<'a> {
    /// A pod's volume of this name.
    Pod(&'a str),
    /// A persistent volume of this name.
    Volume(&'a str),
}

/// The order in which sources are looked at: the first counts, the others are too many.
pub const ORDER: [&str; 31] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
    "local",
];

/// Checks a source of one of the kinds that this file knows.
pub fn check(errors: &mut Errors, kind: &str, source: &Value, path: &FieldPath, of: Of<'_>) {
    let persistent = matches!(of, Of::Volume(_));
    let present = |errors: &mut Errors, keys: &[&str]| {
        for key in keys {
            errors.present(source, path, key);
        }
    };
    match kind {
        "hostPath" => host_path(errors, source, path),
        "nfs" => nfs(errors, source, path),
        "iscsi" => iscsi(errors, source, path, of),
        "fc" => fibre_channel(errors, source, path),
        "gcePersistentDisk" => {
            // Upstream has a name of its own for it.
            let path =
                &FieldPath::from(path.as_str().replace("gcePersistentDisk", "persistentDisk").as_str());
            errors.present(source, path, "pdName");
            partition(errors, source, path);
        }
        "awsElasticBlockStore" => {
            present(errors, &["volumeID"]);
            partition(errors, source, path);
        }
        "glusterfs" => {
            present(errors, &["endpoints", "path"]);
            if let Some(namespace) = source["endpointsNamespace"].as_str().filter(|_| persistent) {
                let path = path.child("endpointsNamespace");
                if namespace.is_empty() {
                    let detail = "if the endpointnamespace is set, it must be a valid namespace name";
                    errors.invalid(&path, "", detail);
                } else {
                    errors.name(&path, namespace, NameRule::Label);
                }
            }
        }
        "flocker" => flocker(errors, source, path),
        "rbd" => {
            if list(source, "monitors").is_empty() {
                errors.required(&path.child("monitors"), "");
            }
            present(errors, &["image"]);
        }
        "cephfs" if list(source, "monitors").is_empty() => errors.required(&path.child("monitors"), ""),
        "cinder" => {
            present(errors, &["volumeID"]);
            secret(errors, source, path, persistent);
        }
        "quobyte" => quobyte(errors, source, path),
        "flexVolume" => {
            present(errors, &["driver"]);
            for key in source["options"].as_object().into_iter().flatten().map(|(key, _)| key) {
                let space = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
                if space.ends_with(".kubernetes.io") || space.ends_with(".k8s.io") {
                    let detail = "kubernetes.io and k8s.io namespaces are reserved";
                    errors.invalid(&path.child("options").key(key), key.as_str(), detail);
                }
            }
        }
        "azureFile" => {
            present(errors, &["secretName", "shareName"]);
            if persistent && source["secretNamespace"] == "" {
                errors.required(&path.child("secretNamespace"), "");
            }
        }
        "azureDisk" => azure_disk(errors, source, path),
        "vsphereVolume" => present(errors, &["volumePath"]),
        "photonPersistentDisk" => present(errors, &["pdID"]),
        "portworxVolume" => present(errors, &["volumeID"]),
        "scaleIO" => present(errors, &["gateway", "system", "volumeName"]),
        "storageos" => {
            if errors.present(source, path, "volumeName") {
                errors.name(&path.child("volumeName"), text(source, "volumeName"), NameRule::Label);
            }
            if !text(source, "volumeNamespace").is_empty() {
                errors.name(&path.child("volumeNamespace"), text(source, "volumeNamespace"), NameRule::Label);
            }
            secret(errors, source, path, persistent);
        }
        "local" => {
            present(errors, &["path"]);
            no_parent(errors, &path.child("path"), text(source, "path"));
        }
        "csi" => csi(errors, source, path, persistent),
        _ => {}
    }
}

fn partition(errors: &mut Errors, source: &Value, path: &FieldPath) {
    if let Some(number) = source["partition"].as_i64().filter(|number| !(0..=255).contains(number)) {
        errors.invalid(&path.child("partition"), number, "must be between 1 and 255, inclusive");
    }
}

/// A reference to a secret; that of a persistent volume says in which namespace.
fn secret(errors: &mut Errors, source: &Value, path: &FieldPath, persistent: bool) {
    let (secret, path) = (&source["secretRef"], path.child("secretRef"));
    if secret.is_object() {
        errors.present(secret, &path, "name");
        if persistent {
            errors.present(secret, &path, "namespace");
        }
    }
}

/// Checks a directory of the node.
fn host_path(errors: &mut Errors, source: &Value, path: &FieldPath) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if errors.present(source, path, "path") {
        no_parent(errors, &path.child("path"), text(source, "path"));
        errors.one_of(source, path, "type", &TYPES);
    }
}

/// Checks a share of NFS.
fn nfs(errors: &mut Errors, source: &Value, path: &FieldPath) {
    errors.present(source, path, "server");
    errors.present(source, path, "path");
    if !text(source, "path").starts_with('/') {
        errors.invalid(&path.child("path"), text(source, "path"), "must be an absolute path");
    }
}

fn iscsi(errors: &mut Errors, source: &Value, path: &FieldPath, of: Of<'_>) {
    const FORMAT: &str = "must be valid format";
    const START: &str = "must be valid format starting with iqn, eui, or naa";
    let persistent = matches!(of, Of::Volume(_));
    errors.present(source, path, "targetPortal");
    let known = |name: &str| ["iqn", "eui", "naa"].iter().any(|start| name.starts_with(start));
    let name = text(source, "iqn");
    if errors.present(source, path, "iqn") {
        if !known(name) {
            errors.invalid(&path.child("iqn"), name, if persistent { FORMAT } else { START });
        } else if !is_initiator(name) {
            errors.invalid(&path.child("iqn"), name, FORMAT);
        }
    }
    errors.in_range(source, path, "lun", 0, 255);
    let secret = &source["secretRef"];
    if secret.is_null() && (source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true) {
        errors.required(&path.child("secretRef"), "");
    }
    if secret.is_object() && persistent {
        errors.present(secret, &path.child("secretRef"), "name");
    }
    let Some(initiator) = source["initiatorName"].as_str() else { return };
    if !known(initiator) {
        errors.invalid(&path.child("initiatorname"), initiator, if persistent { FORMAT } else { START });
    } else if !is_initiator(initiator) {
        errors.invalid(&path.child("initiatorname"), initiator, FORMAT);
    }
    let portal = text(source, "targetPortal");
    let (Of::Pod(volume) | Of::Volume(volume)) = of;
    if volume.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        if persistent {
            errors.invalid(&path.child("targetportal"), portal, detail);
        } else if let Some(above) = path.as_str().strip_suffix(".iscsi") {
            errors.invalid(&FieldPath::from(above).child("name"), volume, detail);
        }
    }
}

/// Whether a name of iSCSI is of the form that its beginning promises.
fn is_initiator(name: &str) -> bool {
    let letters = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|letter| letter.is_ascii_alphanumeric())
    };
    match name.split_at_checked(3) {
        // Upstream's dot is any character.
        Some(("eui", rest)) => rest.char_indices().nth(1).is_some_and(|(at, _)| letters(&rest[at..], 16)),
        Some(("naa", rest)) => rest.char_indices().nth(1).is_some_and(|(at, _)| letters(&rest[at..], 32)),
        Some(("iqn", rest)) => {
            let Some((date, rest)) = rest.strip_prefix('.').and_then(|rest| rest.split_at_checked(8)) else {
                return false;
            };
            let digits = |part: &str| part.bytes().all(|digit| digit.is_ascii_digit());
            let dated =
                digits(&date[..4]) && &date[4..5] == "-" && digits(&date[5..7]) && date.ends_with('.');
            let (authority, own) =
                rest.split_once(':').map_or((rest, None), |(one, other)| (one, Some(other)));
            let named = !authority.is_empty()
                && authority
                    .bytes()
                    .all(|letter| letter.is_ascii_alphanumeric() || letter == b'-' || letter == b'.');
            let odd = |letter: char| letter.is_whitespace() || ",;*&$|".contains(letter);
            dated && named && own.is_some_and(|own| !own.is_empty() && !own.contains(odd))
        }
        _ => false,
    }
}

fn fibre_channel(errors: &mut Errors, source: &Value, path: &FieldPath) {
    let (names, ids) = (list(source, "targetWWNs"), list(source, "wwids"));
    let at = path.child("targetWWNs");
    if names.is_empty() && ids.is_empty() {
        errors.required(&at, "must specify either targetWWNs or wwids, but not both");
    }
    if !names.is_empty() && !ids.is_empty() {
        errors.invalid(&at, names, "targetWWNs and wwids can not be specified simultaneously");
    }
    if !names.is_empty() {
        if source["lun"].is_null() {
            errors.required(&path.child("lun"), "lun is required if targetWWNs is specified");
        }
        errors.in_range(source, path, "lun", 0, 255);
    }
}

fn flocker(errors: &mut Errors, source: &Value, path: &FieldPath) {
    let (name, id) = (text(source, "datasetName"), text(source, "datasetUUID"));
    if name.is_empty() && id.is_empty() {
        errors.required(path, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !id.is_empty() {
        errors.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously");
    }
    if name.contains('/') {
        errors.invalid(&path.child("datasetName"), name, "must not contain '/'");
    }
}

fn quobyte(errors: &mut Errors, source: &Value, path: &FieldPath) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        errors.required(&path.child("registry"), PAIRS);
    } else if text(source, "tenant").len() > 64 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.required(&path.child("tenant"), detail);
    } else {
        for pair in registry.split(',') {
            let (host, port) = pair.rsplit_once(':').unwrap_or(("", ""));
            let bracketed = host.starts_with('[') && host.ends_with(']');
            if !pair.contains(':')
                || !bracketed && host.contains([':', '[', ']'])
                || port.contains(['[', ']'])
            {
                errors.invalid(&path.child("registry"), registry, PAIRS);
            }
        }
    }
    errors.present(source, path, "volume");
}

fn azure_disk(errors: &mut Errors, source: &Value, path: &FieldPath) {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    errors.present(source, path, "diskName");
    errors.present(source, path, "diskURI");
    for (key, known) in
        [("cachingMode", ["None", "ReadOnly", "ReadWrite"]), ("kind", ["Dedicated", "Managed", "Shared"])]
    {
        if let Some(given) = source[key].as_str().filter(|given| !known.contains(given)) {
            errors.unsupported(&path.child(key), given, &known);
        }
    }
    let uri = text(source, "diskURI");
    match source["kind"].as_str().or(Some("Shared")) {
        Some("Managed") if !uri.starts_with("/subscriptions/") => {
            errors.unsupported(&path.child("diskURI"), uri, &[MANAGED]);
        }
        Some(kind) if kind != "Managed" && !uri.starts_with("https://") => {
            errors.unsupported(&path.child("diskURI"), uri, &[BLOB]);
        }
        _ => {}
    }
}

fn csi(errors: &mut Errors, source: &Value, path: &FieldPath, persistent: bool) {
    driver_name(errors, &path.child("driver"), text(source, "driver"));
    if !persistent {
        let (secret, at) = (&source["nodePublishSecretRef"], path.child("nodePublishSecretRef"));
        if secret.is_object() && errors.present(secret, &at, "name") {
            // As upstream, which names the source here.
            errors.name(&path.child("name"), text(secret, "name"), NameRule::Subdomain);
        }
        return;
    }
    errors.present(source, path, "volumeHandle");
    for key in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let (secret, path) = (&source[key], path.child(key));
        if !secret.is_object() {
            continue;
        }
        if errors.present(secret, &path, "name") {
            errors.name(&path.child("name"), text(secret, "name"), NameRule::Subdomain);
        }
        if errors.present(secret, &path, "namespace") {
            errors.name(&path.child("namespace"), text(secret, "namespace"), NameRule::Label);
        }
    }
}

/// Checks the name of a CSI driver.
pub fn driver_name(errors: &mut Errors, path: &FieldPath, name: &str) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > 63 {
        errors.push(setpoint_schema::FieldError::too_long(path, 63));
    }
    // Case does not matter: the label of the lower case is looked at.
    for problem in NameRule::Subdomain.check(&name.to_lowercase(), false) {
        errors.invalid(path, name, problem);
    }
}

/// Refuses `..` as a part of a path.
pub fn no_parent(errors: &mut Errors, path: &FieldPath, given: &str) {
    if given.split('/').any(|part| part == "..") {
        errors.invalid(path, given, "must not contain '..'");
    }
}

/// Checks a path below a volume's root.
pub fn relative(errors: &mut Errors, path: &FieldPath, given: &str) {
    if given.starts_with('/') {
        errors.invalid(path, given, "must be a relative path");
    }
    no_parent(errors, path, given);
    if given.starts_with("..") && !given.starts_with("../") {
        errors.invalid(path, given, "must not start with '..'");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_iscsi() {
        for name in [
            "iqn.2001-04.com.example:storage",
            "eui.0123456789abcdef",
            "naa.0123456789abcdef0123456789abcdef",
        ] {
            assert!(is_initiator(name), "{name}");
        }
        for name in [
            "iqn",
            "iqn.2001-04.com.example",
            "iqn.2001-04.:x",
            "iqn.2001-4.a:x",
            "iqn.2001-04.a:x y",
            "eui.1",
            "naa.1",
            "x",
        ] {
            assert!(!is_initiator(name), "{name}");
        }
    }
}
