//! What can be told of a rule before it runs: names that nothing declares, fields that the schema does not have.
//!
//! Kubernetes type-checks rules when a definition is created; this is the part of it that finds misspelt names.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, Program,
    common::ast::{EntryExpr, Expr, LiteralValue},
};
use serde_json::json;

use super::value::escape;
use crate::schema::{Schema, Type};

/// Names in scope, with the schema of their values where it is known.
pub(super) type Scope = BTreeMap<String, Option<Schema>>;

/// What a rule looks like.
pub(super) struct Findings {
    /// Everything in it that cannot be.
    pub(super) problems: Vec<Problem>,
    /// The schema of its value, where it is known; one that says nothing is that of a value which only shows when it is there.
    pub(super) result: Option<Schema>,
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

/// The names in the scope of a rule about a value of `schema`.
pub(super) fn rule_scope(schema: &Schema, old_is_optional: bool) -> Scope {
    let mut scope = Scope::new();
    scope.insert("self".into(), Some(schema.clone()));
    scope.insert("oldSelf".into(), (!old_is_optional).then(|| schema.clone()));
    scope
}

/// Looks at `expression`, which may use the names in `scope`.
pub(super) fn examine(expression: &IdedExpr, scope: &Scope, context: &Context<'_>) -> Findings {
    let mut check = Check { context, problems: Vec::new() };
    let result = check.visit(expression, scope);
    Findings { problems: check.problems, result }
}

/// Schemas of what functions and literals give.
struct Plain {
    bool: Schema,
    int: Schema,
    double: Schema,
    string: Schema,
    list: Schema,
    map: Schema,
}

static PLAIN: LazyLock<Plain> = LazyLock::new(|| {
    let of = |kind: &str| {
        let schema = json!({"type": kind, "x-kubernetes-preserve-unknown-fields": true});
        Schema::from_openapi(&schema).unwrap_or_else(|_| Schema::untyped())
    };
    Plain {
        bool: of("boolean"),
        int: of("integer"),
        double: of("number"),
        string: of("string"),
        list: of("array"),
        map: of("object"),
    }
});

/// What a function or operator gives whatever it is given.
fn result_of(function: &str) -> Option<&'static Schema> {
    let plain = &*PLAIN;
    match function {
        "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" | "_&&_" | "_||_" | "!_" | "@in" | "startsWith"
        | "endsWith" | "matches" | "contains" | "hasValue" | "bool" | "isSorted" | "allowed" | "errored" => {
            Some(&plain.bool)
        }
        "size" | "int" | "indexOf" | "lastIndexOf" => Some(&plain.int),
        "string" | "lowerAscii" | "upperAscii" | "replace" | "join" | "substring" | "trim" | "format"
        | "reason" => Some(&plain.string),
        "double" => Some(&plain.double),
        "split" => Some(&plain.list),
        _ => None,
    }
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
                let schema = self.visit(&select.operand, scope);
                if select.test {
                    if let Some(schema) = schema {
                        self.field(&schema, &select.field);
                    }
                    return Some(PLAIN.bool.clone());
                }
                self.field(&schema?, &select.field)
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
                    ("_?_:_", [condition, one, other]) => {
                        self.visit(condition, scope);
                        let (one, other) = (self.visit(one, scope)?, self.visit(other, scope)?);
                        (one.node.kind == other.node.kind).then_some(one)
                    }
                    (function, arguments) => {
                        self.visit_all(arguments, scope);
                        result_of(function).cloned()
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
                // `all` and `exists` keep a yes or no; `map` and `filter` gather.
                match &comprehension.accu_init.expr {
                    Expr::Literal(LiteralValue::Boolean(_)) => Some(PLAIN.bool.clone()),
                    _ => None,
                }
            }
            Expr::List(list) => {
                self.visit_all(&list.elements, scope);
                Some(PLAIN.list.clone())
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key, scope);
                        self.visit(&entry.value, scope);
                    }
                }
                Some(PLAIN.map.clone())
            }
            // Rules know no types with names; the interpreter would panic.
            Expr::Struct(object) => {
                self.undeclared(&object.type_name);
                None
            }
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Some(PLAIN.bool.clone()),
                LiteralValue::Double(_) => Some(PLAIN.double.clone()),
                LiteralValue::Int(_) | LiteralValue::UInt(_) => Some(PLAIN.int.clone()),
                LiteralValue::String(_) => Some(PLAIN.string.clone()),
                LiteralValue::Bytes(_) | LiteralValue::Null => None,
            },
            Expr::Unspecified => None,
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
