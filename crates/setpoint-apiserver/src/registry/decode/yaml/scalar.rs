//! What a scalar means: YAML 1.1 as Go's `goyaml.v2` reads it (`resolve.go`), which is what Kubernetes' clients and servers use. `yes` is true, `010` is 8,
//! `1_000` is 1000.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value};

/// A scalar as Go holds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// Beyond the positive integers of 64 bits with a sign.
    Unsigned(u64),
    Float(f64),
    Text(String),
}

/// Reads a scalar. `plain` says that it is written without quotes, `tag` is the name of its type (`int` for `!!int`), `""` for a type of somebody's own.
pub(super) fn read(text: &str, plain: bool, tag: Option<&str>) -> Result<Scalar, String> {
    match tag {
        None if plain => Ok(resolve(text)),
        Some("binary") => {
            let bytes = STANDARD.decode(text.replace(char::is_whitespace, ""));
            let bytes = bytes.map_err(|_| "yaml: !!binary value contains invalid base64 data".to_owned())?;
            Ok(Scalar::Text(String::from_utf8_lossy(&bytes).into_owned()))
        }
        Some(wanted @ ("int" | "float" | "bool" | "null")) => {
            let (found, value) = match resolve(text) {
                Scalar::Int(number) if wanted == "float" => ("float", Scalar::Float(number as f64)),
                Scalar::Unsigned(number) if wanted == "float" => ("float", Scalar::Float(number as f64)),
                value => (value.tag(), value),
            };
            if found == wanted {
                return Ok(value);
            }
            Err(format!("yaml: cannot decode !!{found} `{text}` as a !!{wanted}"))
        }
        // Quoted, or of another type: times stay texts, too.
        None | Some(_) => Ok(Scalar::Text(text.to_owned())),
    }
}

fn resolve(text: &str) -> Scalar {
    let as_text = || Scalar::Text(text.to_owned());
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    match text.as_bytes()[0] {
        b'.' => float(text).map_or_else(as_text, Scalar::Float),
        b'+' | b'-' | b'0'..=b'9' => {
            let digits = text.replace('_', "");
            integer(&digits).or_else(|| float(&digits).map(Scalar::Float)).unwrap_or_else(as_text)
        }
        _ => as_text(),
    }
}

/// `strconv.ParseInt` and `ParseUint` with base 0: the prefix says the base, and a zero in front is one.
fn integer(text: &str) -> Option<Scalar> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    let (digits, base) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (lower.as_str(), 10),
    };
    // A second sign would be read by Rust.
    if !digits.bytes().all(|digit| digit.is_ascii_alphanumeric()) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, base).ok()?);
    let number = if text.starts_with('-') { -number } else { number };
    match i64::try_from(number) {
        Ok(number) => Some(Scalar::Int(number)),
        Err(_) if text.starts_with(['+', '-']) => None,
        Err(_) => u64::try_from(number).ok().map(Scalar::Unsigned),
    }
}

/// A number with digits on one side of the point at least. One that is too large is none.
fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let fits = unsigned
        .bytes()
        .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    text.parse().ok().filter(|number: &f64| fits && number.is_finite())
}

impl Scalar {
    fn tag(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Unsigned(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
        }
    }

    /// It as Go prints it (`%#v`).
    pub(super) fn as_go(&self) -> String {
        match self {
            Self::Null => "interface {}(nil)".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Unsigned(number) => format!("0x{number:x}"),
            // A point keeps it apart from the integer.
            Self::Float(number) => format!("{number:?}"),
            Self::Text(text) => format!("{text:?}"),
        }
    }

    /// It as the name of a field, as `sigs.k8s.io/yaml` writes it.
    pub(super) fn into_key(self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Bool(value) => Ok(value.to_string()),
            Self::Int(number) => Ok(number.to_string()),
            Self::Float(number) => Ok(short(number)),
            Self::Null => Err("unsupported map key of type: nil".to_owned()),
            Self::Unsigned(number) => Err(format!("unsupported map key of type: uint64, key: {number}")),
        }
    }

    /// It as JSON.
    pub(super) fn into_value(self) -> Result<Value, String> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => value.into(),
            Self::Int(number) => number.into(),
            Self::Unsigned(number) => number.into(),
            Self::Float(number) => {
                let unsupported = || {
                    let name = if number.is_nan() {
                        "NaN"
                    } else if number > 0.0 {
                        "+Inf"
                    } else {
                        "-Inf"
                    };
                    format!("json: unsupported value: {name}")
                };
                Number::from_f64(number).ok_or_else(unsupported)?.into()
            }
            Self::Text(text) => text.into(),
        })
    }
}

/// A number as Go's `strconv.FormatFloat(number, 'g', -1, 32)` writes it: the shortest that is the same in 32 bits, with an exponent from
/// a million on and below -4.
fn short(number: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "as upstream does it")]
    let number = number as f32;
    if number.is_nan() {
        return ".nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let power: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&power) {
        return number.to_string();
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from kube-apiserver, and from the tables of `resolve.go`.
    #[test]
    fn plain_scalars_mean_what_they_mean_to_go() {
        use Scalar::{Bool, Float, Int, Null, Unsigned};
        for (text, expected) in [
            ("", Null),
            ("~", Null),
            ("y", Bool(true)),
            ("No", Bool(false)),
            ("OFF", Bool(false)),
            ("010", Int(8)),
            ("0644", Int(420)),
            ("-010", Int(-8)),
            ("1__0", Int(10)),
            ("0_", Int(0)),
            ("0x1F", Int(31)),
            ("0b11", Int(3)),
            ("0o17", Int(15)),
            ("+1", Int(1)),
            ("9223372036854775808", Unsigned(1 << 63)),
            ("-9223372036854775808", Int(i64::MIN)),
            ("1e3", Float(1000.0)),
            ("08", Float(8.0)),
            (".5", Float(0.5)),
            ("-.5", Float(-0.5)),
            ("18446744073709551616", Float(18_446_744_073_709_551_616.0)),
            (".inf", Float(f64::INFINITY)),
        ] {
            assert_eq!(resolve(text), expected, "{text}");
        }
        for text in [
            "tRue",
            "1e400",
            "yEs",
            ".",
            "-",
            "+",
            "0x",
            "1:20",
            "2001-01-01",
            "_1",
            "1.2.3",
            "--1",
            "0x-1",
            "a",
        ] {
            assert_eq!(resolve(text), Scalar::Text(text.to_owned()), "{text}");
        }
    }

    #[test]
    fn keys_are_written_as_go_writes_them() {
        for (text, key) in [
            ("y", "true"),
            ("1.0", "1"),
            ("1e3", "1000"),
            ("1e-7", "1e-07"),
            (".NaN", ".nan"),
            ("18446744073709551616", "1.8446744e+19"),
            ("1_000", "1000"),
            ("1000000.0", "1e+06"),
            ("0.1", "0.1"),
        ] {
            assert_eq!(resolve(text).into_key().unwrap(), key, "{text}");
        }
        resolve("9223372036854775808").into_key().unwrap_err();
        resolve("~").into_key().unwrap_err();
    }

    #[test]
    fn tags_say_what_is_meant() {
        assert_eq!(read("1", false, Some("int")), Ok(Scalar::Int(1)));
        assert_eq!(read("1", true, Some("float")), Ok(Scalar::Float(1.0)));
        assert_eq!(read("yes", false, Some("bool")), Ok(Scalar::Bool(true)));
        assert_eq!(read("x", true, Some("null")).unwrap_err(), "yaml: cannot decode !!str `x` as a !!null");
        assert_eq!(read("aGk=", true, Some("binary")), Ok(Scalar::Text("hi".to_owned())));
        for (tag, plain) in [(Some("str"), true), (Some("timestamp"), true), (Some(""), true), (None, false)]
        {
            assert_eq!(read("1", plain, tag), Ok(Scalar::Text("1".to_owned())), "{tag:?}");
        }
    }
}
