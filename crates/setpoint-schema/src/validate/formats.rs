//! String formats, as go-openapi's strfmt checks them.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use base64::Engine;
use jiff::{Timestamp, civil::Date};
use regex::Regex;

/// Whether the format of a string is checked at all. Dashes are ignored in names: `date-time` is `datetime`.
pub fn is_known_format(format: &str) -> bool {
    const KNOWN: [&str; 24] = [
        "bsonobjectid",
        "byte",
        "cidr",
        "creditcard",
        "date",
        "datetime",
        "duration",
        "email",
        "hexcolor",
        "hostname",
        "ipv4",
        "ipv6",
        "isbn",
        "isbn10",
        "isbn13",
        "k8slongname",
        "k8sshortname",
        "mac",
        "password",
        "rgbcolor",
        "ssn",
        "uri",
        "uuid",
        "uuid3",
    ];
    let name = normal(format);
    KNOWN.contains(&name.as_str()) || matches!(name.as_str(), "uuid4" | "uuid5")
}

/// Whether `text` has a format; a format that is not known always holds.
pub(super) fn holds(format: &str, text: &str) -> bool {
    match normal(format).as_str() {
        "bsonobjectid" => matches(&BSON_OBJECT_ID, text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "cidr" => is_cidr(text),
        "creditcard" => matches(&CREDIT_CARD, &digits(text)),
        "date" => text.len() == 10 && text.parse::<Date>().is_ok(),
        "datetime" => is_date_time(text),
        "duration" => matches(&GO_DURATION, text) || matches(&SCALA_DURATION, text),
        "email" => matches(&EMAIL, text),
        "hexcolor" => matches(&HEX_COLOR, text),
        "hostname" => is_hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "k8slongname" => text.len() <= 253 && text.split('.').all(is_label),
        "k8sshortname" => is_label(text),
        "mac" => matches(&MAC, text),
        "rgbcolor" => matches(&RGB_COLOR, text),
        "ssn" => matches(&SSN, text),
        "uri" => is_uri(text),
        "uuid" => matches(&UUID, text),
        "uuid3" => matches(&UUID, text) && version_of(text) == Some('3'),
        "uuid4" => matches(&UUID, text) && version_of(text) == Some('4'),
        "uuid5" => matches(&UUID, text) && version_of(text) == Some('5'),
        _ => true,
    }
}

fn normal(format: &str) -> String {
    format.replace('-', "")
}

type Pattern = LazyLock<Option<Regex>>;

/// A pattern of this file always compiles (a test says so); one that did not would let everything pass.
fn matches(pattern: &Pattern, text: &str) -> bool {
    pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
}

macro_rules! patterns {
    ($($name:ident = $pattern:expr;)*) => {
        $(static $name: Pattern = LazyLock::new(|| Regex::new($pattern).ok());)*
        #[cfg(test)]
        const PATTERNS: &[&str] = &[$($pattern),*];
    };
}

patterns! {
    BSON_OBJECT_ID = "^[0-9a-fA-F]{24}$";
    CREDIT_CARD = r"^(?:4\d{12}(?:\d{3})?|5[1-5]\d{14}|6(?:011|5\d\d)\d{12}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|(?:2131|1800|35\d{3})\d{11})$";
    GO_DURATION = r"^[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)$";
    SCALA_DURATION = r"^\s*-?\d+\s*(?:ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|wks?|weeks?)\s*$";
    EMAIL = r#"^(?:[^<>@]*<)?[^\s@<>"(),:;\[\]\\]+@[^\s@<>"(),:;\\]+>?$"#;
    HEX_COLOR = "^#?(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
    MAC = r"^(?:[0-9a-fA-F]{2}([:-]))(?:[0-9a-fA-F]{2}[:-]){4}(?:[0-9a-fA-F]{2}[:-]){0,2}[0-9a-fA-F]{2}$|^(?:[0-9a-fA-F]{4}\.){2,3}[0-9a-fA-F]{4}$";
    RGB_COLOR = r"^rgb\(\s*(?:0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(?:0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(?:0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$";
    SSN = r"^\d{3}[- ]?\d{2}[- ]?\d{4}$";
    UUID = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
}

fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

/// RFC 3339 with a time and an offset; a blank may stand for the `T`.
fn is_date_time(text: &str) -> bool {
    let has_offset = text.ends_with(['Z', 'z'])
        || text.get(text.len().saturating_sub(6)..).is_some_and(|end| end.starts_with(['+', '-']));
    has_offset && text.len() >= 20 && text.parse::<Timestamp>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    match (address.parse(), length.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(length)) => length <= 32,
        (Ok(IpAddr::V6(_)), Ok(length)) => length <= 128,
        _ => false,
    }
}

/// Labels of up to 63 letters, digits and inner dashes; the last of several is two letters or more.
fn is_hostname(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    let labels: Vec<&str> = text.split('.').collect();
    let top =
        labels.last().is_some_and(|last| last.chars().count() >= 2 && last.chars().all(char::is_alphabetic));
    text.len() <= 255 && labels.iter().all(|part| label(part)) && (labels.len() == 1 || top)
}

/// An RFC 1123 label: what a Kubernetes short name is.
fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// As Go's `url.ParseRequestURI`: absolute, or an absolute path.
fn is_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b.is_ascii_control() || b == b' ') {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        && !rest.is_empty()
}

fn is_isbn10(text: &str) -> bool {
    let text = text.replace(['-', ' '], "");
    let digit = |(index, c): (usize, char)| match c {
        'X' | 'x' if index == 9 => Some(10),
        c => c.to_digit(10),
    };
    let values: Option<Vec<u32>> = text.chars().enumerate().map(digit).collect();
    values.is_some_and(|values| {
        values.len() == 10 && (1..).zip(values).map(|(i, d)| i * d).sum::<u32>() % 11 == 0
    })
}

fn is_isbn13(text: &str) -> bool {
    let text = text.replace(['-', ' '], "");
    let values: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(10)).collect();
    values.is_some_and(|values| {
        values.len() == 13
            && values.iter().zip([1, 3].iter().cycle()).map(|(d, w)| d * w).sum::<u32>() % 10 == 0
    })
}

fn version_of(uuid: &str) -> Option<char> {
    uuid.replace('-', "").chars().nth(12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_compile() {
        for pattern in PATTERNS {
            Regex::new(pattern).unwrap();
        }
    }

    #[test]
    fn formats_hold_as_on_a_real_server() {
        let holding = [
            ("uuid4", "9b0bd5f4-cc5c-4b5c-8b0a-3e3f5c3a1b2c"),
            ("isbn", "0321751043"),
            ("isbn13", "978-0321751041"),
            ("creditcard", "4111-1111-1111-1111"),
            ("rgbcolor", "rgb(255, 0, 12)"),
            ("hexcolor", "#FFF"),
            ("mac", "01:02:03:04:ab:cd"),
            ("ipv6", "::1"),
            ("duration", "2.5h"),
            ("date-time", "2020-01-01T00:00:00.123+02:00"),
            ("not-a-format", "x"),
        ];
        for (format, text) in holding {
            assert!(holds(format, text), "{text:?} is a {format}");
        }
        let broken = [
            ("uuid3", "9b0bd5f4-cc5c-4b5c-8b0a-3e3f5c3a1b2c"),
            ("isbn10", "0321751044"),
            ("date", "2020-13-01"),
            ("date-time", "2020-01-01T00:00:00"),
            ("duration", "5 moons"),
            ("ipv4", "::1"),
        ];
        for (format, text) in broken {
            assert!(!holds(format, text), "{text:?} is no {format}");
        }
    }
}
