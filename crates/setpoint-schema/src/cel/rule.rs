//! One rule.

use std::sync::Arc;

use kube_cel::cel::{self, Context, ExecutionError, Program, objects::OptionalValue};
use serde_json::Value;

use super::{CONTEXT, RuleError, check, complexity, value::to_cel};
use crate::{
    field_error::{FieldError, FieldPath},
    schema::Schema,
};

/// The reasons that a rule may give.
const REASONS: [&str; 4] =
    ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];

/// A compiled rule.
#[derive(Debug)]
pub(super) struct Rule {
    /// The expression, without the white space around it.
    text: String,
    program: Program,
    message: Option<String>,
    message_program: Option<Program>,
    reason: Option<String>,
    /// Where to report a failure, below the value: `.name` or `['name']` steps, normalised to `name.name`.
    field_path: Option<String>,
    optional_old_self: bool,
    is_transition: bool,
}

impl Rule {
    pub(super) fn compile(schema: &Schema, rule: &Value, path: &str) -> Result<Self, RuleError> {
        let text = |key: &str| rule.get(key).and_then(Value::as_str).map(|text| text.trim().to_owned());
        let error = |key: &str, expression: &str, problem: &str| RuleError {
            path: format!("{path}.{key}"),
            expression: expression.into(),
            problem: problem.into(),
        };
        let optional_old_self = rule.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or_default();
        let parse = |key: &str, expression: &str| {
            complexity::check(expression)
                .map_err(|problem| error(key, expression, &format!("ERROR: {problem}")))?;
            let program = Program::compile(expression)
                .map_err(|problem| error(key, expression, &format!("ERROR: {problem}")))?;
            let (problems, may_be_bool) =
                check::problems(program.expression(), schema, optional_old_self, &CONTEXT);
            if problems.is_empty() {
                return Ok((program, may_be_bool));
            }
            Err(error(key, expression, &format!("ERROR: {}", problems.join("\nERROR: "))))
        };
        let expression = text("rule").unwrap_or_default();
        if expression.is_empty() {
            return Err(error("rule", "", "rule is not specified"));
        }
        let (program, may_be_bool) = parse("rule", &expression)?;
        if !may_be_bool {
            return Err(error("rule", &expression, "cel expression must evaluate to a bool"));
        }
        let message_program = match text("messageExpression").filter(|text| !text.is_empty()) {
            Some(expression) => Some(parse("messageExpression", &expression)?.0),
            None => None,
        };
        if let Some(reason) = text("reason")
            && !REASONS.contains(&reason.as_str())
        {
            return Err(error("reason", &reason, &format!("supported values: {}", REASONS.join(", "))));
        }
        let is_transition = program.references().has_variable("oldSelf");
        Ok(Self {
            program,
            message: text("message").filter(|text| !text.is_empty()),
            message_program,
            reason: text("reason"),
            field_path: text("fieldPath").map(|path| normalise(&path)).filter(|path| !path.is_empty()),
            optional_old_self,
            is_transition,
            text: expression,
        })
    }

    /// The rule in a message.
    fn name(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.text)
    }

    fn failure(&self, context: &Context<'_>) -> String {
        let message = self.message_program.as_ref().and_then(|program| match program.execute(context) {
            Ok(cel::Value::String(text)) if !text.trim().is_empty() && !text.contains('\n') => {
                Some(text.trim().to_owned())
            }
            _ => None,
        });
        message.or_else(|| self.message.clone()).unwrap_or_else(|| format!("failed rule: {}", self.text))
    }
}

/// `.spec.ports['a.b']` → `spec.ports[a.b]`, as upstream prints it below the value's path.
fn normalise(path: &str) -> String {
    path.trim_start_matches('.').replace("['", "[").replace("']", "]")
}

/// Evaluates the rules of one value.
pub(super) fn evaluate(
    rules: &[Rule],
    schema: &Schema,
    new: &Value,
    old: Option<&Value>,
    path: &FieldPath,
    context: &Context<'_>,
    errors: &mut Vec<FieldError>,
) {
    let unchanged = old == Some(new);
    let mut scope = context.new_inner_scope();
    scope.add_variable_from_value("self", to_cel(schema, new));
    let old_value = old.map(|old| to_cel(schema, old));
    for rule in rules {
        if rule.is_transition && old.is_none() && !rule.optional_old_self {
            continue;
        }
        let mut scope = scope.new_inner_scope();
        match &old_value {
            _ if rule.optional_old_self => {
                let old = old_value.clone().map_or_else(OptionalValue::none, OptionalValue::of);
                scope.add_variable_from_value("oldSelf", cel::Value::Opaque(Arc::new(old)));
            }
            Some(old) => scope.add_variable_from_value("oldSelf", old.clone()),
            None => {}
        }
        let error = match rule.program.execute(&scope) {
            Ok(cel::Value::Bool(true)) => continue,
            // A value that did not change may keep what was once valid.
            _ if unchanged && !rule.is_transition => continue,
            Ok(cel::Value::Bool(false)) => failed(rule, schema, new, path, &scope),
            Ok(other) => {
                broken(schema, path, format!("rule must evaluate to a bool, not {other:?}: {}", rule.name()))
            }
            Err(problem) => {
                broken(schema, path, format!("{} evaluating rule: {}", print(&problem), rule.name()))
            }
        };
        errors.push(error);
    }
}

/// A rule that evaluated to false.
fn failed(rule: &Rule, schema: &Schema, value: &Value, path: &FieldPath, scope: &Context<'_>) -> FieldError {
    let path = match &rule.field_path {
        Some(below) => path.child(below),
        None => path.clone(),
    };
    let detail = rule.failure(scope);
    // Objects and lists are too long for a message.
    let composed = matches!(value, Value::Object(_) | Value::Array(_)) && schema.node.kind.is_some();
    let mut error = match rule.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(&path, detail),
        Some("FieldValueRequired") => FieldError::required(&path, detail),
        Some("FieldValueDuplicate") => FieldError::duplicate(&path, value.clone()),
        _ => FieldError::invalid(&path, value.clone(), detail),
    };
    if composed {
        error.value = None;
    }
    error
}

/// A rule that could not be evaluated: shown with the type, as upstream does.
fn broken(schema: &Schema, path: &FieldPath, detail: String) -> FieldError {
    FieldError::invalid(path, schema.node.kind.map_or("", |kind| kind.name()), detail)
}

fn print(problem: &ExecutionError) -> String {
    match problem {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload => "no such overload".into(),
        ExecutionError::DivisionByZero(_) => "division by zero".into(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".into(),
        ExecutionError::Overflow(..) => "integer overflow".into(),
        ExecutionError::IndexOutOfBounds(index) => format!("index out of bounds: {index:?}"),
        other => other.to_string(),
    }
}
