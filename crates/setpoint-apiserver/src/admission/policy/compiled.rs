//! Policies with their expressions compiled, kept as long as the policy is the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use setpoint_schema::cel::policy::{Environment, Evaluation, Expression, Gives};

use crate::admission::expressions::{MatchConditions, Undecided, asks, environment};
use crate::object::Metadata;

/// A compiled policy. A part that no longer compiles fails when it is used.
#[derive(Debug)]
pub(super) struct Compiled {
    conditions: Conditions,
    pub(super) variables: Vec<(String, Expression)>,
    /// Of each validation: the expression, and that of its message.
    pub(super) validations: Vec<(Result<Expression, String>, Option<Expression>)>,
    /// The value of each mutation.
    pub(super) mutations: Vec<Result<Expression, String>>,
    /// The value of each audit annotation.
    pub(super) annotations: Vec<Result<Expression, String>>,
    /// Whether anything asks who may do what.
    pub(super) asks: bool,
}

impl Compiled {
    /// Whether the match conditions hold.
    ///
    /// # Errors
    /// As of [`MatchConditions::hold`], and when they no longer compile.
    pub(super) fn concerns(&self, evaluation: &Evaluation<'_>) -> Result<bool, Undecided> {
        self.conditions.as_ref().map_err(Clone::clone)?.hold(evaluation)
    }
}

/// Compiled policies by their uid, with the version that was compiled.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    policies: Mutex<BTreeMap<String, (String, Arc<Compiled>)>>,
    /// Of webhooks, by their text.
    conditions: Mutex<BTreeMap<String, Arc<Conditions>>>,
}

type Conditions = Result<MatchConditions, Undecided>;

/// How many are kept.
const KEPT: usize = 1000;

impl Cache {
    /// The compiled form of a policy; those of policies that are gone are forgotten when there are many.
    pub(super) fn of(&self, policy: &Value) -> Arc<Compiled> {
        let (uid, version) = (policy.meta("uid"), policy.meta("resourceVersion"));
        if let Some((known, compiled)) = self.policies.lock().get(uid)
            && known == version
        {
            return Arc::clone(compiled);
        }
        let compiled = Arc::new(compile(policy));
        let mut all = self.policies.lock();
        if all.len() >= KEPT {
            all.clear();
        }
        all.insert(uid.to_owned(), (version.to_owned(), Arc::clone(&compiled)));
        compiled
    }

    /// The compiled form of a webhook's match conditions.
    pub(in crate::admission) fn conditions(&self, conditions: &Value) -> Arc<Conditions> {
        let text = conditions.to_string();
        if let Some(known) = self.conditions.lock().get(&text) {
            return Arc::clone(known);
        }
        let compiled = Arc::new(MatchConditions::compile(conditions, &environment(false)));
        let mut all = self.conditions.lock();
        if all.len() >= KEPT {
            all.clear();
        }
        all.insert(text, Arc::clone(&compiled));
        compiled
    }
}

fn compile(policy: &Value) -> Compiled {
    let spec = &policy["spec"];
    let items = |key: &str| spec[key].as_array().into_iter().flatten();
    let base = environment(!spec["paramKind"].is_null());
    let conditions = MatchConditions::compile(&spec["matchConditions"], &base);
    let mut environment = base.with_variables();
    let mut variables = Vec::new();
    for variable in items("variables") {
        let name = variable["name"].as_str().unwrap_or_default();
        let expression = expression(&variable["expression"], &environment, Gives::Any).ok();
        environment.variable(name, expression.as_ref());
        variables.extend(expression.map(|expression| (name.to_owned(), expression)));
    }
    let validations: Vec<_> = items("validations")
        .map(|validation| {
            let message = &validation["messageExpression"];
            let message =
                message.is_string().then(|| expression(message, &environment, Gives::String).ok()).flatten();
            (expression(&validation["expression"], &environment, Gives::Bool), message)
        })
        .collect();
    let annotations: Vec<_> = items("auditAnnotations")
        .map(|annotation| expression(&annotation["valueExpression"], &environment, Gives::StringOrNull))
        .collect();
    let uses = asks;
    let constructing = environment.constructing();
    let mutations: Vec<_> = items("mutations")
        .map(|mutation| {
            let (key, gives) = match mutation["patchType"].as_str() {
                Some("JSONPatch") => ("jsonPatch", Gives::JsonPatches),
                _ => ("applyConfiguration", Gives::Object),
            };
            expression(&mutation[key]["expression"], &constructing, gives)
        })
        .collect();
    let asks = variables.iter().any(|(_, expression)| uses(expression))
        || validations.iter().any(|(expression, message)| {
            expression.as_ref().is_ok_and(uses) || message.as_ref().is_some_and(uses)
        })
        || mutations.iter().flatten().any(uses)
        || annotations.iter().flatten().any(uses)
        || conditions.as_ref().is_ok_and(MatchConditions::use_authorizer);
    Compiled { conditions, variables, validations, mutations, annotations, asks }
}

fn expression(text: &Value, environment: &Environment, gives: Gives) -> Result<Expression, String> {
    Expression::compile(text.as_str().unwrap_or_default().trim(), environment, gives)
}
