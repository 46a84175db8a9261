//! From text to expression trees.

use std::borrow::Cow;

use kube_cel::cel::{
    ParseErrors,
    common::ast::{CallExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, operators},
    parser::Parser,
};

/// Parses an expression, with the optional syntax (`a.?b`) that Kubernetes has since v1.29.
pub(super) fn parse(text: &str) -> Result<IdedExpr, ParseErrors> {
    let mut expression = Parser::new().enable_optional_syntax(true).parse(text)?;
    select_by_index(&mut expression);
    Ok(expression)
}

/// The name of the function that is called, such as `size` or `sets.contains`, and what it is called on.
pub(super) fn called(call: &CallExpr) -> (Cow<'_, str>, Option<&IdedExpr>) {
    match call.target.as_deref() {
        Some(IdedExpr { expr: Expr::Ident(library), .. }) if LIBRARIES.contains(&library.as_str()) => {
            (format!("{library}.{}", call.func_name).into(), None)
        }
        target => (call.func_name.as_str().into(), target),
    }
}

/// What names of functions begin with.
pub(super) const LIBRARIES: [&str; 9] =
    ["base64", "cidr", "format", "ip", "jsonpatch", "lists", "optional", "sets", "strings"];

/// `a.?b` as `a[?'b']`: the interpreter fails where an optional field is not there.
fn select_by_index(expression: &mut IdedExpr) {
    children(expression, &mut select_by_index);
    if let Expr::Call(call) = &mut expression.expr
        && call.func_name == operators::OPT_SELECT
    {
        operators::OPT_INDEX.clone_into(&mut call.func_name);
    }
}

/// Calls `visit` with each part of an expression.
pub(super) fn children(expression: &mut IdedExpr, visit: &mut impl FnMut(&mut IdedExpr)) {
    match &mut expression.expr {
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).for_each(visit),
        Expr::Comprehension(loops) => {
            for part in [
                &mut loops.iter_range,
                &mut loops.accu_init,
                &mut loops.loop_cond,
                &mut loops.loop_step,
                &mut loops.result,
            ] {
                visit(part);
            }
        }
        Expr::List(list) => list.elements.iter_mut().for_each(visit),
        Expr::Map(map) => in_entries(&mut map.entries, visit),
        Expr::Struct(made) => in_entries(&mut made.entries, visit),
        Expr::Select(select) => visit(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn in_entries(entries: &mut [IdedEntryExpr], visit: &mut impl FnMut(&mut IdedExpr)) {
    for entry in entries {
        match &mut entry.expr {
            EntryExpr::StructField(field) => visit(&mut field.value),
            EntryExpr::MapEntry(entry) => {
                visit(&mut entry.key);
                visit(&mut entry.value);
            }
        }
    }
}
