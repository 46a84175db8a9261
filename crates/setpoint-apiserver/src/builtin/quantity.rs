//! Quantities such as `500m` or `1Gi` (`k8s.io/apimachinery/pkg/api/resource`): parsed exactly to a billionth, printed in canonical form.

use std::fmt;

use serde_json::Value;
use setpoint_kinds::{REF_PREFIX, definition};

/// An amount, in billionths, and the family of suffixes that it was written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantity {
    nanos: i128,
    family: Family,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Binary,
    Decimal,
    Exponent,
}

const NANO: i128 = 1_000_000_000;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

impl Quantity {
    /// Parses the text of a quantity; `None` if it isn't one or is out of range. Less than a billionth is rounded up, as upstream does.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
        let (number, suffix) = digits.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let (multiplier, exponent, family) = suffix_of(suffix)?;
        let mut mantissa: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
        }
        let scale = 9 + exponent - i32::try_from(fraction.len()).ok()?;
        let product = mantissa.checked_mul(multiplier)?;
        let ten = 10_i128.checked_pow(scale.unsigned_abs())?;
        let nanos = if scale >= 0 { product.checked_mul(ten)? } else { (product + ten - 1) / ten };
        Some(Self { nanos: if text.starts_with('-') { -nanos } else { nanos }, family })
    }

    /// Whether it is below zero.
    pub(crate) fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// A whole number.
    pub(crate) fn whole(number: u64) -> Self {
        Self { nanos: i128::from(number) * NANO, family: Family::Decimal }
    }

    /// The sum, written as the first one is; the largest there is where it would be larger. Nothing is written as the other one.
    pub(crate) fn plus(self, other: Self) -> Self {
        let family = if self.nanos == 0 { other.family } else { self.family };
        Self { nanos: self.nanos.saturating_add(other.nanos), family }
    }

    /// The difference.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos), family: self.family }
    }

    /// How many times `other` it is.
    #[expect(clippy::cast_precision_loss, reason = "ratios are compared and printed with six digits")]
    pub(crate) fn ratio(self, other: Self) -> f64 {
        self.nanos as f64 / other.nanos as f64
    }

    /// The amount in billionths, for comparison and sums.
    pub(crate) fn nanos(self) -> i128 {
        self.nanos
    }
}

/// `(multiplier, power of ten, family)` of a suffix.
fn suffix_of(suffix: &str) -> Option<(i128, i32, Family)> {
    if let Some(power) = BINARY.iter().skip(1).position(|s| *s == suffix) {
        return Some((1024_i128.pow(power as u32 + 1), 0, Family::Binary));
    }
    if let Some(place) = DECIMAL.iter().position(|s| *s == suffix) {
        return Some((1, place as i32 * 3 - 9, Family::Decimal));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((1, exponent.parse().ok().filter(|e: &i32| e.abs() <= 18)?, Family::Exponent))
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return out.write_str("0");
        }
        // As upstream: fractions and small numbers have no binary form.
        if self.family == Family::Binary && self.nanos % NANO == 0 && (self.nanos / NANO).abs() >= 1024 {
            let (mut number, mut place) = (self.nanos / NANO, 0);
            while number % 1024 == 0 && place + 1 < BINARY.len() {
                number /= 1024;
                place += 1;
            }
            return write!(out, "{number}{}", BINARY[place]);
        }
        let (mut number, mut place) = (self.nanos, 0);
        while number % 1000 == 0 && place + 1 < DECIMAL.len() {
            number /= 1000;
            place += 1;
        }
        match self.family {
            Family::Exponent if place != 3 => write!(out, "{number}e{}", place as i32 * 3 - 9),
            _ => write!(out, "{number}{}", DECIMAL[place]),
        }
    }
}

/// Rewrites every quantity of an object of a built-in definition in canonical form; what is no quantity is left for validation.
pub fn canonicalise(definition: &str, object: &mut Value) {
    if let Some(schema) = setpoint_kinds::definition(definition) {
        walk(schema, object);
    }
}

fn walk(schema: &'static Value, value: &mut Value) {
    let reference =
        schema.get("$ref").or_else(|| schema.get("allOf")?.get(0)?.get("$ref")).and_then(Value::as_str);
    if let Some(name) = reference.and_then(|reference| reference.strip_prefix(REF_PREFIX)) {
        if name == "io.k8s.apimachinery.pkg.api.resource.Quantity" {
            let text = match &*value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return,
            };
            if let Some(quantity) = Quantity::parse(&text) {
                *value = quantity.to_string().into();
            }
        } else if let Some(schema) = definition(name) {
            walk(schema, value);
        }
        return;
    }
    match value {
        Value::Object(fields) => {
            let (properties, additional) = (schema.get("properties"), schema.get("additionalProperties"));
            for (key, value) in fields.iter_mut().filter(|(_, value)| !value.is_null()) {
                if let Some(schema) = properties.and_then(|p| p.get(key)).or(additional) {
                    walk(schema, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    walk(schema, item);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        for (text, canonical) in [
            ("1024Mi", "1Gi"),
            ("1Gi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("512", "512"),
            ("1000", "1k"),
            ("100Ki", "100Ki"),
            ("0.5Ki", "512"),
            ("1e3", "1e3"),
            ("0", "0"),
            ("0Mi", "0"),
            ("-1", "-1"),
            ("1500M", "1500M"),
            ("0.0000000001", "1n"),
            ("100u", "100u"),
        ] {
            assert_eq!(Quantity::parse(text).map(|q| q.to_string()).as_deref(), Some(canonical), "{text}");
        }
        for text in ["", "x", "1X", "1.2.3", "Gi", "1 Gi", "1ee3", "1gi"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }
}
