//! How many steps the interpreter takes at most for an expression, reckoned before it runs, since nothing can stop one that runs.
//!
//! It copies what functions are given: a call takes as many steps as its arguments are large. What may take many is counted while it
//! runs ([`super::metered`]).

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use serde_json::Value;

use super::{
    MAX_RANGE,
    metered::SMALL,
    rates::{CHARACTER, PATTERN},
    value::escape,
};

/// The most that any value in between may weigh, so that it fits into memory.
const HEAVIEST: f64 = 8e6;

/// What is known of a value before the rule runs.
#[derive(Clone, Debug)]
pub(super) enum Known<'v> {
    /// It is one of these parts of the object.
    OneOf(Vec<&'v Value>),
    /// It is not larger than this.
    AtMost(Size),
}

/// All that is in a value: numbers, lists, maps, strings; and the bytes of its strings and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Size {
    nodes: f64,
    bytes: f64,
}

impl Size {
    const SMALL: Self = Self { nodes: 1.0, bytes: 0.0 };

    fn of(value: &Value) -> Self {
        let mut size = Self::SMALL;
        match value {
            Value::String(text) => size.bytes = length(text.len()),
            Value::Array(items) => items.iter().for_each(|item| size = size.and(Self::of(item))),
            Value::Object(fields) => {
                for (name, value) in fields {
                    size = size.and(Self::of(value));
                    size.bytes += length(name.len());
                }
            }
            _ => {}
        }
        size
    }

    fn and(self, other: Self) -> Self {
        Self { nodes: self.nodes + other.nodes, bytes: self.bytes + other.bytes }
    }

    fn or(self, other: Self) -> Self {
        Self { nodes: self.nodes.max(other.nodes), bytes: self.bytes.max(other.bytes) }
    }

    fn times(self, count: f64) -> Self {
        Self { nodes: self.nodes * count, bytes: self.bytes * count }
    }

    fn weight(self) -> f64 {
        self.nodes + self.bytes * CHARACTER
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn length(count: usize) -> f64 {
    count as f64
}

impl Known<'_> {
    const SMALL: Self = Self::AtMost(Size::SMALL);
    /// Nothing is known.
    pub(super) const UNBOUNDED: Self = Self::AtMost(Size { nodes: f64::INFINITY, bytes: f64::INFINITY });

    fn size(&self) -> Size {
        match self {
            Self::OneOf(parts) => parts.iter().fold(Size::SMALL, |size, part| size.or(Size::of(part))),
            Self::AtMost(size) => *size,
        }
    }

    /// How many items or keys a loop over it meets.
    fn count(&self) -> f64 {
        match self {
            Self::OneOf(parts) => parts.iter().fold(0.0, |most: f64, part| {
                most.max(match part {
                    Value::Array(items) => length(items.len()),
                    Value::Object(fields) => length(fields.len()),
                    _ => 0.0,
                })
            }),
            Self::AtMost(size) => size.nodes,
        }
    }

    /// Any item of a list, any value of a map.
    fn element(&self) -> Self {
        let Self::OneOf(parts) = self else { return self.clone() };
        let elements = parts.iter().flat_map(|part| match part {
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            _ => Vec::new(),
        });
        Self::OneOf(elements.collect())
    }

    /// What a loop of one variable gives: the items of a list, the keys of a map.
    fn iterated(&self) -> Self {
        match self {
            Self::OneOf(parts) if parts.iter().any(|part| part.is_object()) => {
                let keys = parts.iter().filter_map(|part| part.as_object()).flat_map(|fields| fields.keys());
                let longest = keys.map(String::len).max().unwrap_or_default();
                Self::AtMost(self.element().size().or(Size { nodes: 1.0, bytes: length(longest) }))
            }
            _ => self.element(),
        }
    }

    fn field(&self, name: &str) -> Self {
        let Self::OneOf(parts) = self else { return self.clone() };
        let fields = parts.iter().filter_map(|part| part.as_object()).filter_map(|fields| {
            let escaped = || fields.iter().find(|(key, _)| escape(key) == name).map(|(_, value)| value);
            fields.get(name).or_else(escaped)
        });
        Self::OneOf(fields.collect())
    }
}

pub(super) type Scope<'v> = BTreeMap<String, Known<'v>>;

/// How many steps `expression` takes at most where `self` and `oldSelf` are these.
pub(super) fn reckon(expression: &IdedExpr, new: &Value, old: Option<&Value>) -> f64 {
    let mut scope = Scope::new();
    scope.insert("self".into(), Known::OneOf(vec![new]));
    scope.insert("oldSelf".into(), Known::OneOf(old.into_iter().collect()));
    reckon_in(expression, &scope).0
}

/// How many steps `expression` takes at most where names stand for what `scope` says, and what is known of its value.
pub(super) fn reckon_in<'v>(expression: &IdedExpr, scope: &Scope<'v>) -> (f64, Known<'v>) {
    let mut reckoning = Reckoning { times: 1.0, cost: 0.0 };
    let known = reckoning.visit(expression, scope);
    // No number: nothing times something without a bound.
    (if reckoning.cost.is_nan() { f64::INFINITY } else { reckoning.cost }, known)
}

struct Reckoning {
    /// How often the place that is being visited is run.
    times: f64,
    cost: f64,
}

impl Reckoning {
    fn charge(&mut self, cost: f64) {
        self.cost += self.times * cost;
    }

    fn visit<'v>(&mut self, expression: &IdedExpr, scope: &Scope<'v>) -> Known<'v> {
        self.charge(1.0);
        if self.cost > SMALL {
            return Known::SMALL;
        }
        let known = match &expression.expr {
            Expr::Ident(name) => return scope.get(name).cloned().unwrap_or(Known::SMALL),
            Expr::Select(select) => {
                let operand = self.visit(&select.operand, scope);
                return if select.test { Known::SMALL } else { operand.field(&select.field) };
            }
            Expr::Literal(LiteralValue::String(text)) => {
                Known::AtMost(Size { nodes: 1.0, bytes: length(text.inner().len()) })
            }
            Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => Known::SMALL,
            Expr::Call(call) => self.call(call, scope),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, scope),
            Expr::List(list) => self.all(list.elements.iter(), scope),
            Expr::Map(map) => self.all(
                map.entries.iter().flat_map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
                    EntryExpr::StructField(field) => vec![&field.value],
                }),
                scope,
            ),
        };
        if let Known::AtMost(size) = &known
            && size.weight() > HEAVIEST
        {
            self.cost = f64::INFINITY;
        }
        known
    }

    /// A list or map of these.
    fn all<'e, 'v>(&mut self, parts: impl Iterator<Item = &'e IdedExpr>, scope: &Scope<'v>) -> Known<'v> {
        let size = parts.fold(Size::SMALL, |size, part| size.and(self.visit(part, scope).size()));
        self.charge(size.weight());
        Known::AtMost(size)
    }

    fn call<'v>(&mut self, call: &CallExpr, scope: &Scope<'v>) -> Known<'v> {
        let (name, target) = super::parse::called(call);
        let operands: Vec<_> =
            target.into_iter().chain(&call.args).map(|one| self.visit(one, scope)).collect();
        match (name.as_ref(), operands.as_slice()) {
            ("_[_]" | "_[?_]", [operand, _]) => return operand.element(),
            ("value", [operand]) => return operand.clone(),
            ("_&&_" | "_||_" | "!_" | "-_", _) => return Known::SMALL,
            ("_?_:_", [_, one, other]) => return Known::AtMost(one.size().or(other.size())),
            _ => {}
        }
        let sizes: Vec<Size> = operands.iter().map(Known::size).collect();
        let sum = sizes.iter().fold(Size::default(), |sum, size| sum.and(*size));
        // Most functions look at, or copy, all that they are given.
        let (cost, result) = match (name.as_ref(), sizes.as_slice()) {
            ("_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_", [one, other]) => {
                (one.weight().min(other.weight()), Size::SMALL)
            }
            ("matches", [text, pattern]) => (searching(*text, *pattern), Size::SMALL),
            ("find", [text, pattern, ..]) => (searching(*text, *pattern), *text),
            ("findAll", [text, pattern, ..]) => (searching(*text, *pattern) + text.bytes, pieces(*text)),
            ("split", [text, ..]) => (sum.weight() + text.bytes, pieces(*text)),
            ("replace", [text, _, by, ..]) => {
                let bytes = (text.bytes + 1.0) * by.bytes.max(1.0) + text.bytes;
                (sum.weight() + bytes * CHARACTER, Size { nodes: 1.0, bytes })
            }
            ("join", [list, rest @ ..]) => {
                let separator = rest.first().map_or(0.0, |separator| separator.bytes);
                let bytes = list.bytes + list.nodes * separator;
                (sum.weight() + bytes * CHARACTER, Size { nodes: 1.0, bytes })
            }
            ("strings.quote" | "base64.encode" | "jsonpatch.escapeKey", _) => (sum.weight(), sum.times(2.0)),
            // A number may be as long as this in a text.
            ("format", _) => (sum.weight(), Size { nodes: 1.0, bytes: sum.bytes + 400.0 * sum.nodes }),
            ("distinct", _) => (sum.nodes * sum.weight(), sum),
            ("sets.contains" | "sets.equivalent" | "sets.intersects", [one, other]) => {
                (one.nodes * other.weight() + other.nodes * one.weight(), Size::SMALL)
            }
            // `authorizer.….check(verb)`; no other function is called so. It is counted whenever it runs.
            ("check", [_, _]) => (f64::INFINITY, Size::SMALL),
            ("lists.range", _) => (length(MAX_RANGE), Size { nodes: length(MAX_RANGE), bytes: 0.0 }),
            (
                "@in" | "size" | "contains" | "startsWith" | "endsWith" | "int" | "uint" | "double" | "type"
                | "indexOf" | "lastIndexOf" | "isSorted" | "sum" | "hasValue",
                _,
            ) => (sum.weight(), Size::SMALL),
            _ => (sum.weight(), sum),
        };
        self.charge(cost);
        Known::AtMost(result)
    }

    fn comprehension<'v>(&mut self, loops: &ComprehensionExpr, scope: &Scope<'v>) -> Known<'v> {
        let range = self.visit(&loops.iter_range, scope);
        let begin = self.visit(&loops.accu_init, scope).size();
        let count = range.count();
        self.charge(range.size().weight());
        let mut inner = scope.clone();
        inner.insert(loops.accu_var.clone(), Known::AtMost(Size::default()));
        if let Some(second) = &loops.iter_var2 {
            inner.insert(loops.iter_var.clone(), range.iterated());
            inner.insert(second.clone(), range.element());
        } else {
            inner.insert(loops.iter_var.clone(), range.iterated());
        }
        let around = self.times;
        self.times *= count;
        self.visit(&loops.loop_cond, &inner);
        let step = self.visit(&loops.loop_step, &inner).size();
        self.times = around;
        // `map` and `filter` gather a list, which is copied in each turn; `all` and `exists` keep a yes or no.
        let gathers = matches!(loops.accu_init.expr, Expr::List(_) | Expr::Map(_));
        let end = if gathers { begin.and(step.times(count)) } else { Size::SMALL };
        self.charge(if gathers { count * end.weight() } else { 0.0 });
        inner.insert(loops.accu_var.clone(), Known::AtMost(end));
        self.visit(&loops.result, &inner);
        Known::AtMost(end)
    }
}

fn searching(text: Size, pattern: Size) -> f64 {
    (text.bytes + 1.0) * CHARACTER * (pattern.bytes * PATTERN + 1.0) + text.weight()
}

/// A text in pieces, in the worst case of one character each.
fn pieces(text: Size) -> Size {
    Size { nodes: text.bytes + 1.0, bytes: text.bytes }
}
