//! Objects as kube-apiserver's messages show them: the JSON of Go's internal types, which differ from those of requests in the names of fields and
//! write out what is not set.

mod diff;

use std::fmt;

use serde_json::{Map, Value};
use setpoint_kinds::{GoField, GoShape, Name, go_fields};
use setpoint_schema::FieldPath;

pub(super) use self::diff::unified;

/// A value of an internal type. Printed as Go's encoder writes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum GoValue {
    Plain(Value),
    /// A struct or a map.
    Fields(Vec<(String, GoValue)>),
    Items(Vec<GoValue>),
}

/// The value at `path` of an object of a definition such as `io.k8s.api.core.v1.Pod`; `None` for a path that the internal type doesn't have.
pub(crate) fn at(definition: &str, path: &FieldPath, value: &Value) -> Option<GoValue> {
    Some(show(shape_at(definition, path.as_str())?.0, value))
}

/// Whether the field at `path` of an object of a definition is a pointer.
pub(crate) fn is_pointer(definition: &str, path: &FieldPath) -> bool {
    shape_at(definition, path.as_str()).is_some_and(|shape| shape.0.starts_with('*'))
}

/// The value of a definition's internal type.
pub(crate) fn of(definition: &str, value: &Value) -> GoValue {
    show(definition.strip_prefix("io.k8s.").unwrap_or(definition), value)
}

/// The shape of the value at a path such as `spec.containers[0].env`.
fn shape_at(definition: &str, path: &str) -> Option<GoShape> {
    let mut shape = GoShape(known(definition)?);
    for step in steps(path) {
        let inner = shape.0.trim_start_matches('*');
        shape = match step {
            Step::Item => GoShape(inner.strip_prefix(['[', '{'])?),
            // Some of upstream's paths leave out the index.
            Step::Field(name) => field_of(inner.trim_start_matches(['[', '*']), name)?,
        };
    }
    Some(shape)
}

/// The definition's name as the facts hold it.
fn known(definition: &str) -> Option<&'static str> {
    let found = setpoint_kinds::definition_names().find(|name| *name == definition)?;
    found.strip_prefix("io.k8s.")
}

fn field_of(definition: &'static str, name: &str) -> Option<GoShape> {
    let mut fields = go_fields_of(definition);
    let found = fields
        .find(|field| field.name.is_some() && field.name != Some(Name::Metadata) && requested(field) == name);
    // The fields of metadata are the object's own in the internal type.
    let metadata = || (name == "metadata").then_some(GoShape("apimachinery.pkg.apis.meta.v1.ObjectMeta"));
    found.map(|field| field.shape).or_else(metadata)
}

fn go_fields_of(definition: &str) -> impl Iterator<Item = GoField> + use<> {
    go_fields(&format!("io.k8s.{definition}"))
}

/// A field's name in requests.
fn requested(field: &GoField) -> String {
    if let Some(Name::Is(name)) = field.name {
        name.to_owned()
    } else {
        let mut letters = field.shown.chars();
        letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
    }
}

enum Step<'a> {
    Field(&'a str),
    /// An item of a list or an entry of a map.
    Item,
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if let Some(bracket) = rest.strip_prefix('[') {
            rest = bracket.split_once(']').map_or("", |(_, rest)| rest);
            return Some(Step::Item);
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        (!name.is_empty()).then_some(Step::Field(name))
    })
}

fn show(shape: &str, value: &Value) -> GoValue {
    if let Some(inner) = shape.strip_prefix('*') {
        return if value.is_null() { GoValue::Plain(Value::Null) } else { show(inner, value) };
    }
    if let Some(inner) = shape.strip_prefix('[') {
        return match value {
            Value::Array(items) => GoValue::Items(items.iter().map(|item| show(inner, item)).collect()),
            other => GoValue::Plain(other.clone()),
        };
    }
    if let Some(inner) = shape.strip_prefix('{') {
        return match value {
            Value::Object(entries) => GoValue::Fields(
                entries.iter().map(|(key, value)| (key.clone(), show(inner, value))).collect(),
            ),
            other => GoValue::Plain(other.clone()),
        };
    }
    let zero: Value = match shape {
        "string" => "".into(),
        "bool" => false.into(),
        "number" | "int-or-string" => 0.into(),
        "quantity" => "0".into(),
        definition if definition.contains('.') => return fields(definition, value),
        _ => Value::Null,
    };
    GoValue::Plain(if value.is_null() { zero } else { value.clone() })
}

fn fields(definition: &str, value: &Value) -> GoValue {
    let shown = go_fields_of(definition).filter_map(|field| {
        let inner = match field.name {
            None => &Value::Null,
            Some(Name::Metadata) => &value["metadata"][requested(&field)],
            Some(_) => &value[requested(&field)],
        };
        let empty = match inner {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty(),
            Value::Bool(set) => !set,
            Value::Number(number) => number.as_f64() == Some(0.0),
        };
        // A pointer is left out only where it refers to nothing.
        // Internal objects have lost their kind.
        let of_type = !definition.starts_with("apimachinery.")
            && matches!(field.shown, "kind" | "apiVersion")
            && field.omitted;
        let left_out =
            of_type || field.omitted && empty && (inner.is_null() || !field.shape.0.starts_with('*'));
        (!left_out).then(|| (field.shown.to_owned(), show(field.shape.0, inner)))
    });
    GoValue::Fields(shown.collect())
}

impl GoValue {
    /// A struct.
    pub(crate) fn fields<const N: usize>(fields: [(&str, GoValue); N]) -> Self {
        Self::Fields(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// A struct without some of its fields, by their names in requests.
    pub(crate) fn without(self, names: &[&str]) -> Self {
        let Self::Fields(mut fields) = self else { return self };
        fields.retain(|(shown, _)| !names.iter().any(|name| name.eq_ignore_ascii_case(shown)));
        Self::Fields(fields)
    }

    /// On several lines, each level indented by one space.
    pub(crate) fn pretty(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, Some(0));
        text
    }

    fn write(&self, out: &mut String, indent: Option<usize>) {
        match self {
            Self::Plain(Value::Object(entries)) => Self::Fields(plain(entries)).write(out, indent),
            Self::Plain(Value::Array(items)) => {
                Self::Items(items.iter().cloned().map(Self::Plain).collect()).write(out, indent);
            }
            Self::Plain(value) => out.push_str(&escaped(&value.to_string())),
            Self::Fields(fields) => {
                bracketed(out, indent, ['{', '}'], fields, |out, (name, value), below| {
                    out.push_str(&escaped(&Value::from(name.as_str()).to_string()));
                    out.push_str(if indent.is_some() { ": " } else { ":" });
                    value.write(out, below);
                });
            }
            Self::Items(items) => {
                bracketed(out, indent, ['[', ']'], items, |out, item, below| item.write(out, below));
            }
        }
    }
}

fn plain(entries: &Map<String, Value>) -> Vec<(String, GoValue)> {
    entries.iter().map(|(key, value)| (key.clone(), GoValue::Plain(value.clone()))).collect()
}

fn bracketed<T>(
    out: &mut String,
    indent: Option<usize>,
    [open, close]: [char; 2],
    parts: &[T],
    write: impl Fn(&mut String, &T, Option<usize>),
) {
    let below = indent.map(|indent| indent + 1);
    let line = |out: &mut String, indent: Option<usize>| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
        }
    };
    out.push(open);
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        line(out, below);
        write(out, part, below);
    }
    if !parts.is_empty() {
        line(out, indent);
    }
    out.push(close);
}

/// Go escapes what HTML would read.
fn escaped(text: &str) -> String {
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

impl fmt::Display for GoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text, None);
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_shown_as_their_internal_types() {
        let show = |definition: &str, path: &str, value: Value| {
            at(definition, &FieldPath::from(path), &value).map(|shown| shown.to_string())
        };
        assert_eq!(
            show("io.k8s.api.apps.v1.DaemonSet", "spec.updateStrategy", json!({"type": "X"})).as_deref(),
            Some(r#"{"Type":"X","RollingUpdate":null}"#)
        );
        assert_eq!(
            show("io.k8s.api.apps.v1.DaemonSet", "spec.selector", json!({"matchLabels": {"a": "<"}}))
                .as_deref(),
            Some(r#"{"matchLabels":{"a":"\u003c"}}"#)
        );
        let container =
            show("io.k8s.api.core.v1.Pod", "spec.containers[0].env[1].valueFrom.fieldRef", json!({}));
        assert_eq!(container.as_deref(), Some(r#"{"APIVersion":"","FieldPath":""}"#));
        assert_eq!(
            show("io.k8s.api.authorization.v1.SelfSubjectAccessReview", "metadata", json!({"name": "x"}))
                .as_deref(),
            Some(r#"{"name":"x"}"#)
        );
        assert_eq!(show("io.k8s.api.core.v1.Pod", "spec.nope", json!({})), None);
    }

    #[test]
    fn lines_are_indented_by_a_space() {
        let value = of("io.k8s.api.core.v1.EventSource", &json!({"host": "h"}));
        assert_eq!(value.pretty(), "{\n \"Component\": \"\",\n \"Host\": \"h\"\n}");
        assert_eq!(
            GoValue::Plain(json!({"a": [], "b": [1, {}]})).pretty(),
            "{\n \"a\": [],\n \"b\": [\n  1,\n  {}\n ]\n}"
        );
    }
}
