//! `MutatingAdmissionPolicy` (`…/policy/mutating`, `…/policy/mutating/patch`).

use std::sync::Arc;

use serde_json::{Value, json};
use setpoint_schema::FieldSet;
use setpoint_schema::cel::policy::Expression;
use setpoint_schema::managed::{self, ApplyError, ApplyRequest};
use setpoint_schema::patch::{self, PatchError};

use super::compiled::Compiled;
use super::{Bound, is_exempt};
use crate::admission::Attributes;
use crate::admission::expressions::failure;
use crate::admission::versions::{is_own, shown};
use crate::catalog::Resource;
use crate::object::{Metadata, copy_meta, fields, meta_mut};
use crate::registry::{Mismade, Registry, redecode};
use crate::status::{Result, Status};

const POLICIES: &str = "mutatingadmissionpolicies.admissionregistration.k8s.io";
const BINDINGS: &str = "mutatingadmissionpolicybindings.admissionregistration.k8s.io";

/// What the second round of mutation needs to know of the first.
#[derive(Debug, Default)]
pub(in crate::admission) struct PolicyRounds {
    again: bool,
    /// Whether something changed after a policy that wants to be asked again then.
    needed: bool,
    /// Policies that want to be asked again, with those whose turn has come since something changed after them.
    eager: Vec<String>,
    due: Vec<String>,
    /// The object after the policies of the first round.
    output: Value,
    /// The managed fields before any policy was asked.
    managed: Option<Value>,
}

impl PolicyRounds {
    /// Begins the second round, if there is to be one: for policies, or `wanted` by others.
    pub(in crate::admission) fn again(&mut self, wanted: bool) -> bool {
        self.again = (self.needed || wanted) && !self.again;
        self.again
    }

    /// The managed fields as they were before, if policies were asked.
    pub(in crate::admission) fn managed_before(&mut self) -> Option<Value> {
        self.managed.take()
    }

    fn note_change(&mut self) {
        self.needed |= !self.eager.is_empty();
        self.due.append(&mut self.eager);
    }
}

/// Why a policy could not do its work.
enum Failed {
    /// The failure policy decides.
    Policy(String),
    /// The same; the object could not be put into the version of the policy.
    Configuration(String),
    /// For good.
    Broken(Status),
}

impl Registry {
    /// Has every mutating policy that the request concerns change `object`.
    ///
    /// # Errors
    /// The first failure of a policy that does not let requests pass then.
    pub(in crate::admission) async fn mutate_by_policies(
        &self,
        request: &Attributes<'_>,
        object: &mut Value,
        rounds: &mut PolicyRounds,
    ) -> Result<()> {
        let bound = self.bound_policies(POLICIES, BINDINGS);
        // Nothing is left to change of what is deleted.
        if bound.is_empty() || object.is_null() || is_exempt(request) {
            return Ok(());
        }
        rounds.managed.get_or_insert_with(|| object["metadata"]["managedFields"].clone());
        if rounds.again && rounds.output != *object {
            rounds.note_change();
        }
        for Bound { policy, bindings } in &bound {
            // Few requests have policies: the others need no room for it.
            Box::pin(self.change_by(policy, bindings, request, object, rounds)).await?;
        }
        rounds.output = object.clone();
        Ok(())
    }

    /// Has one policy change the object by way of each binding.
    async fn change_by(
        &self,
        policy: &Value,
        bindings: &[Arc<Value>],
        request: &Attributes<'_>,
        object: &mut Value,
        rounds: &mut PolicyRounds,
    ) -> Result<()> {
        let target = self.concerned(&policy["spec"]["matchConstraints"], request, object);
        let configured = target.and_then(|target| match target {
            Some(target) => self.param_kind(policy).map(|kind| Some((target, kind))),
            None => Ok(None),
        });
        let (target, kind) = match configured {
            Ok(Some(configured)) => configured,
            Ok(None) => return Ok(()),
            Err(why) => {
                let failed = Failed::Policy(format!("failed to configure policy: {why}"));
                return decide(policy, None, request, object, failed);
            }
        };
        let compiled = self.compiled_policies.of(policy);
        for binding in bindings {
            let name = binding.meta("name");
            let params = match self.params_by(binding, kind.as_ref(), request, object) {
                Ok(params) => params,
                Err(why) => {
                    let failed = Failed::Policy(format!("failed to configure binding: {why}"));
                    decide(policy, Some(name), request, object, failed)?;
                    continue;
                }
            };
            for params in &params {
                let id = format!(
                    "{}/{name}/{}/{}",
                    policy.meta("name"),
                    params.meta("namespace"),
                    params.meta("name")
                );
                if rounds.again && !rounds.due.contains(&id) {
                    continue;
                }
                let given = kind.is_some().then_some(params);
                // A policy that changed something is asked again itself, unlike a webhook.
                if policy["spec"]["reinvocationPolicy"] == "IfNeeded" {
                    rounds.eager.push(id);
                }
                let mut changed = object.clone();
                match self.change(policy, &compiled, &target, given, request, &mut changed).await {
                    Ok(()) if changed != *object => {
                        *object = changed;
                        rounds.note_change();
                    }
                    Ok(()) => {}
                    Err(failed) => {
                        let by = (!matches!(failed, Failed::Configuration(_))).then_some(name);
                        decide(policy, by, request, object, failed)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the mutations of a policy, each on what those before it have made.
    async fn change(
        &self,
        policy: &Value,
        compiled: &Compiled,
        target: &Arc<Resource>,
        params: Option<&Value>,
        request: &Attributes<'_>,
        object: &mut Value,
    ) -> Result<(), Failed> {
        let (variables, asks) = (&compiled.variables, compiled.asks);
        let versioned = self.in_version_of(request, object, target).await;
        let mut versioned =
            versioned.map_err(|why| Failed::Configuration(format!("failed to configure policy: {why}")))?;
        let seen = self.seen(request, &versioned);
        let concerns = self
            .evaluate(request, &seen, params, variables, asks, |evaluation| compiled.concerns(evaluation));
        if !concerns.map_err(|undecided| Failed::Policy(undecided.0))? {
            return Ok(());
        }
        let own = is_own(request);
        let elsewhere = own && target.version != request.resource().version;
        let mut changed = if elsewhere { versioned.object.clone() } else { object.clone() };
        let mutations = policy["spec"]["mutations"].as_array().into_iter().flatten();
        for (mutation, expression) in mutations.zip(&compiled.mutations) {
            let expression: &Expression = expression.as_ref().map_err(|why| Failed::Policy(why.clone()))?;
            versioned.object = shown(request, changed.clone());
            let seen = self.seen(request, &versioned);
            let value = self
                .evaluate(request, &seen, params, variables, asks, |evaluation| evaluation.run(expression));
            let value = value.map_err(|why| Failed::Policy(failure(expression.text(), &why)))?;
            if mutation["patchType"] == "JSONPatch" {
                patch_by(&mut changed, &value)?;
            } else {
                self.merge(request, target, &mut changed, value)?;
            }
            if own {
                redecode(target, &mut changed).map_err(|mismade| unfit_object(target, mismade))?;
            }
        }
        if !elsewhere {
            *object = changed;
        } else if changed != seen.object {
            let converted = self.converted(target, request.resource(), changed).await;
            *object = converted.map_err(|why| {
                Failed::Broken(Status::internal(format!("failed to convert object: {why}")))
            })?;
        }
        Ok(())
    }

    /// Merges an apply configuration into the object, as server-side apply would, but owned by nobody.
    fn merge(
        &self,
        request: &Attributes<'_>,
        resource: &Resource,
        object: &mut Value,
        mut intent: Value,
    ) -> Result<(), Failed> {
        if request.kind.kind != resource.kind {
            let kind = request.kind;
            let group = if kind.group.is_empty() { String::new() } else { format!("{}/", kind.group) };
            return Err(Failed::Policy(format!(
                "error applying patch: failed to convert patch object to typed object: no corresponding type for {group}{}, Kind={}",
                kind.version, kind.kind
            )));
        }
        let schema = resource.schema();
        let mut live = object.clone();
        meta_mut(&mut live).remove("managedFields");
        for key in ["apiVersion", "kind"] {
            fields(&mut intent).insert(key.to_owned(), object[key].clone());
        }
        let name = object.meta("name").to_owned();
        if intent.meta("name").is_empty() && !name.is_empty() {
            meta_mut(&mut intent).insert("name".to_owned(), name.into());
        }
        let applied = managed::apply(&ApplyRequest {
            schema: &schema,
            live: Some(&live),
            intent: &intent,
            manager: "policy",
            force: true,
            subresource: request.subresource,
            api_version: object["apiVersion"].as_str().unwrap_or_default(),
            ignored: &FieldSet::default(),
            now: self.clock.now(),
        });
        let mut merged = applied.map_err(|error| Failed::Policy(unfit(&error)))?.object;
        copy_meta(&mut merged, object, "managedFields");
        *object = merged;
        Ok(())
    }
}

/// Why what a mutation made is no object of its kind.
fn unfit_object(resource: &Resource, mismade: Mismade) -> Failed {
    Failed::Broken(match mismade {
        Mismade::Undecodable(why) => Status::internal(match why.trim_start_matches("json: ") {
            why if why.starts_with("cannot unmarshal") => format!("json: {why}"),
            why => why.to_owned(),
        }),
        Mismade::Refused(status) if resource.custom().is_none() => {
            Status::internal(format!("failed to convert object: {}", status.message))
        }
        Mismade::Refused(status) => status,
    })
}

/// Why an apply configuration does not fit: what it is about is known.
fn unfit(error: &ApplyError) -> String {
    let text = error.to_string();
    let why = match error {
        ApplyError::Untyped(_) => text.split_once("): ").map_or(text.as_str(), |(_, why)| why),
        _ => text.as_str(),
    };
    format!("error applying patch: failed to convert patch object to typed object: {why}")
}

/// Applies the operations of a JSON patch. One whose `test` does not hold changes nothing.
fn patch_by(object: &mut Value, operations: &Value) -> Result<(), Failed> {
    let mut patched = object.clone();
    match patch::json_of_any_length(&mut patched, operations) {
        Ok(()) => {
            *object = patched;
            Ok(())
        }
        Err(PatchError::TestFailed(_)) => Ok(()),
        Err(error) => Err(Failed::Policy(format!("JSON Patch: {error}"))),
    }
}

/// The error of the request, unless the policy's failures let it pass.
fn decide(
    policy: &Value,
    binding: Option<&str>,
    request: &Attributes<'_>,
    object: &Value,
    failed: Failed,
) -> Result<()> {
    let reason = if matches!(failed, Failed::Configuration(_)) { "Forbidden" } else { "Invalid" };
    match failed {
        Failed::Broken(status) => Err(status),
        _ if policy["spec"]["failurePolicy"] == "Ignore" => Ok(()),
        Failed::Policy(why) | Failed::Configuration(why) => {
            let name = policy.meta("name");
            let message = match binding {
                Some(binding) => format!("policy '{name}' with binding '{binding}' denied request: {why}"),
                None => format!("policy {name:?} denied request: {why}"),
            };
            let causes = vec![json!({"message": message})];
            Err(request.forbidden(object, "").worded(message).answering(403, reason, causes))
        }
    }
}
