//! The levels that the labels of a namespace choose (`k8s.io/pod-security-admission/api`).

use std::fmt;

use serde_json::Value;

use crate::status::Cause;

const PREFIX: &str = "pod-security.kubernetes.io/";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// A level as a minor version of Kubernetes 1 defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    pub(super) version: u64,
}

/// Newer than every version.
const LATEST: u64 = u64::MAX;

impl Default for LevelVersion {
    fn default() -> Self {
        Self { level: Level::default(), version: LATEST }
    }
}

/// What the labels of a namespace say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: LevelVersion,
    pub(super) warn: LevelVersion,
    audit: LevelVersion,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        })?;
        match self.version {
            LATEST => f.write_str(":latest"),
            minor => write!(f, ":v1.{minor}"),
        }
    }
}

impl Policy {
    /// What labels say, and what is wrong with them. A level to enforce that cannot be read is the strictest; one to audit or to warn by is none.
    pub(super) fn of(labels: &Value) -> (Self, Vec<Cause>) {
        let mut policy = Self::default();
        let mut problems = Vec::new();
        let text = |label: &str| labels[format!("{PREFIX}{label}")].as_str();
        let mut level = |label: &str, unreadable: Level| {
            let given = text(label)?;
            let known = level(given);
            if known.is_none() {
                problems.push((label.to_owned(), given, "must be one of privileged, baseline, restricted"));
            }
            Some((known.unwrap_or(unreadable), known.is_some()))
        };
        let enforce = level("enforce", Level::Restricted);
        let audit = level("audit", Level::Privileged);
        let warn = level("warn", Level::Privileged);
        let mut version = |label: &str| {
            let given = text(label)?;
            let known = version(given);
            if known.is_none() {
                problems.push((label.to_owned(), given, "must be \"latest\" or \"v1.x\""));
            }
            Some(known.unwrap_or(LATEST))
        };
        let enforce_version = version("enforce-version");
        let audit_version = version("audit-version");
        let warn_version = version("warn-version");

        policy.enforce.level = enforce.map(|(level, _)| level).unwrap_or_default();
        policy.enforce.version = enforce_version.unwrap_or(LATEST);
        policy.audit.level = audit.map(|(level, _)| level).unwrap_or_default();
        policy.audit.version = audit_version.unwrap_or(LATEST);
        policy.warn.level = warn.map(|(level, _)| level).unwrap_or_default();
        policy.warn.version = warn_version.unwrap_or(LATEST);
        // Who enforces a level is warned by it as well, if he doesn't say by which.
        let readable = enforce.is_some_and(|(_, readable)| readable);
        if warn.is_none() && readable && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if warn_version.is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        // Upstream goes through the labels mode by mode.
        problems.sort_by_key(|(label, ..)| {
            let mode = label.split('-').next().unwrap_or_default().to_owned();
            (["enforce", "audit", "warn"].iter().position(|known| *known == mode), label.len())
        });
        let problems = problems.into_iter().map(|(label, given, detail)| {
            Cause::invalid(format!("metadata.labels[{PREFIX}{label}]"), &given.into(), detail)
        });
        (policy, problems.collect())
    }

    /// Whether no level says anything about any pod.
    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.warn, self.audit].iter().all(|mode| mode.level == Level::Privileged)
    }
}

fn level(text: &str) -> Option<Level> {
    Some(match text {
        "privileged" => Level::Privileged,
        "baseline" => Level::Baseline,
        "restricted" => Level::Restricted,
        _ => return None,
    })
}

/// `latest`, or `v1.` and a number as people write it.
fn version(text: &str) -> Option<u64> {
    if text == "latest" {
        return Some(LATEST);
    }
    let digits = text.strip_prefix("v1.")?;
    let written =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits.len() == 1 || !digits.starts_with('0'));
    if !written {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(labels: &[(&str, &str)]) -> (String, String, usize) {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(label, value)| (format!("{PREFIX}{label}"), json!(value))).collect();
        let (policy, problems) = Policy::of(&labels.into());
        (policy.enforce.to_string(), policy.warn.to_string(), problems.len())
    }

    #[test]
    fn labels_choose_levels() {
        let text =
            |(enforce, warn, problems): (&str, &str, usize)| (enforce.to_owned(), warn.to_owned(), problems);
        for (labels, expected) in [
            (&[][..], ("privileged:latest", "privileged:latest", 0)),
            (&[("enforce", "baseline")], ("baseline:latest", "baseline:latest", 0)),
            (
                &[("enforce", "baseline"), ("enforce-version", "v1.20")],
                ("baseline:v1.20", "baseline:v1.20", 0),
            ),
            (&[("enforce", "baseline"), ("warn-version", "v1.2")], ("baseline:latest", "baseline:v1.2", 0)),
            (
                &[("enforce", "restricted"), ("warn", "privileged")],
                ("restricted:latest", "privileged:latest", 0),
            ),
            (&[("enforce", "x"), ("warn", "y")], ("restricted:latest", "privileged:latest", 2)),
            (&[("enforce", "x")], ("restricted:latest", "privileged:latest", 1)),
            (&[("enforce-version", "v1.01")], ("privileged:latest", "privileged:latest", 1)),
            (&[("warn", "baseline"), ("warn-version", "1.20")], ("privileged:latest", "baseline:latest", 1)),
        ] {
            assert_eq!(of(labels), text(expected), "{labels:?}");
        }
    }

    #[test]
    fn versions_are_written_in_one_way() {
        for good in ["latest", "v1.0", "v1.37", "v1.100"] {
            assert!(version(good).is_some(), "{good}");
        }
        for bad in ["", "v1.", "v1.00", "v1.07", "v2.1", "1.5", "v1.x", "v1.1.1", "Latest"] {
            assert!(version(bad).is_none(), "{bad}");
        }
    }
}
