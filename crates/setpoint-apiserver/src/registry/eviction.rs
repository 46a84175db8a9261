//! Evictions: deletions of pods that a disruption budget has to allow (`pkg/registry/core/pod/storage/eviction.go`).

use std::sync::Arc;

use serde_json::{Value, json};

use super::delete::check_preconditions;
use super::pods::done;
use super::{DeleteOptions, Place, Registry, WriteOptions, Written};
use crate::builtin::{list, text};
use crate::object::{Metadata, fields};
use crate::selector::{LabelSelector, to_text};
use crate::status::{Cause, Result, Status, Subject};
use crate::store::{Change, Expect, Key, Stored};

const BUDGETS: &str = "poddisruptionbudgets.policy";
/// So many pods may be on their way without the controller having seen it (upstream: `MaxDisruptedPodSize`).
const MAX_DISRUPTED: usize = 2000;
const ALLOWED: &str = "DisruptionAllowed";

impl Registry {
    /// Deletes a pod if its disruption budget allows.
    pub(crate) fn evict(&self, place: &Place, eviction: &Value, options: &WriteOptions) -> Result<Written> {
        let name = eviction.meta("name");
        if !name.is_empty() && name != place.name {
            return Err(Status::bad_request("name in URL does not match name in Eviction object"));
        }
        let mut delete = eviction["deleteOptions"].clone();
        if options.dry_run {
            fields(&mut delete).insert("dryRun".to_owned(), json!(["All"]));
        }
        let mut delete = DeleteOptions::of_value(&delete)?;
        let pod = self.get(place)?;
        let ended = matches!(pod.value["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"));
        if !ended && !pod.value.is_deleting() {
            self.spend_budget(place, &pod.value, options.dry_run)?;
        }
        if !options.dry_run {
            let version = self.mark_disrupted(place, &delete)?;
            delete.expect_version(version);
        }
        self.delete_unasked(place, &delete)?;
        Ok(done(201))
    }

    /// Says in the pod why it goes; answers its version then.
    fn mark_disrupted(&self, place: &Place, options: &DeleteOptions) -> Result<u64> {
        loop {
            let stored = self.get(place)?;
            check_preconditions(place, &stored.value, options)?;
            let mut pod = stored.decode();
            let condition = json!({
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": self.now(),
            });
            let conditions = fields(&mut pod["status"]).entry("conditions").or_insert_with(|| json!([]));
            let Some(list) = conditions.as_array_mut() else { return Ok(stored.revision) };
            if list.iter().any(|known| known["type"] == "DisruptionTarget" && known["status"] == "True") {
                return Ok(stored.revision);
            }
            list.retain(|known| known["type"] != "DisruptionTarget");
            list.push(condition);
            if let Ok(written) = self.commit(place, &stored, pod, false) {
                return Ok(written.revision);
            }
        }
    }

    fn spend_budget(&self, place: &Place, pod: &Value, dry_run: bool) -> Result<()> {
        loop {
            let Some((key, stored)) = self.budget_of(place, pod)? else { return Ok(()) };
            let old: &Value = &stored.value;
            if may_go_unready(old, pod) {
                return Ok(());
            }
            check_budget(old, &key.name)?;
            if dry_run {
                return Ok(());
            }
            let mut budget = old.clone();
            let left = old["status"]["disruptionsAllowed"].as_i64().unwrap_or_default() - 1;
            budget["status"]["disruptionsAllowed"] = left.into();
            budget["status"]["disruptedPods"][place.name.as_str()] = self.now().into();
            if left == 0 {
                forbid(&mut budget, &self.now());
            }
            if let Some(resource) = self.catalog.find("policy", "v1", "poddisruptionbudgets") {
                self.own_status_as_server(&resource, old, &mut budget);
            }
            let expect = Expect::Revision(stored.revision);
            if self.store.write(&BUDGETS.into(), &key, expect, Change::Put(budget)).is_ok() {
                return Ok(());
            }
        }
    }

    /// The budget that covers a pod.
    ///
    /// # Errors
    /// When several do.
    fn budget_of(&self, place: &Place, pod: &Value) -> Result<Option<(Key, Arc<Stored>)>> {
        let snapshot = self.store.snapshot(BUDGETS);
        let covers = |stored: &Stored| {
            let selector = &stored.value["spec"]["selector"];
            selector.is_object()
                && LabelSelector::parse(&to_text(selector)).is_ok_and(|selector| selector.matches(pod))
        };
        let mut budgets = snapshot.range(&place.namespace, None).filter(|(_, stored)| covers(stored));
        let found = budgets.next().map(|(key, stored)| (key.clone(), Arc::clone(stored)));
        if budgets.next().is_some() {
            return Err(Status::unknown(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
        Ok(found)
    }
}

/// Whether a pod that is not ready may go without the budget: always, or while there are enough that are.
fn may_go_unready(budget: &Value, pod: &Value) -> bool {
    let ready = list(&pod["status"], "conditions")
        .iter()
        .any(|one| one["type"] == "Ready" && one["status"] == "True");
    let count = |field: &str| budget["status"][field].as_i64().unwrap_or_default();
    let enough = count("currentHealthy") >= count("desiredHealthy") && count("desiredHealthy") > 0;
    !ready && (budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" || enough)
}

/// Whether a budget lets a pod go.
fn check_budget(budget: &Value, name: &str) -> Result<()> {
    const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
    let status = &budget["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    if count("observedGeneration") < budget.generation() {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(Status::disruption_budget(REFUSED, &why, 10));
    }
    let odd = |short: &str, long: &str| {
        let subject = Subject { group: "policy", kind: "poddisruptionbudget", name };
        let message = format!("The disruption budget {name} does not allow evicting pods currently: {long}");
        let cause = Cause { reason: "DisruptionBudget".to_owned(), message, field: String::new() };
        Err(Status::forbidden(subject, short).with_causes(vec![cause]))
    };
    if count("disruptionsAllowed") < 0 {
        return odd("pdb disruptions allowed is negative", "pdb disruptions allowed is negative");
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        return odd(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            "too many pending evictions not confirmed by PDB controller",
        );
    }
    if count("disruptionsAllowed") > 0 {
        return Ok(());
    }
    let conditions = list(status, "conditions");
    let denied = conditions.iter().find(|one| one["type"] == ALLOWED && one["status"] == "False");
    let denied = denied.filter(|one| !text(one, "message").is_empty());
    let why = match denied {
        Some(one) if one["reason"] == "SyncFailed" => {
            format!(
                " does not allow evicting pods currently because it failed sync: {}",
                text(one, "message")
            )
        }
        _ if count("currentHealthy") <= count("desiredHealthy") => {
            format!(
                " needs {} healthy pods and has {} currently",
                count("desiredHealthy"),
                count("currentHealthy")
            )
        }
        Some(one) => format!(
            " does not allow evicting pods currently ({}): {}",
            text(one, "reason"),
            text(one, "message")
        ),
        None => " does not allow evicting pods currently".to_owned(),
    };
    Err(Status::disruption_budget(REFUSED, &format!("The disruption budget {name}{why}"), 0))
}

/// Says in a budget that nothing more may go.
fn forbid(budget: &mut Value, now: &str) {
    let observed = budget["status"]["observedGeneration"].clone();
    let conditions = fields(&mut budget["status"]).entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = conditions.as_array_mut() else { return };
    let known = list.iter().position(|one| one["type"] == ALLOWED);
    let same = known.is_some_and(|index| list[index]["status"] == "False");
    let mut condition = json!({
        "type": ALLOWED, "status": "False", "reason": "InsufficientPods", "message": "", "lastTransitionTime": now,
    });
    if observed.as_i64().unwrap_or_default() != 0 {
        condition["observedGeneration"] = observed;
    }
    match known {
        Some(index) => {
            if same {
                condition["lastTransitionTime"] = list[index]["lastTransitionTime"].clone();
            }
            list[index] = condition;
        }
        None => list.push(condition),
    }
}
