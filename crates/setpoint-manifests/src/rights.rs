use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The namespaces that an operator works in, and watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All of them: rights are granted by one ClusterRole.
    #[default]
    All,
    /// Only these: a Role and a RoleBinding in each, and a ClusterRole for cluster-scoped kinds alone.
    Namespaces(BTreeSet<String>),
}

impl Scope {
    /// Reads the comma-separated `WATCH_NAMESPACE`, as OLM sets it; absent or empty means all.
    pub fn from_env() -> Self {
        Self::parse(&std::env::var("WATCH_NAMESPACE").unwrap_or_default())
    }

    /// Reads a comma-separated list; empty means all.
    pub fn parse(list: &str) -> Self {
        let names: BTreeSet<String> =
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if names.is_empty() { Self::All } else { Self::Namespaces(names) }
    }
}

/// One permission on one resource: the smallest unit that [`Rights`] collect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural resource name, with a subresource after a slash: `pods`, `pods/exec`.
    pub resource: String,
    /// The only object that the permission is for; `None` for every object.
    pub name: Option<String>,
    /// RBAC verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, …
    pub verb: String,
    /// Whether the resource lives in namespaces.
    pub namespaced: bool,
}

/// What an operator may do: a set of [`Rule`]s, and nothing that was not declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights(BTreeSet<Rule>);

impl Rights {
    /// No rights.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `verbs` on every object of a resource.
    pub fn allow<'v>(
        &mut self,
        group: &str,
        resource: &str,
        namespaced: bool,
        verbs: impl IntoIterator<Item = &'v str>,
    ) -> &mut Self {
        self.0.extend(verbs.into_iter().map(|verb| Rule {
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: None,
            verb: verb.to_owned(),
            namespaced,
        }));
        self
    }

    /// Adds one rule.
    pub fn insert(&mut self, rule: Rule) {
        self.0.insert(rule);
    }

    /// Adds all rules of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    /// All rules, in a stable order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }

    /// Whether `verb` on a resource is allowed for every object of it.
    pub fn allows(&self, group: &str, resource: &str, verb: &str) -> bool {
        self.0.iter().any(|rule| {
            rule.group == group && rule.resource == resource && rule.verb == verb && rule.name.is_none()
        })
    }

    /// The `rules` of a ClusterRole for an operator that works in all namespaces.
    pub fn cluster_rules(&self) -> Vec<Value> {
        policy_rules(self.0.iter())
    }

    /// The `rules` of the ClusterRole that remains when the namespaced part is granted by Roles.
    pub fn cluster_scoped_rules(&self) -> Vec<Value> {
        policy_rules(self.0.iter().filter(|rule| !rule.namespaced))
    }

    /// The `rules` of the Role in each namespace.
    pub fn namespaced_rules(&self) -> Vec<Value> {
        policy_rules(self.0.iter().filter(|rule| rule.namespaced))
    }
}

/// Group, object name and resource that a permission is for.
type Target<'a> = (&'a str, Option<&'a str>, &'a str);

/// Merges rules into as few PolicyRules as possible without widening any: first the verbs of each resource,
/// then the resources of a group which have the same verbs. Groups, resources and verbs are sorted, as
/// controller-gen writes them.
fn policy_rules<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<Value> {
    let mut verbs: BTreeMap<Target, BTreeSet<&str>> = BTreeMap::new();
    for Rule { group, resource, name, verb, .. } in rules {
        verbs.entry((group, name.as_deref(), resource)).or_default().insert(verb);
    }
    let mut resources: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for ((group, name, resource), verbs) in verbs {
        resources.entry((group, name, verbs)).or_default().insert(resource);
    }
    let mut merged: Vec<_> = resources
        .into_iter()
        .map(|((group, name, verbs), resources)| (group, resources, name, verbs))
        .collect();
    merged.sort();
    merged
        .into_iter()
        .map(|(group, resources, name, verbs)| {
            let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
            if let Some(name) = name {
                rule["resourceNames"] = json!([name]);
            }
            rule
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_verbs_share_a_rule_and_none_is_widened() {
        let mut rights = Rights::new();
        rights
            .allow("", "services", true, ["watch", "get", "list"])
            .allow("", "configmaps", true, ["get", "list", "watch"])
            .allow("", "pods", true, ["get"])
            .allow("apps", "statefulsets", true, ["get", "list", "watch"]);
        assert_eq!(
            rights.cluster_rules(),
            [
                json!({"apiGroups": [""], "resources": ["configmaps", "services"], "verbs": ["get", "list", "watch"]}),
                json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}),
                json!({"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get", "list", "watch"]}),
            ]
        );
    }

    #[test]
    fn declaring_twice_is_declaring_once() {
        let mut rights = Rights::new();
        rights.allow("", "pods", true, ["get"]).allow("", "pods", true, ["delete", "get"]);
        assert_eq!(
            rights.cluster_rules(),
            [json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete", "get"]})]
        );
        assert!(rights.allows("", "pods", "delete"));
        assert!(!rights.allows("", "pods", "list"));
    }

    #[test]
    fn named_rules_stay_apart() {
        let mut rights = Rights::new();
        rights.allow("", "secrets", true, ["create"]);
        rights.insert(Rule {
            group: String::new(),
            resource: "secrets".to_owned(),
            name: Some("web-ca".to_owned()),
            verb: "update".to_owned(),
            namespaced: true,
        });
        assert_eq!(
            rights.namespaced_rules(),
            [
                json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}),
                json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["update"], "resourceNames": ["web-ca"]}),
            ]
        );
        assert!(!rights.allows("", "secrets", "update"), "a right on one object is none on all");
    }

    #[test]
    fn cluster_scoped_kinds_stay_in_the_cluster_role() {
        let mut rights = Rights::new();
        rights.allow("", "nodes", false, ["get"]).allow("", "pods", true, ["delete"]);
        assert_eq!(rights.cluster_scoped_rules().len(), 1);
        assert_eq!(rights.namespaced_rules().len(), 1);
        assert_eq!(rights.cluster_rules().len(), 2);
    }
}
