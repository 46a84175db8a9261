//! Files of one volume that stand where others stand (`pkg/api/pod/warnings.go`).

use serde_json::Value;

use crate::builtin::edit::{list, text};

/// A file, and what it comes from in a projected volume.
type File<'a> = (&'a str, String);

/// What stands below or above another file of its volume.
pub fn overlapping(volume: &Value, warnings: &mut Vec<String>) {
    let name = text(volume, "name");
    let of = |what: String| format!("volume {name:?} ({what})");
    for (key, shown, named) in [("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")] {
        if volume[key].is_object() {
            let of = of(format!("{shown} {:?}", text(&volume[key], named)));
            clashes(&files(&volume[key], ""), &of, warnings);
        }
    }
    clashes(&files(&volume["downwardAPI"], ""), &of("DownwardAPI".to_owned()), warnings);
    let mut projected = Vec::new();
    for source in list(&volume["projected"], "sources") {
        match projection(source) {
            Some(files) => projected.extend(files),
            None => warnings.push(format!("{} has no sources provided", of("Projected".to_owned()))),
        }
    }
    clashes(&projected, &of("Projected".to_owned()), warnings);
}

fn files<'a>(source: &'a Value, of: &str) -> Vec<File<'a>> {
    list(source, "items").iter().map(|item| (text(item, "path"), of.to_owned())).collect()
}

/// The files of one source of a projected volume; `None` of no source.
fn projection(source: &Value) -> Option<Vec<File<'_>>> {
    let one = |path, of: &str| vec![(path, format!(" ({of})"))];
    let named = |kind: &str, name: &str| format!(" ({kind} {name:?})");
    let has = |key: &str| source[key].is_object();
    if has("configMap") {
        let of = &source["configMap"];
        return Some(files(of, &named("ConfigMap", text(of, "name"))));
    }
    if has("secret") {
        let of = &source["secret"];
        return Some(files(of, &named("Secret", text(of, "name"))));
    }
    if has("downwardAPI") {
        return Some(files(&source["downwardAPI"], " (DownwardAPI)"));
    }
    if has("serviceAccountToken") {
        return Some(one(text(&source["serviceAccountToken"], "path"), "ServiceAccountToken"));
    }
    if has("clusterTrustBundle") {
        let of = &source["clusterTrustBundle"];
        let name = [text(of, "name"), text(of, "signerName")].into_iter().find(|name| !name.is_empty());
        let shown = named("ClusterTrustBundle", name.unwrap_or_default());
        return Some(vec![(text(of, "path"), shown)]);
    }
    has("podCertificate").then(|| {
        let of = &source["podCertificate"];
        [
            ("credentialBundlePath", "PodCertificate credential bundle"),
            ("certificateChainPath", "PodCertificate chain"),
            ("keyPath", "PodCertificate key"),
        ]
        .into_iter()
        .flat_map(|(key, shown)| one(text(of, key), shown))
        .collect()
    })
}

/// Compares each file with those before it.
fn clashes(files: &[File<'_>], of: &str, warnings: &mut Vec<String>) {
    let below = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
    let files: Vec<_> = files
        .iter()
        .map(|(path, from)| (path.trim_end_matches('/'), from))
        .filter(|(path, _)| !path.is_empty())
        .collect();
    for (index, (path, from)) in files.iter().enumerate() {
        for (other, of_other) in &files[..index] {
            if path == other || below(path, other) || below(other, path) {
                warnings.push(format!("{of}: overlapping paths: {path:?}{from} with {other:?}{of_other}"));
            }
        }
    }
}
