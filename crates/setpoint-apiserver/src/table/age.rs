//! Ages as kubectl shows them: two or three significant figures.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// How long ago an RFC 3339 time was; `<unknown>` if it is absent.
pub fn since(time: &Value, now: Timestamp) -> String {
    match time.as_str() {
        None | Some("") => "<unknown>".to_owned(),
        Some(text) => text
            .parse()
            .map_or_else(|_| "<invalid>".to_owned(), |then: Timestamp| human(now.duration_since(then))),
    }
}

/// A duration such as `45s`, `3m10s`, `5h`, `2d3h` (`k8s.io/apimachinery/pkg/util/duration.HumanDuration`).
pub fn human(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: i64, unit: char, small: i64, of: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{of}"),
    };
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(days, 'd', hours % 24, 'h'),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => two(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        for (seconds, shown) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (3600 * 7 + 60, "7h1m"),
            (3600 * 8 + 60, "8h"),
            (3600 * 47, "47h"),
            (3600 * 49, "2d1h"),
            (3600 * 24 * 8, "8d"),
            (3600 * 24 * 729, "729d"),
            (3600 * 24 * 731, "2y1d"),
            (3600 * 24 * 365 * 9, "9y"),
        ] {
            assert_eq!(human(SignedDuration::from_secs(seconds)), shown, "{seconds}");
        }
        let now = "2026-01-01T00:00:10Z".parse().expect("a time");
        assert_eq!(since(&"2026-01-01T00:00:00Z".into(), now), "10s");
        assert_eq!(since(&Value::Null, now), "<unknown>");
    }
}
