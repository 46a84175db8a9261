//! The table of kinds, as aggregated discovery lists them.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::facts::kind_lines;

/// One kind that the API server serves by itself, in one version.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version, such as `v1`.
    pub version: &'static str,
    /// Kind, such as `StatefulSet`.
    pub kind: &'static str,
    /// Kind of a list of them, such as `StatefulSetList`.
    pub list_kind: &'static str,
    /// Name in URLs and RBAC rules, such as `statefulsets`.
    pub plural: &'static str,
    /// Lower-case singular, such as `statefulset`.
    pub singular: &'static str,
    /// Short names that kubectl accepts, such as `sts`.
    #[serde(default)]
    pub short_names: Vec<&'static str>,
    /// Groups of resources that kubectl lists together, such as `all`.
    #[serde(default)]
    pub categories: Vec<&'static str>,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Verbs of the main resource, sorted as the API server lists them.
    pub verbs: Vec<&'static str>,
    /// Subresources, by name.
    #[serde(default)]
    pub subresources: Vec<Subresource>,
    /// Name of the schema for [`crate::definition`].
    pub definition: &'static str,
}

/// One subresource of a kind, such as `deployments/scale`.
#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subresource {
    /// Name after the slash, such as `scale`.
    pub name: &'static str,
    /// Group of the kind that it answers with.
    pub group: &'static str,
    /// Version of the kind that it answers with.
    pub version: &'static str,
    /// Kind that it answers with, such as `Scale`.
    pub kind: &'static str,
    /// Verbs of the subresource.
    pub verbs: Vec<&'static str>,
}

impl Kind {
    /// `v1` or `apps/v1`: what objects carry as `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    // A malformed line can't get here: the generator wrote them and a test reads them all.
    kind_lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
});

/// All built-in kinds, in the order in which the API server's discovery lists groups, versions and resources.
pub fn kinds() -> &'static [Kind] {
    &KINDS
}

/// The kind with this group, version and kind.
pub fn by_kind(group: &str, version: &str, kind: &str) -> Option<&'static Kind> {
    kinds().iter().find(|k| k.kind == kind && k.group == group && k.version == version)
}

/// The kind with this group, version and plural.
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    kinds().iter().find(|k| k.plural == plural && k.group == group && k.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{definition, kubernetes_version};

    #[test]
    fn the_facts_are_well_formed() {
        assert!(kubernetes_version().starts_with("v1."), "{}", kubernetes_version());
        let lines = kind_lines().count();
        assert!(lines > 60, "only {lines} kinds");
        assert_eq!(kinds().len(), lines, "a line of the table of kinds is malformed");
    }

    #[test]
    fn every_kind_has_a_definition_that_names_it() {
        for kind in kinds() {
            let schema = definition(kind.definition)
                .unwrap_or_else(|| panic!("{} has no definition {}", kind.kind, kind.definition));
            let names_it = schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| {
                kinds.iter().any(|k| {
                    k["group"] == kind.group && k["version"] == kind.version && k["kind"] == kind.kind
                })
            });
            assert!(names_it, "{} is not what {} defines", kind.kind, kind.definition);
            if kind.verbs.contains(&"list") {
                let list = format!("{}List", kind.definition);
                assert!(definition(&list).is_some(), "{list} is missing");
            }
        }
    }

    #[test]
    fn kinds_are_found_by_kind_and_by_resource() {
        let by_kind = by_kind("apps", "v1", "StatefulSet").expect("StatefulSet");
        assert_eq!(by_resource("apps", "v1", "statefulsets"), Some(by_kind));
        assert_eq!(by_kind.short_names, ["sts"]);
        assert_eq!(by_kind.categories, ["all"]);
        assert!(by_kind.namespaced);
        assert_eq!(by_kind.api_version(), "apps/v1");
        let scale = by_kind.subresource("scale").expect("scale");
        assert_eq!((scale.group, scale.version, scale.kind), ("autoscaling", "v1", "Scale"));
        assert!(!by_resource("", "v1", "nodes").expect("nodes").namespaced);
        assert_eq!(by_resource("apps", "v1beta1", "statefulsets"), None);
        assert!(crate::by_kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").is_some());
    }
}
