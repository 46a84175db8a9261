//! One rule.

use std::sync::Arc;

use kube_cel::cel::{self, Context, ExecutionError, IdedExpr, objects::OptionalValue};
use serde_json::Value;

use super::{
    CONTEXT, RuleError, check, complexity, cost,
    metered::{self, Stopped},
    policy::OUT_OF_BUDGET,
    value::to_cel,
};
use crate::{
    field_error::{FieldError, FieldPath},
    schema::{Schema, Type},
};

/// The reasons that a rule may give.
const REASONS: [&str; 4] =
    ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];

/// A compiled rule.
#[derive(Debug)]
pub(super) struct Rule {
    /// The expression, without the white space around it.
    text: String,
    program: IdedExpr,
    message: Option<String>,
    message_program: Option<IdedExpr>,
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
            rule: rule.clone(),
        };
        let optional_old_self = rule.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or_default();
        let parse = |key: &str, expression: &str| {
            let of = if key == "rule" { "" } else { "messageExpression " };
            let failed =
                |problem: &str| error(key, expression, &format!("{of}compilation failed: {problem}"));
            complexity::check(expression).map_err(|problem| failed(&format!("ERROR: {problem}")))?;
            // cel-go indents the lines that show the place.
            let program = super::parse(expression)
                .map_err(|problem| failed(&problem.to_string().replace("\n| ", "\n | ")))?;
            let scope = check::rule_scope(schema, optional_old_self);
            let found = check::examine(expression, &program, &scope, &CONTEXT, check::Of::Rule);
            if found.problems.is_empty() {
                return Ok((program, found));
            }
            let problems: Vec<String> =
                found.problems.iter().map(|problem| problem.show(expression)).collect();
            Err(failed(&problems.join("\n")))
        };
        let expression = text("rule").unwrap_or_default();
        if expression.is_empty() {
            return Err(error("rule", "", "rule is not specified"));
        }
        let (program, found) = parse("rule", &expression)?;
        let kind = found.result.as_ref().and_then(|schema| schema.node.kind);
        if kind.is_some_and(|kind| kind != Type::Boolean) {
            return Err(error("rule", &expression, "cel expression must evaluate to a bool"));
        }
        let message_program = match text("messageExpression").filter(|text| !text.is_empty()) {
            Some(expression) => {
                let (program, found) = parse("messageExpression", &expression)?;
                if found
                    .result
                    .as_ref()
                    .and_then(|schema| schema.node.kind)
                    .is_some_and(|kind| kind != Type::String)
                {
                    return Err(error(
                        "messageExpression",
                        &expression,
                        "messageExpression must evaluate to a string",
                    ));
                }
                Some(program)
            }
            None => None,
        };
        if let Some(reason) = text("reason")
            && !REASONS.contains(&reason.as_str())
        {
            return Err(error("reason", &reason, &format!("supported values: {}", REASONS.join(", "))));
        }
        let mut program = program;
        super::any_order::rewrite(&mut program, schema);
        let is_transition = program.references().has_variable("oldSelf");
        Ok(Self {
            program,
            message: text("message").filter(|text| !text.is_empty()),
            message_program,
            reason: text("reason"),
            field_path: text("fieldPath")
                .map(|path| normalise(schema, &path))
                .filter(|path| !path.is_empty()),
            optional_old_self,
            is_transition,
            text: expression,
        })
    }

    /// What it costs at most, once, for a value of `schema`.
    pub(super) fn most(&self, schema: &Schema) -> u64 {
        super::estimate::estimate(&self.program, schema)
    }

    /// What its message costs at most.
    pub(super) fn message_most(&self, schema: &Schema) -> Option<u64> {
        self.message_program.as_ref().map(|program| super::estimate::estimate(program, schema))
    }

    /// The rule in a message.
    fn name(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.text)
    }

    fn failure(&self, new: &Value, old: Option<&Value>, context: &Context<'_>, run: &mut Run) -> String {
        let message = self.message_program.as_ref().and_then(|program| {
            let (value, cost) = metered::evaluate(program, context, cost::reckon(program, new, old));
            run.left = run.left.saturating_sub(cost);
            match value {
                Ok(cel::Value::String(text)) if !text.trim().is_empty() && !text.contains('\n') => {
                    Some(text.trim().to_owned())
                }
                _ => None,
            }
        });
        message.or_else(|| self.message.clone()).unwrap_or_else(|| format!("failed rule: {}", self.text))
    }
}

/// A field path as upstream prints it below the value's path: fields by their names, keys of maps in brackets (`ValidFieldPath`).
fn normalise(schema: &Schema, path: &str) -> String {
    let mut out = String::new();
    let (mut rest, mut at) = (path, Some(schema));
    while !rest.is_empty() {
        let (name, after) = if let Some(quoted) = rest.strip_prefix("['") {
            let Some((name, after)) = quoted.split_once("']") else { break };
            (name.replace("\\'", "'"), after)
        } else {
            let plain = rest.trim_start_matches('.');
            let end = plain.find(['.', '[']).unwrap_or(plain.len());
            (plain[..end].to_owned(), &plain[end..])
        };
        if at.is_some_and(|at| at.node.properties.contains_key(&name)) || !rest.starts_with('[') {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(&name);
        } else {
            out.push('[');
            out.push_str(&name);
            out.push(']');
        }
        at = at.and_then(|at| at.declared(&name)).map(crate::schema::Child::schema);
        rest = after;
    }
    out
}

/// What evaluating the rules of one object came to so far.
pub(super) struct Run {
    pub(super) errors: Vec<FieldError>,
    /// What is wrong with values that did not change.
    pub(super) ratcheted: Vec<FieldError>,
    /// Whether the value that is looked at did not change, or is part of one that did not.
    pub(super) is_unchanged: bool,
    /// What the rules that are left may cost.
    left: u64,
    /// Whether no more rules are run.
    pub(super) is_over: bool,
}

impl Run {
    pub(super) fn new() -> Self {
        Self {
            errors: Vec::new(),
            ratcheted: Vec::new(),
            is_unchanged: false,
            left: metered::BUDGET,
            is_over: false,
        }
    }
}

/// Evaluates the rules of one value.
pub(super) fn evaluate(
    rules: &[Rule],
    schema: &Schema,
    new: &Value,
    old: Option<&Value>,
    path: &FieldPath,
    context: &Context<'_>,
    run: &mut Run,
) {
    if run.left == 0 {
        run.errors.push(broken(schema, path, OUT_OF_BUDGET.to_owned()));
        run.is_over = true;
        return;
    }
    let unchanged = run.is_unchanged;
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
        let (value, cost) = metered::evaluate(&rule.program, &scope, cost::reckon(&rule.program, new, old));
        if cost > run.left {
            run.errors.push(broken(schema, path, OUT_OF_BUDGET.to_owned()));
            run.is_over = true;
            return;
        }
        run.left -= cost;
        let error = match value {
            Err(Stopped::Costly) => {
                let why = "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to \
                           call cost exceeds limit for rule";
                run.errors.push(broken(schema, path, format!("{why}: {}", rule.name())));
                run.is_over = true;
                return;
            }
            Ok(cel::Value::Bool(true)) => continue,
            Ok(cel::Value::Bool(false)) if unchanged && !rule.is_transition => {
                // A value that did not change may keep what was once valid.
                let ratcheted = failed(rule, schema, (new, old), path, &scope, run);
                run.ratcheted.push(ratcheted);
                continue;
            }
            Ok(cel::Value::Bool(false)) => failed(rule, schema, (new, old), path, &scope, run),
            Ok(other) => {
                broken(schema, path, format!("rule must evaluate to a bool, not {other:?}: {}", rule.name()))
            }
            Err(Stopped::Failed(problem)) => {
                broken(schema, path, format!("{} evaluating rule: {}", print(&problem), rule.name()))
            }
        };
        run.errors.push(error);
    }
}

/// A rule that evaluated to false.
fn failed(
    rule: &Rule,
    schema: &Schema,
    (value, old): (&Value, Option<&Value>),
    path: &FieldPath,
    scope: &Context<'_>,
    run: &mut Run,
) -> FieldError {
    let path = match &rule.field_path {
        Some(below) => path.child(below),
        None => path.clone(),
    };
    let detail = rule.failure(value, old, scope, run);
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

/// A failure at run time, as cel-go words it.
pub(super) fn print(problem: &ExecutionError) -> String {
    match problem {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload => "no such overload".into(),
        ExecutionError::DivisionByZero(_) => "division by zero".into(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".into(),
        ExecutionError::Overflow(..) => "integer overflow".into(),
        ExecutionError::IndexOutOfBounds(cel::Value::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::UnsupportedBinaryOperator(..) | ExecutionError::UnsupportedUnaryOperator(..) => {
            "no such overload".into()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Rules;
    use super::*;

    #[test]
    fn what_would_fill_memory_or_take_for_ever_is_not_begun() {
        let outcome = |rule: &str, value: Value| {
            let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}], "properties": {
                "s": {"type": "string"}, "t": {"type": "string"},
                "l": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}},
            }});
            let rules = Rules::compile(&Schema::from_openapi(&schema).unwrap()).unwrap();
            rules.validate(&value, None).first().map(ToString::to_string).unwrap_or_default()
        };
        let items = |count: usize| json!(vec![json!({"n": "abc"}); count]);
        let long = json!({"s": "ab".repeat(100_000), "l": items(2000)});
        let doubling = (0..40).rfold("true".to_owned(), |inner, level| {
            let before = if level == 0 { "self.s".to_owned() } else { format!("a{}", level - 1) };
            format!("[{before} + {before}].all(a{level}, {inner})")
        });
        for rule in [
            "self.s.split('').all(a, self.s.split('').all(b, a != b || a == b))",
            "self.s.replace('', self.s).size() > 1",
            "self.l.all(x, self.s.replace('a', 'bb').size() > 1 && !self.s.matches('(a|b)*c'))",
            "self.l.all(x, self.l.all(y, self.l.size() > 1))",
            "self.l.map(x, self.s).join(',').size() > 1",
            "self.s.split('').distinct().size() > 1",
            &doubling,
        ] {
            let seen = outcome(rule, long.clone());
            let costly = ["call cost exceeds limit for rule: ", "running out of cost budget"];
            assert!(costly.iter().any(|said| seen.contains(said)), "{rule}: {seen:?}");
        }
        // What users write, of usual sizes; the long string beside it does not count.
        let usual = json!({"s": "a-b-c".repeat(20), "t": "x".repeat(200_000), "l": items(1000)});
        for rule in [
            "self.l.all(x, x.n.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && x.n.size() < 64)",
            "self.l.all(x, self.l.exists(y, y.n == x.n))",
            "self.l.filter(x, x.n == 'abc').size() == self.l.map(x, x.n).size()",
            "self.s.split('-').all(part, part.size() > 0 && part.replace('a', 'bb').lowerAscii() != 'x')",
            "self.s.startsWith('a') && self.t.size() == 200000 && !self.t.contains('y')",
            "lists.range(3).all(x, x < 3)",
        ] {
            assert_eq!(outcome(rule, usual.clone()), "", "{rule}");
        }
        let seen = outcome("lists.range(1000000000).size() > 1", usual);
        assert!(seen.contains("the size must be from 0 to 10000"), "{seen}");
    }

    #[test]
    fn messages_of_types_are_refused() {
        let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": "Foo{a: 1} == self"}]});
        let errors = Rules::compile(&Schema::from_openapi(&schema).unwrap()).unwrap_err();
        assert!(errors[0].problem.contains("undeclared reference to 'Foo'"), "{errors:?}");
    }

    #[test]
    fn loops_that_would_never_end_are_not_begun() {
        let within = |rule: &str, items: usize| {
            let schema = json!({"type": "object", "properties": {"l": {
                "type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [{"rule": rule}],
            }}});
            let rules = Rules::compile(&Schema::from_openapi(&schema).unwrap()).unwrap();
            rules.validate(&json!({"l": vec![1; items]}), None)
        };
        let two = "self.all(a, self.all(b, a == b))";
        let four = "self.all(a, self.all(b, self.all(c, self.all(d, a == d || b == c))))";
        let side_by_side =
            "self.all(a, a == 1) && self.all(b, b == 1) && self.filter(c, c == 1).size() == size(self)";
        assert_eq!(within(two, 50), []);
        assert_eq!(within(four, 5), []);
        assert_eq!(within(side_by_side, 1000), []);
        for (rule, items) in [(two, 6000), (four, 100)] {
            let errors = within(rule, items);
            let [error] = errors.as_slice() else { panic!("{errors:?}") };
            assert!(error.to_string().contains("call cost exceeds limit for rule: self.all(a, "), "{error}");
        }
    }
}
