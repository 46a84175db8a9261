//! The JSONPath dialect of printer columns (`k8s.io/client-go/util/jsonpath`, without the outer braces): `.a.b`, `['a.b']`, `.a\.b`, `[0]`, `[-1]`,
//! `[1:3]`, `[*]`, `..name`, and filters such as `[?(@.type=="Ready")]`.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    All,
    Descend,
    Slice { from: Option<i64>, to: Option<i64>, by: i64 },
    Index(i64),
    Filter { left: Operand, operator: String, right: Operand },
    Exists(Vec<Step>),
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(Vec<Step>),
    Literal(Value),
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

impl JsonPath {
    /// Parses a path; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: text.trim() };
        parser.steps(false).map(Self)
    }

    /// Everything in `value` that the path leads to, in order; what is missing is left out.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        walk(&self.0, vec![value])
    }
}

fn walk<'a>(steps: &[Step], mut found: Vec<&'a Value>) -> Vec<&'a Value> {
    for step in steps {
        let mut next = Vec::new();
        for value in found {
            apply(step, value, &mut next);
        }
        found = next;
    }
    found
}

fn apply<'a>(step: &Step, value: &'a Value, next: &mut Vec<&'a Value>) {
    match step {
        Step::Field(name) => next.extend(value.get(name)),
        Step::All => next.extend(children(value)),
        Step::Descend => descend(value, next),
        Step::Index(index) => {
            if let Value::Array(items) = value {
                let place = if *index < 0 { index + items.len() as i64 } else { *index };
                next.extend(usize::try_from(place).ok().and_then(|place| items.get(place)));
            }
        }
        Step::Slice { from, to, by } => {
            if let Value::Array(items) = value {
                let length = items.len() as i64;
                let place = |index: i64| (if index < 0 { index + length } else { index }).clamp(0, length);
                let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(length)));
                let mut at = from;
                while at < to {
                    next.push(&items[at as usize]);
                    at += by;
                }
            }
        }
        Step::Filter { left, operator, right } => {
            next.extend(children(value).filter(|item| {
                let sides = [left, right].map(|operand| match operand {
                    Operand::Literal(literal) => Some(literal.clone()),
                    Operand::Path(path) => walk(path, vec![item]).first().map(|value| (*value).clone()),
                });
                matches!(sides, [Some(left), Some(right)] if compare(&left, operator, &right))
            }));
        }
        Step::Exists(path) => next.extend(children(value).filter(|item| !walk(path, vec![item]).is_empty())),
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn descend<'a>(value: &'a Value, next: &mut Vec<&'a Value>) {
    next.push(value);
    children(value).for_each(|child| descend(child, next));
}

fn compare(left: &Value, operator: &str, right: &Value) -> bool {
    let order = match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left.partial_cmp(&right),
        _ => match (left, right) {
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            _ => (left == right).then_some(std::cmp::Ordering::Equal),
        },
    };
    match operator {
        "==" => order.is_some_and(std::cmp::Ordering::is_eq),
        "!=" => !order.is_some_and(std::cmp::Ordering::is_eq),
        "<" => order.is_some_and(std::cmp::Ordering::is_lt),
        "<=" => order.is_some_and(std::cmp::Ordering::is_le),
        ">" => order.is_some_and(std::cmp::Ordering::is_gt),
        ">=" => order.is_some_and(std::cmp::Ordering::is_ge),
        _ => false,
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    /// Steps up to the end, or, inside of a filter, up to what can't go on a path.
    fn steps(&mut self, inside: bool) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        loop {
            if inside {
                self.rest = self.rest.trim_start();
            }
            if self.take("..") {
                steps.push(Step::Descend);
                if !self.rest.starts_with(['[', '*']) {
                    steps.push(self.field()?);
                }
            } else if self.take(".") {
                if self.rest.is_empty() {
                    break;
                }
                if !self.rest.starts_with('[') {
                    steps.push(self.field()?);
                }
            } else if self.rest.starts_with('[') {
                steps.push(self.bracket()?);
            } else if self.rest.is_empty() || inside {
                break;
            } else if steps.is_empty() {
                steps.push(self.field()?);
            } else {
                return Err(format!("unexpected {:?} in a JSONPath", self.rest));
            }
        }
        Ok(steps)
    }

    fn take(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A name after a dot; a backslash quotes the next character.
    fn field(&mut self) -> Result<Step, String> {
        let mut name = String::new();
        let mut end = self.rest.len();
        let mut characters = self.rest.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => name.extend(characters.next().map(|(_, quoted)| quoted)),
                '.' | '[' | ']' | ')' | '(' | ' ' | '=' | '!' | '<' | '>' | '&' | '|' | ',' => {
                    end = at;
                    break;
                }
                _ => name.push(character),
            }
        }
        if name.is_empty() {
            return Err(format!("a name is missing before {:?} in a JSONPath", self.rest));
        }
        self.rest = &self.rest[end..];
        Ok(if name == "*" { Step::All } else { Step::Field(name) })
    }

    fn bracket(&mut self) -> Result<Step, String> {
        if self.take("[?(") {
            return self.filter();
        }
        let close =
            closing(self.rest).ok_or_else(|| format!("a bracket of {:?} is not closed", self.rest))?;
        let inner = self.rest[1..close].trim();
        self.rest = &self.rest[close + 1..];
        if inner == "*" {
            return Ok(Step::All);
        }
        if let Some(name) = quoted(inner) {
            return Ok(Step::Field(name.replace("\\.", ".").replace("\\'", "'")));
        }
        let number = |text: &str| -> Result<Option<i64>, String> {
            match text.trim() {
                "" => Ok(None),
                text => text.parse().map(Some).map_err(|_| format!("{text:?} is no index of a JSONPath")),
            }
        };
        let parts: Vec<_> = inner.split(':').collect();
        match parts.as_slice() {
            [one] => {
                number(one)?.map(Step::Index).ok_or_else(|| "an index of a JSONPath is empty".to_owned())
            }
            [from, to] => Ok(Step::Slice { from: number(from)?, to: number(to)?, by: 1 }),
            [from, to, by] => match number(by)?.unwrap_or(1) {
                by if by > 0 => Ok(Step::Slice { from: number(from)?, to: number(to)?, by }),
                by => Err(format!("{by} is no step of a JSONPath: it must be above zero")),
            },
            _ => Err(format!("{inner:?} is no index of a JSONPath")),
        }
    }

    fn filter(&mut self) -> Result<Step, String> {
        let left = self.operand()?;
        self.rest = self.rest.trim_start();
        let operator =
            ["==", "!=", "<=", ">=", "<", ">"].into_iter().find(|operator| self.rest.starts_with(operator));
        let step = match operator {
            Some(operator) => {
                self.rest = &self.rest[operator.len()..];
                let right = self.operand()?;
                Step::Filter { left, operator: operator.to_owned(), right }
            }
            None => match left {
                Operand::Path(path) => Step::Exists(path),
                Operand::Literal(_) => return Err("a filter of a JSONPath compares nothing".to_owned()),
            },
        };
        self.rest = self.rest.trim_start();
        if self.take(")]") {
            Ok(step)
        } else {
            Err(format!("a filter of a JSONPath is not closed at {:?}", self.rest))
        }
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.rest = self.rest.trim_start();
        if self.take("@") {
            return self.steps(true).map(Operand::Path);
        }
        if let Some(quote) = self.rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let inner = &self.rest[1..];
            let end = inner.find(quote).ok_or_else(|| format!("a quote is not closed in {:?}", self.rest))?;
            self.rest = &inner[end + 1..];
            return Ok(Operand::Literal(inner[..end].into()));
        }
        let end = self.rest.find([')', ' ', '=', '!', '<', '>']).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        serde_json::from_str(text)
            .map(Operand::Literal)
            .map_err(|_| format!("{text:?} is no value of a JSONPath"))
    }
}

/// Where the bracket that opens the text is closed, quotes observed.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            (None, ']') => return Some(at),
            _ => {}
        }
    }
    None
}

fn quoted(text: &str) -> Option<&str> {
    ['\'', '"'].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths() {
        let object = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "x"}},
            "spec": {"replicas": 3, "list": [1, 2, 3, 4]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 1},
                {"type": "Synced", "status": "False", "n": 2, "extra": true}
            ]},
        });
        for (path, wanted) in [
            (".spec.replicas", json!([3])),
            ("spec.replicas", json!([3])),
            (".spec.missing.deeper", json!([])),
            (".spec.list[0]", json!([1])),
            (".spec.list[-1]", json!([4])),
            (".spec.list[9]", json!([])),
            (".spec.list[1:3]", json!([2, 3])),
            (".spec.list[::2]", json!([1, 3])),
            (".spec.list[*]", json!([1, 2, 3, 4])),
            (r".metadata.labels.app\.kubernetes\.io/name", json!(["x"])),
            (".metadata.labels['app.kubernetes.io/name']", json!(["x"])),
            (r".metadata.labels['app\.kubernetes\.io/name']", json!(["x"])),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!(["True"])),
            (".status.conditions[?(@.type == 'Synced')].status", json!(["False"])),
            (".status.conditions[?(@.type!='Synced')].type", json!(["Ready"])),
            (".status.conditions[?(@.n>1)].type", json!(["Synced"])),
            (".status.conditions[?(@.extra)].type", json!(["Synced"])),
            (".status.conditions[*].type", json!(["Ready", "Synced"])),
            ("..n", json!([1, 2])),
        ] {
            let parsed = JsonPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(json!(parsed.find(&object)), wanted, "{path}");
        }
    }

    #[test]
    fn wrong_paths_are_refused() {
        for path in [".a[", ".a[x]", ".a[?(@.b==)]", ".a[?(@.b=='c']", ".a[0:1:0]", ".a b"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
