//! What an expression costs where only the sides of `||`, `&&` and `?:` that its values lead to count, as cel-go counts while it
//! runs (`interpreter.CostTracker`).
//!
//! Nothing can stop an expression that runs, so each part between those operators is reckoned before it runs; a condition is run to
//! know which side comes next. Operators inside loops and arguments are reckoned with all their sides.

use kube_cel::cel;
use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr};

use super::super::cost;
use super::{Expression, variables::Lazy};

/// What `expression` costs in this scope; more than [`cost::LIMIT`] means that it must not run.
pub(super) fn reckon(expression: &Expression, known: &cost::Scope<'_>, lazy: &Lazy<'_>) -> f64 {
    let mut walk = Walk { known, lazy, cost: 0.0 };
    walk.visit(&expression.parsed, &expression.runs, false);
    walk.cost
}

struct Walk<'a> {
    known: &'a cost::Scope<'a>,
    lazy: &'a Lazy<'a>,
    cost: f64,
}

impl Walk<'_> {
    /// Adds what an expression costs, of which `runs` is the form that is run. Gives its value where `is_needed`, unless it is no yes
    /// or no or costs too much.
    fn visit(&mut self, parsed: &IdedExpr, runs: &IdedExpr, is_needed: bool) -> Option<bool> {
        let (Expr::Call(reckoned), Expr::Call(run)) = (&parsed.expr, &runs.expr) else {
            return self.leaf(parsed, runs, is_needed);
        };
        match (reckoned.func_name.as_str(), pairs(reckoned, run).as_slice()) {
            ("_||_", [one, other]) => self.either(true, *one, *other, is_needed),
            ("_&&_", [one, other]) => self.either(false, *one, *other, is_needed),
            ("!_", [operand]) => self.step(*operand, is_needed).map(|value| !value),
            ("_?_:_", [condition, yes, no]) => match self.step(*condition, true) {
                Some(true) => self.step(*yes, is_needed),
                Some(false) => self.step(*no, is_needed),
                // It fails.
                None => None,
            },
            _ => self.leaf(parsed, runs, is_needed),
        }
    }

    /// `one || other` (`decides`: true) or `one && other` (false). The other side can still decide where one fails.
    fn either(&mut self, decides: bool, one: Pair<'_>, other: Pair<'_>, is_needed: bool) -> Option<bool> {
        let one = self.step(one, true);
        if one == Some(decides) {
            return one;
        }
        let other = self.step(other, is_needed);
        if other == Some(decides) { other } else { one.and(other) }
    }

    fn step(&mut self, (parsed, runs): Pair<'_>, is_needed: bool) -> Option<bool> {
        self.cost += 1.0;
        if self.cost > cost::LIMIT { None } else { self.visit(parsed, runs, is_needed) }
    }

    fn leaf(&mut self, parsed: &IdedExpr, runs: &IdedExpr, is_needed: bool) -> Option<bool> {
        self.cost += cost::reckon_in(parsed, self.known).0;
        if !is_needed || self.cost > cost::LIMIT {
            return None;
        }
        match self.lazy.run(runs) {
            Ok(cel::Value::Bool(value)) => Some(value),
            _ => None,
        }
    }
}

/// An expression as it is reckoned and as it is run.
type Pair<'e> = (&'e IdedExpr, &'e IdedExpr);

/// The operands of an operator in both forms.
fn pairs<'e>(reckoned: &'e CallExpr, run: &'e CallExpr) -> Vec<Pair<'e>> {
    reckoned.args.iter().zip(&run.args).collect()
}
