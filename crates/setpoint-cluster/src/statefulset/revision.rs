//! ControllerRevisions: the history of a StatefulSet's pod template.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};
use setpoint_clock::name_characters;
use sha2::{Digest, Sha256};

use super::owner_reference;

/// Label of a ControllerRevision with the hash of its data.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// What has to be done to the history, and which revisions count now.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// To create, if the template is new.
    pub create: Option<ControllerRevision>,
    /// To raise to this number: an older template is back.
    pub renumber: Option<(String, i64)>,
    /// The revision that pods are meant to have in the end.
    pub update: ControllerRevision,
    /// The revision that pods had before the update.
    pub current: ControllerRevision,
}

/// Compares the template with the history. `revisions` are those that the set controls.
pub fn history(set: &StatefulSet, revisions: &[Arc<ControllerRevision>]) -> History {
    let mut sorted: Vec<&ControllerRevision> = revisions.iter().map(Arc::as_ref).collect();
    sorted.sort_by_key(|revision| (revision.revision, revision.metadata.name.clone()));
    let next = sorted.last().and_then(|last| last.revision).unwrap_or(0) + 1;
    let wanted = new_revision(set, next);
    let equal = sorted.iter().rfind(|revision| revision.data.0 == wanted.data.0);
    let (create, renumber, update) = match equal {
        Some(found) if found.revision == sorted.last().and_then(|last| last.revision) => {
            (None, None, (*found).clone())
        }
        Some(found) => {
            let name = found.metadata.name.clone().unwrap_or_default();
            (None, Some((name, next)), ControllerRevision { revision: Some(next), ..(*found).clone() })
        }
        None => (Some(wanted.clone()), None, wanted),
    };
    let named = set.status.as_ref().and_then(|status| status.current_revision.as_deref());
    let current =
        sorted.iter().find(|revision| revision.metadata.name.as_deref() == named && named.is_some());
    let current = current.map_or_else(|| update.clone(), |current| (*current).clone());
    History { create, renumber, update, current }
}

/// Names of revisions beyond the limit that nothing uses any more, oldest first.
pub fn surplus(
    set: &StatefulSet,
    revisions: &[Arc<ControllerRevision>],
    history: &History,
    used: impl Fn(&str) -> bool,
) -> Vec<Arc<ControllerRevision>> {
    let limit = set.spec.revision_history_limit.unwrap_or(10);
    let live = |name: &str| {
        [&history.update, &history.current].iter().any(|live| live.metadata.name.as_deref() == Some(name))
            || used(name)
    };
    let mut old: Vec<_> =
        revisions.iter().filter(|r| !live(r.metadata.name.as_deref().unwrap_or_default())).cloned().collect();
    old.sort_by_key(|revision| revision.revision);
    let keep = usize::try_from(limit).unwrap_or(0);
    old.truncate(old.len().saturating_sub(keep));
    old
}

/// The pod template that a revision holds. None when its data is something else.
pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    serde_json::from_value(revision.data.0.get("spec")?.get("template")?.clone()).ok()
}

fn new_revision(set: &StatefulSet, number: i64) -> ControllerRevision {
    let mut template = json!(set.spec.template);
    template["$patch"] = json!("replace");
    let data = json!({"spec": {"template": template}});
    let collisions = set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let hash = hash(&data, collisions);
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let mut labels: BTreeMap<String, String> = set.spec.selector.match_labels.clone().unwrap_or_default();
    labels.insert(HASH_LABEL.into(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            // Upstream cuts the set's name too, so that the whole fits into a label value.
            name: Some(format!("{}-{hash}", name.chars().take(52).collect::<String>())),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![owner_reference(set)]),
            ..ObjectMeta::default()
        },
        data: RawExtension(data),
        revision: Some(number),
    }
}

fn hash(data: &Value, collisions: i32) -> String {
    let mut hash = Sha256::new();
    hash.update(data.to_string());
    if collisions != 0 {
        hash.update(collisions.to_be_bytes());
    }
    name_characters(&hash.finalize()[..10])
}
