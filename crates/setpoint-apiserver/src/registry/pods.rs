//! Subresources that write: the binding of pods, and finalize of namespaces.

use serde_json::{Value, json};

use super::modify::{Wanted, uid_precondition};
use super::tracked::Tracked;
use super::{Answer, Place, Registry, WriteOptions, Written};
use crate::object::{Metadata, fields, meta_mut};
use crate::object_meta::NameRule;
use crate::status::{Cause, Result, Status, Subject};

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

pub(super) fn done(code: u16) -> Written {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code});
    Written { code, object: Answer::Other(status), warnings: Vec::new() }
}
