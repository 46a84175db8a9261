use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::{
    Amounts, MaxmemoryPolicy, OperatorChanges, PrimaryUpdate, RedisClusterSpec, Resources, ScaleDown,
    Scheduling, Storage, WritePolicy,
};

mod parameters;

pub use parameters::{AT_START, LIVE, lines, same};

/// Memory limit of each server's container in bytes, unless the spec says otherwise (1Gi).
const MEMORY_LIMIT: u64 = 1 << 30;

/// A spec with its texts parsed and its defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of servers.
    pub size: u32,
    /// The whole image reference.
    pub image: String,
    /// Memory for data in bytes; none if the spec's value is impossible.
    pub maxmemory: Option<u64>,
    /// What happens when it is used up.
    pub policy: MaxmemoryPolicy,
    /// Other settings of the servers that the user gave, as servers show them.
    pub parameters: BTreeMap<&'static str, String>,
    /// Whether data lives on volumes.
    pub persistent: bool,
    /// Memory limit of each server in bytes.
    pub limit: u64,
    /// What each server asks of its node.
    pub resources: ResourceRequirements,
    /// How many replicas must follow for writes to be accepted; none: half of the servers.
    pub min_replicas: Option<u32>,
    /// Writes are refused where fewer follow.
    pub required: bool,
    /// Servers may be removed.
    pub shrinks: bool,
    /// The primary is updated when somebody asks for it.
    pub manual: bool,
    /// Pods get what a newer operator makes in another way at once.
    pub newest: bool,
    /// How long a new pod may take to be in sync.
    pub patience: Duration,
    /// How long a primary must be silent before that counts.
    pub unreachable_after: Duration,
    /// Where the servers run.
    pub scheduling: Scheduling,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            size: 1,
            image: String::new(),
            maxmemory: Some(MEMORY_LIMIT / 4 * 3),
            policy: MaxmemoryPolicy::default(),
            parameters: BTreeMap::new(),
            persistent: false,
            limit: MEMORY_LIMIT,
            resources: plain_resources(),
            min_replicas: None,
            required: false,
            shrinks: false,
            manual: false,
            newest: false,
            patience: Duration::from_secs(600),
            unreachable_after: Duration::from_secs(3),
            scheduling: Scheduling::default(),
        }
    }
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
            "spec.size" => "ScaleDownForbidden",
            "spec.config.maxmemory" => "InvalidMaxmemory",
            "spec.config.parameters" => "InvalidParameter",
            "spec.image" => "InvalidImage",
            "spec.version" => "InvalidVersion",
            "spec.resources" => "InvalidResources",
            "spec.writes.minReplicas" => "InvalidMinReplicas",
            "spec.update.timeout" => "InvalidTimeout",
            "spec.failover.unreachableAfter" => "InvalidUnreachableAfter",
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
        let mut problem = |field, message| problems.push(Problem { field, message });
        let defaults = Self::default();
        let config = spec.config.clone().unwrap_or_default();
        let (resources, limit) = match &spec.resources {
            None => (plain_resources(), MEMORY_LIMIT),
            Some(resources) => resource_requirements(resources).unwrap_or_else(|message| {
                problem("spec.resources", message);
                (plain_resources(), MEMORY_LIMIT)
            }),
        };
        let maxmemory = match config.maxmemory.as_deref() {
            None => Some(limit / 4 * 3),
            Some(text) => {
                maxmemory(text, limit).map_err(|message| problem("spec.config.maxmemory", message)).ok()
            }
        };
        let mut given = BTreeMap::new();
        for (name, value) in &config.parameters {
            match parameters::normalise(name, value) {
                Ok((parameter, value)) => {
                    given.insert(parameter.name, value);
                }
                Err(message) => problem("spec.config.parameters", message),
            }
        }
        let image = reference(&spec.image, spec.version.as_deref()).unwrap_or_else(|found| {
            problem(found.field, found.message);
            String::new()
        });
        for found in spec.storage.iter().flat_map(storage_problems) {
            problem(found.field, found.message);
        }
        let size = u32::try_from(spec.size).unwrap_or(1);
        let writes = spec.writes.clone().unwrap_or_default();
        let min_replicas = match &writes.min_replicas {
            IntOrString::String(text) if text == "auto" => None,
            IntOrString::Int(number) if u32::try_from(*number).is_ok_and(|number| number < size) => {
                u32::try_from(*number).ok()
            }
            other => {
                let given = match other {
                    IntOrString::Int(number) => number.to_string(),
                    IntOrString::String(text) => format!("\"{text}\""),
                };
                let most = size.saturating_sub(1);
                let message = format!(
                    "{given} is impossible: give \"auto\", or a number from 0 to {most}, below spec.size"
                );
                problem("spec.writes.minReplicas", message);
                None
            }
        };
        let update = spec.update.clone().unwrap_or_default();
        let mut time = |field, text: Option<&str>, default: Duration, least: u64, most: u64| match text
            .map(duration)
        {
            None => default,
            Some(Some(given)) if (least..=most).contains(&given.as_secs()) => given,
            Some(_) => {
                let message =
                    format!("{:?} is impossible: give from {least}s to {most}s", text.unwrap_or_default());
                problem(field, message);
                default
            }
        };
        let patience = time("spec.update.timeout", update.timeout.as_deref(), defaults.patience, 30, 86_400);
        let unreachable_after =
            spec.failover.as_ref().and_then(|failover| failover.unreachable_after.as_deref());
        let unreachable_after =
            time("spec.failover.unreachableAfter", unreachable_after, defaults.unreachable_after, 3, 300);
        let settings = Self {
            size,
            image,
            maxmemory,
            policy: config.maxmemory_policy.unwrap_or_default(),
            parameters: given,
            persistent: spec.storage.is_some(),
            limit,
            resources,
            min_replicas,
            required: writes.policy == WritePolicy::Required,
            shrinks: spec.scale_down == ScaleDown::Allow,
            manual: update.primary == PrimaryUpdate::Manual,
            newest: update.operator_changes == OperatorChanges::Auto,
            patience,
            unreachable_after,
            scheduling: spec.scheduling.clone().unwrap_or_default(),
        };
        (settings, problems)
    }
}

/// What servers ask of their nodes unless the spec says otherwise.
fn plain_resources() -> ResourceRequirements {
    let amounts = |cpu: &str, memory: &str| {
        Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ]))
    };
    ResourceRequirements {
        requests: amounts("100m", "256Mi"),
        limits: amounts("500m", "1Gi"),
        ..ResourceRequirements::default()
    }
}

/// What `resources` say, and the memory limit in bytes, which there always is.
fn resource_requirements(resources: &Resources) -> Result<(ResourceRequirements, u64), String> {
    let text = |amount: &IntOrString| match amount {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    };
    let amounts = |of: Option<&Amounts>| -> BTreeMap<String, Quantity> {
        let of = of.cloned().unwrap_or_default();
        let named = [("cpu", of.cpu), ("memory", of.memory)];
        let given =
            named.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), Quantity(text(&amount?)))));
        given.collect()
    };
    let (requests, mut limits) = (amounts(resources.requests.as_ref()), amounts(resources.limits.as_ref()));
    for (what, given) in [("requests", &requests), ("limits", &limits)] {
        for (name, amount) in given {
            if thousandths(&amount.0).is_none() {
                return Err(format!(
                    "{what}.{name}: \"{}\" is no amount: give a number such as 500m, 2 or 1Gi",
                    amount.0
                ));
            }
        }
    }
    let requested = requests.get("memory").and_then(|amount| thousandths(&amount.0)).unwrap_or(0);
    let limit = if let Some(amount) = limits.get("memory") {
        thousandths(&amount.0).unwrap_or(0)
    } else {
        let limit = requested.max(u128::from(MEMORY_LIMIT) * 1000);
        limits.insert("memory".to_owned(), Quantity((limit / 1000).to_string()));
        limit
    };
    for (name, amount) in &requests {
        let most = limits.get(name).and_then(|limit| thousandths(&limit.0));
        if most.is_some_and(|most| thousandths(&amount.0).is_some_and(|amount| amount > most)) {
            return Err(format!("requests.{name}: \"{}\" is more than the limit", amount.0));
        }
    }
    let limit = u64::try_from(limit / 1000).unwrap_or(u64::MAX);
    if !(64 << 20..1 << 50).contains(&limit) {
        return Err(format!("limits.memory: {limit} bytes: give at least 64Mi and less than 1024Ti"));
    }
    let given = |amounts: BTreeMap<String, Quantity>| (!amounts.is_empty()).then_some(amounts);
    let requirements = ResourceRequirements {
        requests: given(requests),
        limits: given(limits),
        ..ResourceRequirements::default()
    };
    Ok((requirements, limit))
}

/// A quantity of Kubernetes in thousandths.
fn thousandths(text: &str) -> Option<u128> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let factor: u128 = match unit {
        "" => 1000,
        "m" => 1,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok().filter(|length| *length <= 9)?)?;
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some(u128::from(whole).checked_mul(factor)? + u128::from(part) * factor / scale)
}

/// A quantity of Kubernetes in whole bytes.
pub fn quantity_in_bytes(text: &str) -> Option<u128> {
    thousandths(text).map(|thousandths| thousandths / 1000)
}

/// `bytes` as Kubernetes writes sizes.
pub fn quantity(bytes: u128) -> String {
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20)];
    let unit = units.into_iter().find(|(_, shift)| bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

/// A time such as `90s`, `10m` or `1h30m`.
fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut seconds) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().ok()?;
        let unit = match rest[digits..].chars().next()? {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return None,
        };
        seconds = seconds.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[digits + 1..];
    }
    (!text.is_empty()).then(|| Duration::from_secs(seconds))
}

/// A size in bytes: a number, alone or with a unit of Redis or Kubernetes.
fn bytes(text: &str) -> Option<u64> {
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
            _ => return None,
        },
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// `text` in bytes, within what the container's memory limit leaves for data.
fn maxmemory(text: &str, limit: u64) -> Result<u64, String> {
    let bytes = bytes(text).ok_or_else(|| {
        format!("\"{text}\" is not a size: give bytes, or a number with kb, mb, gb, Ki, Mi or Gi")
    })?;
    let most = limit / 10 * 9;
    // Redis itself needs about 1 MB; with less it could not hold a single key, and 0 would mean "no limit".
    if !(1 << 21..=most).contains(&bytes) {
        return Err(format!(
            "\"{text}\" is {bytes} bytes: must be from 2mb to {most} bytes, 90 % of the memory limit of {limit}"
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
    one == other
        || quantity_in_bytes(one).zip(quantity_in_bytes(other)).is_some_and(|(one, other)| one == other)
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
    use crate::api::{Reclaim, RedisConfig};
    use serde_json::json;

    fn spec() -> RedisClusterSpec {
        serde_json::from_value(serde_json::json!({"size": 3, "image": "redis", "version": "7.0"})).unwrap()
    }

    /// The settings and the fields with problems of the spec with `more`.
    fn with(more: &serde_json::Value) -> (Settings, Vec<&'static str>) {
        let mut whole = serde_json::to_value(spec()).unwrap();
        for (name, value) in more.as_object().unwrap() {
            whole[name] = value.clone();
        }
        let (settings, problems) = Settings::of(&serde_json::from_value(whole).unwrap());
        (settings, problems.iter().map(|problem| problem.field).collect())
    }

    #[test]
    fn resources_and_what_follows_from_them() {
        let (settings, problems) = with(&json!({"resources": {"requests": {"cpu": 1, "memory": "3Gi"}}}));
        assert_eq!(
            (problems, settings.limit, settings.maxmemory),
            (vec![], 3 << 30, Some(3 * (3 << 30) / 4))
        );
        assert_eq!(settings.resources.limits.unwrap()["memory"].0, (3_u64 << 30).to_string());
        let (settings, _) = with(&json!({"resources": {"limits": {"memory": "1.5Gi"}}}));
        assert_eq!(settings.limit, 3 << 29);
        for resources in [
            json!({"limits": {"memory": "1Mi"}}),
            json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}),
            json!({"limits": {"cpu": "500m"}, "requests": {"cpu": 1}}),
            json!({"requests": {"cpu": "fast"}}),
            json!({"limits": {"memory": "9999999999999Ti"}}),
        ] {
            assert_eq!(with(&json!({"resources": resources})).1, ["spec.resources"], "{resources}");
        }
        let more = json!({"resources": {"limits": {"memory": "256Mi"}}, "config": {"maxmemory": "250mb"}});
        assert_eq!(with(&more).1, ["spec.config.maxmemory"]);
    }

    #[test]
    fn times_and_numbers_of_replicas() {
        let (settings, problems) = with(&json!({
            "writes": {"minReplicas": 2, "policy": "Required"}, "failover": {"unreachableAfter": "1m5s"},
            "update": {"timeout": "1h", "primary": "Manual", "operatorChanges": "Auto"}, "scaleDown": "Allow",
        }));
        assert_eq!(problems, [""; 0]);
        assert_eq!((settings.min_replicas, settings.required, settings.shrinks), (Some(2), true, true));
        assert_eq!((settings.unreachable_after.as_secs(), settings.patience.as_secs()), (65, 3600));
        assert!(settings.manual && settings.newest);
        for (more, field) in [
            (json!({"writes": {"minReplicas": 3}}), "spec.writes.minReplicas"),
            (json!({"writes": {"minReplicas": "some"}}), "spec.writes.minReplicas"),
            (json!({"writes": {"minReplicas": -1}}), "spec.writes.minReplicas"),
            (json!({"failover": {"unreachableAfter": "1s"}}), "spec.failover.unreachableAfter"),
            (json!({"failover": {"unreachableAfter": ""}}), "spec.failover.unreachableAfter"),
            (
                json!({"failover": {"unreachableAfter": "99999999999999999999h"}}),
                "spec.failover.unreachableAfter",
            ),
            (json!({"update": {"timeout": "25h"}}), "spec.update.timeout"),
            (json!({"config": {"parameters": {"dir": "/"}}}), "spec.config.parameters"),
        ] {
            assert_eq!(with(&more).1, [field], "{more}");
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
            assert_eq!(maxmemory(text, MEMORY_LIMIT), Ok(bytes), "{text}");
        }
        for text in ["", "mb", "12 mb", "1tb", "-1", "0", "1kb", "2gb", "99999999999999999999gb"] {
            assert!(maxmemory(text, MEMORY_LIMIT).is_err(), "{text}");
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
            storage: Some(Storage { size: "0Gi".into(), storage_class: None, reclaim: Reclaim::Retain }),
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
            let storage =
                Storage { size: size.into(), storage_class: Some(class.into()), reclaim: Reclaim::Retain };
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
