//! Evaluation that counts what it costs and stops at a limit, as cel-go does while it runs (`interpreter.CostTracker`, with what
//! `k8s.io/apiserver/pkg/cel/library` says of its functions).
//!
//! The interpreter underneath cannot be stopped. What surely costs little ([`cost`]) it runs at once; of anything else it is given one
//! call after the other, with its arguments as values, and operators that look at one side first and loops are walked here.

use std::borrow::Cow;
use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use kube_cel::cel::common::types::{CelBytes, CelList, CelMap, CelString};
use kube_cel::cel::common::value::Val;
use kube_cel::cel::objects::Key;
use kube_cel::cel::{Context, ExecutionError, Value};

use super::{
    any_order::EQUAL,
    parse::called,
    rates::{CHARACTER, NAMED_FORMAT, searching, times},
};

/// The most that one expression may cost (upstream: `PerCallLimit`).
pub(super) const LIMIT: u64 = 1_000_000;
/// The most that the expressions of one object or policy may cost together (upstream: `RuntimeCELCostBudget`).
pub(super) const BUDGET: u64 = 10 * LIMIT;
/// Below so many steps of the interpreter the limit is out of reach: a step makes a map at most, which costs 30.
pub(super) const SMALL: f64 = 25_000.0;

/// What asking an authorizer costs.
const AUTHORIZATION: u64 = 350_000;
/// What making a list or a map costs.
const LIST: u64 = 10;
const MAP: u64 = 30;
/// The most characters and items that a value may have here, so that it fits into memory. cel-go shares what this interpreter copies.
const HEAVIEST: u64 = 8_000_000;

/// Why there is no value.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It costs more than [`LIMIT`].
    Costly,
    Failed(ExecutionError),
}

impl From<ExecutionError> for Stopped {
    fn from(problem: ExecutionError) -> Self {
        Self::Failed(problem)
    }
}

/// Evaluates an expression, and says what that cost. `steps` is the most that it may take the interpreter.
pub(super) fn evaluate(
    expression: &IdedExpr,
    context: &Context<'_>,
    steps: f64,
) -> (Result<Value, Stopped>, u64) {
    if steps <= SMALL {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let cost = steps as u64;
        return (Value::resolve(expression, context).map_err(Stopped::Failed), cost);
    }
    let mut meter = Meter { cost: 0 };
    let value = meter.visit(expression, context);
    (value, meter.cost)
}

struct Meter {
    cost: u64,
}

type Outcome<T = Value> = Result<T, Stopped>;

impl Meter {
    fn charge(&mut self, cost: u64) -> Outcome<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > LIMIT { Err(Stopped::Costly) } else { Ok(()) }
    }

    fn visit(&mut self, expression: &IdedExpr, context: &Context<'_>) -> Outcome {
        if let Some(cost) = plain(expression) {
            self.charge(cost)?;
            return Ok(look(expression, context)?.as_ref().try_into()?);
        }
        match &expression.expr {
            Expr::Call(call) => self.call(expression, call, context),
            Expr::Comprehension(loops) => self.repeat(loops, context),
            // Of what a field is looked for in; whether it is there costs nothing.
            Expr::Select(_) => self.with_values(expression, context, |expression, context| {
                Ok(Value::resolve(expression, context)?)
            }),
            Expr::List(_) => {
                self.charge(LIST)?;
                self.with_values(expression, context, |expression, context| {
                    Ok(Value::resolve(expression, context)?)
                })
            }
            Expr::Map(_) => {
                self.charge(MAP)?;
                self.with_values(expression, context, |expression, context| {
                    Ok(Value::resolve(expression, context)?)
                })
            }
            Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {
                Ok(Value::resolve(expression, context)?)
            }
        }
    }

    /// Yes or no; an error where it fails or is neither.
    fn holds(
        &mut self,
        expression: &IdedExpr,
        context: &Context<'_>,
    ) -> Outcome<Result<bool, ExecutionError>> {
        match self.visit(expression, context) {
            Ok(Value::Bool(value)) => Ok(Ok(value)),
            Ok(_) => Ok(Err(ExecutionError::NoSuchOverload)),
            Err(Stopped::Failed(problem)) => Ok(Err(problem)),
            Err(Stopped::Costly) => Err(Stopped::Costly),
        }
    }

    fn call(&mut self, expression: &IdedExpr, call: &CallExpr, context: &Context<'_>) -> Outcome {
        match (call.func_name.as_str(), call.args.as_slice()) {
            ("_||_", [one, other]) => self.either(true, one, other, context),
            ("_&&_", [one, other]) => self.either(false, one, other, context),
            ("_?_:_", [condition, yes, no]) => {
                let side = if self.holds(condition, context)?? { yes } else { no };
                if let Some(cost) = plain(side) {
                    // A name is free here, its fields are not.
                    self.charge(cost.saturating_sub(1))?;
                    return Ok(look(side, context)?.as_ref().try_into()?);
                }
                self.visit(side, context)
            }
            ("@not_strictly_false", [operand]) => {
                self.charge(1)?;
                Ok(Value::Bool(self.holds(operand, context)?.unwrap_or(true)))
            }
            _ => {
                let mut cost = 0;
                let value = self.with_values(expression, context, |expression, context| {
                    let Expr::Call(call) = &expression.expr else {
                        return Err(ExecutionError::NoSuchOverload.into());
                    };
                    let operands = Operands { call, context };
                    cost = operands.cost();
                    if cost > LIMIT || operands.weight() > HEAVIEST {
                        return Err(Stopped::Costly);
                    }
                    if let Some(size) = operands.counted() {
                        return Ok(size);
                    }
                    let value = Value::resolve(expression, context)?;
                    if let ("join", Value::String(text)) = (call.func_name.as_str(), &value) {
                        cost = times(count(text.chars().count()), 2.0 * CHARACTER);
                    }
                    Ok(value)
                });
                self.charge(cost)?;
                value
            }
        }
    }

    /// `one || other` (`decides`: true) or `one && other` (false). The other side can still decide where one fails.
    fn either(&mut self, decides: bool, one: &IdedExpr, other: &IdedExpr, context: &Context<'_>) -> Outcome {
        let one = self.holds(one, context)?;
        if one == Ok(decides) {
            return Ok(Value::Bool(decides));
        }
        let other = self.holds(other, context)?;
        if other == Ok(decides) {
            return Ok(Value::Bool(decides));
        }
        one?;
        Ok(Value::Bool(other?))
    }

    /// Evaluates what an expression is made of, and gives the expression to `run` with names for these values.
    fn with_values(
        &mut self,
        expression: &IdedExpr,
        context: &Context<'_>,
        run: impl FnOnce(&IdedExpr, &Context<'_>) -> Outcome,
    ) -> Outcome {
        let mut expression = expression.clone();
        let mut inner = context.new_inner_scope();
        let mut stopped = None;
        let mut number = 0_u32;
        parts(&mut expression, &mut |part| {
            if stopped.is_some() {
                return;
            }
            if let Some(cost) = plain(part) {
                stopped = self.charge(cost).err();
                return;
            }
            match self.visit(part, context) {
                Ok(value) => {
                    let name = format!("@value{number}");
                    number += 1;
                    inner.add_variable_from_value(name.clone(), value);
                    part.expr = Expr::Ident(name);
                }
                Err(why) => stopped = Some(why),
            }
        });
        match stopped {
            Some(why) => Err(why),
            None => run(&expression, &inner),
        }
    }

    fn repeat(&mut self, loops: &ComprehensionExpr, context: &Context<'_>) -> Outcome {
        let items = match self.visit(&loops.iter_range, context)? {
            Value::List(items) => items.to_vec(),
            Value::Map(map) => map.map.keys().map(key_value).collect(),
            _ => return Err(ExecutionError::NoSuchOverload.into()),
        };
        let accumulated = self.visit(&loops.accu_init, context)?;
        let mut inner = context.new_inner_scope();
        if let Some(gathered) = Gathered::of(loops) {
            return self.gather(loops, &gathered, items, inner);
        }
        inner.add_variable_from_value(loops.accu_var.clone(), accumulated);
        for item in items {
            if !self.holds(&loops.loop_cond, &inner)?? {
                break;
            }
            inner.add_variable_from_value(loops.iter_var.clone(), item);
            let step = self.visit(&loops.loop_step, &inner)?;
            inner.add_variable_from_value(loops.accu_var.clone(), step);
        }
        self.visit(&loops.result, &inner)
    }

    /// A loop that adds to a list: the list is kept here, and not copied in each turn.
    fn gather(
        &mut self,
        loops: &ComprehensionExpr,
        gathered: &Gathered<'_>,
        items: Vec<Value>,
        mut inner: Context<'_>,
    ) -> Outcome {
        let mut list = Vec::new();
        let mut weight = 0;
        for item in items {
            inner.add_variable_from_value(loops.iter_var.clone(), item);
            if let Some(condition) = gathered.condition
                && !self.holds(condition, &inner)??
            {
                continue;
            }
            self.charge(if is_constant(gathered.element) { 2 } else { 2 + LIST })?;
            let element = self.visit(gathered.element, &inner)?;
            weight += heaviness(&element);
            if weight > HEAVIEST {
                return Err(Stopped::Costly);
            }
            list.push(element);
        }
        inner.add_variable_from_value(loops.accu_var.clone(), Value::List(Arc::new(list)));
        self.visit(&loops.result, &inner)
    }
}

/// What `map` and `filter` become: `condition ? list + [element] : list`.
struct Gathered<'e> {
    condition: Option<&'e IdedExpr>,
    element: &'e IdedExpr,
}

impl<'e> Gathered<'e> {
    fn of(loops: &'e ComprehensionExpr) -> Option<Self> {
        let Expr::List(begin) = &loops.accu_init.expr else { return None };
        let always =
            matches!(&loops.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(yes)) if *yes.inner());
        if !begin.elements.is_empty() || !always {
            return None;
        }
        let accumulated =
            |expression: &IdedExpr| matches!(&expression.expr, Expr::Ident(name) if *name == loops.accu_var);
        let added = |expression: &'e IdedExpr| match &expression.expr {
            Expr::Call(call) if call.func_name == "_+_" => match call.args.as_slice() {
                [list, IdedExpr { expr: Expr::List(one), .. }] if accumulated(list) => {
                    match one.elements.as_slice() {
                        [element] if one.optional_indices.is_empty() => Some(element),
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        };
        if let Expr::Call(call) = &loops.loop_step.expr
            && let ("_?_:_", [condition, yes, no]) = (call.func_name.as_str(), call.args.as_slice())
        {
            let element = added(yes).filter(|_| accumulated(no))?;
            return Some(Self { condition: Some(condition), element });
        }
        added(&loops.loop_step).map(|element| Self { condition: None, element })
    }
}

/// What a name, a literal, or a field or item of one costs; `None` for anything else.
fn plain(expression: &IdedExpr) -> Option<u64> {
    if is_constant(expression) {
        return Some(0);
    }
    match &expression.expr {
        Expr::Ident(_) => Some(1),
        Expr::Select(select) if !select.test => plain(&select.operand).map(|cost| cost + 1),
        Expr::Call(CallExpr { func_name, target: None, args }) if func_name == "_[_]" => {
            match args.as_slice() {
                [operand, IdedExpr { expr: Expr::Literal(_), .. }] => plain(operand).map(|cost| cost + 1),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Whether cel-go makes a value of an expression before it runs (`decOptimize`): literals, lists and maps of these, conversions of one.
fn is_constant(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(_) => true,
        Expr::List(list) => list.optional_indices.is_empty() && list.elements.iter().all(is_constant),
        Expr::Map(map) => map.entries.iter().all(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                !entry.optional && is_constant(&entry.key) && is_constant(&entry.value)
            }
            EntryExpr::StructField(_) => false,
        }),
        Expr::Call(CallExpr { func_name, target: None, args }) => {
            let converts =
                ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];
            matches!(args.as_slice(), [one] if converts.contains(&func_name.as_str()) && is_constant(one))
        }
        _ => false,
    }
}

/// Visits what an expression is directly made of. What a function's name begins with (`sets` of `sets.contains`) is no part.
fn parts(expression: &mut IdedExpr, visit: &mut impl FnMut(&mut IdedExpr)) {
    match &mut expression.expr {
        Expr::Call(call) => {
            if called(call).1.is_some()
                && let Some(target) = &mut call.target
            {
                visit(target);
            }
            call.args.iter_mut().for_each(visit);
        }
        Expr::Select(select) => visit(&mut select.operand),
        Expr::List(list) => list.elements.iter_mut().for_each(visit),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                match &mut entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        visit(&mut entry.key);
                        visit(&mut entry.value);
                    }
                    EntryExpr::StructField(field) => visit(&mut field.value),
                }
            }
        }
        Expr::Comprehension(_) | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}

/// A call whose operands are names, literals, and fields of these.
struct Operands<'a> {
    call: &'a CallExpr,
    context: &'a Context<'a>,
}

impl Operands<'_> {
    /// The receiver first, if there is one.
    fn operand(&self, index: usize) -> Option<Cow<'_, dyn Val>> {
        let operand = called(self.call).1.into_iter().chain(&self.call.args).nth(index)?;
        look(operand, self.context).ok()
    }

    fn value(&self, index: usize) -> Option<Value> {
        self.operand(index)?.as_ref().try_into().ok()
    }

    fn size(&self, index: usize) -> u64 {
        self.operand(index).map_or(1, |operand| length(operand.as_ref()).unwrap_or(1))
    }

    fn is<T: Val>(&self, index: usize) -> bool {
        self.operand(index).is_some_and(|operand| operand.downcast_ref::<T>().is_some())
    }

    /// The value of `size`, of which the interpreter would make a copy of what is counted.
    fn counted(&self) -> Option<Value> {
        let (name, _) = called(self.call);
        let operand = if name == "size" { self.operand(0) } else { None }?;
        i64::try_from(length(operand.as_ref())?).ok().map(Value::Int)
    }

    /// What a call costs beside its operands; the other cases of `CallCost` and `costCall` cost 1.
    fn cost(&self) -> u64 {
        let (name, _) = called(self.call);
        match name.as_ref() {
            "check" if self.call.args.len() == 1 => AUTHORIZATION,
            "_==_" | "_!=_" | EQUAL => times(self.size(0).min(self.size(1)), CHARACTER),
            "_<_" | "_<=_" | "_>_" | "_>=_" if self.is::<CelString>(0) => {
                times(self.size(0).min(self.size(1)), CHARACTER)
            }
            "_+_" if self.is::<CelString>(0) => times(self.size(0) + self.size(1), CHARACTER),
            // cel-go makes a set of it before it runs.
            "@in" if self.call.args.get(1).is_some_and(is_constant) => 0,
            "@in" if self.is::<CelList>(1) => self.size(1),
            "startsWith" | "endsWith" => times(self.size(1), CHARACTER),
            "contains" => times(self.size(0), CHARACTER).saturating_mul(times(self.size(1), CHARACTER)),
            "matches" | "find" | "findAll" => searching(self.size(0), self.size(1)),
            "validate" => searching(self.size(1), NAMED_FORMAT),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
                self.value(0).map_or(0, |value| traversal(&value))
            }
            "url"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "jsonpatch.escapeKey"
            | "cidr"
            | "isIP"
            | "isCIDR"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver"
            | "strings.quote"
            | "format" => times(self.size(0), CHARACTER),
            "ip" | "string" | "bytes" if self.is::<CelString>(0) || self.is::<CelBytes>(0) => {
                times(self.size(0), CHARACTER)
            }
            "replace" | "split" | "ip.isCanonical" => times(self.size(0), 2.0 * CHARACTER),
            "containsIP" | "containsCIDR" => 7,
            "distinct" | "sort" => {
                let texts = matches!(self.value(0), Some(Value::List(items)) if matches!(items.first(), Some(Value::String(_))));
                let count = self.size(0);
                let factor = if texts { 2.0 + CHARACTER } else { 2.0 };
                times(count.saturating_mul(count), factor).saturating_add(1 + LIST)
            }
            "lists.range" => self.value(0).map_or(1, |value| match value {
                Value::Int(count) => u64::try_from(count).unwrap_or_default().saturating_add(1 + LIST),
                _ => 1,
            }),
            "fieldSelector" | "labelSelector" => times(self.size(1), 0.1 + 0.5 * 50.0).saturating_add(LIST),
            "sets.contains" | "sets.equivalent" | "sets.intersects" => {
                self.size(0).saturating_mul(self.size(1)).saturating_add(1)
            }
            _ => 1,
        }
    }

    /// The most characters and items that the value of a call may have.
    fn weight(&self) -> u64 {
        let of = |index| self.value(index).map_or(0, |value| heaviness(&value));
        match self.call.func_name.as_str() {
            "_+_" => of(0).saturating_add(of(1)),
            "replace" => of(0).saturating_add(1).saturating_mul(of(2).max(1)).saturating_add(of(0)),
            "join" | "format" => of(0).saturating_mul(of(1).max(1)),
            // Pieces are values of their own.
            "split" | "findAll" => of(0).saturating_mul(8),
            _ => 0,
        }
    }
}

fn key_value(key: &Key) -> Value {
    match key {
        Key::Int(key) => Value::Int(*key),
        Key::Uint(key) => Value::UInt(*key),
        Key::Bool(key) => Value::Bool(*key),
        Key::String(key) => Value::String(Arc::clone(key)),
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The size of a value as cel-go has it: characters, bytes, items, entries; `None` of anything else.
fn length(value: &dyn Val) -> Option<u64> {
    let text = |value: &CelString| value.inner().chars().count();
    let size = value.downcast_ref::<CelString>().map(text);
    let size = size.or_else(|| value.downcast_ref::<CelList>().map(|list| list.inner().len()));
    let size = size.or_else(|| value.downcast_ref::<CelMap>().map(|map| map.inner().len()));
    size.or_else(|| value.downcast_ref::<CelBytes>().map(|bytes| bytes.inner().len())).map(count)
}

/// The value of what is [`plain`], without the copies that the interpreter makes of each field's value.
fn look<'a>(expression: &'a IdedExpr, context: &'a Context<'a>) -> Result<Cow<'a, dyn Val>, ExecutionError> {
    match &expression.expr {
        Expr::Ident(name) => context
            .get_variable(name)
            .ok_or_else(|| ExecutionError::UndeclaredReference(Arc::new(name.clone()))),
        Expr::Select(select) if !select.test => match look(&select.operand, context)? {
            Cow::Borrowed(operand) if operand.downcast_ref::<CelMap>().is_some() => {
                let key: CelString = select.field.as_str().into();
                operand.as_indexer().ok_or(ExecutionError::NoSuchOverload)?.get(&key)
            }
            _ => Value::resolve_val(expression, context),
        },
        _ => Value::resolve_val(expression, context),
    }
}

/// What going through all of a value costs (`traversalCost`).
fn traversal(value: &Value) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as upstream"
    )]
    let bytes = |length: usize| (length as f64 * CHARACTER) as u64;
    match value {
        Value::String(text) => bytes(text.len()),
        Value::Bytes(all) => bytes(all.len()),
        Value::List(items) => items.iter().map(traversal).sum(),
        Value::Map(map) => {
            map.map.iter().map(|(key, value)| traversal(&key_value(key)) + traversal(value)).sum()
        }
        _ => 1,
    }
}

/// All characters and items in a value.
fn heaviness(value: &Value) -> u64 {
    match value {
        Value::String(text) => 1 + count(text.len()),
        Value::Bytes(bytes) => 1 + count(bytes.len()),
        Value::List(items) => items.iter().map(heaviness).fold(1, u64::saturating_add),
        Value::Map(map) => {
            let entries = map.map.iter().map(|(key, value)| heaviness(&key_value(key)) + heaviness(value));
            entries.fold(1, u64::saturating_add)
        }
        _ => 1,
    }
}
