//! What is decided before an object is stored: a version for images without one, and which fields cannot be.

use setpoint::{Defaulter, Operation, Result, Review, Validator};

use crate::api::{ALLOW_SCALE_DOWN, RedisCluster, RedisClusterStatus, ScaleDown, Storage, WritePolicy};
use crate::facts;
use crate::settings::{Settings, quantity_in_bytes};

/// Versions of well-known images that are written into an object that names none: what a tag such as `latest` means
/// changes over time, and pods of one cluster would run different servers.
const VERSIONS: [(&str, &str); 2] = [("redis", "7.4"), ("valkey", "8.1")];

/// Gives new objects the version of their servers.
pub struct Defaults;

impl Defaulter for Defaults {
    type Object = RedisCluster;
    const OPERATIONS: &'static [Operation] = &[Operation::Create];

    async fn default(&self, cluster: &mut RedisCluster, _: &mut Review) -> Result<()> {
        let image = &cluster.spec.image;
        let name = image.rsplit('/').next().unwrap_or(image);
        if cluster.spec.version.is_none() {
            let known = VERSIONS.iter().find(|(known, _)| *known == name);
            cluster.spec.version = known.map(|(_, version)| (*version).to_owned());
        }
        Ok(())
    }
}

/// Refuses what could not be carried out.
pub struct Checks;

impl Validator for Checks {
    type Object = RedisCluster;

    async fn validate_create(&self, cluster: &RedisCluster, review: &mut Review) -> Result<()> {
        check(cluster, review);
        Ok(())
    }

    async fn validate_update(
        &self,
        old: &RedisCluster,
        new: &RedisCluster,
        review: &mut Review,
    ) -> Result<()> {
        check(new, review);
        compare(old, new, review);
        Ok(())
    }
}

/// What `cluster` cannot be, whatever it was before.
fn check(cluster: &RedisCluster, review: &mut Review) {
    let (settings, problems) = Settings::of(&cluster.spec);
    let spec = serde_json::to_value(cluster).unwrap_or_default();
    for problem in problems {
        let pointer = format!("/{}", problem.field.replace('.', "/"));
        let value = spec.pointer(&pointer).cloned().unwrap_or_default();
        review.invalid(problem.field, value, problem.message);
    }
    let required = cluster.spec.writes.as_ref().is_some_and(|writes| writes.policy == WritePolicy::Required);
    if required && settings.size == 2 {
        review.warn("spec.writes.policy: with two servers and Required the loss of either stops writes");
    }
    if settings.size == 1 && !settings.persistent {
        review.warn("spec.storage: one server without a volume loses its data whenever it restarts");
    }
    if cluster.spec.version.is_none()
        && !cluster.spec.image.rsplit('/').next().unwrap_or_default().contains([':', '@'])
    {
        review.warn("spec.version: an image without a tag may be another one for each pod");
    }
}

/// What `old` cannot become.
fn compare(old: &RedisCluster, new: &RedisCluster, review: &mut Review) {
    let none = RedisClusterStatus::default();
    let status = old.status.as_ref().unwrap_or(&none);
    let begun = status.term > 0 || status.holds_data;
    let allowed = new.spec.scale_down == ScaleDown::Allow || facts::flag(new, ALLOW_SCALE_DOWN);
    if new.spec.size < old.spec.size && !allowed {
        let why = format!(
            "it cannot be lowered from {} to {}: allow the removal of servers with scaleDown: Allow, in v1alpha1 with annotation {ALLOW_SCALE_DOWN}=true",
            old.spec.size, new.spec.size
        );
        review.forbidden("spec.size", why);
    }
    // Storage that never came about may be asked for in another way.
    if begun {
        // Growth that never came about may be taken back.
        let carried_out = status.storage_size.as_deref();
        storage(old.spec.storage.as_ref(), new.spec.storage.as_ref(), carried_out, review);
        version(old, new, status, review);
    }
}

fn storage(old: Option<&Storage>, new: Option<&Storage>, carried_out: Option<&str>, review: &mut Review) {
    match (old, new) {
        (None, None) => {}
        (Some(_), None) => {
            review.forbidden("spec.storage", "it cannot be removed: the servers keep their data there");
        }
        (None, Some(_)) => {
            review.forbidden("spec.storage", "it cannot be added to servers that keep their data in memory");
        }
        (Some(old), Some(new)) => {
            if old.storage_class != new.storage_class {
                review.forbidden(
                    "spec.storage.storageClass",
                    "it cannot be changed: volumes cannot change their class",
                );
            }
            let least = carried_out.unwrap_or(&old.size);
            if quantity_in_bytes(&new.size) < quantity_in_bytes(least) {
                let why = format!("it cannot be lowered from {least} to {}: volumes cannot shrink", new.size);
                review.forbidden("spec.storage.size", why);
            }
        }
    }
}

/// A server cannot load what a newer major version wrote. Where the newer one never came to run, taking it back is right.
fn version(old: &RedisCluster, new: &RedisCluster, status: &RedisClusterStatus, review: &mut Review) {
    let of = |cluster: &RedisCluster| Settings::of(&cluster.spec).0.image;
    let (before, after) = (of(old), of(new));
    let name =
        |image: &str| image.split('@').next().unwrap_or_default().rsplit('/').next().map(str::to_owned);
    let parts = |image: &str| -> Option<(String, u32)> {
        let name = name(image)?;
        let (name, tag) = name.split_once(':')?;
        let digits: String = tag.chars().take_while(char::is_ascii_digit).collect();
        Some((name.to_owned(), digits.parse().ok()?))
    };
    let Some(((old_name, old_major), (new_name, new_major))) = parts(&before).zip(parts(&after)) else {
        return;
    };
    let runs = status
        .conditions
        .iter()
        .any(|condition| condition.type_ == "RolloutBlocked" && condition.reason == "UpToDate");
    if runs && old_name == new_name && new_major < old_major {
        let why = format!(
            "it cannot go back from {before} to {after}: the older server cannot read what the newer one wrote"
        );
        review.forbidden("spec.version", why);
    }
}
