//! Takes out of answers what differs from run to run, and nothing else.
//!
//! A value is replaced by its class and a number that counts distinct values in order of appearance (`$uid2`), so that what has to
//! be the same stays comparable: a version that may not move, a uid that an owner reference repeats.

use std::collections::BTreeMap;

use regex::{Captures, Regex};
use serde_json::{Map, Value};

use crate::case::Volatile;

/// The rules, ready to use.
pub(crate) struct Rules {
    fields: Vec<(Vec<String>, Mask)>,
    texts: Vec<Mask>,
}

struct Mask {
    pattern: Regex,
    class: String,
    numbered: bool,
}

impl Rules {
    pub(crate) fn new(volatile: &Volatile) -> Result<Self, regex::Error> {
        let mask = |pattern: &str, class: &str, numbered| {
            Ok(Mask { pattern: Regex::new(pattern)?, class: class.to_owned(), numbered })
        };
        let fields = volatile
            .fields
            .iter()
            .map(|field| {
                Ok((
                    field.names.clone(),
                    mask(&format!("^(?:{})$", field.like), &field.class, field.numbered)?,
                ))
            })
            .collect::<Result<_, regex::Error>>()?;
        let texts = volatile
            .texts
            .iter()
            .map(|text| mask(&text.find, &text.class, text.numbered))
            .collect::<Result<_, regex::Error>>()?;
        Ok(Self { fields, texts })
    }
}

/// What one case has seen so far.
pub(crate) struct Normal<'a> {
    rules: &'a Rules,
    /// Names of this run and what stands for them.
    names: Vec<(String, String)>,
    seen: BTreeMap<String, Vec<String>>,
}

impl<'a> Normal<'a> {
    pub(crate) fn new(rules: &'a Rules, names: Vec<(String, String)>) -> Self {
        Self { rules, names, seen: BTreeMap::new() }
    }

    /// From now on `value` stands as `$name`.
    pub(crate) fn name(&mut self, name: &str, value: &str) {
        let numeric = value.bytes().all(|byte| byte.is_ascii_digit());
        // Short values would be found where they don't belong; identifiers have numbers of their own.
        if value.len() < 6 || numeric || self.is_field(value) {
            return;
        }
        self.names.push((value.to_owned(), format!("${name}")));
    }

    fn is_field(&self, value: &str) -> bool {
        self.rules.fields.iter().any(|(_, mask)| mask.numbered && mask.pattern.is_match(value))
    }

    /// The answer's body.
    pub(crate) fn body(&mut self, value: &Value) -> Value {
        let mut normal = self.value(value, false);
        sort_causes(&mut normal);
        normal
    }

    /// `collection`: whether the value is metadata of a list or a bookmark, whose version belongs to no object.
    fn value(&mut self, value: &Value, collection: bool) -> Value {
        match value {
            Value::Object(fields) => {
                let list = ["items", "rows"].iter().any(|key| fields.get(*key).is_some_and(Value::is_array));
                let bookmark = fields.get("type").and_then(Value::as_str) == Some("BOOKMARK");
                let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
                sorted.sort_by_key(|(key, _)| *key);
                let mut result = Map::new();
                for (key, value) in sorted {
                    let normal = if collection && key == "resourceVersion" && value.is_string() {
                        Value::from("$version")
                    } else {
                        let inner = list && key == "metadata" || bookmark || collection && key == "metadata";
                        self.field(key, value).unwrap_or_else(|| self.value(value, inner))
                    };
                    result.insert(self.text(key), normal);
                }
                Value::Object(result)
            }
            Value::Array(items) => items.iter().map(|item| self.value(item, false)).collect(),
            Value::String(text) => self.text(text).into(),
            other => other.clone(),
        }
    }

    fn field(&mut self, key: &str, value: &Value) -> Option<Value> {
        let rules = self.rules;
        // The parts of an answer that a step keeps are called by their pointers.
        let key = key.rsplit('/').next().unwrap_or(key);
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Array(items) if items.iter().all(Value::is_string) && !items.is_empty() => {
                return items
                    .iter()
                    .map(|item| self.field(key, item))
                    .collect::<Option<Vec<_>>>()
                    .map(Value::from);
            }
            _ => return None,
        };
        let (_, mask) = rules
            .fields
            .iter()
            .find(|(names, mask)| names.iter().any(|name| name == key) && mask.pattern.is_match(&text))?;
        Some(self.replacement(mask, &text).into())
    }

    fn replacement(&mut self, mask: &Mask, text: &str) -> String {
        if !mask.numbered {
            return format!("${}", mask.class);
        }
        let seen = self.seen.entry(mask.class.clone()).or_default();
        let index = seen.iter().position(|known| known == text).unwrap_or_else(|| {
            seen.push(text.to_owned());
            seen.len() - 1
        });
        format!("${}{}", mask.class, index + 1)
    }

    /// A text: of a field, a header or a whole body.
    pub(crate) fn text(&mut self, text: &str) -> String {
        let mut result = text.to_owned();
        for (value, name) in &self.names {
            if result.contains(value.as_str()) {
                result = result.replace(value.as_str(), name);
            }
        }
        let rules = self.rules;
        for mask in &rules.texts {
            if !mask.pattern.is_match(&result) {
                continue;
            }
            let replaced = mask.pattern.replace_all(&result, |found: &Captures| {
                let whole = &found[0];
                let Some(part) = found.get(1) else { return self.replacement(mask, whole) };
                let start = part.start() - found.get(0).map_or(0, |all| all.start());
                let replacement = self.replacement(mask, part.as_str());
                format!("{}{replacement}{}", &whole[..start], &whole[start + part.len()..])
            });
            result = replaced.into_owned();
        }
        result
    }
}

/// Sorts the causes of a failure, in the list and in the message that repeats it: kube-apiserver finds some of them while it walks through Go maps, in an
/// order that differs from answer to answer.
fn sort_causes(answer: &mut Value) {
    let Some(causes) =
        answer.pointer("/details/causes").and_then(Value::as_array).filter(|causes| causes.len() > 1)
    else {
        return;
    };
    let mut causes = causes.clone();
    let given = joined(&causes);
    causes.sort_by_key(Value::to_string);
    let sorted = joined(&causes);
    if let Some(Value::String(message)) = answer.pointer_mut("/message") {
        *message = message.replace(&given, &sorted);
    }
    if let Some(place) = answer.pointer_mut("/details/causes") {
        *place = causes.into();
    }
}

fn joined(causes: &[Value]) -> String {
    let texts: Vec<String> = causes
        .iter()
        .map(|cause| {
            let message = cause["message"].as_str().unwrap_or_default();
            match cause["field"].as_str() {
                None | Some("<nil>") => message.to_owned(),
                Some(field) => format!("{field}: {message}"),
            }
        })
        .collect();
    texts.join(", ")
}
