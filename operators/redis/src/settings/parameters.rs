use std::collections::{BTreeMap, BTreeSet};

/// A setting of redis.conf that users may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub values: Values,
    /// What it is unless the user says otherwise, as `CONFIG GET` shows it.
    pub default: &'static str,
}

/// What a setting may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Whole numbers within these bounds.
    Number(i64, i64),
    /// Bytes, as a number or with a unit, within these bounds.
    Bytes(u64, u64),
    /// `yes` or `no`.
    YesNo,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Any of these letters.
    Letters(&'static str),
}

const MOST: i64 = i64::MAX;

/// What running servers take at once. Each is known to every server from Redis 7.0 on, and to Valkey.
pub const LIVE: [Parameter; 33] = [
    of("active-expire-effort", Values::Number(1, 10), "1"),
    of("activedefrag", Values::YesNo, "no"),
    of("appendfsync", Values::OneOf(&["always", "everysec", "no"]), "everysec"),
    of("auto-aof-rewrite-min-size", Values::Bytes(1 << 20, 1 << 44), "67108864"),
    of("auto-aof-rewrite-percentage", Values::Number(0, 10_000), "100"),
    of("client-query-buffer-limit", Values::Bytes(1 << 20, 1 << 40), "1073741824"),
    of("hash-max-listpack-entries", Values::Number(0, MOST), "512"),
    of("hash-max-listpack-value", Values::Number(0, MOST), "64"),
    of("hll-sparse-max-bytes", Values::Number(0, 1 << 20), "3000"),
    of("hz", Values::Number(1, 500), "10"),
    of("latency-monitor-threshold", Values::Number(0, MOST), "0"),
    of("lazyfree-lazy-user-del", Values::YesNo, "no"),
    of("lfu-decay-time", Values::Number(0, 1 << 30), "1"),
    of("lfu-log-factor", Values::Number(0, 1 << 30), "10"),
    of("list-compress-depth", Values::Number(0, 1 << 30), "0"),
    of("list-max-listpack-size", Values::Number(-5, 1 << 15), "-2"),
    of("lua-time-limit", Values::Number(100, 60_000), "5000"),
    of("maxclients", Values::Number(100, 100_000), "10000"),
    of("maxmemory-clients", Values::Bytes(0, 1 << 40), "0"),
    of("maxmemory-eviction-tenacity", Values::Number(0, 100), "10"),
    of("maxmemory-samples", Values::Number(1, 64), "5"),
    of("notify-keyspace-events", Values::Letters("KEg$lshzxetdmnA"), ""),
    of("proto-max-bulk-len", Values::Bytes(1 << 20, 1 << 40), "536870912"),
    of("repl-backlog-size", Values::Bytes(1 << 20, 1 << 40), "67108864"),
    of("set-max-intset-entries", Values::Number(0, MOST), "512"),
    of("slowlog-log-slower-than", Values::Number(-1, MOST), "10000"),
    of("slowlog-max-len", Values::Number(0, 1 << 30), "128"),
    of("stream-node-max-bytes", Values::Bytes(0, 1 << 30), "4096"),
    of("stream-node-max-entries", Values::Number(0, 1 << 30), "100"),
    of("timeout", Values::Number(0, 1 << 30), "0"),
    of("tracking-table-max-keys", Values::Number(0, MOST), "1000000"),
    of("zset-max-listpack-entries", Values::Number(0, MOST), "128"),
    of("zset-max-listpack-value", Values::Number(0, MOST), "64"),
];

/// What servers take only when they start.
pub const AT_START: [Parameter; 3] = [
    of("databases", Values::Number(1, 1 << 16), "16"),
    of("io-threads", Values::Number(1, 64), "1"),
    of("tcp-backlog", Values::Number(1, 65_535), "511"),
];

const fn of(name: &'static str, values: Values, default: &'static str) -> Parameter {
    Parameter { name, values, default }
}

/// The value of `name` as `CONFIG GET` shows it.
///
/// # Errors
/// In words, if there is no such setting or it cannot be that.
pub fn normalise(name: &str, value: &str) -> Result<(Parameter, String), String> {
    let parameter =
        LIVE.iter().chain(&AT_START).find(|parameter| parameter.name == name).ok_or_else(|| {
            format!("\"{name}\" cannot be set: it is unknown, or the operator needs it itself")
        })?;
    let wrong = |wanted: String| Err(format!("\"{value}\" is no value of {name}: {wanted}"));
    let normal = match parameter.values {
        Values::Number(least, most) => match value.parse::<i64>() {
            Ok(number) if (least..=most).contains(&number) => number.to_string(),
            _ if most == MOST => return wrong(format!("give a whole number from {least}")),
            _ => return wrong(format!("give a whole number from {least} to {most}")),
        },
        Values::Bytes(least, most) => match super::bytes(value) {
            Some(number) if (least..=most).contains(&number) => number.to_string(),
            _ => {
                return wrong(format!(
                    "give {least} to {most} bytes, or a number with kb, mb, gb, Ki, Mi or Gi"
                ));
            }
        },
        Values::YesNo => match value {
            "yes" | "no" => value.to_owned(),
            _ => return wrong("give \"yes\" or \"no\"".to_owned()),
        },
        Values::OneOf(words) => match words.iter().find(|word| **word == value) {
            Some(word) => (*word).to_owned(),
            None => return wrong(format!("give one of {}", words.join(", "))),
        },
        Values::Letters(letters) => match value.chars().find(|letter| !letters.contains(*letter)) {
            None => value.to_owned(),
            Some(_) => return wrong(format!("give letters of {letters}")),
        },
    };
    Ok((*parameter, normal))
}

/// What the letter `A` of `notify-keyspace-events` stands for. Where all of them are set, servers don't show `n`
/// (Redis 7.0).
const ALL: &str = "g$lshzxetd";

/// Whether two values of `name` are the same: servers show letters in an order of their own, and `A` for many.
pub fn same(parameter: &Parameter, wanted: &str, shown: &str) -> bool {
    let Values::Letters(_) = parameter.values else { return wanted == shown };
    let whole = |value: &str| -> BTreeSet<char> {
        let more = if value.contains('A') { ALL } else { "" };
        let all: BTreeSet<char> = value.chars().filter(|letter| *letter != 'A').chain(more.chars()).collect();
        let hides = ALL.chars().all(|letter| all.contains(&letter));
        all.into_iter().filter(|letter| !(hides && *letter == 'n')).collect()
    };
    whole(wanted) == whole(shown)
}

/// The lines of redis.conf for `parameters`, which are normalised.
pub fn lines(parameters: &BTreeMap<&'static str, String>) -> String {
    parameters
        .iter()
        .map(
            |(name, value)| {
                if value.is_empty() { format!("{name} \"\"\n") } else { format!("{name} {value}\n") }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_as_servers_show_them() {
        for (name, value, shown) in [
            ("repl-backlog-size", "128mb", "134217728"),
            ("maxclients", "00500", "500"),
            ("hz", "20", "20"),
            ("activedefrag", "yes", "yes"),
            ("appendfsync", "always", "always"),
            ("notify-keyspace-events", "KEA", "KEA"),
            ("slowlog-log-slower-than", "-1", "-1"),
        ] {
            assert_eq!(normalise(name, value).map(|(_, value)| value).as_deref(), Ok(shown), "{name}");
        }
    }

    #[test]
    fn nonsense_and_what_keeps_the_data_safe_is_refused() {
        for (name, value) in [
            ("maxclients", "many"),
            ("maxclients", "99999999999999999999"),
            ("hz", "0"),
            ("activedefrag", "true"),
            ("appendfsync", "ALWAYS"),
            ("notify-keyspace-events", "K\nrequirepass x"),
            ("min-replicas-to-write", "0"),
            ("replicaof", "no one"),
            ("requirepass", "secret"),
            ("dir", "/tmp"),
            ("loadmodule", "/tmp/x.so"),
            ("aclfile", ""),
            ("cluster-enabled", "yes"),
            ("appendonly", "no"),
            ("", ""),
        ] {
            assert!(normalise(name, value).is_err(), "{name} {value}");
        }
    }

    #[test]
    fn defaults_are_values() {
        for parameter in LIVE.iter().chain(&AT_START) {
            let (_, normal) = normalise(parameter.name, parameter.default).unwrap();
            assert_eq!(normal, parameter.default, "{}", parameter.name);
        }
    }

    #[test]
    fn every_one_is_documented() {
        let document = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/redis.md");
        let document = std::fs::read_to_string(document).unwrap();
        for parameter in LIVE.iter().chain(&AT_START) {
            assert!(
                document.contains(&format!("`{}`", parameter.name)),
                "{} is not in docs/redis.md",
                parameter.name
            );
        }
    }

    #[test]
    fn letters_have_no_order() {
        let events = LIVE.iter().find(|parameter| parameter.name == "notify-keyspace-events").unwrap();
        for (wanted, shown, equal) in [
            ("Ex", "xE", true),
            ("KEA", "AKE", true),
            ("KEAmn", "AKEm", true),
            ("KEg", "KE", false),
            ("", "KE", false),
        ] {
            assert_eq!(same(events, wanted, shown), equal, "{wanted} {shown}");
        }
        assert_eq!(
            lines(&[("hz", "20".to_owned()), ("notify-keyspace-events", String::new())].into()),
            "hz 20\nnotify-keyspace-events \"\"\n"
        );
    }
}
