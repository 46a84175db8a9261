//! What is done about an object that does not parse into the controller's type: an event, and where its
//! status has room for it, a condition. A field manager of its own owns the condition, so that neither the
//! controller's status nor anybody else's conditions are touched.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::Identity;
use crate::context::Access;
use crate::fingerprint::{Part, Print, find};
use crate::request::Form;
use crate::{Event, Object, Result, Verb, set_condition};

/// The condition's type. It is `False` while the object cannot be read, and absent otherwise.
const CONDITION: &str = "Decodable";

fn manager(identity: &Identity) -> String {
    format!("{}-decoding", identity.field_manager)
}

/// Whether the object carries our condition.
pub(super) fn is_reported(prints: &[Print], identity: &Identity) -> bool {
    find(prints, &manager(identity), Part::Status).is_some()
}

/// Tells the object's owner what is wrong with it.
///
/// # Errors
/// If the API server does not answer. A status without conditions is none.
pub(super) async fn report(access: &Access, problem: &str) -> Result<()> {
    let (kind, key) = (&access.owner.kind, &access.owner.key);
    let message = format!("cannot be read as {kind}: {problem}");
    tracing::error!(problem, "the object cannot be decoded");
    access.event(Event::warning("Undecodable", message.clone()));
    if !access.controller.declared.allow(kind, Some("status"), Verb::Patch) {
        return Ok(());
    }
    let Some(live) = access.read_live(kind, key, Form::Whole).await? else { return Ok(()) };
    let present = live.pointer("/status/conditions").and_then(Value::as_array);
    let present: Option<Condition> = present
        .and_then(|conditions| conditions.iter().find(|condition| condition["type"] == CONDITION))
        .and_then(|condition| serde_json::from_value(condition.clone()).ok());
    let mut conditions: Vec<Condition> = present.clone().into_iter().collect();
    let generation = live.pointer("/metadata/generation").and_then(Value::as_i64);
    let clock = access.runtime.clock();
    set_condition(&mut conditions, clock, generation, (CONDITION, "False"), "Undecodable", message);
    if conditions.first() == present.as_ref() {
        return Ok(());
    }
    match access.send_status(&manager(&access.controller), json!({ "conditions": conditions }), false).await {
        // A kind without status, or whose conditions are none, or not a list of several writers.
        Err(error) if error.status().is_some_and(|status| status.code <= 500) => {
            tracing::debug!(%error, "the object's status has no place for a condition");
            Ok(())
        }
        written => written.map(drop),
    }
}

/// Takes the condition back from an object that can be read again.
pub(super) async fn withdraw<O: Object>(access: &Access, object: Arc<O>) -> Result<Arc<O>> {
    match access.send_status(&manager(&access.controller), json!({}), true).await {
        Ok(answer) => crate::context::object(&access.owner.kind, &answer),
        // It is being changed or deleted meanwhile: the next pass will do it.
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(object),
        Err(error) => Err(error),
    }
}
