//! What a StatefulSet needs next, as a pure function of everything that was observed.
//!
//! The rules are those of `pkg/controller/statefulset/stateful_set_control.go`: ordinals are filled from below
//! and taken away from above, one at a time unless the set is Parallel; updates go from the highest ordinal
//! down to the partition, one at a time and only while everything above is healthy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::identity::{
    REVISION_LABEL, claim_name, claim_owners, claim_templates, claims, identity_labels, ordinal, pod,
    pod_name,
};
use super::revision::{History, history, surplus, template};
use crate::labels;

/// Everything that matters in the set's namespace.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// The set.
    pub set: &'a StatefulSet,
    /// All pods of its namespace.
    pub pods: &'a [Arc<Pod>],
    /// All claims of its namespace.
    pub claims: &'a [Arc<PersistentVolumeClaim>],
    /// All ControllerRevisions of its namespace.
    pub revisions: &'a [Arc<ControllerRevision>],
    /// Now.
    pub now: Timestamp,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Add the set as controller of a pod that nobody controls.
    Adopt(Arc<Pod>),
    /// Give up a pod that the selector no longer means.
    Release(Arc<Pod>),
    /// Add the set as controller of a revision that nobody controls.
    AdoptRevision(Arc<ControllerRevision>),
    /// Create a revision.
    CreateRevision(Box<ControllerRevision>),
    /// Give a revision another number.
    Renumber(String, i64),
    /// Delete a revision.
    DeleteRevision(Arc<ControllerRevision>),
    /// Create a claim.
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Set the owners of a claim.
    OwnClaim(Arc<PersistentVolumeClaim>, Vec<OwnerReference>),
    /// Create a pod.
    CreatePod(Box<Pod>),
    /// Put labels back.
    Label(Arc<Pod>, BTreeMap<&'static str, String>),
    /// Delete a pod, and why.
    DeletePod(Arc<Pod>, Reason),
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its phase is Failed or Succeeded: it is made anew.
    Ended,
    /// The set has fewer replicas now.
    Scaled,
    /// It has an old revision.
    Updated,
}

/// The steps, in order, and the status to write after them.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// To do now.
    pub steps: Vec<Step>,
    /// Status of the set.
    pub status: StatefulSetStatus,
    /// When to look again even if nothing changes.
    pub again: Option<Duration>,
}

/// Decides.
pub fn decide(observed: &Observed<'_>) -> Decision {
    let set = observed.set;
    let spec = &set.spec;
    let owners = |revision: &ControllerRevision| revision.metadata.owner_references.clone();
    // A set before this one may have left them, with its pods.
    let orphans: Vec<_> = observed
        .revisions
        .iter()
        .filter(|revision| {
            controller(owners(revision).as_ref()).is_none()
                && revision.metadata.deletion_timestamp.is_none()
                && labels::matches(&spec.selector, revision.metadata.labels.as_ref())
        })
        .cloned()
        .collect();
    let ours = observed.revisions.iter().filter(|revision| is_ours(set, owners(revision).as_ref())).cloned();
    let revisions: Vec<_> = ours.chain(orphans.iter().cloned()).collect();
    let history = history(set, &revisions);
    let mut steps: Vec<Step> = orphans.into_iter().map(Step::AdoptRevision).collect();
    let mut mine = Vec::new();
    for pod in observed.pods {
        claim_pod(set, spec, pod, &mut steps, &mut mine);
    }
    let status = status(set, spec, &history, &mine, observed.now);
    if set.metadata.deletion_timestamp.is_some() {
        steps.retain(|step| matches!(step, Step::Release(_)));
        return Decision { steps, status, again: None };
    }
    steps.extend(history.create.clone().map(|revision| Step::CreateRevision(Box::new(revision))));
    steps.extend(history.renumber.clone().map(|(name, number)| Step::Renumber(name, number)));
    let used = |name: &str| mine.iter().any(|pod| revision_of(pod) == name);
    steps.extend(surplus(set, &revisions, &history, used).into_iter().map(Step::DeleteRevision));

    let mut pass = Pass { observed, spec, history: &history, steps, again: None };
    pass.run(&mine);
    Decision { steps: pass.steps, status, again: pass.again }
}

struct Pass<'a> {
    observed: &'a Observed<'a>,
    spec: &'a StatefulSetSpec,
    history: &'a History,
    steps: Vec<Step>,
    again: Option<Duration>,
}

impl Pass<'_> {
    fn run(&mut self, mine: &[Arc<Pod>]) {
        let set = self.observed.set;
        let range = range(self.spec);
        let by_ordinal: BTreeMap<i32, &Arc<Pod>> =
            mine.iter().filter_map(|pod| Some((ordinal(set, pod.metadata.name.as_deref()?)?, pod))).collect();
        let condemned: Vec<_> = by_ordinal
            .iter()
            .filter(|(ordinal, _)| !range.contains(*ordinal))
            .map(|(_, pod)| (*pod).clone())
            .collect();
        let first_unhealthy = range
            .clone()
            .filter_map(|ordinal| by_ordinal.get(&ordinal))
            .chain(condemned.iter().collect::<Vec<_>>().iter())
            .find(|pod| !is_healthy(pod))
            .and_then(|pod| pod.metadata.uid.clone());
        self.claim_owners(&by_ordinal, &condemned);
        for ordinal in range.clone() {
            if !self.replica(ordinal, by_ordinal.get(&ordinal).copied()) {
                return;
            }
        }
        for pod in condemned.iter().rev() {
            if !self.condemned(pod, first_unhealthy.as_deref()) {
                return;
            }
        }
        self.update(&range, &by_ordinal);
    }

    fn parallel(&self) -> bool {
        self.spec.pod_management_policy.as_deref() == Some("Parallel")
    }

    /// Brings one replica forward; false = the ones behind it have to wait.
    fn replica(&mut self, ordinal: i32, pod: Option<&Arc<Pod>>) -> bool {
        let set = self.observed.set;
        let Some(pod) = pod else {
            self.create_claims(ordinal);
            self.create_pod(ordinal);
            return self.parallel();
        };
        let phase = phase(pod);
        if matches!(phase, "Failed" | "Succeeded") {
            if pod.metadata.deletion_timestamp.is_none() {
                self.steps.push(Step::DeletePod(pod.clone(), Reason::Ended));
            }
            // Made anew when it is gone.
            return self.parallel();
        }
        if phase != "Running" && pod.metadata.deletion_timestamp.is_none() {
            self.create_claims(ordinal);
        }
        let name = pod_name(set, ordinal);
        let labels = pod.metadata.labels.as_ref();
        let wrong: BTreeMap<_, _> = identity_labels(ordinal, &name)
            .into_iter()
            .filter(|(key, value)| labels.and_then(|labels| labels.get(*key)) != Some(value))
            .collect();
        if !wrong.is_empty() && pod.metadata.deletion_timestamp.is_none() {
            self.steps.push(Step::Label(pod.clone(), wrong));
        }
        if self.parallel() {
            return true;
        }
        pod.metadata.deletion_timestamp.is_none() && is_ready(pod) && self.is_available(pod)
    }

    /// Takes one pod away; false = the ones below it have to wait.
    fn condemned(&mut self, pod: &Arc<Pod>, first_unhealthy: Option<&str>) -> bool {
        if pod.metadata.deletion_timestamp.is_some() {
            return self.parallel();
        }
        let blocked = !is_healthy(pod) && pod.metadata.uid.as_deref() != first_unhealthy;
        if blocked && !self.parallel() {
            return false;
        }
        self.steps.push(Step::DeletePod(pod.clone(), Reason::Scaled));
        self.parallel()
    }

    fn update(&mut self, range: &std::ops::Range<i32>, by_ordinal: &BTreeMap<i32, &Arc<Pod>>) {
        let strategy = self.spec.update_strategy.clone().unwrap_or_default();
        if strategy.type_.as_deref() == Some("OnDelete") {
            return;
        }
        let partition = strategy.rolling_update.and_then(|update| update.partition).unwrap_or(0);
        let update = self.history.update.metadata.name.as_deref().unwrap_or_default();
        for ordinal in range.clone().rev().filter(|ordinal| *ordinal >= range.start.saturating_add(partition))
        {
            // A missing one was created in this pass, or waits for its turn: the update waits with it.
            let Some(pod) = by_ordinal.get(&ordinal) else { return };
            if revision_of(pod) != update && pod.metadata.deletion_timestamp.is_none() {
                self.steps.push(Step::DeletePod((*pod).clone(), Reason::Updated));
                return;
            }
            if !is_healthy(pod) || !self.is_available(pod) {
                return;
            }
        }
    }

    fn create_claims(&mut self, ordinal: i32) {
        for claim in claims(self.observed.set, ordinal) {
            let exists = self.observed.claims.iter().any(|other| other.metadata.name == claim.metadata.name);
            if !exists {
                self.steps.push(Step::CreateClaim(Box::new(claim)));
            }
        }
    }

    fn create_pod(&mut self, ordinal: i32) {
        let set = self.observed.set;
        let strategy = self.spec.update_strategy.clone().unwrap_or_default();
        let partition = strategy.rolling_update.and_then(|update| update.partition).unwrap_or(0);
        let rolling = strategy.type_.as_deref() != Some("OnDelete");
        let below = ordinal < range(self.spec).start.saturating_add(partition);
        let (revision, template) = match template(&self.history.current) {
            Some(template) if rolling && below => (&self.history.current, template),
            _ => (&self.history.update, self.spec.template.clone()),
        };
        let revision = revision.metadata.name.as_deref().unwrap_or_default();
        // A pod of that name that is not ours, or a claim on its way out, would make this fail again and
        // again; the API server's answer says so better than a guess here.
        self.steps.push(Step::CreatePod(Box::new(pod(set, &template, revision, ordinal))));
    }

    /// Keeps the owners of claims as the retention policy wants them.
    fn claim_owners(&mut self, by_ordinal: &BTreeMap<i32, &Arc<Pod>>, condemned: &[Arc<Pod>]) {
        let set = self.observed.set;
        for (ordinal, pod) in by_ordinal {
            let going = condemned.iter().any(|other| other.metadata.uid == pod.metadata.uid);
            let wanted = claim_owners(set, going.then_some(pod.as_ref())).unwrap_or_default();
            for (template, _) in claim_templates(set) {
                let name = claim_name(set, template, *ordinal);
                let claim =
                    self.observed.claims.iter().find(|claim| claim.metadata.name.as_ref() == Some(&name));
                let Some(claim) = claim else { continue };
                let has = claim.metadata.owner_references.clone().unwrap_or_default();
                let managed = |reference: &OwnerReference| {
                    reference.uid == set.metadata.uid.clone().unwrap_or_default()
                        || (reference.kind == "Pod" && Some(&reference.name) == pod.metadata.name.as_ref())
                };
                let mut kept: Vec<_> = has.iter().filter(|reference| !managed(reference)).cloned().collect();
                kept.extend(wanted.clone());
                if kept != has && claim.metadata.deletion_timestamp.is_none() {
                    self.steps.push(Step::OwnClaim(claim.clone(), kept));
                }
            }
        }
    }

    /// Ready for `minReadySeconds`; otherwise notes when it will be.
    fn is_available(&mut self, pod: &Pod) -> bool {
        let Some(wait) = availability_wait(self.spec, pod, self.observed.now) else { return false };
        if wait.is_zero() {
            return true;
        }
        self.again = Some(self.again.map_or(wait, |again| again.min(wait)));
        false
    }
}

/// Sorts a pod: ours, to adopt, to release, or none of our business.
fn claim_pod(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    pod: &Arc<Pod>,
    steps: &mut Vec<Step>,
    mine: &mut Vec<Arc<Pod>>,
) {
    let selected = labels::matches(&spec.selector, pod.metadata.labels.as_ref());
    let references = pod.metadata.owner_references.as_ref();
    let ours = is_ours(set, references);
    let named = pod.metadata.name.as_deref().and_then(|name| ordinal(set, name)).is_some();
    match controller(references) {
        Some(_) if ours && selected => mine.push(pod.clone()),
        Some(_) if ours && pod.metadata.deletion_timestamp.is_none() => {
            steps.push(Step::Release(pod.clone()));
        }
        None if selected && named && pod.metadata.deletion_timestamp.is_none() => {
            steps.push(Step::Adopt(pod.clone()));
            mine.push(pod.clone());
        }
        _ => {}
    }
}

fn controller(references: Option<&Vec<OwnerReference>>) -> Option<&OwnerReference> {
    references.into_iter().flatten().find(|reference| reference.controller == Some(true))
}

fn is_ours(set: &StatefulSet, references: Option<&Vec<OwnerReference>>) -> bool {
    controller(references).is_some_and(|reference| Some(&reference.uid) == set.metadata.uid.as_ref())
}

fn range(spec: &StatefulSetSpec) -> std::ops::Range<i32> {
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    start..start.saturating_add(spec.replicas.unwrap_or(1))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn revision_of(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(REVISION_LABEL)).map(String::as_str).unwrap_or_default()
}

fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Running and ready.
fn is_ready(pod: &Pod) -> bool {
    phase(pod) == "Running" && ready_condition(pod).is_some()
}

fn is_healthy(pod: &Pod) -> bool {
    is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// How long until the pod counts as available; none = it isn't ready.
fn availability_wait(spec: &StatefulSetSpec, pod: &Pod, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    let minimum = Duration::from_secs(u64::try_from(spec.min_ready_seconds.unwrap_or(0)).unwrap_or(0));
    let since = ready_condition(pod)?.last_transition_time.as_ref()?.0;
    let ready_for: Duration = now.duration_since(since).try_into().unwrap_or(Duration::ZERO);
    Some(minimum.saturating_sub(ready_for))
}

fn status(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    history: &History,
    mine: &[Arc<Pod>],
    now: Timestamp,
) -> StatefulSetStatus {
    let count =
        |matches: &dyn Fn(&Pod) -> bool| i32::try_from(mine.iter().filter(|pod| matches(pod)).count()).ok();
    let name = |revision: &ControllerRevision| revision.metadata.name.clone().unwrap_or_default();
    let of = |revision: &str| {
        count(&|pod| pod.metadata.deletion_timestamp.is_none() && revision_of(pod) == revision)
    };
    let (current, update) = (name(&history.current), name(&history.update));
    let replicas = count(&|_| true).unwrap_or(0);
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas,
        ready_replicas: count(&is_ready),
        available_replicas: count(&|pod| availability_wait(spec, pod, now) == Some(Duration::ZERO)),
        current_replicas: of(&current),
        updated_replicas: of(&update),
        current_revision: Some(current),
        update_revision: Some(update.clone()),
        collision_count: Some(set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0)),
        conditions: None,
    };
    // The update is complete: what was updated to is the current revision.
    let rolling =
        spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete");
    let wanted = spec.replicas.unwrap_or(1);
    if rolling
        && [status.updated_replicas, status.ready_replicas, Some(replicas)].iter().all(|n| *n == Some(wanted))
    {
        status.current_revision = Some(update);
        status.current_replicas = status.updated_replicas;
    }
    status
}
