//! What can be told of a rule before it runs: names that nothing declares, fields that the schema does not have.
//!
//! Kubernetes type-checks rules when a definition is created; this is the part of it that finds misspelt names.

use std::collections::BTreeMap;

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, Program,
    common::ast::{EntryExpr, Expr},
};

use super::value::escape;
use crate::schema::{Schema, Type};

/// Names in scope, with the schema of their values where it is known.
type Scope = BTreeMap<String, Option<Schema>>;

/// What a rule looks like.
pub(super) struct Findings {
    /// Everything in it that cannot be.
    pub(super) problems: Vec<Problem>,
    /// Whether it can be a boolean at all.
    pub(super) may_be_bool: bool,
}

/// A name that cannot be.
pub(super) struct Problem {
    message: String,
    /// The text that it is about: `.field` or `name`.
    about: String,
}

impl Problem {
    /// As cel-go reports it, with the place where the name is first.
    pub(super) fn show(&self, expression: &str) -> String {
        let part = |c: char| c.is_alphanumeric() || c == '_';
        let whole = |(start, found): &(usize, &str)| !expression[start + found.len()..].starts_with(part);
        let found = expression.match_indices(self.about.as_str()).find(whole);
        let before = &expression[..found.map_or(0, |(start, _)| start)];
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let shown = expression.lines().nth(line).unwrap_or_default();
        format!(
            "ERROR: <input>:{}:{}: {}\n | {shown}\n | {}^",
            line + 1,
            column + 1,
            self.message,
            ".".repeat(column)
        )
    }
}

/// Looks at `expression`, which is about a value of `schema`.
pub(super) fn examine(
    expression: &IdedExpr,
    schema: &Schema,
    old_is_optional: bool,
    context: &Context<'_>,
) -> Findings {
    let mut scope = Scope::new();
    scope.insert("self".into(), Some(schema.clone()));
    scope.insert("oldSelf".into(), (!old_is_optional).then(|| schema.clone()));
    let mut check = Check { context, problems: Vec::new() };
    let result = check.visit(expression, &scope);
    let may_be_bool = result.is_none_or(|schema| schema.node.kind.is_none_or(|kind| kind == Type::Boolean));
    Findings { problems: check.problems, may_be_bool }
}

struct Check<'a> {
    context: &'a Context<'a>,
    problems: Vec<Problem>,
}

impl Check<'_> {
    /// Visits an expression and answers the schema of its value, where that is known.
    fn visit(&mut self, expression: &IdedExpr, scope: &Scope) -> Option<Schema> {
        match &expression.expr {
            Expr::Ident(name) => {
                if let Some(schema) = scope.get(name) {
                    return schema.clone();
                }
                if !name.starts_with('@') && self.context.get_variable(name.as_str()).is_none() {
                    self.undeclared(name);
                }
                None
            }
            Expr::Select(select) => {
                let schema = self.visit(&select.operand, scope)?;
                self.field(&schema, &select.field)
            }
            Expr::Call(call) => {
                if let Some(target) = &call.target {
                    if let Some(qualified) = qualified(target, scope)
                        && self.is_function(&format!("{qualified}.{}", call.func_name))
                    {
                        self.visit_all(&call.args, scope);
                        return None;
                    }
                    self.visit(target, scope);
                }
                let operator = call.func_name.starts_with(['_', '!', '-', '@']);
                if !operator && !self.is_function(&call.func_name) {
                    self.undeclared(&call.func_name);
                }
                match (call.func_name.as_str(), call.args.as_slice()) {
                    ("_[_]", [operand, index]) => {
                        self.visit(index, scope);
                        let schema = self.visit(operand, scope)?;
                        match schema.node.kind {
                            Some(Type::Array) => Some(schema.item().clone()),
                            _ => schema.element().cloned(),
                        }
                    }
                    // Of two numbers, texts or lists comes another one.
                    ("_+_" | "_-_" | "_*_" | "_/_" | "_%_" | "-_", [operand, rest @ ..]) => {
                        let schema = self.visit(operand, scope);
                        self.visit_all(rest, scope);
                        schema.filter(|schema| schema.node.kind.is_some())
                    }
                    (_, arguments) => {
                        self.visit_all(arguments, scope);
                        None
                    }
                }
            }
            Expr::Comprehension(comprehension) => {
                let range = self.visit(&comprehension.iter_range, scope);
                self.visit(&comprehension.accu_init, scope);
                let item = range
                    .filter(|range| range.node.kind == Some(Type::Array))
                    .map(|range| range.item().clone());
                let mut scope = scope.clone();
                scope.insert(comprehension.accu_var.clone(), None);
                // With two variables the first is an index or a key.
                if let Some(second) = &comprehension.iter_var2 {
                    scope.insert(comprehension.iter_var.clone(), None);
                    scope.insert(second.clone(), item);
                } else {
                    scope.insert(comprehension.iter_var.clone(), item);
                }
                self.visit(&comprehension.loop_cond, &scope);
                self.visit(&comprehension.loop_step, &scope);
                self.visit(&comprehension.result, &scope);
                None
            }
            Expr::List(list) => {
                self.visit_all(&list.elements, scope);
                None
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key, scope);
                        self.visit(&entry.value, scope);
                    }
                }
                None
            }
            // Rules know no types with names; the interpreter would panic.
            Expr::Struct(object) => {
                self.undeclared(&object.type_name);
                None
            }
            Expr::Literal(_) | Expr::Unspecified => None,
        }
    }

    fn visit_all(&mut self, expressions: &[IdedExpr], scope: &Scope) {
        for expression in expressions {
            self.visit(expression, scope);
        }
    }

    /// The schema of a field by its escaped name.
    fn field(&mut self, schema: &Schema, name: &str) -> Option<Schema> {
        if !schema.node.kind.is_none_or(|kind| kind == Type::Object) {
            return None;
        }
        let listed = schema.node.properties.iter().find(|(property, _)| escape(property) == name);
        let found = listed.map(|(_, child)| child.schema()).or_else(|| schema.field(name));
        if found.is_none() {
            let message = format!("undefined field '{name}'");
            self.problems.push(Problem { message, about: format!(".{name}") });
        }
        found.cloned()
    }

    fn undeclared(&mut self, name: &str) {
        let message = format!("undeclared reference to '{name}' (in container '')");
        self.problems.push(Problem { message, about: name.to_owned() });
    }

    /// Whether a function is there: calling it without arguments then fails in another way.
    fn is_function(&self, name: &str) -> bool {
        let Ok(program) = Program::compile(&format!("{name}()")) else { return false };
        let missing = |unknown: &str| unknown == name || Some(unknown) == name.split('.').next();
        !matches!(program.execute(self.context), Err(ExecutionError::UndeclaredReference(unknown)) if missing(&unknown))
    }
}

/// `optional` or `math` before a function's name: a name that is no variable.
fn qualified(expression: &IdedExpr, scope: &Scope) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) if !scope.contains_key(name) => Some(name.clone()),
        Expr::Select(select) => Some(format!("{}.{}", qualified(&select.operand, scope)?, select.field)),
        _ => None,
    }
}
