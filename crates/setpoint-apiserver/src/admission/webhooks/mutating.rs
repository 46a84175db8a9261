//! Mutating webhooks: patches, and who is asked again.

use serde_json::Value;
use setpoint_schema::patch;

use super::{Failed, Hook, MUTATING, matching};
use crate::admission::Attributes;
use crate::admission::versions::Versioned;
use crate::registry::{Mismade, Registry, redecode};
use crate::status::{Result, Status};
use crate::webhooks::type_of;

/// What the second round of mutation needs to know of the first.
#[derive(Debug, Default)]
pub(in crate::admission) struct Reinvocation {
    /// Whether this is the second round.
    again: bool,
    /// Whether a webhook changed something.
    changed: bool,
    /// Webhooks that want to be asked again, with those whose turn has come since something changed after them.
    eager: Vec<String>,
    due: Vec<String>,
    /// The object after the webhooks of the first round.
    output: Value,
    /// The managed fields before any webhook was asked.
    managed: Option<Value>,
}

impl Reinvocation {
    /// Whether a webhook changed something in the first round; from now on it is the second, if there is one.
    pub(in crate::admission) fn again(&mut self) -> bool {
        let wanted = self.changed && !self.again;
        self.again = true;
        wanted
    }

    /// The managed fields as they were before, if webhooks were asked.
    pub(in crate::admission) fn managed_before(&mut self) -> Option<Value> {
        self.managed.take()
    }

    /// Something changed: those that were asked before are due.
    fn note_change(&mut self) {
        self.due.append(&mut self.eager);
    }
}

impl Registry {
    /// Asks the mutating webhooks that the request concerns, and changes `object` as they say.
    pub(in crate::admission) async fn ask_mutating_webhooks(
        &self,
        request: &Attributes<'_>,
        object: &mut Value,
        warnings: &mut Vec<String>,
        rounds: &mut Reinvocation,
    ) -> Result<()> {
        if matching::is_exempt(request) {
            return Ok(());
        }
        let hooks = self.hooks(MUTATING);
        if hooks.is_empty() {
            return Ok(());
        }
        rounds.managed.get_or_insert_with(|| object["metadata"]["managedFields"].clone());
        if rounds.again && rounds.output != *object {
            rounds.note_change();
        }
        for hook in hooks {
            let id = format!("{}/{}/{}", hook.configuration["metadata"]["name"], hook.name(), hook.index);
            let Some(mut versioned) = self.concerns(&hook, request, object).await? else { continue };
            if rounds.again && !rounds.due.contains(&id) {
                continue;
            }
            let changed = match self.mutate_by(&hook, request, &mut versioned, warnings).await {
                Ok(changed) => changed,
                Err(failed) => {
                    failed.decide(&hook)?;
                    false
                }
            };
            if changed {
                let resource = request.resource();
                *object = if versioned.object["apiVersion"] == object["apiVersion"] {
                    versioned.object
                } else {
                    let from = &versioned.resource;
                    self.converted(from, resource, versioned.object).await.map_err(Status::internal)?
                };
                rounds.note_change();
                rounds.changed = true;
            }
            if hook.text("reinvocationPolicy") == "IfNeeded" {
                rounds.eager.push(id);
            }
        }
        rounds.output = object.clone();
        Ok(())
    }

    /// Asks one webhook and patches the object. Answers whether that changed it.
    async fn mutate_by(
        &self,
        hook: &Hook,
        request: &Attributes<'_>,
        versioned: &mut Versioned,
        warnings: &mut Vec<String>,
    ) -> Result<bool, Failed> {
        let answer = self.ask(hook, request, versioned, true, warnings).await?;
        if answer.patch.is_empty() {
            return Ok(false);
        }
        let operations = serde_json::from_slice::<Value>(&answer.patch);
        let operations = operations.map_err(|error| {
            let why = undecodable(&answer.patch, &error);
            Failed::Calling(format!("received undecodable patch in webhook response: {why}"))
        })?;
        if operations.is_null() || operations.as_array().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        if !operations.is_array() {
            return Err(Failed::Calling(format!(
                "received undecodable patch in webhook response: json: cannot unmarshal {} into Go value of type jsonpatch.Patch",
                type_of(&operations)
            )));
        }
        let internal = |why: String| Failed::Refused(Status::internal(why));
        if versioned.object.is_null() {
            return Err(internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                hook.name()
            )));
        }
        if answer.patch_type != "JSONPatch" {
            return Err(Failed::Calling(format!("unsupported patch type {:?}", answer.patch_type)));
        }
        let mut patched = versioned.object.clone();
        patch::json_of_any_length(&mut patched, &operations).map_err(|error| internal(error.to_string()))?;
        let own = request.kind.kind == request.resource().kind;
        if own {
            redecode(&versioned.resource, &mut patched).map_err(|mismade| match mismade {
                Mismade::Undecodable(why) => internal(why),
                Mismade::Refused(status) => Failed::Refused(status),
            })?;
        }
        let changed = patched != versioned.object;
        versioned.object = patched;
        Ok(changed)
    }
}

/// Why bytes are no JSON, as Go says it for the first of them.
fn undecodable(bytes: &[u8], error: &serde_json::Error) -> String {
    match bytes.first() {
        Some(first) if error.line() == 1 && error.column() <= 1 => {
            format!("invalid character '{}' looking for beginning of value", char::from(*first))
        }
        _ if error.is_eof() => "unexpected end of JSON input".to_owned(),
        _ => error.to_string(),
    }
}
