//! What a rule costs at most for any object that its schema allows, in the units of cel-go (`checker.Cost`, and
//! `k8s.io/apiserver/pkg/cel/library` for Kubernetes' own functions): definitions whose rules may cost too much are refused.
//!
//! Only the upper bound is reckoned. [`super::cost`] is another thing: the time of this interpreter for one object.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};

use super::{
    any_order::EQUAL,
    parse::called,
    rates::{CHARACTER, NAMED_FORMAT, PATTERN, searching, times},
    value::escape,
};
use crate::schema::{Additional, Schema, Type};

/// The largest request (upstream: `DefaultMaxRequestSizeBytes`), which bounds what has no limit of its own.
const REQUEST: u64 = 3 << 20;

/// The most that a rule about a value of `schema` costs, once.
pub(super) fn estimate(expression: &IdedExpr, schema: &Schema) -> u64 {
    visit(expression, &scope_of(schema)).0
}

/// The names of a rule about a value of `schema`.
pub(super) fn scope_of(schema: &Schema) -> Scope {
    ["self", "oldSelf"].into_iter().map(|name| (name.to_owned(), Known::of(schema))).collect()
}

/// How many values of `schema` one request may have, where nothing else bounds that.
pub(super) fn most_in_a_request(schema: &Schema) -> u64 {
    REQUEST / (smallest(schema) + 1)
}

/// How many values an object or a list of `schema` has below it; `None`: without a bound.
pub(super) fn most_below(schema: &Schema) -> Option<u64> {
    let checks = &schema.node.checks;
    match schema.node.kind {
        Some(Type::Array) => checks.max_items,
        Some(Type::Object) if matches!(schema.node.additional, Additional::Schema(_)) => {
            checks.max_properties
        }
        Some(Type::Object) => Some(1),
        _ => Some(0),
    }
}

/// How many bytes of JSON a value has at least.
fn smallest(schema: &Schema) -> u64 {
    let node = &schema.node;
    match (node.kind, node.format.as_deref()) {
        (Some(Type::Boolean), _) | (Some(Type::String), Some("duration")) => 4,
        (Some(Type::Integer | Type::Number) | None, _) => 1,
        (Some(Type::String), Some("date")) => 12,
        (Some(Type::String), Some("date-time")) => 21,
        (Some(Type::String | Type::Array), _) => 2,
        (Some(Type::Object), _) if matches!(node.additional, Additional::Schema(_)) => 2,
        (Some(Type::Object), _) => {
            let required = |name: &str| node.checks.required.iter().any(|required| required == name);
            let fields = node
                .properties
                .iter()
                .filter(|(name, child)| required(name) && child.schema().node.default.is_none());
            2 + fields.map(|(name, child)| name.len() as u64 + smallest(child.schema()) + 4).sum::<u64>()
        }
    }
}

/// How large a value is at most: characters of a text, items of a list, entries of a map. Scalars have no size.
fn largest(schema: &Schema) -> u64 {
    let node = &schema.node;
    let text = || match (node.checks.max_length, node.format.as_deref()) {
        (_, Some("date")) => 12,
        (_, Some("date-time")) => 27,
        (_, Some("duration")) => 32,
        (Some(length), Some("byte")) => length,
        // A code point has up to four bytes.
        (Some(length), _) => length.saturating_mul(4),
        (None, _) if !node.checks.allowed.is_empty() => {
            let lengths = node.checks.allowed.iter().filter_map(|value| value.as_str()).map(str::len);
            lengths.max().unwrap_or_default() as u64
        }
        (None, _) => REQUEST - 2,
    };
    match node.kind {
        _ if node.int_or_string => text(),
        Some(Type::String) => text(),
        Some(Type::Array) => {
            let unbounded = || (REQUEST - 2) / (smallest(schema.item()) + 1);
            node.checks.max_items.unwrap_or_else(unbounded)
        }
        Some(Type::Object) => match &node.additional {
            Additional::Schema(child) => {
                let unbounded = || (REQUEST - 2) / (smallest(child.schema()) + 6);
                node.checks.max_properties.unwrap_or_else(unbounded)
            }
            _ => 0,
        },
        _ => 0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A number, a truth value, a time.
    Scalar,
    Text,
    List,
    Map,
    /// An object with declared fields.
    Struct,
    Unknown,
}

/// What is known of a value.
#[derive(Clone, Debug)]
pub(super) struct Known {
    kind: Kind,
    /// `None`: nothing bounds it.
    size: Option<u64>,
    /// Its schema, when it is a part of the object.
    schema: Option<Schema>,
    /// What its items or entries are, when it is none.
    element: Option<Box<Known>>,
}

impl Known {
    const SCALAR: Self = Self { kind: Kind::Scalar, size: Some(1), schema: None, element: None };
    const UNKNOWN: Self = Self { kind: Kind::Unknown, size: None, schema: None, element: None };

    fn text(size: u64) -> Self {
        Self { kind: Kind::Text, size: Some(size), schema: None, element: None }
    }

    fn of(schema: &Schema) -> Self {
        let node = &schema.node;
        let kind = match node.kind {
            _ if node.int_or_string => Kind::Unknown,
            Some(Type::String)
                if matches!(node.format.as_deref(), Some("date" | "date-time" | "duration")) =>
            {
                Kind::Scalar
            }
            Some(Type::String) => Kind::Text,
            Some(Type::Array) => Kind::List,
            Some(Type::Object) if matches!(node.additional, Additional::Schema(_)) => Kind::Map,
            Some(Type::Object) => Kind::Struct,
            Some(_) => Kind::Scalar,
            None => Kind::Unknown,
        };
        Self { kind, size: Some(largest(schema)), schema: Some(schema.clone()), element: None }
    }

    /// The schema of a part of the object.
    pub(super) fn schema(&self) -> Option<&Schema> {
        self.schema.as_ref()
    }

    fn bound(&self) -> u64 {
        self.size.unwrap_or(u64::MAX)
    }

    /// An item of a list, a value of a map.
    fn element(&self) -> Self {
        if let Some(element) = &self.element {
            return (**element).clone();
        }
        match &self.schema {
            Some(schema) if self.kind == Kind::List => Self::of(schema.item()),
            Some(schema) => schema.element().map_or(Self::UNKNOWN, Self::of),
            None => Self::UNKNOWN,
        }
    }

    /// What a loop of one variable gives.
    fn iterated(&self) -> Self {
        match self.kind {
            Kind::Map if self.schema.is_some() => Self::text(0),
            Kind::Map => Self { kind: Kind::Text, ..Self::UNKNOWN },
            _ => self.element(),
        }
    }

    fn field(&self, name: &str) -> Self {
        let Some(schema) = &self.schema else { return Self::UNKNOWN };
        let escaped = || {
            schema
                .node
                .properties
                .iter()
                .find(|(key, _)| escape(key) == name)
                .map(|(_, child)| child.schema())
        };
        match schema.named(name).or_else(escaped) {
            Some(below) => Self::of(below),
            None if self.kind == Kind::Map => self.element(),
            None => Self::UNKNOWN,
        }
    }

    /// One of both.
    fn or(&self, other: &Self) -> Self {
        let size = self.size.zip(other.size).map(|(one, other)| one.max(other));
        let element = match (&self.element, &other.element) {
            (Some(one), Some(other)) => Some(Box::new(one.or(other))),
            _ => None,
        };
        Self {
            kind: if self.kind == other.kind { self.kind } else { Kind::Unknown },
            size,
            schema: None,
            element,
        }
    }
}

pub(super) type Scope = BTreeMap<String, Known>;

fn add(costs: impl IntoIterator<Item = u64>) -> u64 {
    costs.into_iter().fold(0, u64::saturating_add)
}

/// The cost of an expression, and what is known of its value.
pub(super) fn visit(expression: &IdedExpr, scope: &Scope) -> (u64, Known) {
    match &expression.expr {
        Expr::Ident(name) => {
            // Upstream takes the name of a type for the value that the rule is about.
            let other = || Known { size: scope.get("self").and_then(|root| root.size), ..Known::UNKNOWN };
            (1, scope.get(name).cloned().unwrap_or_else(other))
        }
        Expr::Select(select) => {
            let (cost, operand) = visit(&select.operand, scope);
            if select.test {
                // `has` costs nothing here: Kubernetes leaves it out (`PresenceTestHasCost(false)`).
                return (cost, Known::SCALAR);
            }
            let own = u64::from(matches!(operand.kind, Kind::Map | Kind::Struct));
            (cost.saturating_add(own), operand.field(&select.field))
        }
        Expr::Literal(LiteralValue::String(text)) => (0, Known::text(text.inner().chars().count() as u64)),
        Expr::Literal(LiteralValue::Bytes(bytes)) => (0, Known::text(bytes.inner().len() as u64)),
        Expr::Literal(_) => (0, Known::SCALAR),
        Expr::List(list) => {
            let items: Vec<_> = list.elements.iter().map(|item| visit(item, scope)).collect();
            let element = items.iter().map(|(_, known)| known.clone()).reduce(|one, other| one.or(&other));
            let known = Known {
                kind: Kind::List,
                size: Some(items.len() as u64),
                schema: None,
                element: Some(Box::new(element.unwrap_or_else(|| Known { size: Some(0), ..Known::UNKNOWN }))),
            };
            (add(items.iter().map(|(cost, _)| *cost).chain([10])), known)
        }
        Expr::Map(map) => {
            let mut cost: u64 = 30;
            let mut element: Option<Known> = None;
            for entry in &map.entries {
                let parts = match &entry.expr {
                    EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
                    EntryExpr::StructField(field) => vec![&field.value],
                };
                for (index, part) in parts.iter().enumerate() {
                    let (own, known) = visit(part, scope);
                    cost = cost.saturating_add(own);
                    if index + 1 == parts.len() {
                        element = Some(element.map_or_else(|| known.clone(), |one| one.or(&known)));
                    }
                }
            }
            let size = Some(map.entries.len() as u64);
            (cost, Known { kind: Kind::Map, size, schema: None, element: element.map(Box::new) })
        }
        Expr::Struct(_) | Expr::Unspecified => (40, Known::UNKNOWN),
        Expr::Call(call) => visit_call(call, scope),
        Expr::Comprehension(loops) => visit_loop(loops, scope),
    }
}

fn visit_call(call: &CallExpr, scope: &Scope) -> (u64, Known) {
    if let ("lists.range", [IdedExpr { expr: Expr::Literal(LiteralValue::Int(count)), .. }]) =
        (called(call).0.as_ref(), call.args.as_slice())
    {
        let size = u64::try_from(*count.inner()).unwrap_or_default();
        let element = Some(Box::new(Known::SCALAR));
        return (
            size.saturating_add(11),
            Known { kind: Kind::List, size: Some(size), schema: None, element },
        );
    }
    let target = call.target.as_deref().map(|target| visit(target, scope));
    let arguments: Vec<_> = call.args.iter().map(|argument| visit(argument, scope)).collect();
    let around = add(target.iter().chain(&arguments).map(|(cost, _)| *cost));
    let target = target.map(|(_, known)| known);
    let known: Vec<&Known> = arguments.iter().map(|(_, known)| known).collect();
    let name = call.func_name.as_str();
    if let ("_?_:_", [(condition, _), (yes, one), (no, other)]) = (name, arguments.as_slice()) {
        return (condition.saturating_add(*yes.max(no)), one.or(other));
    }
    let (own, value) = own_cost(name, target.as_ref(), &known);
    (around.saturating_add(own), value)
}

/// What a function costs beside its operands, and what it gives.
fn own_cost(name: &str, target: Option<&Known>, arguments: &[&Known]) -> (u64, Known) {
    let yes_or_no = |cost: u64| (cost, Known::SCALAR);
    match (name, target, arguments) {
        ("_&&_" | "_||_", ..) => yes_or_no(0),
        ("_+_", _, [one, other]) if one.kind == Kind::List => {
            let size = Some(one.bound().saturating_add(other.bound()));
            let element = one.element().or(&other.element());
            (1, Known { kind: Kind::List, size, schema: None, element: Some(Box::new(element)) })
        }
        ("_+_", _, [one, other]) if matches!(one.kind, Kind::Text | Kind::Unknown) => {
            let size = one.bound().saturating_add(other.bound());
            (times(size, CHARACTER), Known { kind: one.kind, size: Some(size), schema: None, element: None })
        }
        ("_==_" | "_!=_" | EQUAL, _, [one, other]) => {
            yes_or_no(times(one.bound().min(other.bound()), CHARACTER))
        }
        ("_<_" | "_<=_" | "_>_" | "_>=_", _, [one, other]) if one.kind != Kind::Scalar => {
            yes_or_no(times(one.bound().min(other.bound()), CHARACTER))
        }
        ("@in" | "_in_", _, [_, list]) if list.kind != Kind::Map && list.kind != Kind::Struct => {
            yes_or_no(list.bound())
        }
        ("_[_]", _, [operand, ..]) => (1, operand.element()),
        ("matches", Some(text), [pattern]) => yes_or_no(searching(text.bound(), pattern.bound())),
        ("matches", None, [text, pattern]) => yes_or_no(searching(text.bound(), pattern.bound())),
        ("find" | "findAll", Some(text), [pattern, ..]) => {
            let found = Known { kind: Kind::Text, size: text.size, schema: None, element: None };
            (searching(text.bound(), pattern.bound()), found)
        }
        ("contains", Some(text), [part]) => {
            yes_or_no(times(text.bound(), CHARACTER).saturating_mul(times(part.bound(), CHARACTER)))
        }
        ("startsWith" | "endsWith", Some(_), [part]) => yes_or_no(times(part.bound(), CHARACTER)),
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => (
            times(text.bound(), CHARACTER),
            Known { kind: Kind::Text, size: text.size, schema: None, element: None },
        ),
        ("replace", Some(text), [_, by, ..]) => {
            // In the worst case, it goes around every character.
            let most = text.bound().saturating_add(1).saturating_mul(by.bound()).saturating_add(text.bound());
            (times(text.bound(), 2.0 * CHARACTER), Known::text(most))
        }
        ("split", Some(text), _) => {
            let piece = Known { kind: Kind::Text, size: text.size, schema: None, element: None };
            let list =
                Known { kind: Kind::List, size: text.size, schema: None, element: Some(Box::new(piece)) };
            (times(text.bound(), 2.0 * CHARACTER), list)
        }
        ("join", Some(list), _) => {
            let separators =
                arguments.first().map_or(0, |one| one.bound().saturating_mul(list.bound().saturating_sub(1)));
            let size = list.bound().saturating_mul(list.element().bound()).saturating_add(separators);
            (times(size, CHARACTER), Known::text(size))
        }
        ("isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" | "includes", Some(list), _) => {
            if list.kind == Kind::Text {
                return yes_or_no(times(list.bound(), CHARACTER));
            }
            let element = list.element();
            let each = if element.kind == Kind::Text { 1 + times(element.bound(), CHARACTER) } else { 1 };
            (list.bound().saturating_mul(each), element)
        }
        ("format", Some(text), _) => {
            (times(text.bound(), CHARACTER), Known { kind: Kind::Text, ..Known::UNKNOWN })
        }
        ("validate", _, [text, ..]) => {
            let pattern = times(NAMED_FORMAT, PATTERN);
            yes_or_no(times(text.bound(), CHARACTER).saturating_mul(pattern))
        }
        ("ip.isCanonical", _, [text, ..]) => yes_or_no(times(text.bound(), 2.0 * CHARACTER)),
        ("containsIP" | "containsCIDR", ..) => yes_or_no(7),
        ("string" | "bytes" | "strings.quote" | "jsonpatch.escapeKey", _, [text])
            if text.kind == Kind::Text =>
        {
            (
                times(text.bound(), CHARACTER),
                Known { kind: Kind::Text, size: text.size, schema: None, element: None },
            )
        }
        (
            "url" | "cidr" | "ip" | "isIP" | "isCIDR" | "isURL" | "quantity" | "isQuantity" | "semver"
            | "isSemver",
            _,
            [text, ..],
        ) => (times(text.bound(), CHARACTER), Known::SCALAR),
        (
            // `add`, `sub`: of quantities, of which comes another one; comparing it costs 1.
            "add" | "sub" | "masked" | "ip" | "size" | "!_" | "-_" | "int" | "double" | "uint" | "duration"
            | "timestamp" | "hasValue" | "_-_" | "_*_" | "_/_" | "_%_",
            ..,
        ) => (1, Known::SCALAR),
        ("string", ..) => (1, Known::text(0)),
        ("dyn", _, [value]) => (1, (*value).clone()),
        ("value" | "orValue", Some(optional), _) => (1, optional.clone()),
        _ => (1, Known::UNKNOWN),
    }
}

fn visit_loop(loops: &ComprehensionExpr, scope: &Scope) -> (u64, Known) {
    let (range_cost, range) = visit(&loops.iter_range, scope);
    let (begin_cost, begin) = visit(&loops.accu_init, scope);
    let inner = names_within(loops, scope, &range, begin.clone());
    let (condition, _) = visit(&loops.loop_cond, &inner);
    let (step, stepped) = visit(&loops.loop_step, &inner);
    let (result, _) = visit(&loops.result, &inner);
    let each = range.bound().saturating_mul(condition.saturating_add(step));
    let gathers = matches!(loops.accu_init.expr, Expr::List(_) | Expr::Map(_));
    let known = if gathers {
        Known { kind: begin.kind, size: range.size, schema: None, element: stepped.element }
    } else {
        begin
    };
    (add([range_cost, begin_cost, result, each]), known)
}

/// The names within a loop.
pub(super) fn loop_scope(loops: &ComprehensionExpr, scope: &Scope) -> Scope {
    let (_, range) = visit(&loops.iter_range, scope);
    let (_, begin) = visit(&loops.accu_init, scope);
    names_within(loops, scope, &range, begin)
}

fn names_within(loops: &ComprehensionExpr, scope: &Scope, range: &Known, begin: Known) -> Scope {
    let mut inner = scope.clone();
    inner.insert(loops.accu_var.clone(), begin);
    match &loops.iter_var2 {
        Some(second) => {
            inner.insert(
                loops.iter_var.clone(),
                if range.kind == Kind::List { Known::SCALAR } else { range.iterated() },
            );
            inner.insert(second.clone(), range.element());
        }
        None => drop(inner.insert(loops.iter_var.clone(), range.iterated())),
    }
    inner
}
