//! What is wrong with an object, field by field, in Kubernetes' words.

use std::fmt;

use serde_json::Value;

/// The path of a field, as errors name it: `spec.ports[0].name`, `metadata.labels[app]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(String);

impl FieldPath {
    /// The object itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of a field below this one; `name` may be a path of several names with dots.
    pub fn child(&self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        Self(if self.0.is_empty() { name.to_owned() } else { format!("{}.{name}", self.0) })
    }

    /// The path of a list's item.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The path of a map's entry.
    pub fn key(&self, key: impl fmt::Display) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// Whether this is the object itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path as text, empty for the object itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for FieldPath {
    fn from(path: &str) -> Self {
        Self(path.to_owned())
    }
}

/// The object itself prints as `<nil>`, as upstream prints it.
impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// What kind of wrong a field is (upstream: `field.ErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The value is malformed or out of bounds.
    Invalid,
    /// The value has the wrong type.
    TypeInvalid,
    /// The value is not one of an enumeration.
    NotSupported,
    /// The field is missing.
    Required,
    /// The value must be unique.
    Duplicate,
    /// The value names something that does not exist.
    NotFound,
    /// The field must not be set here.
    Forbidden,
    /// The text is too long.
    TooLong,
    /// The text is too short.
    TooShort,
    /// There are too many items.
    TooMany,
    /// There are too few items.
    TooFew,
    /// Not the object's fault.
    Internal,
}

impl ErrorKind {
    /// The reason of the status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooShort => "FieldValueTooShort",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::NotFound => "Not found",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooShort => "Too short",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::Internal => "Internal error",
        }
    }

    /// Whether the message shows the value.
    fn shows_value(self) -> bool {
        !matches!(self, Self::Required | Self::Forbidden | Self::TooLong | Self::TooShort | Self::Internal)
    }
}

/// One wrong field. Printed as in the message of a 422: `spec.size: Invalid value: 0: must be positive`.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// What kind of wrong.
    pub kind: ErrorKind,
    /// Which field.
    pub path: FieldPath,
    /// The offending value, where the message shows it.
    pub value: Option<Value>,
    /// Why, and what would be right; may be empty.
    pub detail: String,
}

impl FieldError {
    fn new(kind: ErrorKind, path: &FieldPath, value: Option<Value>, detail: impl Into<String>) -> Self {
        Self { kind, path: path.clone(), value, detail: detail.into() }
    }

    /// A malformed value.
    pub fn invalid(path: &FieldPath, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, Some(value.into()), detail)
    }

    /// A value of the wrong type.
    pub fn type_invalid(path: &FieldPath, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::TypeInvalid, path, Some(value.into()), detail)
    }

    /// A value that is not one of `supported`.
    pub fn not_supported<S: AsRef<str>>(
        path: &FieldPath,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = S>,
    ) -> Self {
        let supported: Vec<String> =
            supported.into_iter().map(|value| format!("{:?}", value.as_ref())).collect();
        let detail = if supported.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", supported.join(", "))
        };
        Self::new(ErrorKind::NotSupported, path, Some(value.into()), detail)
    }

    /// A missing field.
    pub fn required(path: &FieldPath, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, path, None, detail)
    }

    /// A value that is there already.
    pub fn duplicate(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::Duplicate, path, Some(value.into()), "")
    }

    /// A value that names something that does not exist.
    pub fn not_found(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::NotFound, path, Some(value.into()), "")
    }

    /// A field that must not be set.
    pub fn forbidden(path: &FieldPath, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, path, None, detail)
    }

    /// A text of more than `max` bytes.
    pub fn too_long(path: &FieldPath, max: u64) -> Self {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        Self::new(ErrorKind::TooLong, path, None, format!("may not be more than {max} {bytes}"))
    }

    /// More than `max` items.
    pub fn too_many(path: &FieldPath, actual: u64, max: u64) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new(ErrorKind::TooMany, path, Some(actual.into()), format!("must have at most {max} {items}"))
    }

    /// Something that is not the object's fault.
    pub fn internal(path: &FieldPath, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, path, None, detail)
    }

    /// The reason of the status cause: `FieldValueInvalid`, …
    pub fn reason(&self) -> &'static str {
        self.kind.reason()
    }

    /// The message of the status cause: the error without its path.
    pub fn cause_message(&self) -> String {
        let mut message = self.kind.text().to_owned();
        if let Some(value) = self.value.as_ref().filter(|_| self.kind.shows_value()) {
            // A string is quoted either way; floats print as Go prints them.
            let value = match value {
                Value::Number(number) => print_number(number),
                other => other.to_string(),
            };
            message = format!("{message}: {value}");
        }
        if !self.detail.is_empty() {
            message = format!("{message}: {}", self.detail);
        }
        message
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.cause_message())
    }
}

impl std::error::Error for FieldError {}

/// A number as Go's `%v` prints it: a float without a needless `.0`.
pub(crate) fn print_number(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e21 => format!("{float:.0}"),
        _ => number.to_string(),
    }
}
