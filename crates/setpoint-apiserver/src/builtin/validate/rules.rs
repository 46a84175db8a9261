//! Checks as tables: a kind whose fields are checked one by one is a few lines here (`ValidateX` of `pkg/apis/*/validation`). What looks at several
//! fields together is code beside it.

use serde_json::Value;
use setpoint_schema::FieldPath;

use super::{
    errors::{Errors, IMMUTABLE},
    selector,
};
use crate::{builtin::edit::list, object_meta::NameRule};

/// What must hold for the value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// It is there, and no empty text or list. In a struct that is always there; after a `?` in the path, only where that is.
    Required(&'static str),
    /// If there is a text, it is a name.
    Name(NameRule),
    /// If there is a text, it is a qualified name such as `example.com/key`.
    Qualified,
    /// If there is a text, it is one of these.
    OneOf(&'static [&'static str]),
    /// As [`Check::OneOf`]; an empty text is none, even where Go has a pointer.
    OneOfTexts(&'static [&'static str]),
    /// A number that is there is at least zero.
    NotNegative,
    /// A number that is there is more than zero.
    Positive(&'static str),
    /// A number that is there is at most this.
    AtMost(i64, &'static str),
    /// A map of labels.
    Labels,
    /// A label selector.
    Selector,
    /// A quantity of at least zero.
    Quantity,
    /// An update does not change it.
    Fixed,
    /// As [`Check::Fixed`]; upstream shows no value.
    FixedUnshown,
    /// An update does not change it, in these words.
    Kept(&'static str),
    /// A count is at most that in the field of this path.
    NoMoreThan(&'static str, &'static str),
}

/// The path of a field from the object, with `[]` for the items of a list and `?` behind a struct that may be missing; and what must hold for it.
pub type Rule = (&'static str, Check);

/// Checks an object by a table.
pub fn check(errors: &mut Errors, new: &Value, old: Option<&Value>, rules: &[Rule]) {
    for (path, check) in rules {
        visit(new, old, path, &FieldPath::root(), &mut |value, before, path| {
            apply(errors, new, value, before, path, check);
        });
    }
}

fn visit<'a>(
    value: &'a Value,
    old: Option<&'a Value>,
    steps: &str,
    at: &FieldPath,
    see: &mut dyn FnMut(&'a Value, Option<&'a Value>, &FieldPath),
) {
    let (step, rest) = steps.split_once('.').map_or((steps, None), |(step, rest)| (step, Some(rest)));
    let (name, each) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
    let (name, optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
    let (below, path) = (&value[name], at.child(name));
    let old = old.map(|old| &old[name]);
    if optional && below.is_null() {
        return;
    }
    if each {
        for (index, item) in list(value, name).iter().enumerate() {
            let old = old.map(|old| &old[index]);
            match rest {
                Some(rest) => visit(item, old, rest, &path.index(index), see),
                None => see(item, old, &path.index(index)),
            }
        }
        return;
    }
    match rest {
        Some(rest) => visit(below, old, rest, &path, see),
        None => see(below, old, &path),
    }
}

fn apply(
    errors: &mut Errors,
    root: &Value,
    value: &Value,
    old: Option<&Value>,
    path: &FieldPath,
    check: &Check,
) {
    let text = value.as_str().unwrap_or_default();
    let number = value.as_i64();
    let changed = old.is_some_and(|old| !same(old, value));
    match *check {
        Check::Required(detail) if is_unset(value) => {
            errors.required(path, detail);
        }
        Check::Name(rule) if !text.is_empty() || !value.is_null() && errors.has_pointer(path) => {
            errors.name(path, text, rule);
        }
        Check::Qualified if !text.is_empty() => errors.qualified(path, text),
        Check::OneOf(supported)
            if (!text.is_empty() || !value.is_null() && errors.has_pointer(path))
                && !supported.contains(&text) =>
        {
            errors.unsupported(path, text, supported);
        }
        Check::OneOfTexts(supported) if !text.is_empty() && !supported.contains(&text) => {
            errors.unsupported(path, text, supported);
        }
        Check::NotNegative => {
            if let Some(number) = number.filter(|number| *number < 0) {
                errors.invalid(path, number, "must be greater than or equal to 0");
            }
        }
        Check::Positive(detail) => {
            if let Some(number) = number.filter(|number| *number <= 0) {
                errors.invalid(path, number, detail);
            }
        }
        Check::AtMost(most, detail) => {
            if let Some(number) = number.filter(|number| *number > most) {
                errors.invalid(path, number, detail);
            }
        }
        Check::Labels => errors.labels(path, value),
        Check::Selector => drop(selector::check(errors, value, path)),
        Check::Quantity if !value.is_null() => drop(errors.quantity(path, value)),
        Check::Fixed if changed => errors.changed(path, value),
        Check::FixedUnshown if changed => errors.invalid(path, Value::Null, IMMUTABLE),
        Check::Kept(detail) if changed => errors.forbidden(path, detail),
        Check::NoMoreThan(other, detail) => {
            let most = other.split('.').fold(root, |value, name| &value[name]).as_i64().unwrap_or(0);
            let number = number.unwrap_or(0);
            if number > most {
                errors.invalid(path, number, detail);
            }
        }
        _ => {}
    }
}

fn is_unset(value: &Value) -> bool {
    value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty)
}

/// Whether two values say the same: what is not set is like what is empty.
fn same(old: &Value, new: &Value) -> bool {
    old == new || is_unset(old) && is_unset(new)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(new: &Value, old: Option<&Value>, rules: &[Rule]) -> Vec<String> {
        let mut errors = Errors::default();
        check(&mut errors, new, old, rules);
        errors.into_inner().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn paths_reach_items_and_stop_at_what_is_missing() {
        let rules: &[Rule] = &[
            ("spec.a[].b", Check::Required("")),
            ("spec.c?.d", Check::Required("")),
            ("spec.e.f", Check::Required("why")),
            ("spec.a[].n", Check::NotNegative),
        ];
        assert_eq!(
            found(&json!({"spec": {"a": [{"b": "x"}, {"n": -1}]}}), None, rules),
            [
                "spec.a[1].b: Required value",
                "spec.e.f: Required value: why",
                "spec.a[1].n: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn fields_are_kept_and_counts_compared() {
        let rules: &[Rule] = &[
            ("x", Check::Kept("no")),
            ("y", Check::FixedUnshown),
            ("s.r", Check::NoMoreThan("s.t", "too many")),
        ];
        let (old, new) = (json!({"x": 1, "y": ""}), json!({"x": 2, "s": {"r": 2, "t": 1}}));
        assert_eq!(found(&new, Some(&old), rules), ["x: Forbidden: no", "s.r: Invalid value: 2: too many"]);
        assert!(found(&json!({}), None, rules).is_empty());
    }
}
