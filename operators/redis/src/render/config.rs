use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

use super::{Identity, NOBODY, PORT, SEALED, SYSTEM_PATH};
use crate::settings::{Settings, lines};

/// The ConfigMap with `redis.conf`. It is edited in place: running servers get the same values by
/// `CONFIG SET`, so the file only matters for the next start.
pub fn config_map(identity: &Identity, settings: &Settings, maxmemory: u64) -> ConfigMap {
    ConfigMap {
        metadata: identity.metadata(identity.child("config")),
        data: Some(BTreeMap::from([("redis.conf".to_owned(), redis_conf(settings, maxmemory))])),
        ..ConfigMap::default()
    }
}

/// A server that starts with this file is harmless: it follows nobody, serves nothing old, and even when
/// somebody makes it a primary it refuses writes until the operator lowers `min-replicas-to-write`.
fn redis_conf(settings: &Settings, maxmemory: u64) -> String {
    let (host, port) = NOBODY;
    let given = lines(&settings.parameters);
    let given = if given.is_empty() { given } else { format!("\n{given}") };
    let append = if settings.persistent { "yes" } else { "no" };
    format!(
        "\
# Written by the redis-operator. A server alone is never writable and never serves old data.
bind * -::*
port {PORT}
protected-mode no
dir /data
tcp-keepalive 60

# Follows nobody until the operator admits it.
replicaof {host} {port}
replica-serve-stale-data no
min-replicas-to-write {SEALED}
min-replicas-max-lag 3

repl-ping-replica-period 1
repl-diskless-sync yes
repl-diskless-sync-delay 1
repl-backlog-size 64mb
repl-backlog-ttl 3600
shutdown-timeout 10
replica-priority 100

appendonly {append}
appendfsync everysec
save \"\"

aclfile {SYSTEM_PATH}/users.acl
include {SYSTEM_PATH}/auth.conf

maxmemory {maxmemory}
maxmemory-policy {}
{given}",
        settings.policy.as_str(),
    )
}
