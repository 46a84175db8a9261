//! `a.b` where `a` has no fields. The interpreter answers `false`, so that `object.metadata.name != 'x'` would hold where there is
//! no object; cel-go says that there is no such key.

use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use kube_cel::cel::{self, Context, ExecutionError};

use super::parse::children;

/// What the interpreter calls `a[b]`, which fails where `a` has nothing to look up.
const INDEX: &str = "_[_]";

/// Makes `a["b"]` of each `a.b`; `has(a.b)` stays.
pub(super) fn make_strict(expression: &mut IdedExpr) {
    if let Expr::Select(select) = &expression.expr
        && !select.test
    {
        let field = Expr::Literal(LiteralValue::String(select.field.as_str().into()));
        let field = IdedExpr { id: expression.id, expr: field };
        let args = vec![(*select.operand).clone(), field];
        expression.expr = Expr::Call(CallExpr { func_name: INDEX.to_owned(), target: None, args });
    }
    children(expression, &mut make_strict);
}

/// Names the key that was asked of a value without keys, where that is why a strict `expression` failed. What a loop looked at is
/// not known any more.
pub(super) fn explain(
    expression: &IdedExpr,
    context: &Context<'_>,
    problem: ExecutionError,
) -> ExecutionError {
    if !matches!(problem, ExecutionError::NoSuchOverload) {
        return problem;
    }
    let mut found = None;
    look(expression, context, &mut found);
    found.map_or(problem, |key| ExecutionError::NoSuchKey(Arc::new(key)))
}

fn look(expression: &IdedExpr, context: &Context<'_>, found: &mut Option<String>) {
    let mut expression = expression.clone();
    children(&mut expression, &mut |child| {
        if found.is_none() {
            look(child, context, found);
        }
    });
    if found.is_some() {
        return;
    }
    if let Expr::Call(call) = &expression.expr
        && call.func_name == INDEX
        && let [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(key)), .. }] =
            call.args.as_slice()
        && let Ok(value) = cel::Value::resolve(operand, context)
        && !matches!(value, cel::Value::Map(_) | cel::Value::List(_) | cel::Value::Opaque(_))
    {
        *found = Some(key.inner().to_owned());
    }
}
