use std::fmt;

use crate::api::{MaxmemoryPolicy, RedisClusterSpec, Storage};

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

impl Problem {
    /// The field as one word, for conditions and events: events with the same word count as one.
    pub fn reason(&self) -> &'static str {
        match self.field {
            "spec.config.maxmemory" => "InvalidMaxmemory",
            "spec.image" => "InvalidImage",
            "spec.version" => "InvalidVersion",
            "spec.storage.size" => "StorageUnavailable",
            "spec.storage.storageClass" => "StorageClassUnavailable",
            "status.renderRevision" => "UnknownRevision",
            _ => "InvalidSpec",
        }
    }
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
        let image = reference(&spec.image, spec.version.as_deref()).unwrap_or_else(|problem| {
            problems.push(problem);
            String::new()
        });
        if let Some(storage) = &spec.storage {
            problems.extend(storage_problems(storage));
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

/// What a volume cannot be like.
fn storage_problems(storage: &Storage) -> Vec<Problem> {
    // Up to an exbibyte: more does not fit Kubernetes' quantities.
    const MOST_TI: u64 = 1 << 20;
    let mut problems = Vec::new();
    let digits = storage.size.trim_end_matches(char::is_alphabetic);
    let most = if storage.size.ends_with("Ti") { MOST_TI } else { MOST_TI << 10 };
    if !digits.parse::<u64>().is_ok_and(|number| (1..=most).contains(&number)) {
        let message = format!(
            "\"{}\" is not a size that a volume can have: give at least 1Mi and at most {MOST_TI}Ti",
            storage.size,
        );
        problems.push(Problem { field: "spec.storage.size", message });
    }
    if let Some(class) = storage.storage_class.as_deref().filter(|class| !class.is_empty() && !is_name(class))
    {
        let message = format!("\"{class}\" is not a name that a storage class can have");
        problems.push(Problem { field: "spec.storage.storageClass", message });
    }
    problems
}

/// Whether two sizes of volumes are the same: the API server may write `1024Mi` as `1Gi`.
pub fn same_size(one: &str, other: &str) -> bool {
    let bytes = |text: &str| {
        let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
        let factor: u128 = match unit {
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            _ => return None,
        };
        number.parse::<u64>().ok().map(|number| u128::from(number) * factor)
    };
    one == other || bytes(one).zip(bytes(other)).is_some_and(|(one, other)| one == other)
}

/// Whether `text` is a DNS subdomain, as names of objects are.
fn is_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_word(part, b"-"))
}

/// Whether `text` is lower-case letters and digits with some of `between` inside.
fn is_word(text: &str, between: &[u8]) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(edge)
        && text.ends_with(edge)
        && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || between.contains(&c))
}

/// The whole image reference.
fn reference(image: &str, version: Option<&str>) -> Result<String, Problem> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let folder = name.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match name[folder..].split_once(':') {
        Some((last, tag)) => (&name[..folder + last.len()], Some(tag)),
        None => (name, None),
    };
    if !is_repository(path) || !digest.is_none_or(is_digest) || !tag.is_none_or(is_tag) {
        let message = format!(
            "\"{image}\" is not an image: give a repository such as redis or registry.example.com/team/redis, in lower case, with a tag or digest if you like"
        );
        return Err(Problem { field: "spec.image", message });
    }
    let of_version = |message: String| Err(Problem { field: "spec.version", message });
    match (version, tag) {
        (None, _) => Ok(image.to_owned()),
        (Some(version), _) if !is_tag(version) => of_version(format!(
            "\"{version}\" is not a tag: give letters, digits, \".\", \"-\" and \"_\", such as 7.0"
        )),
        (Some(version), Some(tag)) if tag == version => Ok(image.to_owned()),
        (Some(version), Some(tag)) => of_version(format!(
            "\"{version}\" differs from the tag \"{tag}\" of spec.image: give one of the two"
        )),
        (Some(_), None) if digest.is_some() => {
            of_version(format!("image \"{image}\" is fixed by a digest: leave version out"))
        }
        (Some(version), None) => Ok(format!("{image}:{version}")),
    }
}

/// Whether `path` names a repository (grammar of the distribution project): a registry, perhaps, and components.
fn is_repository(path: &str) -> bool {
    let component = |part: &str| is_word(part, b"._-");
    let registry = |part: &str| {
        let (host, port) = part.rsplit_once(':').unwrap_or((part, "0"));
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'[' | b']' | b':');
        !host.is_empty() && host.bytes().all(fits) && port.bytes().all(|c| c.is_ascii_digit())
    };
    let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
    path.len() <= 255
        && (component(first) || (rest.is_some() && registry(first)))
        && rest.is_none_or(|rest| rest.split('/').all(component))
}

fn is_tag(tag: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= 128 && tag.starts_with(fits) && tag.chars().all(|c| fits(c) || matches!(c, '.' | '-'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && hex.len() >= 32 && hex.bytes().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RedisConfig;

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
        let whole = |image, version| reference(image, version).map_err(|problem| problem.field);
        assert_eq!(whole("registry:5000/redis", Some("7.0")).as_deref(), Ok("registry:5000/redis:7.0"));
        assert_eq!(whole("redis:7.0", None).as_deref(), Ok("redis:7.0"));
        let digest = format!("r.example.com/a/redis@sha256:{}", "0".repeat(64));
        assert_eq!(whole(&digest, Some("7.0")), Err("spec.version"));
        for fine in ["r.example.com:5000/team/re-dis_x", "localhost/redis:7.0", &digest, "EXAMPLE.com/redis"]
        {
            assert_eq!(whole(fine, None).as_deref(), Ok(fine));
        }
        for nonsense in [
            "",
            " ",
            "Redis",
            "re dis",
            "redis:",
            "redis:a b",
            "redis@",
            "redis@sha256:abc",
            "/redis",
            "a//b",
        ] {
            assert_eq!(whole(nonsense, None), Err("spec.image"), "{nonsense}");
        }
        for nonsense in ["", " ", "7 0", ":7", ".7", "7/0", "7.0\n"] {
            assert_eq!(whole("redis", Some(nonsense)), Err("spec.version"), "{nonsense}");
        }
    }

    #[test]
    fn impossible_storage_is_named() {
        let problems = |size: &str, class: &str| -> Vec<&str> {
            let storage = Storage { size: size.into(), storage_class: Some(class.into()) };
            storage_problems(&storage).iter().map(|problem| problem.field).collect()
        };
        assert!(problems("1Gi", "fast.ssd").is_empty());
        assert!(same_size("1024Mi", "1Gi") && !same_size("1Mi", "1Gi"));
        for size in ["0Gi", "000Ti", "99999999999999999999Gi", "2000000Ti"] {
            assert_eq!(problems(size, ""), ["spec.storage.size"], "{size}");
        }
        for class in ["Gold", "a b", "-a", "a..b"] {
            assert_eq!(problems("1Gi", class), ["spec.storage.storageClass"], "{class}");
        }
    }
}
