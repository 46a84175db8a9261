use std::fmt;

use crate::api::{MaxmemoryPolicy, RedisClusterSpec};

/// Memory limit of each server's container in bytes (1Gi).
pub const MEMORY_LIMIT: u64 = 1 << 30;

/// A spec with its texts parsed and its defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of servers.
    pub size: u32,
    /// The whole image reference.
    pub image: String,
    /// Memory for data in bytes; none if the spec's value is impossible.
    pub maxmemory: Option<u64>,
    /// What happens when it is used up.
    pub policy: MaxmemoryPolicy,
    /// Whether data lives on volumes.
    pub persistent: bool,
}

/// A field of the spec that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path of the field, such as `spec.config.maxmemory`.
    pub field: &'static str,
    /// What is wrong with it and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl Settings {
    /// Reads `spec`, with every field that cannot be carried out. With problems the settings serve to keep
    /// running servers alive, not to make children.
    pub fn of(spec: &RedisClusterSpec) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        let config = spec.config.clone().unwrap_or_default();
        let maxmemory = match config.maxmemory.as_deref() {
            None => Some(MEMORY_LIMIT / 4 * 3),
            Some(text) => maxmemory(text)
                .map_err(|message| problems.push(Problem { field: "spec.config.maxmemory", message }))
                .ok(),
        };
        let image = image(&spec.image, spec.version.as_deref()).unwrap_or_else(|message| {
            problems.push(Problem { field: "spec.version", message });
            String::new()
        });
        if let Some(storage) = &spec.storage
            && storage.size.trim_end_matches(char::is_alphabetic).trim_start_matches('0').is_empty()
        {
            let message =
                format!("\"{}\" is not a size that a volume can have: give at least 1Mi", storage.size);
            problems.push(Problem { field: "spec.storage.size", message });
        }
        let settings = Self {
            size: u32::try_from(spec.size).unwrap_or(1),
            image,
            maxmemory,
            policy: config.maxmemory_policy.unwrap_or_default(),
            persistent: spec.storage.is_some(),
        };
        (settings, problems)
    }
}

/// `text` in bytes, within what the container's memory limit leaves for data.
fn maxmemory(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit {
        "" | "b" | "B" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => match unit.to_ascii_lowercase().as_str() {
            "k" => 1_000,
            "kb" => 1 << 10,
            "m" => 1_000_000,
            "mb" => 1 << 20,
            "g" => 1_000_000_000,
            "gb" => 1 << 30,
            _ => {
                return Err(format!(
                    "\"{text}\" is not a size: give bytes, or a number with kb, mb, gb, Ki, Mi or Gi"
                ));
            }
        },
    };
    let bytes =
        number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(|| {
            format!("\"{text}\" is not a size: give bytes, or a number with kb, mb, gb, Ki, Mi or Gi")
        })?;
    let most = MEMORY_LIMIT / 10 * 9;
    // Redis itself needs about 1 MB; with less it could not hold a single key, and 0 would mean "no limit".
    if !(1 << 21..=most).contains(&bytes) {
        return Err(format!(
            "\"{text}\" is {bytes} bytes: must be from 2mb to {most} bytes, 90 % of the memory limit of 1Gi"
        ));
    }
    Ok(bytes)
}

/// The whole image reference.
fn image(image: &str, version: Option<&str>) -> Result<String, String> {
    let (_, last) = image.rsplit_once('/').unwrap_or(("", image));
    match version {
        None => Ok(image.to_owned()),
        Some(version) => match last.split_once(':') {
            None if last.contains('@') => {
                Err(format!("image \"{image}\" is fixed by a digest: leave version out"))
            }
            None => Ok(format!("{image}:{version}")),
            Some((_, tag)) if tag == version => Ok(image.to_owned()),
            Some((_, tag)) => Err(format!(
                "\"{version}\" differs from the tag \"{tag}\" of spec.image: give one of the two"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{RedisConfig, Storage};

    fn spec() -> RedisClusterSpec {
        RedisClusterSpec {
            size: 3,
            image: "redis".into(),
            version: Some("7.0".into()),
            config: None,
            storage: None,
        }
    }

    #[test]
    fn units_of_redis_and_kubernetes() {
        for (text, bytes) in [
            ("268435456", 268_435_456),
            ("256mb", 268_435_456),
            ("256Mi", 268_435_456),
            ("100m", 100_000_000),
            ("100MB", 104_857_600),
        ] {
            assert_eq!(maxmemory(text), Ok(bytes), "{text}");
        }
        for text in ["", "mb", "12 mb", "1tb", "-1", "0", "1kb", "2gb", "99999999999999999999gb"] {
            assert!(maxmemory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn defaults() {
        let (settings, problems) = Settings::of(&spec());
        assert_eq!(problems, []);
        assert_eq!(settings.image, "redis:7.0");
        assert_eq!(settings.maxmemory, Some(805_306_368));
        assert_eq!(settings.policy, MaxmemoryPolicy::Noeviction);
        assert!(!settings.persistent);
    }

    #[test]
    fn every_problem_is_named() {
        let spec = RedisClusterSpec {
            image: "registry:5000/redis:6.2".into(),
            config: Some(RedisConfig { maxmemory: Some("lots".into()), ..RedisConfig::default() }),
            storage: Some(Storage { size: "0Gi".into(), storage_class: None }),
            ..spec()
        };
        let (_, problems) = Settings::of(&spec);
        let fields: Vec<_> = problems.iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["spec.config.maxmemory", "spec.version", "spec.storage.size"]);
    }

    #[test]
    fn ports_are_not_tags() {
        assert_eq!(image("registry:5000/redis", Some("7.0")).as_deref(), Ok("registry:5000/redis:7.0"));
        assert_eq!(image("redis:7.0", None).as_deref(), Ok("redis:7.0"));
        assert!(image("redis@sha256:abc", Some("7.0")).is_err());
    }
}
