//! The plugin `PodSecurity`: the levels of the Pod Security Standards, chosen by labels of the namespace
//! (`k8s.io/pod-security-admission/admission`).
//!
//! ```text
//! labels ─▶ Policy: enforce · warn ─▶ checks of that level and version over the pod ─▶ refusal, or a warning
//! ```
//!
//! Pods are refused and warned about; what makes pods (a Deployment, a Job) is only warned about. What the audit level finds goes nowhere, since
//! there is no audit log.

mod checks;
mod policy;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::checks::{Pod, Violation, violations};
use self::policy::{Level, LevelVersion, Policy};
use super::{Attributes, Operation};
use crate::object::Metadata;
use crate::registry::Registry;
use crate::status::{Result, Status};
use crate::store::Key;

/// Subresources of pods whose objects say nothing about what the pod may do.
const IGNORED: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];
/// So many pods of a namespace are looked at when its level changes (upstream: `defaultNamespaceMaxPodsToCheck`).
const MAX_PODS: usize = 3000;

impl Registry {
    /// Refuses pods that the namespace's level forbids, and warns about those that its level for warnings does.
    pub(super) fn check_pod_security(
        &self,
        request: &Attributes<'_>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        if !matches!(request.operation, Operation::Create | Operation::Update) {
            return Ok(());
        }
        let resource = request.resource();
        match (resource.group.as_str(), resource.plural.as_str(), request.subresource) {
            ("", "namespaces", "") => self.check_level(request, object, warnings),
            ("", "pods", subresource) if !IGNORED.contains(&subresource) => {
                let policy = self.policy_of(request);
                let same = request.old.is_some_and(|old| !is_significant(object, old));
                if policy.is_privileged() || same {
                    return Ok(());
                }
                let pod = Pod::of(object);
                let found = violations(policy.enforce, pod);
                if !found.is_empty() {
                    let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, detail(&found));
                    let name = match request.place.name.as_str() {
                        "" => object.meta("name"),
                        name => name,
                    };
                    return Err(Status::forbidden(resource.subject(name), &why));
                }
                warn(policy.warn, pod, warnings);
                Ok(())
            }
            (group, plural, "") => {
                if let Some(pod) = template_of(group, plural, object) {
                    warn(self.policy_of(request).warn, pod, warnings);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What the labels of the request's namespace say. Labels that say nothing readable mean the strictest level for pods.
    fn policy_of(&self, request: &Attributes<'_>) -> Policy {
        let namespace = self.store.get("namespaces", &Key::new("", request.place.namespace.as_str()));
        let Some(namespace) = namespace else { return Policy::default() };
        Policy::of(&namespace.value["metadata"]["labels"]).0
    }

    /// The labels of a namespace must be readable; pods that a stricter level forbids are named.
    fn check_level(
        &self,
        request: &Attributes<'_>,
        namespace: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let (policy, problems) = Policy::of(&namespace["metadata"]["labels"]);
        let (before, known) = match request.old {
            Some(old) => Policy::of(&old["metadata"]["labels"]),
            None => (policy, Vec::new()),
        };
        if !problems.is_empty() && problems != known {
            return Err(Status::invalid(request.resource().invalid_subject(&request.place.name), problems));
        }
        let (new, old) = (policy.enforce, before.enforce);
        let relaxed = new.version == old.version && new.level <= old.level;
        if new == old || new.level == Level::Privileged || relaxed {
            return Ok(());
        }
        warnings.extend(self.pods_against(&request.place.name, new));
        Ok(())
    }

    /// What of the pods of a namespace a level forbids.
    fn pods_against(&self, namespace: &str, level: LevelVersion) -> Vec<String> {
        let snapshot = self.store.snapshot("pods");
        let (mut first, mut more) = (Vec::new(), Vec::new());
        let mut controllers = BTreeSet::new();
        for (_, pod) in snapshot.range(namespace, None) {
            // One pod of each controller comes first.
            let owners = pod.value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let controller =
                owners.filter(|owner| owner["controller"] == true).find_map(|o| o["uid"].as_str());
            match controller {
                Some(uid) if !controllers.insert(uid.to_owned()) => more.push(pod),
                _ => first.push(pod),
            }
        }
        first.extend(more);
        let total = first.len();
        let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for pod in first.iter().take(MAX_PODS) {
            let violations = violations(level, Pod::of(&pod.value));
            if !violations.is_empty() {
                let reasons: Vec<&str> =
                    violations.iter().map(|violation| violation.reason.as_ref()).collect();
                found.entry(reasons.join(", ")).or_default().push(pod.value.meta("name"));
            }
        }
        let mut warnings = Vec::new();
        if total > MAX_PODS {
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {MAX_PODS} of {total} existing pods"
            ));
        }
        if !found.is_empty() {
            warnings.push(format!(
                "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{level}\""
            ));
        }
        let mut pods: Vec<String> = found
            .into_iter()
            .map(|(reasons, pods)| {
                let others = match pods.len() - 1 {
                    0 => String::new(),
                    1 => " (and 1 other pod)".to_owned(),
                    others => format!(" (and {others} other pods)"),
                };
                format!("{}{others}: {reasons}", pods.into_iter().min().unwrap_or_default())
            })
            .collect();
        pods.sort();
        warnings.extend(pods);
        warnings
    }
}

fn warn(level: LevelVersion, pod: Pod<'_>, warnings: &mut Vec<String>) {
    let found = violations(level, pod);
    if !found.is_empty() {
        warnings.push(format!("would violate PodSecurity \"{level}\": {}", detail(&found)));
    }
}

fn detail(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The pods that an object makes.
fn template_of<'a>(group: &str, plural: &str, object: &'a Value) -> Option<Pod<'a>> {
    let pointer = match (group, plural) {
        ("", "podtemplates") => "/template",
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => "/spec/template",
        ("batch", "cronjobs") => "/spec/jobTemplate/spec/template",
        _ => return None,
    };
    object.pointer(pointer).filter(|template| template.is_object()).map(Pod::of)
}

/// Whether an update of a pod changes something that a level could be about: images, and which containers there are.
fn is_significant(new: &Value, old: &Value) -> bool {
    let containers = |pod: &Value, list: &str| pod["spec"][list].as_array().cloned().unwrap_or_default();
    let changed = |list: &str| {
        let (new, old) = (containers(new, list), containers(old, list));
        new.len() != old.len() || new.iter().zip(&old).any(|(new, old)| new["image"] != old["image"])
    };
    let known = containers(old, "ephemeralContainers");
    changed("containers")
        || changed("initContainers")
        || containers(new, "ephemeralContainers").iter().any(|container| {
            let old = known.iter().find(|old| old["name"] == container["name"]);
            old.is_none_or(|old| old["image"] != container["image"])
        })
}
