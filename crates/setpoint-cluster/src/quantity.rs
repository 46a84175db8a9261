//! Quantities such as `500m`, `1Gi`, `2e3`, as far as scheduling and the downward API compare them.

/// A quantity in thousandths, rounded up. None when `text` is not a quantity.
///
/// Grammar: `k8s.io/apimachinery/pkg/api/resource`. Values past the range of an i128 saturate.
pub fn millis(text: &str) -> Option<i128> {
    let split =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty())
        || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let (base, exponent): (i128, i32) = match suffix {
        "" => (10, 0),
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (1024, 1),
        "Mi" => (1024, 2),
        "Gi" => (1024, 3),
        "Ti" => (1024, 4),
        "Pi" => (1024, 5),
        "Ei" => (1024, 6),
        exponent => (10, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let digits = format!("{whole}{fraction}");
    let mut value: i128 = if digits.len() > 30 { return None } else { digits.parse().ok()? };
    value = value.saturating_mul(1000);
    let mut divisor: i128 = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let power = |exponent: i32| base.checked_pow(exponent.unsigned_abs());
    if exponent >= 0 {
        value = value.saturating_mul(power(exponent).unwrap_or(i128::MAX));
    } else {
        divisor = divisor.saturating_mul(power(exponent).unwrap_or(i128::MAX));
    }
    let rounded_up = value / divisor + i128::from(value % divisor != 0 && !negative);
    Some(if negative { -rounded_up } else { rounded_up })
}

/// A quantity in whole units, rounded up. None when `text` is not a quantity or is negative.
pub fn units(text: &str) -> Option<u64> {
    let millis = millis(text)?;
    u64::try_from(millis / 1000 + i128::from(millis % 1000 != 0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form() {
        let cases: [(&str, Option<i128>); 16] = [
            ("1", Some(1000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("128Mi", Some(134_217_728_000)),
            ("2k", Some(2_000_000)),
            ("2e3", Some(2_000_000)),
            ("2E", Some(2_000_000_000_000_000_000_000)),
            ("1n", Some(1)),
            ("-1", Some(-1000)),
            ("+1", Some(1000)),
            ("", None),
            ("x", None),
            ("1x", None),
            ("1.2.3", None),
        ];
        for (text, expected) in cases {
            assert_eq!(millis(text), expected, "{text:?}");
        }
        assert_eq!(units("1500m"), Some(2));
    }
}
