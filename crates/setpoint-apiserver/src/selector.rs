//! Label and field selectors: parsing and matching
//! (`k8s.io/apimachinery/pkg/labels/selector.go`, `pkg/fields/selector.go`).

use serde_json::Value;

use crate::object_meta::{LABEL_VALUE, check_qualified, is_label_value};
use crate::status::{Result, Status};

/// Requirements on an object's labels, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Greater(String, i64),
    Less(String, i64),
}

impl LabelSelector {
    /// Parses the text form (`a=b,c in (d,e),!f,g>1`). An empty text selects everything.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Parser { rest: text.trim() }.requirements().map(Self).map_err(Status::bad_request)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `object`'s `metadata.labels` satisfy every requirement.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|requirement| requirement.holds(labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &Value) -> bool {
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        match self {
            Self::In(key, values) => label(key).is_some_and(|value| values.iter().any(|v| v == value)),
            Self::NotIn(key, values) => label(key).is_none_or(|value| values.iter().all(|v| v != value)),
            Self::Exists(key) => label(key).is_some(),
            Self::Missing(key) => label(key).is_none(),
            Self::Greater(key, bound) => {
                label(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound)
            }
            Self::Less(key, bound) => {
                label(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound)
            }
        }
    }
}

fn is_symbol(token: &str) -> bool {
    token.starts_with(['=', '!', ',', '(', ')', '<', '>'])
}

/// A requirement whose values are those of labels, as its key is already.
fn checked(requirement: Requirement) -> Result<Requirement, String> {
    let (key, values) = match &requirement {
        Requirement::In(key, values) | Requirement::NotIn(key, values) => (key, values.as_slice()),
        _ => return Ok(requirement),
    };
    match values.iter().enumerate().find(|(_, value)| !is_label_value(value)) {
        Some((index, value)) => {
            Err(format!("values[{index}][{key}]: Invalid value: {value:?}: {LABEL_VALUE}"))
        }
        None => Ok(requirement),
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn requirements(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        while !self.rest.is_empty() {
            let Some(next) = self.next_token() else { break };
            if next != "!" && is_symbol(next) {
                return Err(format!("found '{next}', expected: !, identifier, or 'end of string'"));
            }
            let of_requirement = |why| format!("unable to parse requirement: {why}");
            let requirement = self.requirement().and_then(checked).map_err(of_requirement)?;
            requirements.push(requirement);
            match self.next_token() {
                None => {}
                Some(",") => {
                    self.eat(",");
                    if let Some(next) = self.next_token().filter(|next| *next != "!" && is_symbol(next)) {
                        return Err(format!("found '{next}', expected: identifier after ','"));
                    }
                }
                Some(next) => return Err(format!("found '{next}', expected: ',' or 'end of string'")),
            }
        }
        Ok(requirements)
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if self.eat("!") {
            return Ok(Requirement::Missing(self.key()?));
        }
        let key = self.key()?;
        if self.eat("!=") {
            return Ok(Requirement::NotIn(key, vec![self.value()]));
        }
        if self.eat("==") || self.eat("=") {
            return Ok(Requirement::In(key, vec![self.value()]));
        }
        if self.eat(">") {
            return Ok(Requirement::Greater(key, self.number()?));
        }
        if self.eat("<") {
            return Ok(Requirement::Less(key, self.number()?));
        }
        if self.eat_word("in") {
            return Ok(Requirement::In(key, self.set()?));
        }
        if self.eat_word("notin") {
            return Ok(Requirement::NotIn(key, self.set()?));
        }
        match self.next_token() {
            None | Some(",") => Ok(Requirement::Exists(key)),
            Some(next) => Err(format!("found '{next}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// The token that comes next: a symbol or a word, as upstream's lexer cuts them.
    fn next_token(&self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let symbol =
            ["==", "!=", "=", "!", ",", "(", ")", "<", ">"].into_iter().find(|s| rest.starts_with(s));
        let end = symbol.map_or_else(
            || rest.find(|c: char| c.is_whitespace() || "=!(),<>".contains(c)).unwrap_or(rest.len()),
            str::len,
        );
        (end > 0).then(|| &rest[..end])
    }

    fn next_text(&self) -> &'a str {
        self.next_token().unwrap_or_default()
    }

    fn set(&mut self) -> Result<Vec<String>, String> {
        if !self.eat("(") {
            return Err(format!("found '{}' expected: '('", self.next_text()));
        }
        let mut values = vec![self.value()];
        while self.eat(",") {
            values.push(self.value());
        }
        if self.eat(")") {
            Ok(values)
        } else {
            Err(format!("found '{}', expected: ',' or ')'", self.next_text()))
        }
    }

    fn number(&mut self) -> Result<i64, String> {
        let text = self.value();
        text.parse().map_err(|_| {
            format!(
                "values[0]: Invalid value: {text:?}: for 'Gt', 'Lt' operators, the value must be an integer"
            )
        })
    }

    fn key(&mut self) -> Result<String, String> {
        let key = self.word();
        if key.is_empty() {
            return Err(format!("found '{}', expected: identifier", self.next_text()));
        }
        let wrong = check_qualified(key);
        if !wrong.is_empty() {
            // Upstream has no name for the field of a key.
            return Err(format!("<nil>: Invalid value: {key:?}: {}", wrong.join("; ")));
        }
        Ok(key.to_owned())
    }

    fn value(&mut self) -> String {
        self.word().to_owned()
    }

    fn word(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        let end = self
            .rest
            .find(|c: char| c.is_whitespace() || matches!(c, '=' | '!' | ',' | '(' | ')' | '<' | '>'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn eat(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.trim_start().strip_prefix(token) else { return false };
        self.rest = rest.trim_start();
        true
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let before = self.rest;
        if self.word() == word {
            return true;
        }
        self.rest = before;
        false
    }
}

/// A `LabelSelector` object (`matchLabels`, `matchExpressions`), or a plain map of labels, as text.
pub(crate) fn to_text(selector: &Value) -> String {
    let mut terms = Vec::new();
    let structured = selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let labels = if structured { &selector["matchLabels"] } else { selector };
    for (key, value) in labels.as_object().into_iter().flatten() {
        terms.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let values = values.join(",");
        terms.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.join(",")
}

/// Requirements on named fields (`metadata.name=a,status.phase!=Running`), all of which must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldSelector(Vec<FieldRequirement>);

#[derive(Clone, Debug, PartialEq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Parses the text form; `\`, `,` and `=` in values are escaped by a backslash.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut requirements = Vec::new();
        for term in split_unescaped(text) {
            let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = term.split_once("==") {
                (field, value, true)
            } else if let Some((field, value)) = term.split_once('=') {
                (field, value, true)
            } else {
                return Err(Status::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                )));
            };
            requirements.push(FieldRequirement { field: field.to_owned(), value: unescape(value), equal });
        }
        Ok(Self(requirements))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the fields that are asked for.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| requirement.field.as_str())
    }

    /// The value that `metadata.name` must have, when the selector fixes it.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.iter().find(|r| r.equal && r.field == "metadata.name").map(|r| r.value.as_str())
    }

    /// Whether every requirement holds; `value_of` reads a field ("" when absent).
    pub(crate) fn matches(&self, value_of: impl Fn(&str) -> String) -> bool {
        self.0.iter().all(|r| (value_of(&r.field) == r.value) == r.equal)
    }
}

fn split_unescaped(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    let mut term = String::new();
    let mut escaped = false;
    for c in text.chars() {
        match c {
            ',' if !escaped => terms.push(std::mem::take(&mut term)),
            _ => term.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    terms.push(term);
    terms.retain(|term| !term.is_empty());
    terms
}

fn unescape(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        value.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn label_selectors_select() {
        let object = json!({"metadata": {"labels": {"app": "web", "tier": "front", "n": "5"}}});
        for (text, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app in (web, api), tier notin (back)", true),
            ("app,!gone", true),
            ("n>4,n<6", true),
            ("app=api", false),
            ("gone", false),
            ("gone!=x", true),
            ("n>5", false),
            ("in=x", false),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().matches(&object), expected, "{text}");
        }
        assert_eq!(LabelSelector::parse("a b").unwrap_err().code, 400);
    }

    #[test]
    fn field_selectors_select() {
        let selector = FieldSelector::parse(r"metadata.name=a,spec.x!=b\,c").unwrap();
        assert_eq!(selector.name(), Some("a"));
        let read =
            |x: &'static str| move |f: &str| if f == "metadata.name" { "a".into() } else { x.to_owned() };
        assert!(selector.matches(read("b")));
        assert!(!selector.matches(read("b,c")));
    }
}
