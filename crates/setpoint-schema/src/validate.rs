//! Validation against a schema: every wrong field at once, in the words of kube-openapi's validator, which custom
//! resources are validated with (checked field by field against kube-apiserver v1.37.2).

mod formats;
mod keyed_lists;

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use keyed_lists::Trail;

pub use formats::is_known_format;

use crate::{
    element::equal,
    field_error::{FieldError, FieldPath, print_number},
    schema::{Additional, Schema, Type},
};

/// Every way in which `value` breaks `schema`: types, bounds, enumerations, required fields, formats, `allOf`, `anyOf`,
/// `oneOf` and `not`, and the uniqueness of keys in list maps and of values in sets. `path` is where `value` stands.
///
/// Unknown fields are no errors here: see [`crate::prune`].
pub fn validate(schema: &Schema, value: &Value, path: &FieldPath) -> Vec<FieldError> {
    let mut check = Check::at(path.as_str());
    check.value(schema, value, None);
    let mut errors = check.errors;
    keyed_lists::check(schema, value, &Trail::Start(path), &mut errors);
    errors
}

/// As [`validate`], for an update of `old`: parts that did not change are not held against the schema, so that a stored
/// object that breaks a newer schema can still be updated (upstream: `CRDValidationRatcheting`, on since v1.33). Items
/// of list maps are the same by their key; items of other lists only when the whole list did not change.
pub fn validate_update(schema: &Schema, value: &Value, old: &Value, path: &FieldPath) -> Vec<FieldError> {
    let mut check = Check::at(path.as_str());
    check.value(schema, value, Some(old));
    let mut errors = check.errors;
    let mut repeated_before = Vec::new();
    keyed_lists::check(schema, old, &Trail::Start(path), &mut repeated_before);
    if repeated_before.is_empty() {
        keyed_lists::check(schema, value, &Trail::Start(path), &mut errors);
    }
    errors
}

/// A walk through one value. The path is one buffer that grows and shrinks with the walk.
struct Check {
    path: String,
    errors: Vec<FieldError>,
    /// How many checks held: `anyOf` and `oneOf` show the errors of the schema that matched most.
    matches: usize,
}

impl Check {
    fn at(path: &str) -> Self {
        Self { path: path.to_owned(), errors: Vec::new(), matches: 0 }
    }

    fn here(&self) -> FieldPath {
        FieldPath::from(self.path.as_str())
    }

    fn invalid(&mut self, value: impl Into<Value>, problem: &str) {
        let detail = format!("{} in body {problem}", self.path);
        self.errors.push(FieldError::invalid(&self.here(), value, detail));
    }

    /// An error that upstream reports without a path.
    fn pathless(&mut self, problem: String) {
        self.errors.push(FieldError::invalid(&FieldPath::root(), "", problem));
    }

    fn below(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, step: impl FnOnce(&mut String)) {
        let length = self.path.len();
        step(&mut self.path);
        self.value(schema, value, old);
        self.path.truncate(length);
    }

    fn value(&mut self, schema: &Schema, value: &Value, old: Option<&Value>) {
        if old == Some(value) {
            return;
        }
        let before = self.errors.len();
        self.kind(schema, value);
        if self.errors.len() == before {
            self.matches += 2;
        }
        if !value.is_null() {
            self.combinations(schema, value);
            match value {
                Value::String(text) => self.text(schema, text),
                Value::Number(number) => self.number(schema, number),
                Value::Array(items) => self.items(schema, items, old),
                _ => {}
            }
        }
        self.enumeration(schema, value);
        if let Value::Object(fields) = value {
            self.fields(schema, fields, old);
        }
        self.matches += 1;
    }

    /// The type, with the quirk that a value of the wrong type is held against the format when there is one.
    fn kind(&mut self, schema: &Schema, value: &Value) {
        let expected: &[Type] = match (schema.node.int_or_string, &schema.node.kind) {
            (true, _) => &[Type::Integer, Type::String],
            (false, Some(kind)) => std::slice::from_ref(kind),
            (false, None) => return,
        };
        // Only for an error: this is done for every value of every write.
        let names = || expected.iter().map(|kind| kind.name()).collect::<Vec<&str>>().join(",");
        let mut mismatch = |names: &str, found: &str| {
            let detail = format!("{} in body must be of type {names}: {found:?}", self.path);
            let path = FieldPath::from(self.path.as_str());
            self.errors.push(FieldError::type_invalid(&path, found, detail));
        };
        let numeric = expected.contains(&Type::Integer) || expected.contains(&Type::Number);
        let (found, found_format) = match value {
            Value::Null => {
                if !schema.node.nullable {
                    mismatch(&names(), "null");
                }
                return;
            }
            Value::Object(_) => (Type::Object, ""),
            Value::Array(_) => (Type::Array, ""),
            Value::String(_) => (Type::String, ""),
            Value::Bool(_) => (Type::Boolean, ""),
            Value::Number(number) if number.is_f64() => (Type::Number, "float64"),
            Value::Number(_) => (Type::Integer, "int64"),
        };
        let fits = expected.contains(&found)
            || found == Type::Integer && expected.contains(&Type::Number)
            || found == Type::Number && expected.contains(&Type::Integer) && is_integral(value);
        let textual = matches!(found, Type::String | Type::Array);
        match self_format(schema) {
            Some(format) if !textual && !fits && found_format != format => mismatch(format, found_format),
            Some(_) if !numeric && textual => {}
            _ if !fits => mismatch(&names(), found.name()),
            _ => {}
        }
    }

    fn combinations(&mut self, schema: &Schema, value: &Value) {
        let checks = &schema.node.checks;
        if !checks.any_of.is_empty() {
            let (valid, best) = self.alternatives(&checks.any_of, value, 1);
            if valid == 0 {
                self.pathless(format!("{:?} must validate at least one schema (anyOf)", self.path));
                self.errors.extend(best);
            }
        }
        if !checks.one_of.is_empty() {
            let (valid, best) = self.alternatives(&checks.one_of, value, usize::MAX);
            if valid != 1 {
                let found = match valid {
                    0 => "Found none valid".to_owned(),
                    _ => format!("Found {valid} valid alternatives"),
                };
                self.pathless(format!(
                    "{:?} must validate one and only one schema (oneOf). {found}",
                    self.path
                ));
                self.errors.extend(best);
            }
        }
        if !checks.all_of.is_empty() {
            let mut valid = 0;
            for schema in &checks.all_of {
                let before = self.errors.len();
                self.value(schema, value, None);
                valid += usize::from(self.errors.len() == before);
            }
            if valid != checks.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                self.pathless(format!("{:?} must validate all the schemas (allOf){none}", self.path));
            }
        }
        if let Some(not) = &checks.not
            && self.alternative(not, value).errors.is_empty()
        {
            self.pathless(format!("{:?} must not validate the schema (not)", self.path));
        }
    }

    fn alternative(&self, schema: &Schema, value: &Value) -> Self {
        let mut check = Self::at(&self.path);
        check.value(schema, value, None);
        check
    }

    /// How many of the schemas hold, counting up to `enough`, and the errors of the best when none does.
    fn alternatives(&self, schemas: &[Schema], value: &Value, enough: usize) -> (usize, Vec<FieldError>) {
        let mut valid = 0;
        let mut best: Option<Self> = None;
        for schema in schemas {
            let check = self.alternative(schema, value);
            if check.errors.is_empty() {
                valid += 1;
                if valid >= enough {
                    break;
                }
            } else if best.as_ref().is_none_or(|best| check.matches > best.matches) {
                best = Some(check);
            }
        }
        let errors = if valid == 0 { best.map(|best| best.errors).unwrap_or_default() } else { Vec::new() };
        (valid, errors)
    }

    fn text(&mut self, schema: &Schema, text: &str) {
        let checks = &schema.node.checks;
        let length = || text.chars().count() as u64;
        // Upstream stops at the first of these.
        if let Some(max) = checks.max_length.filter(|max| length() > *max) {
            self.errors.push(FieldError::too_long(&self.here(), max));
        } else if let Some(min) = checks.min_length.filter(|min| length() < *min) {
            self.invalid(text, &format!("should be at least {min} chars long"));
        } else if let Some(pattern) = checks.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            self.invalid(text, &format!("should match '{}'", pattern.as_str()));
        }
        if let Some(format) = self_format(schema)
            && !formats::holds(format, text)
        {
            let detail = format!("{} in body must be of type {format}: {text:?}", self.path);
            self.errors.push(FieldError::type_invalid(&self.here(), text, detail));
        }
    }

    fn number(&mut self, schema: &Schema, number: &Number) {
        let checks = &schema.node.checks;
        if schema.node.kind == Some(Type::Integer) {
            self.range(schema, number);
        }
        let value = number.as_f64().unwrap_or_default();
        // A whole number is held against whole bounds, as upstream converts them.
        let bound = |bound: &Number| {
            let bound = bound.as_f64().unwrap_or_default();
            if number.is_f64() { bound } else { bound.trunc() }
        };
        let print =
            |bound: f64| Number::from_f64(bound).map(|bound| print_number(&bound)).unwrap_or_default();
        if let Some(factor) = &checks.multiple_of {
            let factor = bound(factor);
            let quotient = if factor < 1.0 { 1.0 / factor * value } else { value / factor };
            if factor > 0.0 && (quotient - quotient.round()).abs() > 1e-9 {
                self.invalid(number.clone(), &format!("should be a multiple of {}", print(factor)));
            }
        }
        if let Some(maximum) = checks.maximum.as_ref().map(bound) {
            if checks.exclusive_maximum && value >= maximum {
                self.invalid(number.clone(), &format!("should be less than {}", print(maximum)));
            } else if value > maximum {
                self.invalid(number.clone(), &format!("should be less than or equal to {}", print(maximum)));
            }
        }
        if let Some(minimum) = checks.minimum.as_ref().map(bound) {
            if checks.exclusive_minimum && value <= minimum {
                self.invalid(number.clone(), &format!("should be greater than {}", print(minimum)));
            } else if value < minimum {
                self.invalid(
                    number.clone(),
                    &format!("should be greater than or equal to {}", print(minimum)),
                );
            }
        }
    }

    fn range(&mut self, schema: &Schema, number: &Number) {
        let whole = number.as_i64().or_else(|| {
            number.as_f64().filter(|_| is_integral(&Value::Number(number.clone()))).map(|f| f as i64)
        });
        let format = self_format(schema);
        let fits = whole.is_some_and(|whole| format != Some("int32") || i32::try_from(whole).is_ok());
        if !fits {
            let format =
                format.map_or("(default format)".to_owned(), |format| format!("with format {format}"));
            self.pathless(format!("Checked value must be of type integer {format} in {}", self.path));
        }
    }

    fn items(&mut self, schema: &Schema, items: &[Value], old: Option<&Value>) {
        let checks = &schema.node.checks;
        if schema.node.items.is_some() {
            for (index, item) in items.iter().enumerate() {
                self.below(schema.item(), item, schema.same_item(item, old), |path| {
                    // Writing to a String does not fail.
                    let _ = write!(path, "[{index}]");
                });
            }
        }
        let count = items.len() as u64;
        if let Some(min) = checks.min_items.filter(|min| count < *min) {
            self.invalid(count, &format!("should have at least {min} items"));
        }
        if let Some(max) = checks.max_items.filter(|max| count > *max) {
            self.errors.push(FieldError::too_many(&self.here(), count, max));
        }
        let repeated = |(index, item): (usize, &Value)| items[..index].iter().any(|other| equal(other, item));
        if checks.unique_items && items.iter().enumerate().any(repeated) {
            self.invalid("", "shouldn't contain duplicates");
        }
    }

    fn enumeration(&mut self, schema: &Schema, value: &Value) {
        let allowed = &schema.node.checks.allowed;
        if allowed.is_empty() || allowed.iter().any(|allowed| equal(allowed, value)) {
            return;
        }
        let allowed =
            allowed.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        self.errors.push(FieldError::not_supported(&self.here(), value.clone(), allowed));
    }

    fn fields(&mut self, schema: &Schema, fields: &Map<String, Value>, old: Option<&Value>) {
        let checks = &schema.node.checks;
        let count = fields.len() as u64;
        if let Some(min) = checks.min_properties.filter(|min| count < *min) {
            self.invalid(count, &format!("should have at least {min} properties"));
        }
        if let Some(max) = checks.max_properties.filter(|max| count > *max) {
            self.errors.push(FieldError::too_many(&self.here(), count, max));
        }
        for (name, value) in fields {
            let below = match (schema.node.properties.get(name), &schema.node.additional) {
                (Some(child), _) | (None, Additional::Schema(child)) => child.schema(),
                (None, Additional::Denied) => {
                    let detail = format!("{}.{name} in body is a forbidden property", self.path);
                    self.errors.push(FieldError::invalid(&self.here(), name.as_str(), detail));
                    continue;
                }
                _ => continue,
            };
            self.below(below, value, old.and_then(|old| old.get(name)), |path| {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
            });
        }
        let embedded = schema.node.resource && !self.path.is_empty();
        let identity = ["apiVersion", "kind"].iter().copied().filter(|_| embedded);
        for name in checks.required.iter().map(String::as_str).chain(identity) {
            if !fields.contains_key(name) {
                self.errors.push(FieldError::required(&self.here().child(name), ""));
            }
        }
    }
}

/// The format, when it is one that means something for the type: others are ignored, as upstream ignores them.
fn self_format(schema: &Schema) -> Option<&str> {
    let format = schema.node.format.as_deref()?;
    let known = match schema.node.kind {
        None | Some(Type::String) => is_known_format(format),
        Some(Type::Integer) => matches!(format, "int32" | "int64"),
        Some(Type::Number) => matches!(format, "float" | "double"),
        _ => false,
    };
    known.then_some(format)
}

fn is_integral(value: &Value) -> bool {
    value.as_f64().is_some_and(|float| float.fract() == 0.0 && float.abs() < 9.3e18)
}
