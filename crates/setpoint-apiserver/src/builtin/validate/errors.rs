//! A list of errors in the making, and the checks that many kinds share.

use serde_json::Value;
use setpoint_schema::{ErrorKind, FieldError, FieldPath};

use super::address::{self, Read};
use crate::{
    builtin::{
        Quantity,
        edit::{is_empty, text},
        go::{self, GoValue},
    },
    object_meta::{LABEL_VALUE, NameRule, check_qualified, is_label_value},
};

pub const IMMUTABLE: &str = "field is immutable";
const WILDCARD: &str = r"a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The wrong fields that were found.
#[derive(Default)]
pub struct Errors {
    found: Vec<FieldError>,
    /// Of the object, such as `io.k8s.api.core.v1.Pod`: messages show structs as its internal type has them.
    definition: &'static str,
}

impl Errors {
    /// None yet, of an object of a definition.
    pub fn of(definition: &'static str) -> Self {
        Self { found: Vec::new(), definition }
    }

    pub fn len(&self) -> usize {
        self.found.len()
    }

    pub fn into_inner(self) -> Vec<FieldError> {
        self.found
    }

    pub fn push(&mut self, error: FieldError) {
        let shown = match &error.value {
            Some(value @ (Value::Object(_) | Value::Array(_))) => go::at(self.definition, &error.path, value),
            _ => None,
        };
        match shown {
            Some(shown) => self.push_shown(error.kind, &error.path, &shown, &error.detail),
            None => self.found.push(error),
        }
    }

    /// An error that shows a value in Go's words.
    pub fn push_shown(&mut self, kind: ErrorKind, path: &FieldPath, value: &GoValue, detail: &str) {
        let detail = if detail.is_empty() { value.to_string() } else { format!("{value}: {detail}") };
        self.found.push(FieldError { kind, path: path.clone(), value: None, detail });
    }

    /// An invalid field whose message shows the struct at another path.
    pub fn invalid_at(&mut self, path: &FieldPath, of: &FieldPath, value: &Value, detail: &str) {
        match go::at(self.definition, of, value) {
            Some(shown) => self.push_shown(ErrorKind::Invalid, path, &shown, detail),
            None => self.invalid(path, value.clone(), detail),
        }
    }

    /// An invalid value that the message does not show.
    pub fn bare_invalid(&mut self, path: &FieldPath, detail: &str) {
        self.found.push(FieldError {
            kind: ErrorKind::Invalid,
            path: path.clone(),
            value: None,
            detail: detail.to_owned(),
        });
    }

    pub fn invalid(&mut self, path: &FieldPath, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(FieldError::invalid(path, value, detail));
    }

    /// A change that is not allowed, of a struct of a definition: the message shows it line by line.
    pub fn forbidden_change(
        &mut self,
        path: &FieldPath,
        detail: &str,
        definition: &str,
        [old, new]: [&Value; 2],
    ) {
        self.forbidden_diff(path, detail, [&go::of(definition, old), &go::of(definition, new)]);
    }

    /// As [`Self::forbidden_change`], of values in Go's words.
    pub fn forbidden_diff(&mut self, path: &FieldPath, detail: &str, [old, new]: [&GoValue; 2]) {
        self.forbidden(path, &format!("{detail}\n{}", go::unified(&old.pretty(), &new.pretty())));
    }

    pub fn required(&mut self, path: &FieldPath, detail: &str) {
        self.push(FieldError::required(path, detail));
    }

    pub fn forbidden(&mut self, path: &FieldPath, detail: &str) {
        self.push(FieldError::forbidden(path, detail));
    }

    pub fn duplicate(&mut self, path: &FieldPath, value: impl Into<Value>) {
        self.push(FieldError::duplicate(path, value));
    }

    pub fn not_found(&mut self, path: &FieldPath, value: impl Into<Value>) {
        self.push(FieldError::not_found(path, value));
    }

    pub fn unsupported(&mut self, path: &FieldPath, value: impl Into<Value>, supported: &[&str]) {
        self.push(FieldError::not_supported(path, value, supported));
    }

    /// A field that must be there.
    pub fn present(&mut self, object: &Value, path: &FieldPath, key: &str) -> bool {
        let missing = object.get(key).is_none_or(is_empty);
        if missing {
            self.required(&path.child(key), "");
        }
        !missing
    }

    /// A field that, if it is there, must have one of these texts. An empty text is nothing, unless Go has a pointer for the field.
    pub fn one_of(&mut self, object: &Value, path: &FieldPath, key: &str, supported: &[&str]) {
        let given = text(object, key);
        let absent = || object.get(key).is_none_or(Value::is_null);
        let counts = !given.is_empty() || !absent() && self.has_pointer(&path.child(key));
        if counts && !supported.contains(&given) {
            self.unsupported(&path.child(key), given, supported);
        }
    }

    /// Whether Go has a pointer for a field, so that an empty text in it was given.
    pub fn has_pointer(&self, path: &FieldPath) -> bool {
        go::is_pointer(self.definition, path)
    }

    /// A number that must not be below zero.
    pub fn not_negative(&mut self, object: &Value, path: &FieldPath, key: &str) {
        if let Some(number) = object[key].as_i64().filter(|number| *number < 0) {
            self.invalid(&path.child(key), number, "must be greater than or equal to 0");
        }
    }

    /// A number that must lie in a range, if it is there.
    pub fn in_range(&mut self, object: &Value, path: &FieldPath, key: &str, low: i64, high: i64) {
        if let Some(number) = object[key].as_i64().filter(|number| !(low..=high).contains(number)) {
            self.invalid(&path.child(key), number, format!("must be between {low} and {high}, inclusive"));
        }
    }

    /// A name by a rule.
    pub fn name(&mut self, path: &FieldPath, name: &str, rule: NameRule) {
        for problem in rule.check(name, false) {
            self.invalid(path, name, problem);
        }
    }

    /// A qualified name such as `example.com/key`.
    pub fn qualified(&mut self, path: &FieldPath, name: &str) {
        for problem in check_qualified(name) {
            self.invalid(path, name, problem);
        }
    }

    /// A map of labels; all errors name the map.
    pub fn labels(&mut self, path: &FieldPath, labels: &Value) {
        for (key, value) in labels.as_object().into_iter().flatten() {
            self.qualified(path, key);
            self.label_value(path, value.as_str().unwrap_or_default());
        }
    }

    pub fn label_value(&mut self, path: &FieldPath, value: &str) {
        if value.len() > 63 {
            self.invalid(path, value, "must be no more than 63 bytes");
        }
        if !is_label_value(value) {
            self.invalid(path, value, LABEL_VALUE);
        }
    }

    /// A port number, or the name of a port.
    pub fn port(&mut self, path: &FieldPath, port: &Value) {
        match port {
            Value::Number(number) => {
                if !number.as_i64().is_some_and(|number| (1..=65535).contains(&number)) {
                    self.invalid(path, port.clone(), "must be between 1 and 65535, inclusive");
                }
            }
            Value::String(name) => self.port_name(path, name),
            _ => self.invalid(path, port.clone(), "must be between 1 and 65535, inclusive"),
        }
    }

    /// The name of a port: an IANA service name.
    pub fn port_name(&mut self, path: &FieldPath, name: &str) {
        if name.len() > 15 {
            self.invalid(path, name, "must be no more than 15 characters");
        }
        if !name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') || name.is_empty()
        {
            self.invalid(
                path,
                name,
                "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
            );
        }
        if !name.bytes().any(|c| c.is_ascii_lowercase()) {
            self.invalid(path, name, "must contain at least one letter (a-z)");
        }
        if name.contains("--") {
            self.invalid(path, name, "must not contain consecutive hyphens");
        }
        if name.starts_with('-') || name.ends_with('-') {
            self.invalid(path, name, "must not begin or end with a hyphen");
        }
    }

    /// A wildcard of a domain (`*.example.com`).
    pub fn wildcard(&mut self, path: &FieldPath, name: &str) {
        if !name.strip_prefix("*.").is_some_and(|rest| NameRule::Subdomain.check(rest, false).is_empty()) {
            self.invalid(path, name, WILDCARD);
        }
    }

    /// A domain-prefixed path such as `example.com/name`.
    pub fn domain_path(&mut self, path: &FieldPath, name: &str) {
        match name.split_once('/') {
            _ if name.is_empty() => self.required(path, ""),
            Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
                self.name(path, domain, NameRule::Subdomain);
            }
            _ => self.invalid(path, name, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
        }
    }

    pub fn ip(&mut self, path: &FieldPath, address: &str) {
        match address::read(address) {
            None => {
                self.invalid(path, address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
            }
            Some(Read { zeros: true, .. }) => self.invalid(path, address, "must not have leading 0s"),
            Some(Read { mapped: true, .. }) => {
                self.invalid(path, address, "must not be an IPv4-mapped IPv6 address");
            }
            Some(_) => {}
        }
    }

    /// A quantity that must not be below zero; answers with it.
    pub fn quantity(&mut self, path: &FieldPath, value: &Value) -> Option<Quantity> {
        let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let Some(quantity) = Quantity::parse(&written) else {
            let detail =
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
            self.invalid(path, written, detail);
            return None;
        };
        if quantity.is_negative() {
            self.invalid(path, written, "must be greater than or equal to 0");
        }
        Some(quantity)
    }

    /// A whole number that is not below zero, or a percentage.
    pub fn count_or_percent(&mut self, object: &Value, path: &FieldPath, key: &str) {
        let path = path.child(key);
        match &object[key] {
            Value::String(text) => {
                let digits = text.strip_suffix('%').unwrap_or_default();
                if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
                    self.invalid(
                        &path,
                        text.clone(),
                        "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                    );
                }
            }
            Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => {
                self.invalid(&path, number.clone(), "must be greater than or equal to 0");
            }
            _ => {}
        }
    }

    /// A percentage of at most 100, or a number (upstream: `IsNotMoreThan100Percent`).
    pub fn at_most_all(&mut self, object: &Value, path: &FieldPath, key: &str) {
        let percent = object[key].as_str().and_then(|text| text.strip_suffix('%')?.parse::<u64>().ok());
        if percent.is_some_and(|percent| percent > 100) {
            self.invalid(&path.child(key), object[key].clone(), "must not be greater than 100%");
        }
    }

    /// A field that an update must not change.
    pub fn immutable(&mut self, new: &Value, old: &Value, path: &FieldPath, key: &str) {
        if absent_as_null(new, key) != absent_as_null(old, key) {
            self.changed(&path.child(key), &new[key]);
        }
    }

    /// The error of a field that an update changed and must not.
    pub fn changed(&mut self, path: &FieldPath, value: &Value) {
        match go::at(self.definition, path, value) {
            Some(shown) => self.push_shown(ErrorKind::Invalid, path, &shown, IMMUTABLE),
            None => self.invalid(path, value.clone(), IMMUTABLE),
        }
    }
}

fn absent_as_null<'a>(object: &'a Value, key: &str) -> &'a Value {
    object.get(key).filter(|value| !is_empty(value)).unwrap_or(&Value::Null)
}
