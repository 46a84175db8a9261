//! What can be told of a rule before it runs: names that nothing declares, fields that the schema does not have, operands of types that no
//! function takes (cel-go's `checker`).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, Program,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue},
    functions::time,
};
use regex::Regex;
use serde_json::json;

use super::parse::LIBRARIES;
use super::places::{places, written};
use super::types::{self, Called, Ty};
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

/// What an expression is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// A rule of a custom resource.
    Rule,
    /// An expression of a policy.
    Policy,
    /// One that makes objects, which are maps here: their fields are of any type.
    Mutation,
}

/// What cannot be, and where.
pub(super) struct Problem {
    message: String,
    /// The character, where it is known.
    at: usize,
}

impl Problem {
    /// As cel-go reports it.
    pub(super) fn show(&self, expression: &str) -> String {
        let before: String = expression.chars().take(self.at).collect();
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

/// Looks at `expression`, written as `text`, which may use the names in `scope`. In a rule the metadata of an object has a name, no more.
pub(super) fn examine(
    text: &str,
    expression: &IdedExpr,
    scope: &Scope,
    context: &Context<'_>,
    of: Of,
) -> Findings {
    let mut check =
        Check { context, places: places(text, expression), of, mixed: false, problems: Vec::new() };
    let names = scope.iter().map(|(name, schema)| {
        let ty = schema.as_ref().map_or(Ty::Unknown, |schema| Ty::of(schema, "selfType"));
        (name.clone(), ty)
    });
    let result = check.visit(expression, &names.collect());
    let mut problems = check.problems;
    problems.sort_by_key(|problem| problem.at);
    Findings { problems, result: schema_of(&result) }
}

/// The schema of values of a type; `None` where the type is not known or no schema has it.
fn schema_of(ty: &Ty) -> Option<Schema> {
    let plain = &*PLAIN;
    match ty {
        Ty::Dyn => Some(Schema::untyped()),
        Ty::Object(schema, _) => Some(schema.clone()),
        other => other.kind().map(|kind| match kind {
            Type::Boolean => plain.bool.clone(),
            Type::Integer => plain.int.clone(),
            Type::Number => plain.double.clone(),
            Type::String => plain.string.clone(),
            Type::Array => plain.list.clone(),
            Type::Object => plain.map.clone(),
        }),
    }
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

/// What an object's metadata has in rules.
static NAMES: LazyLock<Schema> = LazyLock::new(|| {
    let names = json!({"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}});
    Schema::from_openapi(&names).map_or_else(|_| Schema::untyped(), |schema| schema.without_resource())
});

type Names = BTreeMap<String, Ty>;

struct Check<'a> {
    context: &'a Context<'a>,
    places: BTreeMap<u64, usize>,
    of: Of,
    /// Whether the list that comes next may have items of several types.
    mixed: bool,
    problems: Vec<Problem>,
}

impl Check<'_> {
    /// Visits an expression and answers its type.
    fn visit(&mut self, expression: &IdedExpr, names: &Names) -> Ty {
        match &expression.expr {
            Expr::Ident(name) => {
                if let Some(ty) = names.get(name) {
                    return ty.clone();
                }
                if !name.starts_with('@') && self.context.get_variable(name.as_str()).is_none() {
                    self.undeclared(expression.id, name);
                }
                Ty::Unknown
            }
            Expr::Select(select) => {
                let operand = self.visit(&select.operand, names);
                let field = self.field(expression.id, &operand, &select.field);
                if select.test { Ty::Bool } else { field }
            }
            Expr::Call(call) => self.call(expression.id, call, names),
            Expr::Comprehension(loops) => self.repeat(loops, names),
            Expr::List(list) => {
                let (mut item, mixed) = (Ty::Unknown, self.mixed);
                self.mixed = false;
                let before = self.problems.len();
                for (index, element) in list.elements.iter().enumerate() {
                    let ty = self.visit(element, names);
                    let ty = match ty {
                        Ty::Optional(of) if list.optional_indices.contains(&index) => (*of).clone(),
                        other => other,
                    };
                    // One that does not fit is enough; `format` takes any.
                    if mixed || self.problems.len() > before {
                        item = Ty::Unknown;
                    } else {
                        item = self.alike(element.id, item, ty);
                    }
                }
                Ty::List(Rc::new(item))
            }
            Expr::Map(map) => {
                let (mut key, mut value) = (Ty::Unknown, Ty::Unknown);
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        let (one, other) = (self.visit(&entry.key, names), self.visit(&entry.value, names));
                        key = self.alike(entry.key.id, key, one);
                        let other = if entry.optional { Ty::Unknown } else { other };
                        value = self.alike(entry.value.id, value, other);
                    }
                }
                Ty::Map(Rc::new(key), Rc::new(value))
            }
            // Rules know no types with names; the interpreter would panic.
            Expr::Struct(object) => {
                self.undeclared(expression.id, &object.type_name);
                Ty::Unknown
            }
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Ty::Bool,
                LiteralValue::Double(_) => Ty::Double,
                LiteralValue::Int(_) => Ty::Int,
                LiteralValue::UInt(_) => Ty::Uint,
                LiteralValue::String(_) => Ty::Text,
                LiteralValue::Bytes(_) => Ty::Bytes,
                LiteralValue::Null => Ty::Null,
            },
            Expr::Unspecified => Ty::Unknown,
        }
    }

    fn visit_all(&mut self, expressions: &[IdedExpr], names: &Names) -> Vec<Ty> {
        expressions.iter().map(|expression| self.visit(expression, names)).collect()
    }

    /// Items of a list must be of one type, and so must keys and values of a map.
    fn alike(&mut self, id: u64, known: Ty, ty: Ty) -> Ty {
        if self.of == Of::Mutation {
            return Ty::Unknown;
        }
        if known.fits(&ty) {
            return known.join(ty);
        }
        self.complain(id, format!("expected type '{known}' but found '{ty}'"));
        // Upstream knows nothing of it from here on.
        Ty::Unknown
    }

    fn call(&mut self, id: u64, call: &CallExpr, names: &Names) -> Ty {
        let name = call.func_name.as_str();
        let mut on = None;
        if let Some(target) = &call.target {
            if let Some(qualified) = qualified(target, names)
                && self.is_function(&format!("{qualified}.{name}"))
            {
                self.visit_all(&call.args, names);
                return Ty::Unknown;
            }
            on = Some(self.visit(target, names));
        }
        let is_operator = name.starts_with(['_', '!', '-', '@']);
        if !is_operator && !self.is_function(name) {
            self.undeclared(id, name);
            self.visit_all(&call.args, names);
            return Ty::Unknown;
        }
        self.mixed = name == "format";
        let operands = self.visit_all(&call.args, names);
        self.mixed = false;
        if matches!(name, "_&&_" | "_||_") {
            for (operand, ty) in call.args.iter().zip(&operands) {
                if !ty.fits(&Ty::Bool) {
                    self.complain(operand.id, format!("expected type 'bool' but found '{ty}'"));
                }
            }
            return Ty::Bool;
        }
        if name == "_[?_]" {
            return self.optional_field(id, call, &operands);
        }
        self.check_literal(name, call);
        let called = if is_operator {
            types::operator(name, &operands)
        } else {
            types::function(name, on.as_ref(), &operands)
        };
        match called {
            Called::Gives(ty) => ty,
            Called::NoOverload => {
                // Of what is not known nothing can be said.
                if !on.iter().chain(&operands).any(Ty::is_unsure) {
                    let given = operands.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                    let on = on.map(|on| format!("{on}.")).unwrap_or_default();
                    self.complain(
                        id,
                        format!("found no matching overload for '{name}' applied to '{on}({given})'"),
                    );
                }
                Ty::Unknown
            }
        }
    }

    /// Texts that a function could never read (upstream: `cel.ValidateRegexLiterals` and others).
    fn check_literal(&mut self, name: &str, call: &CallExpr) {
        let Some(IdedExpr { id, expr: Expr::Literal(LiteralValue::String(text)) }) = call.args.last() else {
            return;
        };
        let text = text.inner();
        let is_good = match name {
            "matches" => Regex::new(text).is_ok(),
            "duration" => time::duration(Arc::new(text.to_owned())).is_ok(),
            "timestamp" => time::timestamp(Arc::new(text.to_owned())).is_ok(),
            _ => return,
        };
        if !is_good {
            self.complain(*id, format!("invalid {name} argument"));
        }
    }

    /// `a.?b` and `a[?b]`.
    fn optional_field(&mut self, id: u64, call: &CallExpr, operands: &[Ty]) -> Ty {
        let [operand, index] = operands else { return Ty::Unknown };
        let inner = match operand {
            Ty::Optional(of) => of,
            other => other,
        };
        let found = match (inner, &call.args[1].expr) {
            (Ty::Object(..), Expr::Literal(LiteralValue::String(field))) => {
                self.field(id, inner, field.inner())
            }
            _ => match types::operator("_[_]", &[inner.clone(), index.clone()]) {
                Called::Gives(ty) => ty,
                Called::NoOverload => Ty::Unknown,
            },
        };
        Ty::Optional(Rc::new(found))
    }

    fn repeat(&mut self, loops: &ComprehensionExpr, names: &Names) -> Ty {
        let range = self.visit(&loops.iter_range, names);
        let (index, item) = match &range {
            Ty::List(item) => (Ty::Int, (**item).clone()),
            Ty::Map(key, value) => ((**key).clone(), (**value).clone()),
            Ty::Dyn => (Ty::Dyn, Ty::Dyn),
            Ty::Unknown | Ty::Object(..) => (Ty::Unknown, Ty::Unknown),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.complain(loops.iter_range.id, message);
                (Ty::Unknown, Ty::Unknown)
            }
        };
        let iterated = if matches!(range, Ty::List(_)) { item.clone() } else { index.clone() };
        let mut names = names.clone();
        names.insert(loops.accu_var.clone(), Ty::Unknown);
        if let Some(second) = &loops.iter_var2 {
            names.insert(loops.iter_var.clone(), index);
            names.insert(second.clone(), item);
        } else {
            names.insert(loops.iter_var.clone(), iterated.clone());
        }
        let written = written(loops);
        let types: Vec<Ty> = written.iter().map(|part| self.visit(part, &names)).collect();
        if written.is_empty() {
            // A loop of another macro.
            let begin = self.visit(&loops.accu_init, &names);
            self.visit(&loops.loop_step, &names);
            return if matches!(begin, Ty::Bool) { Ty::Bool } else { Ty::Unknown };
        }
        let condition = |ty: &Ty| ty.fits(&Ty::Bool);
        match &loops.accu_init.expr {
            Expr::Literal(LiteralValue::Boolean(_)) => {
                if !condition(&types[0]) {
                    self.complain(written[0].id, format!("expected type 'bool' but found '{}'", types[0]));
                }
                Ty::Bool
            }
            Expr::List(_) => {
                let filters = matches!(&loops.loop_step.expr, Expr::Call(call) if call.func_name == "_?_:_");
                let element = match types.get(usize::from(filters)) {
                    Some(ty) => ty.clone(),
                    None => iterated,
                };
                if filters && !condition(&types[0]) && !types[0].is_unsure() {
                    let list = Ty::List(Rc::new(element.clone()));
                    let message = format!(
                        "found no matching overload for '_?_:_' applied to '({}, {list}, {list})'",
                        types[0]
                    );
                    self.complain(loops.loop_step.id, message);
                }
                Ty::List(Rc::new(element))
            }
            // `exists_one` counts.
            _ => Ty::Bool,
        }
    }

    /// The type of a field by its escaped name.
    fn field(&mut self, id: u64, operand: &Ty, name: &str) -> Ty {
        let (schema, called) = match operand {
            Ty::Object(schema, called) => (schema, called),
            Ty::Map(_, value) => return (**value).clone(),
            Ty::Optional(of) => return Ty::Optional(Rc::new(self.field(id, of, name))),
            Ty::Dyn | Ty::Unknown => return operand.clone(),
            other => {
                self.complain(id, format!("type '{other}' does not support field selection"));
                return Ty::Unknown;
            }
        };
        if self.of == Of::Rule && schema.node.resource && name == "metadata" {
            return Ty::Object(NAMES.clone(), "metadata".into());
        }
        let listed = schema.node.properties.iter().find(|(property, _)| escape(property) == name);
        let found = listed
            .map(|(_, child)| child.schema())
            .or_else(|| if self.of == Of::Rule { schema.named(name) } else { schema.field(name) });
        // Rules don't see what has no type.
        let found = found
            .filter(|found| self.of != Of::Rule || found.node.kind.is_some() || found.node.int_or_string);
        if let Some(schema) = found {
            return Ty::of(schema, &format!("{called}.{name}"));
        }
        self.complain(id, format!("undefined field '{name}'"));
        Ty::Unknown
    }

    fn complain(&mut self, id: u64, message: String) {
        let at = self.places.get(&id).copied().unwrap_or_default();
        self.problems.push(Problem { message, at });
    }

    fn undeclared(&mut self, id: u64, name: &str) {
        self.complain(id, format!("undeclared reference to '{name}' (in container '')"));
    }

    /// Whether a function is there: calling it without arguments then fails in another way.
    fn is_function(&self, name: &str) -> bool {
        let Ok(program) = Program::compile(&format!("{name}()")) else { return false };
        let missing = |unknown: &str| unknown == name || Some(unknown) == name.split('.').next();
        !matches!(program.execute(self.context), Err(ExecutionError::UndeclaredReference(unknown)) if missing(&unknown))
    }
}

/// `optional` or `sets` before a function's name: a name that is no variable.
fn qualified(expression: &IdedExpr, scope: &Names) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) if !scope.contains_key(name) && LIBRARIES.contains(&name.as_str()) => {
            Some(name.clone())
        }
        Expr::Select(select) => Some(format!("{}.{}", qualified(&select.operand, scope)?, select.field)),
        _ => None,
    }
}
