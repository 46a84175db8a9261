//! Discovery: which groups, versions and resources there are, in the old form (one document for each group version) and in the aggregated one
//! (`apidiscovery.k8s.io/v2`, two documents for everything).

use std::{fmt::Write, sync::Arc};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::catalog::{Resource, Shape};

/// A subresource as discovery lists it.
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a str,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) verbs: Vec<&'a str>,
}

/// The subresources of a resource.
pub(crate) fn subresources(resource: &Resource) -> Vec<Listed<'_>> {
    match &resource.shape {
        Shape::BuiltIn { kind, .. } => kind
            .subresources
            .iter()
            .map(|s| Listed {
                name: s.name,
                group: s.group,
                version: s.version,
                kind: s.kind,
                verbs: s.verbs.clone(),
            })
            .collect(),
        Shape::Custom(_) => {
            let own = (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str());
            [("status", own), ("scale", ("autoscaling", "v1", "Scale"))]
                .into_iter()
                .filter(|(name, _)| resource.has_subresource(name))
                .map(|(name, (group, version, kind))| Listed {
                    name,
                    group,
                    version,
                    kind,
                    verbs: vec!["get", "patch", "update"],
                })
                .collect()
        }
    }
}

/// `/api`.
pub(crate) fn legacy_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis`.
pub(crate) fn group_list(resources: &[Arc<Resource>]) -> Value {
    let groups: Vec<_> = groups(resources)
        .into_iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_of(name, &versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`; `None` if there is no such group.
pub(crate) fn group(resources: &[Arc<Resource>], name: &str) -> Option<Value> {
    let (_, versions) =
        groups(resources).into_iter().find(|(group, _)| *group == name && !name.is_empty())?;
    let mut group = group_of(name, &versions);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// `/api/v1` and `/apis/GROUP/VERSION`; `None` if there is no such group version.
pub(crate) fn resource_list(resources: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let mut entries = Vec::new();
    let mut name = None;
    for resource in resources.iter().filter(|r| r.group == group && r.version == version) {
        name = Some(resource.api_version());
        let mut entry = json!({"name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": resource.verbs});
        add_names(&mut entry, resource);
        if resource.verbs.iter().any(|verb| verb == "list") && !resource.is("", "componentstatuses") {
            entry["storageVersionHash"] = storage_hash(resources, resource).into();
        }
        entries.push(entry);
        for sub in subresources(resource) {
            let mut entry = json!({"name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
                "namespaced": resource.namespaced, "kind": sub.kind, "verbs": sub.verbs});
            if (sub.group, sub.version) != (group, version) {
                entry["group"] = sub.group.into();
                entry["version"] = sub.version.into();
            }
            entries.push(entry);
        }
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": name?, "resources": entries});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// A hash of the kind and version in which objects are stored (upstream: `discovery.StorageVersionHash`).
fn storage_hash(resources: &[Arc<Resource>], resource: &Resource) -> String {
    let stored = match (resource.group.as_str(), &resource.shape) {
        (crate::events::GROUP, _) => "/v1/Event".to_owned(),
        // Definitions are stored as they were before they were stable.
        ("apiextensions.k8s.io", _) => format!("{}/v1beta1/{}", resource.group, resource.kind),
        (_, Shape::Custom(custom)) => format!("{}/{}", custom.storage_version, resource.kind),
        (group, Shape::BuiltIn { .. }) => {
            // The preferred version comes first.
            let preferred = resources.iter().find(|one| one.is(group, &resource.plural));
            let version = preferred.map_or(&resource.version, |one| &one.version);
            format!("{group}/{version}/{}", resource.kind)
        }
    };
    STANDARD.encode(&Sha256::digest(stored)[..8])
}

/// Aggregated discovery of the core group (`/api`) or of all others (`/apis`).
pub(crate) fn aggregated(resources: &[Arc<Resource>], core: bool) -> Value {
    let items: Vec<_> = groups(resources)
        .into_iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<_> =
                versions.iter().map(|version| aggregated_version(resources, name, version)).collect();
            let mut metadata = Map::new();
            if !core {
                metadata.insert("name".to_owned(), name.into());
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_version(resources: &[Arc<Resource>], group: &str, version: &str) -> Value {
    // What is of the group and version that the entry stands in is not repeated.
    let kind = |of: &str, at: &str, kind: &str| {
        let (of, at) = if (of, at) == (group, version) { ("", "") } else { (of, at) };
        json!({"group": of, "version": at, "kind": kind})
    };
    let entries: Vec<_> = resources
        .iter()
        .filter(|r| r.group == group && r.version == version)
        .map(|resource| {
            let mut entry = json!({
                "resource": resource.plural, "singularResource": resource.singular, "verbs": resource.verbs,
                "responseKind": kind(group, version, &resource.kind),
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            });
            add_names(&mut entry, resource);
            let subresources: Vec<_> = subresources(resource)
                .into_iter()
                .map(|sub| {
                    json!({"subresource": sub.name, "responseKind": kind(sub.group, sub.version, sub.kind), "verbs": sub.verbs})
                })
                .collect();
            if !subresources.is_empty() {
                entry["subresources"] = subresources.into();
            }
            entry
        })
        .collect();
    json!({"version": version, "resources": entries, "freshness": "Current"})
}

fn add_names(entry: &mut Value, resource: &Resource) {
    for (key, names) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
        if !names.is_empty() {
            entry[key] = json!(names);
        }
    }
}

fn group_of(name: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<_> = versions.iter().map(version).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// Groups with their versions, the preferred one first: built-in ones in the order of the facts, then custom ones by name.
fn groups(resources: &[Arc<Resource>]) -> Vec<(&str, Vec<&str>)> {
    let mut groups = Vec::<(&str, Vec<&str>, bool)>::new();
    for resource in resources {
        let (name, version) = (resource.group.as_str(), resource.version.as_str());
        let custom = matches!(resource.shape, Shape::Custom(_));
        match groups.iter_mut().find(|(group, ..)| *group == name) {
            Some((_, versions, _)) if versions.contains(&version) => {}
            Some((_, versions, _)) => versions.push(version),
            None => groups.push((name, vec![version], custom)),
        }
    }
    for (_, versions, custom) in &mut groups {
        if *custom {
            versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        }
    }
    groups.sort_by_key(|(name, _, custom)| custom.then_some(*name));
    groups.into_iter().map(|(name, versions, _)| (name, versions)).collect()
}

/// Orders versions as Kubernetes does: `v10` > `v2` > `v1` > `v2beta1` > `v1beta2` > `v1alpha1` > anything else, by name.
pub(crate) fn priority(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let other = (0, 0, 0, std::cmp::Reverse(version.to_owned()));
    let Some(rest) = version.strip_prefix('v') else { return other };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (Ok(major), tail) = (rest[..end].parse::<u64>(), &rest[end..]) else { return other };
    if tail.is_empty() {
        return (3, major, 0, std::cmp::Reverse(String::new()));
    }
    for (stage, word) in [(2, "beta"), (1, "alpha")] {
        if let Some(Ok(minor)) = tail.strip_prefix(word).map(str::parse::<u64>) {
            return (stage, major, minor, std::cmp::Reverse(String::new()));
        }
    }
    other
}

/// `/version`: the Kubernetes version that is spoken, marked as ours.
pub(crate) fn version() -> Value {
    let version = setpoint_kinds::kubernetes_version();
    let mut parts = version.trim_start_matches('v').split('.');
    let mut part = || parts.next().unwrap_or_default();
    json!({
        "major": part(), "minor": part(), "gitVersion": format!("{version}+setpoint"), "gitCommit": "", "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// The entity tag of a document: a quoted hash of its text.
pub(crate) fn etag(text: &[u8]) -> String {
    let mut tag = String::from("\"");
    for byte in Sha256::digest(text) {
        // Writing to a String never fails.
        let _ = write!(tag, "{byte:02X}");
    }
    tag.push('"');
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built_in() -> Vec<Arc<Resource>> {
        setpoint_kinds::kinds().iter().map(|kind| Arc::new(Resource::built_in(kind))).collect()
    }

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let wanted =
            ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"];
        let mut versions = wanted;
        versions.reverse();
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(versions, wanted);
    }

    #[test]
    fn groups_and_resources() {
        let all = built_in();
        let apps = resource_list(&all, "apps", "v1").expect("apps/v1");
        let names: Vec<_> = apps["resources"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|r| r["name"].as_str().unwrap_or_default())
            .collect();
        assert!(names.contains(&"statefulsets") && names.contains(&"statefulsets/scale"), "{names:?}");
        assert_eq!(resource_list(&all, "apps", "v2"), None);
        let groups = group_list(&all);
        assert_eq!(groups["groups"][0]["name"], "apps");
        assert_eq!(group(&all, "autoscaling").expect("autoscaling")["preferredVersion"]["version"], "v2");
        assert_eq!(group(&all, "nope"), None);
        assert_eq!(group(&all, ""), None);
    }

    #[test]
    fn aggregated_documents() {
        let all = built_in();
        let core = aggregated(&all, true);
        assert_eq!(core["items"].as_array().map(Vec::len), Some(1));
        assert_eq!(core["items"][0]["versions"][0]["version"], "v1");
        let others = aggregated(&all, false);
        let apps = &others["items"][0];
        assert_eq!(apps["metadata"]["name"], "apps");
        let sets = apps["versions"][0]["resources"].as_array().expect("resources");
        let sets = sets.iter().find(|r| r["resource"] == "statefulsets").expect("statefulsets");
        assert_eq!(sets["scope"], "Namespaced");
        assert_eq!(sets["shortNames"], json!(["sts"]));
        assert_eq!(
            sets["subresources"][0]["responseKind"],
            json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
        );
    }

    #[test]
    fn the_version_is_one_that_kubectl_can_parse() {
        let version = version();
        assert_eq!(version["major"], "1");
        assert!(version["minor"].as_str().is_some_and(|minor| minor.parse::<u8>().is_ok()), "{version}");
    }
}
