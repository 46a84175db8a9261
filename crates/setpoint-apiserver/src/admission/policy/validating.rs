//! `ValidatingAdmissionPolicy` (`…/policy/validating/{dispatcher,validator}.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use setpoint_schema::cel::policy::{Evaluation, OUT_OF_BUDGET};

use super::compiled::Compiled;
use super::{Bound, is_exempt};
use crate::admission::Attributes;
use crate::admission::expressions::failure;
use crate::admission::versions::Versioned;
use crate::object::Metadata;
use crate::registry::Registry;
use crate::status::{Result, Status};

pub(super) const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
const BINDINGS: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";
/// The longest message of an expression; one that is longer is not shown.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// Why a policy does not let a request pass.
#[derive(Debug)]
struct Objection {
    message: String,
    /// Of the validation; a failure has none.
    reason: Option<String>,
}

impl Objection {
    fn failure(message: String) -> Self {
        Self { message, reason: None }
    }
}

/// What one policy is asked about, and what has come of asking.
struct Asking<'a> {
    request: &'a Attributes<'a>,
    object: &'a Value,
    /// The objects in the versions that were asked for, converted once.
    versions: &'a mut BTreeMap<String, Versioned>,
    warnings: &'a mut Vec<String>,
    refusals: &'a mut Vec<Status>,
}

/// The refusal by a binding that cannot be used, if the policy does not let requests pass then.
fn misconfigured(
    policy: &Value,
    binding: &str,
    request: &Attributes<'_>,
    object: &Value,
    why: &str,
) -> Option<Status> {
    let objection = Objection::failure(format!("failed to configure binding: {why}"));
    (policy["spec"]["failurePolicy"] != "Ignore")
        .then(|| refused(request, object, policy.meta("name"), Some(binding), &objection))
}

impl Registry {
    /// Asks every validating policy that the request concerns.
    ///
    /// # Errors
    /// The first refusal, in the order of the policies' names.
    pub(in crate::admission) async fn validate_by_policies(
        &self,
        request: &Attributes<'_>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let bound = self.bound_policies(POLICIES, BINDINGS);
        if bound.is_empty() || is_exempt(request) {
            return Ok(());
        }
        let (mut refusals, mut versions) = (Vec::new(), BTreeMap::new());
        for Bound { policy, bindings } in &bound {
            let name = policy.meta("name");
            let asking =
                Asking { request, object, versions: &mut versions, warnings, refusals: &mut refusals };
            // Few requests have policies: the others need no room for it.
            if let Err(why) = Box::pin(self.ask_policy(policy, bindings, asking)).await
                && policy["spec"]["failurePolicy"] != "Ignore"
            {
                let objection = Objection::failure(format!("failed to configure policy: {why}"));
                refusals.push(refused(request, object, name, None, &objection));
            }
        }
        refusals.into_iter().next().map_or(Ok(()), Err)
    }

    /// Asks one policy by way of each binding.
    ///
    /// # Errors
    /// When the policy itself cannot be used.
    async fn ask_policy(
        &self,
        policy: &Value,
        bindings: &[Arc<Value>],
        asking: Asking<'_>,
    ) -> Result<(), String> {
        let Asking { request, object, versions, warnings, refusals } = asking;
        let target = self.concerned(&policy["spec"]["matchConstraints"], request, object)?;
        let Some(target) = target else { return Ok(()) };
        let kind = self.param_kind(policy)?;
        let compiled = self.compiled_policies.of(policy);
        let name = policy.meta("name");
        for binding in bindings {
            let binding_name = binding.meta("name");
            let params = match self.params_by(binding, kind.as_ref(), request, object) {
                Ok(params) => params,
                Err(why) => {
                    refusals.extend(misconfigured(policy, binding_name, request, object, &why));
                    continue;
                }
            };
            if params.is_empty() {
                continue;
            }
            if !versions.contains_key(&target.version) {
                match self.in_version_of(request, object, &target).await {
                    Ok(versioned) => drop(versions.insert(target.version.clone(), versioned)),
                    Err(why) => {
                        let why = format!("failed to convert object version: {why}");
                        refusals.extend(misconfigured(policy, binding_name, request, object, &why));
                        continue;
                    }
                }
            }
            let Some(versioned) = versions.get(&target.version) else { continue };
            let actions = binding["spec"]["validationActions"].as_array();
            let does = |action: &str| actions.is_some_and(|actions| actions.iter().any(|one| one == action));
            for params in &params {
                let seen = self.seen(request, versioned);
                let given = kind.is_some().then_some(params);
                let (variables, asks) = (&compiled.variables, compiled.asks);
                let objections = self.evaluate(request, &seen, given, variables, asks, |evaluation| {
                    objections(policy, &compiled, evaluation)
                });
                for objection in objections {
                    if does("Warn") {
                        warnings.push(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{binding_name}': {}",
                            objection.message
                        ));
                    }
                    if does("Deny") {
                        refusals.push(refused(request, object, name, Some(binding_name), &objection));
                    }
                }
            }
        }
        Ok(())
    }
}

/// What a policy has against a request.
fn objections(policy: &Value, compiled: &Compiled, evaluation: &Evaluation<'_>) -> Vec<Objection> {
    let spec = &policy["spec"];
    let fails = spec["failurePolicy"] != "Ignore";
    match compiled.concerns(evaluation) {
        Ok(true) => {}
        Err(why) if fails => return vec![Objection::failure(why.0)],
        Ok(false) | Err(_) => return Vec::new(),
    }
    let mut objections = Vec::new();
    let validations = spec["validations"].as_array().into_iter().flatten();
    for (validation, (expression, message)) in validations.zip(&compiled.validations) {
        if evaluation.is_exhausted() {
            if fails {
                objections.push(Objection::failure(OUT_OF_BUDGET.to_owned()));
            }
            return objections;
        }
        let text = |key: &str| validation[key].as_str().unwrap_or_default().trim();
        let outcome = expression.as_ref().map_err(Clone::clone).and_then(|expression| {
            evaluation.run(expression).map_err(|why| failure(text("expression"), &why))
        });
        match outcome {
            Err(why) if fails => objections.push(Objection::failure(why)),
            Ok(Value::Bool(true)) | Err(_) => {}
            Ok(_) => {
                let computed = message.as_ref().and_then(|message| evaluation.run(message).ok());
                let computed = computed.as_ref().and_then(Value::as_str).map(str::trim).unwrap_or_default();
                let usable = computed.len() <= LONGEST_MESSAGE && !computed.contains('\n');
                let message = match (usable && !computed.is_empty(), text("message")) {
                    (true, _) => computed.to_owned(),
                    (false, "") => format!("failed expression: {}", text("expression")),
                    (false, message) => message.to_owned(),
                };
                let reason = validation["reason"].as_str().map(str::to_owned);
                objections.push(Objection { message, reason });
            }
        }
    }
    // There is no audit log to write annotations to, but one that fails counts.
    let annotations = spec["auditAnnotations"].as_array().into_iter().flatten();
    for (annotation, expression) in annotations.zip(&compiled.annotations) {
        let outcome =
            expression.as_ref().map_err(Clone::clone).and_then(|expression| evaluation.run(expression));
        if let Err(why) = outcome
            && fails
        {
            let text = annotation["valueExpression"].as_str().unwrap_or_default().trim();
            objections.push(Objection::failure(failure(text, &why)));
        }
    }
    objections
}

/// The refusal of a request: 403 in its words, with the code of the validation's reason.
fn refused(
    request: &Attributes<'_>,
    object: &Value,
    policy: &str,
    binding: Option<&str>,
    objection: &Objection,
) -> Status {
    let with = binding.map(|binding| format!(" with binding '{binding}'")).unwrap_or_default();
    let message = format!("ValidatingAdmissionPolicy '{policy}'{with} denied request: {}", objection.message);
    let (code, reason) = match objection.reason.as_deref() {
        Some("Unauthorized") => (401, "Unauthorized"),
        Some("Forbidden") => (403, "Forbidden"),
        Some("RequestEntityTooLarge") => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    request.forbidden(object, &message).answering(code, reason, vec![json!({"message": message})])
}
