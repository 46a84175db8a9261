//! From a `RedisCluster` to the objects that make it up: pure functions, pinned by golden tests.

mod config;
mod identity;
mod revision;
mod scripts;
mod secret;
mod services;
mod stateful_set;

use config::config_map;
pub use identity::{CLUSTER, Identity, OWNER_UID, ROLE, Role};
#[cfg(test)]
pub use revision::First;
pub use revision::{Revision, Revisions, template_hash};
pub use scripts::Scripts;
use scripts::scripts;
pub use secret::Passwords;
use secret::system_secret;
pub use services::{disruption_budget, services};
use stateful_set::stateful_set;
pub use stateful_set::{ON_DELETE, TEMPLATE_HASH};

/// Port of the servers.
pub const PORT: u16 = 6379;

/// `min-replicas-to-write` of a server that nobody admitted: more replicas than can exist, so it refuses writes.
pub const SEALED: u32 = 1000;

/// `min-replicas-to-write` of a primary that hands over: sealed, and its clients are still to be sent away.
pub const HANDED_OVER: u32 = SEALED + 1;

/// The address of nobody. A server that follows it neither serves old data nor accepts writes.
pub const NOBODY: (&str, u16) = ("127.0.0.1", 1);

/// Where the pods see the parts of the system Secret.
const SYSTEM_PATH: &str = "/etc/redis-system";

/// Group and user of the server's process, as in the official image.
const REDIS_USER: i64 = 999;

#[cfg(test)]
mod tests {
    use crate::api::RedisCluster;
    use crate::settings::Settings;

    use super::*;

    fn cluster() -> RedisCluster {
        let mut cluster = RedisCluster::new(
            "orders",
            serde_json::from_value(serde_json::json!({
                "size": 3, "image": "redis", "version": "7.0", "storage": {"size": "1Gi"},
            }))
            .unwrap(),
        );
        cluster.metadata.namespace = Some("shop".into());
        cluster.metadata.uid = Some("00000000-0000-4000-8000-000000000001".into());
        cluster
    }

    #[test]
    fn the_bytes_of_every_child_are_pinned() {
        let cluster = cluster();
        let identity = Identity::of(&cluster);
        let settings = Settings::of(&cluster.spec).0;
        let scripts = scripts(&identity);
        insta::assert_json_snapshot!("services", services(&identity));
        insta::assert_json_snapshot!("config_map", config_map(&identity, &settings, 805_306_368));
        insta::assert_json_snapshot!("scripts", scripts.config_map);
        insta::assert_json_snapshot!("disruption_budget", disruption_budget(&identity, &settings));
        insta::assert_json_snapshot!(
            "stateful_set",
            stateful_set(&identity, &settings, cluster.spec.storage.as_ref(), &scripts, 3)
        );
        let passwords = Passwords { operator: "o".into(), replication: "r".into(), probe: "p".into() };
        insta::assert_json_snapshot!("system_secret", system_secret(&identity, &passwords));
    }

    /// Whoever changes one of these restarts the servers of every user who upgrades: make a new revision.
    #[test]
    fn the_template_of_the_first_revision_never_changes() {
        let hash = |change: fn(&mut RedisCluster)| {
            let mut cluster = cluster();
            change(&mut cluster);
            let identity = Identity::of(&cluster);
            let settings = Settings::of(&cluster.spec).0;
            template_hash(&First.stateful_set(&identity, &settings, cluster.spec.storage.as_ref(), 3))
        };
        insta::assert_debug_snapshot!(
            "template_hashes_1",
            [
                ("as is", hash(|_| {})),
                ("without volumes", hash(|cluster| cluster.spec.storage = None)),
                ("another version", hash(|cluster| cluster.spec.version = Some("7.2".into()))),
            ]
        );
    }

    #[test]
    fn what_servers_take_while_running_does_not_change_the_pod_template() {
        let mut cluster = cluster();
        let identity = Identity::of(&cluster);
        let hash = |cluster: &RedisCluster, replicas| {
            let settings = Settings::of(&cluster.spec).0;
            stateful_set(&identity, &settings, cluster.spec.storage.as_ref(), &scripts(&identity), replicas)
                .spec
                .template
                .metadata
                .and_then(|metadata| metadata.annotations)
        };
        let before = hash(&cluster, 3);
        assert!(before.is_some());
        cluster.spec.size = 5;
        cluster.spec.config = Some(crate::api::RedisConfig {
            maxmemory: Some("100mb".into()),
            maxmemory_policy: Some(crate::api::MaxmemoryPolicy::AllkeysLru),
            parameters: [("hz".to_owned(), "20".to_owned())].into(),
        });
        assert_eq!(hash(&cluster, 5), before);
        let config = cluster.spec.config.clone().unwrap_or_default();
        cluster.spec.config = Some(crate::api::RedisConfig {
            parameters: [("databases".to_owned(), "32".to_owned())].into(),
            ..config.clone()
        });
        assert_ne!(hash(&cluster, 5), before, "servers take it only when they start");
        cluster.spec.config = Some(config);
        assert_eq!(hash(&cluster, 5), before);
        cluster.spec.version = Some("7.2".into());
        assert_ne!(hash(&cluster, 5), before);
    }

    #[test]
    fn one_server_has_no_disruption_budget() {
        let mut cluster = cluster();
        cluster.spec.size = 1;
        assert!(disruption_budget(&Identity::of(&cluster), &Settings::of(&cluster.spec).0).is_none());
    }

    #[test]
    fn passwords_never_appear_in_the_user_list() {
        let passwords = Passwords::generate().unwrap();
        let secret = system_secret(&Identity::of(&cluster()), &passwords);
        let data = secret.data.clone().unwrap();
        let users = String::from_utf8(data["users.acl"].0.clone()).unwrap();
        for password in [&passwords.operator, &passwords.replication, &passwords.probe] {
            assert!(password.len() >= 40 && !users.contains(password.as_str()));
        }
        assert_eq!(Passwords::read(&secret), Some(passwords));
    }
}
