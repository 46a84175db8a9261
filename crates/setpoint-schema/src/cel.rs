//! CEL: the validation rules of custom resources (`x-kubernetes-validations`), and in [`policy`] the expressions of admission policies.

mod any_order;
mod check;
mod complexity;
mod cost;
mod estimate;
mod metered;
mod parse;
mod patterns;
mod places;
pub mod policy;
mod rates;
mod rule;
mod select;
mod types;
mod value;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use kube_cel::{
    KubeCelExt,
    cel::{self, Context, extractors::This},
};
use serde_json::Value;

use self::parse::parse;
use self::rule::{Rule, Run};
pub use self::value::is_reserved;
use crate::{
    field_error::{ErrorKind, FieldError, FieldPath},
    schema::{Additional, Schema},
};

/// The functions of rules. `type` and the names of types are missing from the crate; types are strings here.
static CONTEXT: LazyLock<Context<'static>> = LazyLock::new(functions);

fn functions() -> Context<'static> {
    let mut context = Context::default().with_all();
    context
        .add_function(any_order::EQUAL, |one: cel::Value, other: cel::Value| any_order::equal(&one, &other));
    context.add_function("matches", |This(text): This<Arc<String>>, pattern: Arc<String>| {
        patterns::matches(&text, &pattern)
    });
    context.add_function("lists.range", |count: i64| range(count));
    context.add_function("bool", |value: cel::Value| truth(value));
    context.add_function("dyn", |value: cel::Value| Ok::<_, cel::ExecutionError>(value));
    context.add_function("type", |This(value): This<cel::Value>| type_name(&value).to_owned());
    for name in ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"] {
        context.add_variable_from_value(name, cel::Value::String(Arc::new(name.to_owned())));
    }
    context
}

/// `bool(…)`, with the texts that Go's `strconv.ParseBool` reads.
fn truth(value: cel::Value) -> Result<cel::Value, cel::ExecutionError> {
    match &value {
        cel::Value::Bool(_) => Ok(value),
        cel::Value::String(text) => match text.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(cel::Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(cel::Value::Bool(false)),
            _ => Err(cel::ExecutionError::function_error(
                "bool",
                "type conversion error from 'string' to 'bool'",
            )),
        },
        _ => Err(cel::ExecutionError::NoSuchOverload),
    }
}

/// The most items of a list that `lists.range` makes out of nothing.
const MAX_RANGE: usize = 10_000;

fn range(count: i64) -> Result<cel::Value, cel::ExecutionError> {
    match usize::try_from(count) {
        Ok(length) if length <= MAX_RANGE => {
            Ok(cel::Value::List(Arc::new((0..count).map(cel::Value::Int).collect())))
        }
        _ => {
            let message = format!("the size must be from 0 to {MAX_RANGE}, not {count}");
            Err(cel::ExecutionError::function_error("lists.range", message))
        }
    }
}

fn type_name(value: &cel::Value) -> &'static str {
    match value {
        cel::Value::List(_) => "list",
        cel::Value::Map(_) => "map",
        cel::Value::Int(_) => "int",
        cel::Value::UInt(_) => "uint",
        cel::Value::Float(_) => "double",
        cel::Value::String(_) => "string",
        cel::Value::Bytes(_) => "bytes",
        cel::Value::Bool(_) => "bool",
        cel::Value::Duration(_) => "google.protobuf.Duration",
        cel::Value::Timestamp(_) => "google.protobuf.Timestamp",
        cel::Value::Null => "null_type",
        _ => "object",
    }
}

/// The compiled rules of a schema, at every level.
///
/// Rules see the object as Kubernetes shows it to them: escaped field names, `date-time`, `duration` and `byte` strings
/// as such, numbers by their declared type, `oldSelf` for transition rules and as an optional value with
/// `optionalOldSelf`. A rule that would cost too much for the size of a value fails instead of running.
#[derive(Debug)]
pub struct Rules {
    schema: Schema,
    root: Level,
}

/// Indicates that a rule cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: Invalid value: {expression:?}: {problem}")]
pub struct RuleError {
    /// The place in the schema, such as `properties[spec].x-kubernetes-validations[0].rule`.
    pub path: String,
    /// The expression.
    pub expression: String,
    /// What is wrong with it: `compilation failed: …` with the place in the expression, or that it is no condition.
    pub problem: String,
    /// The whole rule, as written.
    pub rule: Value,
}

/// The rules at and below one place of the schema; levels without any are left out.
#[derive(Debug, Default)]
struct Level {
    rules: Vec<Rule>,
    properties: BTreeMap<String, Level>,
    items: Option<Box<Level>>,
    additional: Option<Box<Level>>,
}

impl Rules {
    /// Compiles every rule of a custom resource's schema. Built-in kinds have none.
    ///
    /// # Errors
    /// Every rule that does not parse, names a variable, function or field that is not there, or is no condition.
    pub fn compile(schema: &Schema) -> Result<Self, Vec<RuleError>> {
        let mut errors = Vec::new();
        let root = with_stack(|| compile(schema, "", &mut errors)).unwrap_or_default();
        if errors.is_empty() { Ok(Self { schema: schema.clone(), root }) } else { Err(errors) }
    }

    /// Whether there is no rule at all.
    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// What each rule and message costs at most in one request, in the units of upstream's estimates, with its place in the schema such as
    /// `properties[spec].x-kubernetes-validations[0].rule`, from the innermost to the outermost as upstream visits them.
    pub fn costs(&self) -> Vec<(String, u64)> {
        let mut costs = Vec::new();
        with_stack(|| estimated(&self.root, &self.schema, "", Some(1), &mut costs));
        costs
    }

    /// Evaluates the rules on a valid object; `old` is the stored one on an update.
    ///
    /// Transition rules run where there is an old value to compare with: the same field, the same key of a map, the
    /// same item of a list map. Other rules do not run on values that did not change, so that a stored object that
    /// breaks a newer rule can still be updated (upstream: ratcheting).
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.run(new, old).errors
    }

    fn run(&self, new: &Value, old: Option<&Value>) -> Run {
        let mut run = Run::new();
        if !self.is_empty() {
            with_stack(|| walk(&self.root, &self.schema, new, old, &FieldPath::root(), &CONTEXT, &mut run));
        }
        run
    }

    /// Evaluates the rules after schema validation has found `errors`, and adds to them. Values that are missing, of a
    /// wrong type, too many, too long or not supported block the rules; an error then says so. Answers what is wrong with values that did
    /// not change, of which upstream only warns.
    pub fn validate_after(
        &self,
        errors: &mut Vec<FieldError>,
        new: &Value,
        old: Option<&Value>,
    ) -> Vec<FieldError> {
        const BLOCKING: [ErrorKind; 5] = [
            ErrorKind::NotSupported,
            ErrorKind::Required,
            ErrorKind::TooLong,
            ErrorKind::TooMany,
            ErrorKind::TypeInvalid,
        ];
        if self.is_empty() {
            return Vec::new();
        }
        if errors.iter().any(|error| BLOCKING.contains(&error.kind)) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing \
                          errors to complete validation";
            errors.push(FieldError::invalid(&FieldPath::root(), Value::Null, detail));
            return Vec::new();
        }
        let run = self.run(new, old);
        errors.extend(run.errors);
        run.ratcheted
    }
}

/// Room for the parser and the interpreter, which recurse: both take tens of kilobytes for each level of the deepest
/// expressions that [`complexity`] lets pass. Pages that are not touched cost nothing.
const STACK: usize = 64 << 20;

fn with_stack<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(STACK, STACK, work)
}

impl Level {
    fn is_empty(&self) -> bool {
        self.rules.is_empty()
            && self.properties.is_empty()
            && self.items.is_none()
            && self.additional.is_none()
    }
}

fn compile(schema: &Schema, path: &str, errors: &mut Vec<RuleError>) -> Option<Level> {
    let node = &schema.node;
    // Documents of built-in kinds have no rules, and may contain themselves.
    if node.builtin {
        return None;
    }
    let at = |step: &str| if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") };
    let mut level = Level::default();
    for (index, rule) in node.rules.iter().enumerate() {
        match Rule::compile(schema, rule, &at(&format!("x-kubernetes-validations[{index}]"))) {
            Ok(rule) => level.rules.push(rule),
            Err(error) => errors.push(error),
        }
    }
    for (name, child) in node.properties.iter() {
        if let Some(below) = compile(child.schema(), &at(&format!("properties[{name}]")), errors) {
            level.properties.insert(name.clone(), below);
        }
    }
    if let Some(child) = &node.items {
        level.items = compile(child.schema(), &at("items"), errors).map(Box::new);
    }
    if let Additional::Schema(child) = &node.additional {
        level.additional = compile(child.schema(), &at("additionalProperties"), errors).map(Box::new);
    }
    (!level.is_empty()).then_some(level)
}

/// `count`: how many values of `schema` an object has at most; `None` where nothing bounds that.
fn estimated(level: &Level, schema: &Schema, path: &str, count: Option<u64>, costs: &mut Vec<(String, u64)>) {
    let at = |step: &str| if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") };
    let below = count.zip(estimate::most_below(schema)).map(|(count, most)| count.saturating_mul(most));
    for (name, inner) in &level.properties {
        if let Some(child) = schema.node.properties.get(name) {
            estimated(inner, child.schema(), &at(&format!("properties[{name}]")), below, costs);
        }
    }
    if let Some(inner) = &level.items {
        estimated(inner, schema.item(), &at("items"), below, costs);
    }
    if let (Some(inner), Additional::Schema(child)) = (&level.additional, &schema.node.additional) {
        estimated(inner, child.schema(), &at("additionalProperties"), below, costs);
    }
    let count = count.unwrap_or_else(|| estimate::most_in_a_request(schema));
    for (index, rule) in level.rules.iter().enumerate() {
        let at = at(&format!("x-kubernetes-validations[{index}]"));
        costs.push((format!("{at}.rule"), rule.most(schema).saturating_mul(count)));
        if let Some(most) = rule.message_most(schema) {
            costs.push((format!("{at}.messageExpression"), most));
        }
    }
}

/// Evaluates the rules of a value and of what is in it.
fn walk(
    level: &Level,
    schema: &Schema,
    new: &Value,
    old: Option<&Value>,
    path: &FieldPath,
    context: &Context<'_>,
    run: &mut Run,
) {
    if new.is_null() || run.is_over {
        return;
    }
    let old = old.filter(|old| !old.is_null());
    let around = run.is_unchanged;
    run.is_unchanged = around || old == Some(new);
    if !level.rules.is_empty() {
        rule::evaluate(&level.rules, schema, new, old, path, context, run);
        if run.is_over {
            return;
        }
    }
    match new {
        Value::Object(fields) => {
            for (name, value) in fields {
                let old = old.and_then(|old| old.get(name));
                match (schema.node.properties.get(name), &schema.node.additional) {
                    (Some(child), _) => {
                        if let Some(below) = level.properties.get(name) {
                            walk(below, child.schema(), value, old, &path.child(name), context, run);
                        }
                    }
                    (None, Additional::Schema(child)) => {
                        if let Some(below) = &level.additional {
                            walk(below, child.schema(), value, old, &path.key(name), context, run);
                        }
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let Some(below) = &level.items else { break };
                let old = schema.same_item(item, old);
                walk(below, schema.item(), item, old, &path.index(index), context, run);
            }
        }
        _ => {}
    }
    run.is_unchanged = around;
}
