//! `variables.x`: evaluated when it is first needed, and once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kube_cel::cel::common::ast::{Expr, IdedExpr};
use kube_cel::cel::context::VariableResolver;
use kube_cel::cel::{self, Context, ExecutionError};
use parking_lot::Mutex;

use super::super::metered::Stopped;
use super::super::parse::children;
use super::super::rule::print;
use super::super::select;
use super::super::{cost, metered};
use super::authorizer::REQUEST_RESOURCE;
use super::{Expression, TOO_COSTLY};

/// The name under which the interpreter asks for a variable: none that anybody can write.
pub(super) fn alias(name: &str) -> String {
    format!("@variables.{name}")
}

/// Makes a name of each `variables.x`, and of `authorizer.requestResource`.
pub(super) fn rename(expression: &mut IdedExpr) {
    if let Expr::Select(select) = &expression.expr
        && !select.test
        && select.operand.expr == Expr::Ident("variables".to_owned())
    {
        expression.expr = Expr::Ident(alias(&select.field));
        return;
    }
    if let Expr::Select(select) = &expression.expr
        && select.field == "requestResource"
        && select.operand.expr == Expr::Ident("authorizer".to_owned())
    {
        expression.expr = Expr::Ident(REQUEST_RESOURCE.to_owned());
        return;
    }
    children(expression, &mut rename);
}

/// The variables of a scope, and what they were found to be.
pub(super) struct Lazy<'a> {
    context: &'a Context<'a>,
    variables: &'a [(String, Expression)],
    known: &'a cost::Scope<'a>,
    found: Mutex<BTreeMap<String, Result<cel::Value, String>>>,
    /// What all that was evaluated has cost together.
    spent: AtomicU64,
}

impl<'a> Lazy<'a> {
    pub(super) fn new(
        context: &'a Context<'a>,
        variables: &'a [(String, Expression)],
        known: &'a cost::Scope<'a>,
    ) -> Self {
        Self { context, variables, known, found: Mutex::default(), spent: AtomicU64::new(0) }
    }

    /// What all that was evaluated has cost together.
    pub(super) fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Evaluates an expression that may use the variables.
    pub(super) fn run(&self, expression: &Expression) -> Result<cel::Value, String> {
        let mut context = self.context.new_inner_scope();
        context.set_variable_resolver(self);
        let steps = cost::reckon_in(&expression.parsed, self.known).0;
        let (value, cost) = metered::evaluate(&expression.runs, &context, steps);
        self.spent.fetch_add(cost, Ordering::Relaxed);
        value.map_err(|why| match why {
            Stopped::Costly => TOO_COSTLY.to_owned(),
            Stopped::Failed(problem) => self.explain(&select::explain(&expression.runs, &context, problem)),
        })
    }

    /// A variable that has no value is one that nobody declared, as far as the interpreter can tell.
    fn explain(&self, problem: &ExecutionError) -> String {
        if let ExecutionError::UndeclaredReference(name) = problem
            && let Some(variable) = name.strip_prefix("@variables.")
            && let Some(Err(why)) = self.found.lock().get(variable)
        {
            return format!("composited variable {variable:?} fails to evaluate: {why}");
        }
        print(problem)
    }
}

impl VariableResolver for Lazy<'_> {
    fn resolve(&self, name: &str) -> Option<cel::Value> {
        let name = name.strip_prefix("@variables.")?;
        if let Some(found) = self.found.lock().get(name) {
            return found.clone().ok();
        }
        let (_, variable) = self.variables.iter().find(|(known, _)| known == name)?;
        // It can use only those before it, so this comes to an end.
        let value = self.run(variable);
        self.found.lock().insert(name.to_owned(), value.clone());
        value.ok()
    }
}
