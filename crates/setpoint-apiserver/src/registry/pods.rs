//! Subresources of pods that write: binding and eviction; and of namespaces: finalize.

use serde_json::{Value, json};

use super::modify::{Wanted, uid_precondition};
use super::tracked::Tracked;
use super::{Answer, DeleteOptions, Place, Registry, WriteOptions, Written};
use crate::object::{Metadata, fields, meta_mut};
use crate::object_meta::NameRule;
use crate::selector::{LabelSelector, to_text};
use crate::status::{Cause, Result, Status, Subject};
use crate::store::{Change, Expect, Stored};

const BUDGETS: &str = "poddisruptionbudgets.policy";

impl Registry {
    /// Assigns a pod to a node (`pkg/registry/core/pod/storage: BindingREST`).
    pub(crate) async fn bind(
        &self,
        place: &Place,
        binding: &Value,
        options: &WriteOptions,
    ) -> Result<Written> {
        let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
        if !binding.meta("name").is_empty() && binding.meta("name") != place.name {
            return Err(Status::bad_request("name in URL does not match name in Binding object"));
        }
        check_binding(&binding["target"])?;
        let now = self.now();
        self.modify(place, "binding", options, |live| {
            let subject = Subject { group: "", kind: "pods/binding", name: &place.name };
            let uid = binding.meta("uid");
            if !uid.is_empty() && uid != live.meta("uid") {
                return Err(uid_precondition(place, uid, live.meta("uid")));
            }
            if live.is_deleting() {
                let why = format!("pod {} is being deleted, cannot be assigned to a host", place.name);
                return Err(Status::conflict(subject, &why));
            }
            if let Some(bound) = live["spec"]["nodeName"].as_str().filter(|bound| !bound.is_empty()) {
                let why = format!("pod {} is already assigned to node {bound:?}", place.name);
                return Err(Status::conflict(subject, &why));
            }
            let gates = live["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
            if gates {
                let why = format!("pod {} has non-empty .spec.schedulingGates", place.name);
                return Err(Status::conflict(subject, &why));
            }
            let mut object = live.clone();
            object["spec"]["nodeName"] = node.as_str().into();
            for texts in ["annotations", "labels"] {
                for (key, value) in binding["metadata"][texts].as_object().into_iter().flatten() {
                    fields(&mut object["metadata"][texts]).insert(key.clone(), value.clone());
                }
            }
            let condition = json!({
                "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
            });
            let conditions = fields(&mut object["status"]).entry("conditions").or_insert_with(|| json!([]));
            if let Some(list) = conditions.as_array_mut() {
                list.retain(|known| known["type"] != "PodScheduled");
                list.push(condition);
            }
            Ok(Wanted { object, tracked: Tracked::Done, warnings: Vec::new() })
        })
        .await?;
        Ok(done(201))
    }

    /// Deletes a pod if its disruption budget allows (`pkg/registry/core/pod/storage/eviction.go`).
    pub(crate) fn evict(&self, place: &Place, eviction: &Value, options: &WriteOptions) -> Result<Written> {
        let name = eviction.meta("name");
        if !name.is_empty() && name != place.name {
            return Err(Status::bad_request("name in URL does not match name in Eviction object"));
        }
        let mut delete = eviction["deleteOptions"].clone();
        if options.dry_run {
            fields(&mut delete).insert("dryRun".to_owned(), json!(["All"]));
        }
        let delete = DeleteOptions::parse(&delete, &crate::request::Query::default())?;
        let pod = self.get(place)?;
        let ended = matches!(pod.value["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"));
        if !ended && !pod.value.is_deleting() {
            self.spend_budget(place, &pod.value, options.dry_run)?;
        }
        self.delete_unasked(place, &delete)?;
        Ok(done(201))
    }

    fn spend_budget(&self, place: &Place, pod: &Value, dry_run: bool) -> Result<()> {
        loop {
            let snapshot = self.store.snapshot(BUDGETS);
            let covers = |stored: &Stored| {
                let selector = &stored.value["spec"]["selector"];
                selector.is_object()
                    && LabelSelector::parse(&to_text(selector)).is_ok_and(|selector| selector.matches(pod))
            };
            let mut budgets = snapshot.range(&place.namespace, None).filter(|(_, stored)| covers(stored));
            let Some((key, stored)) = budgets.next() else { return Ok(()) };
            if budgets.next().is_some() {
                return Err(Status::unknown(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
            let mut budget: Value = (*stored.value).clone();
            if budget["status"]["observedGeneration"].as_i64().unwrap_or_default() < budget.generation() {
                let message = "Cannot evict pod as it would violate the pod's disruption budget.";
                let why =
                    format!("The disruption budget {} is still being processed by the server.", key.name);
                return Err(Status::disruption_budget(message, &why, 10));
            }
            let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or_default();
            if allowed <= 0 {
                let count = |field: &str| budget["status"][field].as_i64().unwrap_or_default();
                return Err(Status::disruption_budget(
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    &format!(
                        "The disruption budget {} needs {} healthy pods and has {} currently",
                        key.name,
                        count("desiredHealthy"),
                        count("currentHealthy")
                    ),
                    0,
                ));
            }
            if dry_run {
                return Ok(());
            }
            budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
            budget["status"]["disruptedPods"][place.name.as_str()] = self.now().into();
            let write = self.store.write(
                &BUDGETS.into(),
                key,
                Expect::Revision(stored.revision),
                Change::Put(budget),
            );
            if write.is_ok() {
                return Ok(());
            }
        }
    }

    /// Sets the finalizers in the spec of a namespace; the last one's removal lets it go.
    pub(crate) async fn finalize(
        &self,
        place: &Place,
        body: &Value,
        options: &WriteOptions,
    ) -> Result<Written> {
        if body.meta("name") != place.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                body.meta("name"),
                place.name
            )));
        }
        self.modify(place, "finalize", options, |live| {
            let mut object = live.clone();
            object["spec"]["finalizers"] = body["spec"]["finalizers"].clone();
            let version = body.meta("resourceVersion");
            if !version.is_empty() {
                meta_mut(&mut object).insert("resourceVersion".to_owned(), version.into());
            }
            Ok(Wanted { object, tracked: Tracked::Update, warnings: Vec::new() })
        })
        .await
    }
}

/// A binding is no object of the store: what is wrong with it is said as an error of the server, as upstream does.
fn check_binding(target: &Value) -> Result<()> {
    let (kind, name) =
        (target["kind"].as_str().unwrap_or_default(), target["name"].as_str().unwrap_or_default());
    let mut causes = Vec::new();
    if !matches!(kind, "" | "Node") {
        causes.push(Cause::unsupported("target.kind", &json!(kind), &["Node", "<empty>"]));
    }
    if name.is_empty() {
        causes.push(Cause::required("target.name", ""));
    } else {
        let wrong = NameRule::Subdomain.check(name, false);
        causes.extend(wrong.iter().map(|detail| Cause::invalid("target.name", &json!(name), detail)));
    }
    let texts: Vec<String> =
        causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    match texts.as_slice() {
        [] => Ok(()),
        [one] => Err(Status::unknown(one.clone())),
        all => Err(Status::unknown(format!("[{}]", all.join(", ")))),
    }
}

fn done(code: u16) -> Written {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code});
    Written { code, object: Answer::Other(status), warnings: Vec::new() }
}
