//! How long a request may take (`k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go`).

use std::time::Duration;

use crate::request::{Query, Target};
use crate::status::{Result, Status};

/// For requests that do not ask for less (upstream: `--request-timeout`).
const LONGEST: Duration = Duration::from_secs(60);

/// The time that a request has; `None` for those that last: watches and streams.
///
/// # Errors
/// When the query asks for what is no duration.
pub(crate) fn of(target: &Target, query: &Query) -> Result<Option<Duration>> {
    if let Target::Resource(request) = target
        && (request.verb == "watch" || request.is_stream())
    {
        return Ok(None);
    }
    let Some(text) = query.get("timeout").filter(|text| !text.is_empty()) else { return Ok(Some(LONGEST)) };
    let asked = parse(text).map_err(|why| {
        Status::bad_request(format!("invalid timeout specified in the request URL - time: {why}"))
    })?;
    Ok(Some(asked.filter(|asked| *asked < LONGEST).unwrap_or(LONGEST)))
}

/// Reads a duration as Go's `time.ParseDuration` does; `None` when it is not positive.
fn parse(text: &str) -> Result<Option<Duration>, String> {
    let invalid = || format!("invalid duration {text:?}");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(None);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        // A second point belongs to the unit, which then is none.
        let end = rest.match_indices('.').nth(1).map_or(end, |(second, _)| end.min(second));
        let (number, after) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let nanoseconds: u64 = match unit {
            "" => return Err(format!("missing unit in duration {text:?}")),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            other => return Err(format!("unknown unit {other:?} in duration {text:?}")),
        };
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let part =
            whole.checked_mul(nanoseconds).and_then(|part| part.checked_add(of_unit(fraction, nanoseconds)));
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
        if total > i64::MAX.unsigned_abs() {
            return Err(invalid());
        }
        rest = after;
    }
    Ok(Some(Duration::from_nanos(total)).filter(|asked| !negative && !asked.is_zero()))
}

/// The nanoseconds of a fraction of a unit, as far as there are whole ones.
fn of_unit(fraction: &str, nanoseconds: u64) -> u64 {
    let mut rest = nanoseconds;
    let mut total = 0;
    for digit in fraction.bytes() {
        let digit = u64::from(digit - b'0');
        total += rest * digit / 10;
        rest /= 10;
    }
    total
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        let of = |text: &str| parse(text);
        for (text, millis) in
            [("5s", 5000), ("1.5s", 1500), ("+1m", 60_000), ("1h1m1s1ms", 3_661_001), (".5s", 500)]
        {
            assert_eq!(of(text), Ok(Some(Duration::from_millis(millis))), "{text}");
        }
        for text in ["0", "-5s", "0s", "-0", "0.0000000001s"] {
            assert_eq!(of(text), Ok(None), "{text}");
        }
        for (text, why) in [
            ("abc", "invalid duration \"abc\""),
            ("5", "missing unit in duration \"5\""),
            ("1h1", "missing unit in duration \"1h1\""),
            ("1e3s", "unknown unit \"e\" in duration \"1e3s\""),
            ("2562048h", "invalid duration \"2562048h\""),
            ("99999999999999999999s", "invalid duration \"99999999999999999999s\""),
            (".s", "invalid duration \".s\""),
            ("1..5s", "missing unit in duration \"1..5s\""),
            ("-", "invalid duration \"-\""),
        ] {
            assert_eq!(of(text), Err(why.to_owned()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-+]?[0-9.a-zµ]{0,40}") {
            let _ = parse(&text);
        }
    }
}
