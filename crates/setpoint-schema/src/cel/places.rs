//! Where the parts of an expression stand in its text, which the parser does not say: parts and tokens come in the same order.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};

/// The character at which cel-go says that a part stands, by the part's id: an operator, a dot, a parenthesis of a call, a name.
pub(super) fn places(text: &str, expression: &IdedExpr) -> BTreeMap<u64, usize> {
    let mut walk = Walk { tokens: tokens(text), next: 0, found: BTreeMap::new() };
    walk.visit(expression);
    walk.found
}

struct Token {
    text: String,
    at: usize,
}

struct Walk {
    tokens: Vec<Token>,
    next: usize,
    found: BTreeMap<u64, usize>,
}

impl Walk {
    /// Goes behind the next token that is one of these; says where it is.
    fn find(&mut self, wanted: impl Fn(&str) -> bool) -> Option<usize> {
        let index = self.next + self.tokens.get(self.next..)?.iter().position(|token| wanted(&token.text))?;
        self.next = index + 1;
        Some(self.tokens[index].at)
    }

    fn put(&mut self, id: u64, at: Option<usize>) {
        if let Some(at) = at {
            self.found.insert(id, at);
        }
    }

    fn visit(&mut self, expression: &IdedExpr) {
        match &expression.expr {
            Expr::Ident(name) => {
                let at = self.find(|token| token == name);
                self.put(expression.id, at);
            }
            Expr::Literal(literal) => {
                let at = match literal {
                    LiteralValue::Boolean(_) => self.find(|token| matches!(token, "true" | "false")),
                    LiteralValue::Null => self.find(|token| token == "null"),
                    LiteralValue::String(_) | LiteralValue::Bytes(_) => {
                        self.find(|token| token.ends_with(['\'', '"']))
                    }
                    _ => self.find(|token| token.starts_with(|c: char| c.is_ascii_digit() || c == '.')),
                };
                self.put(expression.id, at);
            }
            Expr::Select(select) => {
                let test = if select.test { self.find(|token| token == "has") } else { None };
                self.visit(&select.operand);
                let at = self.find(|token| token == ".");
                self.find(|_| true);
                // `has` is found where its parenthesis is.
                self.put(expression.id, if select.test { test.map(|at| at + 3) } else { at });
            }
            Expr::Call(call) => self.call(expression.id, call),
            Expr::Comprehension(loops) => {
                self.visit(&loops.iter_range);
                let at = self.find(|token| token == "(");
                self.put(expression.id, at);
                self.put(loops.loop_step.id, at);
                self.find(|token| token == loops.iter_var);
                for part in written(loops) {
                    self.visit(part);
                }
            }
            Expr::List(list) => {
                let at = self.find(|token| token == "[");
                self.put(expression.id, at);
                for element in &list.elements {
                    self.visit(element);
                }
            }
            Expr::Map(map) => {
                let at = self.find(|token| token == "{");
                self.put(expression.id, at);
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key);
                        self.visit(&entry.value);
                    }
                }
            }
            Expr::Struct(_) | Expr::Unspecified => {}
        }
    }

    fn call(&mut self, id: u64, call: &CallExpr) {
        let infix = call.func_name.strip_prefix('_').and_then(|name| name.strip_suffix('_'));
        match (call.func_name.as_str(), infix, call.args.as_slice()) {
            ("_?_:_", _, [condition, yes, no]) => {
                self.visit(condition);
                let at = self.find(|token| token == "?");
                self.put(id, at);
                self.visit(yes);
                self.find(|token| token == ":");
                self.visit(no);
            }
            ("_[_]" | operators::OPT_INDEX, _, [operand, index]) => {
                self.visit(operand);
                let at = self.find(|token| matches!(token, "[" | "[?" | ".?"));
                self.put(id, at);
                if self.next > 0 && self.tokens[self.next - 1].text == ".?" {
                    self.find(|_| true);
                } else {
                    self.visit(index);
                }
            }
            ("!_" | "-_", _, [operand]) => {
                let sign = &call.func_name[..1];
                let at = self.find(|token| token == sign);
                self.put(id, at);
                self.visit(operand);
            }
            (name, infix, [one, other]) if infix.is_some() || name == operators::IN => {
                self.visit(one);
                let sign = infix.unwrap_or("in");
                let at = self.find(|token| token == sign);
                self.put(id, at);
                self.visit(other);
            }
            (name, _, arguments) => {
                if let Some(target) = &call.target {
                    self.visit(target);
                }
                self.find(|token| token == name);
                let at = self.find(|token| token == "(");
                self.put(id, at);
                for argument in arguments {
                    self.visit(argument);
                }
            }
        }
    }
}

/// What somebody wrote into a loop's macro; the rest the macro made.
pub(super) fn written(loops: &ComprehensionExpr) -> Vec<&IdedExpr> {
    let accumulated = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if *name == loops.accu_var);
    let added = |part: &IdedExpr| matches!(&part.expr, Expr::Call(call) if call.func_name == "_+_" && call.args.first().is_some_and(accumulated));
    let step = &loops.loop_step;
    match &step.expr {
        Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
            ("_&&_" | "_||_", [first, wanted]) if accumulated(first) => vec![wanted],
            ("_?_:_", [condition, yes, _]) if added(yes) => {
                let element = element_of(yes)
                    .filter(|part| !matches!(&part.expr, Expr::Ident(name) if *name == loops.iter_var));
                std::iter::once(condition).chain(element).collect()
            }
            ("_+_", _) if added(step) => element_of(step).into_iter().collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The one item that is added to a list.
fn element_of(part: &IdedExpr) -> Option<&IdedExpr> {
    match &part.expr {
        Expr::Call(call) => match &call.args.get(1)?.expr {
            Expr::List(list) => list.elements.first(),
            _ => None,
        },
        _ => None,
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let all: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let length = token(&all[at..]);
        if !all[at].is_whitespace() {
            tokens.push(Token { text: all[at..at + length].iter().collect(), at });
        }
        at += length;
    }
    tokens
}

/// How many characters the first token has.
fn token(rest: &[char]) -> usize {
    let count =
        |from: usize, fits: &dyn Fn(char) -> bool| rest[from..].iter().take_while(|&&c| fits(c)).count();
    let begins = |text: &str| text.chars().enumerate().all(|(index, c)| rest.get(index) == Some(&c));
    let first = rest[0];
    if first.is_alphabetic() || first == '_' {
        let length = count(0, &|c| c.is_alphanumeric() || c == '_');
        // `r"…"` and `b'…'`.
        return match rest.get(length) {
            Some('\'' | '"') if length <= 2 => length + quoted(&rest[length..]),
            _ => length,
        };
    }
    if matches!(first, '\'' | '"') {
        return quoted(rest);
    }
    if first.is_ascii_digit() {
        let whole = count(0, &|c| c.is_ascii_alphanumeric());
        return match (rest.get(whole), rest.get(whole + 1)) {
            (Some('.'), Some(next)) if next.is_ascii_digit() => {
                whole + 1 + count(whole + 1, &|c| c.is_ascii_alphanumeric())
            }
            _ => whole,
        };
    }
    if begins("//") {
        return count(0, &|c| c != '\n');
    }
    let two = ["==", "!=", "<=", ">=", "&&", "||", "[?", ".?"].iter().any(|sign| begins(sign));
    if two { 2 } else { 1 }
}

fn quoted(rest: &[char]) -> usize {
    let quote = rest[0];
    let triple = rest.len() > 2 && rest[1] == quote && rest[2] == quote;
    let (mut at, wanted) = if triple { (3, 3) } else { (1, 1) };
    while at < rest.len() {
        if rest[at] == '\\' {
            at += 2;
            continue;
        }
        if rest[at..].iter().take(wanted).filter(|&&c| c == quote).count() == wanted {
            return at + wanted;
        }
        at += 1;
    }
    rest.len()
}
