//! Expressions of admission policies and of match conditions (`k8s.io/apiserver/pkg/admission/plugin/cel`).
//!
//! ```text
//! Environment: names and what is known of them ─▶ Expression::compile ─▶ problems, as cel-go words them
//!                                                        │
//! Scope: values of the names, variables, authorizer ─▶ evaluate ─▶ a JSON value, or why there is none
//! ```

mod authorizer;
mod construct;
mod variables;

use std::sync::{Arc, LazyLock};

use kube_cel::cel::{
    self, Context,
    common::ast::IdedExpr,
    objects::{Key, Map},
};
use serde_json::{Value, json};

use self::variables::Lazy;
use super::{check, complexity, cost, functions, metered, select, with_stack};
use crate::schema::{Schema, Type};

pub use self::authorizer::{Authorizer, Check, Decision};

static CONTEXT: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = functions();
    authorizer::add_functions(&mut context);
    context
});

/// The names that expressions may use, and the fields of those that have declared ones.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    scope: check::Scope,
    variables: Vec<(String, Option<Schema>)>,
    has_variables: bool,
    constructs: bool,
}

impl Environment {
    /// No names at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a name whose value shows its type only when it is there, such as `object`.
    #[must_use]
    pub fn dynamic(mut self, name: &str) -> Self {
        self.scope.insert(name.to_owned(), Some(Schema::untyped()));
        self
    }

    /// Adds a name whose value has the fields of an OpenAPI schema. One that cannot be read says nothing.
    #[must_use]
    pub fn typed(mut self, name: &str, schema: &Value) -> Self {
        let schema = Schema::from_openapi(schema).unwrap_or_else(|_| Schema::untyped());
        self.scope.insert(name.to_owned(), Some(schema));
        self
    }

    /// Adds a name whose value is an object of a built-in definition, such as `io.k8s.api.apps.v1.Deployment`. An unknown one says nothing.
    #[must_use]
    pub fn built_in(mut self, name: &str, definition: &str) -> Self {
        let schema = Schema::builtin(definition).unwrap_or_else(Schema::untyped);
        self.scope.insert(name.to_owned(), Some(schema));
        self
    }

    /// Adds a name of which nothing is checked beforehand.
    #[must_use]
    pub fn opaque(mut self, name: &str) -> Self {
        self.scope.insert(name.to_owned(), None);
        self
    }

    /// Lets expressions make objects: `Object{…}`, `Object.spec{…}`, `JSONPatch{…}`.
    #[must_use]
    pub fn constructing(mut self) -> Self {
        self.constructs = true;
        self
    }

    /// Lets expressions use `variables`; those that there are get added by [`Environment::variable`].
    #[must_use]
    pub fn with_variables(mut self) -> Self {
        self.has_variables = true;
        self
    }

    /// Adds a variable that has been compiled, or that could not be.
    pub fn variable(&mut self, name: &str, expression: Option<&Expression>) {
        self.variables.push((name.to_owned(), expression.and_then(|known| known.result.clone())));
    }

    fn scope(&self) -> check::Scope {
        let mut scope = self.scope.clone();
        if self.has_variables && !self.variables.is_empty() {
            // What a variable may be is known only roughly: its field is declared, its type is not.
            let fields: serde_json::Map<String, Value> = self
                .variables
                .iter()
                .map(|(name, schema)| {
                    let kind = schema.as_ref().and_then(|schema| schema.node.kind);
                    let of = match kind {
                        Some(kind) => {
                            json!({"type": kind.name(), "x-kubernetes-preserve-unknown-fields": true})
                        }
                        None => json!({"x-kubernetes-preserve-unknown-fields": true}),
                    };
                    (name.clone(), of)
                })
                .collect();
            let schema = Schema::from_openapi(&json!({"type": "object", "properties": fields}));
            scope.insert("variables".to_owned(), schema.ok());
        }
        scope
    }
}

/// What an expression must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// Yes or no.
    Bool,
    /// A text.
    String,
    /// A text, or nothing.
    StringOrNull,
    /// Anything.
    Any,
    /// An `Object{…}`.
    Object,
    /// A list of `JSONPatch{…}`.
    JsonPatches,
}

impl Gives {
    /// Why a value of the type `kind` (`None`: shown only at run time) will not do.
    fn refuse(self, kind: Option<Type>) -> Option<String> {
        let (fits, wanted) = match self {
            Self::Any => return None,
            Self::Bool => (kind == Some(Type::Boolean), "bool"),
            Self::String => (kind == Some(Type::String), "string"),
            Self::StringOrNull => (kind == Some(Type::String), "one of [string null_type]"),
            Self::Object => (kind == Some(Type::Object), "Object"),
            Self::JsonPatches => (kind == Some(Type::Array), "list(JSONPatch)"),
        };
        let name = match kind {
            None => "dyn",
            Some(Type::Object) => "map(dyn, dyn)",
            Some(Type::Array) => "list(dyn)",
            Some(Type::String) => "string",
            Some(Type::Integer) => "int",
            Some(Type::Number) => "double",
            Some(Type::Boolean) => "bool",
        };
        (!fits).then(|| format!("must evaluate to {wanted} but got {name}"))
    }
}

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    /// Where `variables.x` has become the name `@variables.x`, and `Object{…}` a map.
    parsed: IdedExpr,
    /// The same as it is run: see [`select::make_strict`].
    runs: IdedExpr,
    result: Option<Schema>,
}

impl Expression {
    /// Compiles `text`, which must give what `gives` says.
    ///
    /// # Errors
    /// `compilation failed: …` with the place in the expression, or that it gives something else.
    pub fn compile(text: &str, environment: &Environment, gives: Gives) -> Result<Self, String> {
        with_stack(|| Self::compile_here(text, environment, gives))
    }

    fn compile_here(text: &str, environment: &Environment, gives: Gives) -> Result<Self, String> {
        let failed = |problem: &str| format!("compilation failed: {problem}");
        complexity::check(text).map_err(|problem| failed(&format!("ERROR: {problem}")))?;
        // cel-go indents the lines that show the place.
        let mut expression =
            super::parse(text).map_err(|problem| failed(&problem.to_string().replace("\n| ", "\n | ")))?;
        if environment.constructs {
            if let Some(why) = construct::refuse(&expression, gives) {
                return Err(why);
            }
            construct::to_maps(&mut expression);
        }
        let of = if environment.constructs { check::Of::Mutation } else { check::Of::Policy };
        let found = check::examine(text, &expression, &environment.scope(), &CONTEXT, of);
        if !found.problems.is_empty() {
            let problems: Vec<String> = found.problems.iter().map(|problem| problem.show(text)).collect();
            return Err(failed(&problems.join("\n")));
        }
        // Of a schema that is not known at all it shows when it runs.
        if let Some(result) = &found.result
            && let Some(why) = gives.refuse(result.node.kind)
        {
            return Err(why);
        }
        variables::rename(&mut expression);
        let mut runs = expression.clone();
        select::make_strict(&mut runs);
        Ok(Self { text: text.to_owned(), parsed: expression, runs, result: found.result })
    }

    /// The expression as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the expression uses this name.
    pub fn uses(&self, name: &str) -> bool {
        self.parsed.references().has_variable(name)
    }
}

/// The values for the names of an environment.
pub struct Scope<'a> {
    values: Vec<(&'a str, &'a Value)>,
    variables: &'a [(String, Expression)],
    authorizer: Option<Arc<dyn Authorizer>>,
}

impl<'a> Scope<'a> {
    /// A scope of these values and variables. Variables are evaluated when first an expression needs them.
    pub fn new(
        values: Vec<(&'a str, &'a Value)>,
        variables: &'a [(String, Expression)],
        authorizer: Option<Arc<dyn Authorizer>>,
    ) -> Self {
        Self { values, variables, authorizer }
    }

    /// Evaluates expressions on one set of values: what they share is evaluated once.
    pub fn enter<T>(&self, work: impl FnOnce(&Evaluation<'_>) -> T) -> T {
        let mut context = CONTEXT.new_inner_scope();
        let mut known = cost::Scope::new();
        for (name, value) in &self.values {
            context.add_variable_from_value(*name, to_cel(value));
            known.insert((*name).to_owned(), cost::Known::OneOf(vec![*value]));
        }
        if let Some(authorizer) = &self.authorizer {
            for (name, value) in authorizer::roots(authorizer) {
                context.add_variable_from_value(name, value);
            }
        }
        for (name, expression) in self.variables {
            let (cost, of) = with_stack(|| cost::reckon_in(&expression.parsed, &known));
            // Reckoning ends there. A side that is not taken may be why; then nothing is known of what the other one gives.
            let of = if cost > metered::SMALL { cost::Known::UNBOUNDED } else { of };
            known.insert(variables::alias(name), of);
        }
        let lazy = Lazy::new(&context, self.variables, &known);
        work(&Evaluation { lazy: &lazy })
    }
}

/// Evaluates expressions in a scope.
pub struct Evaluation<'a> {
    lazy: &'a Lazy<'a>,
}

impl Evaluation<'_> {
    /// The value of an expression.
    ///
    /// # Errors
    /// Why there is none, as cel-go words it.
    pub fn run(&self, expression: &Expression) -> Result<Value, String> {
        with_stack(|| self.lazy.run(expression).and_then(|value| to_json(&value)))
    }

    /// Whether the expressions that were run have used up what all of a policy may cost: [`OUT_OF_BUDGET`].
    pub fn is_exhausted(&self) -> bool {
        self.lazy.spent() > metered::BUDGET
    }
}

/// What is said of an expression that costs too much.
const TOO_COSTLY: &str = "operation cancelled: actual cost limit exceeded";

/// What is said when the budget of all expressions of a policy, or of all rules about an object, is used up.
pub const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// A value as it is: fields keep their names, texts are texts whatever their format.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => cel::Value::Int(integer),
            None => cel::Value::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let map = fields
                .iter()
                .map(|(name, value)| (Key::String(Arc::new(name.clone())), to_cel(value)))
                .collect();
            cel::Value::Map(Map { map: Arc::new(map) })
        }
    }
}

fn to_json(value: &cel::Value) -> Result<Value, String> {
    Ok(match value {
        cel::Value::Null => Value::Null,
        cel::Value::Bool(value) => (*value).into(),
        cel::Value::Int(value) => (*value).into(),
        cel::Value::UInt(value) => (*value).into(),
        cel::Value::Float(value) => json!(value),
        cel::Value::String(text) => text.as_str().into(),
        cel::Value::List(items) => items.iter().map(to_json).collect::<Result<_, _>>()?,
        cel::Value::Map(map) => {
            let mut fields = serde_json::Map::new();
            for (key, value) in map.map.iter() {
                let Key::String(key) = key else {
                    return Err(format!("a key of a map must be a string, not {key}"));
                };
                fields.insert(key.as_str().to_owned(), to_json(value)?);
            }
            Value::Object(fields)
        }
        other => return Err(format!("the value {other:?} is none that JSON has")),
    })
}

#[cfg(test)]
mod tests;
