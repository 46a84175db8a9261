//! What corresponds between the versions. What an older one cannot say, the SDK keeps in an annotation and puts back.

use setpoint::{Result, Spoke};

use super::{
    MaxmemoryPolicy, Reclaim, RedisCluster, RedisClusterSpec, RedisConfig, Storage, Writes, v1alpha1, v1beta1,
};

impl Spoke<RedisCluster> for v1alpha1::RedisCluster {
    fn to_hub(self) -> Result<RedisCluster> {
        let v1alpha1::RedisClusterSpec { size, image, version, config, storage } = self.spec;
        Ok(RedisCluster {
            metadata: self.metadata,
            spec: RedisClusterSpec {
                mode: super::Mode::Replication,
                size,
                image,
                version,
                storage: storage.map(Into::into),
                config: config.map(Into::into),
                resources: None,
                writes: None,
                scale_down: super::ScaleDown::Forbid,
                update: None,
                failover: None,
                scheduling: None,
            },
            status: self.status,
        })
    }

    fn from_hub(hub: &RedisCluster) -> Result<Self> {
        let spec = &hub.spec;
        Ok(Self {
            metadata: hub.metadata.clone(),
            spec: v1alpha1::RedisClusterSpec {
                size: spec.size,
                image: spec.image.clone(),
                version: spec.version.clone(),
                config: spec.config.as_ref().map(Into::into),
                storage: spec.storage.as_ref().map(Into::into),
            },
            status: hub.status.clone(),
        })
    }
}

impl Spoke<RedisCluster> for v1beta1::RedisCluster {
    fn to_hub(self) -> Result<RedisCluster> {
        let v1beta1::RedisClusterSpec {
            size,
            image,
            version,
            config,
            storage,
            resources,
            min_replicas_to_write,
            scale_down,
        } = self.spec;
        Ok(RedisCluster {
            metadata: self.metadata,
            spec: RedisClusterSpec {
                mode: super::Mode::Replication,
                size,
                image,
                version,
                storage: storage.map(Into::into),
                config: config.map(Into::into),
                resources,
                writes: min_replicas_to_write
                    .map(|min_replicas| Writes { min_replicas, policy: super::WritePolicy::Preferred }),
                scale_down,
                update: None,
                failover: None,
                scheduling: None,
            },
            status: self.status,
        })
    }

    fn from_hub(hub: &RedisCluster) -> Result<Self> {
        let spec = &hub.spec;
        Ok(Self {
            metadata: hub.metadata.clone(),
            spec: v1beta1::RedisClusterSpec {
                size: spec.size,
                image: spec.image.clone(),
                version: spec.version.clone(),
                config: spec.config.as_ref().map(Into::into),
                storage: spec.storage.as_ref().map(Into::into),
                resources: spec.resources.clone(),
                min_replicas_to_write: spec.writes.as_ref().map(|writes| writes.min_replicas.clone()),
                scale_down: spec.scale_down,
            },
            status: hub.status.clone(),
        })
    }
}

impl From<v1alpha1::RedisConfig> for RedisConfig {
    fn from(old: v1alpha1::RedisConfig) -> Self {
        let policy = old.maxmemory_policy.map(|policy| match policy {
            v1alpha1::MaxmemoryPolicy::AllkeysLru => MaxmemoryPolicy::AllkeysLru,
            v1alpha1::MaxmemoryPolicy::VolatileLru => MaxmemoryPolicy::VolatileLru,
            v1alpha1::MaxmemoryPolicy::Noeviction => MaxmemoryPolicy::Noeviction,
        });
        Self {
            maxmemory: old.maxmemory,
            maxmemory_policy: policy,
            parameters: std::collections::BTreeMap::new(),
        }
    }
}

impl From<&RedisConfig> for v1alpha1::RedisConfig {
    fn from(new: &RedisConfig) -> Self {
        // A policy that the old version cannot say is left out there.
        let policy = new.maxmemory_policy.and_then(|policy| match policy {
            MaxmemoryPolicy::AllkeysLru => Some(v1alpha1::MaxmemoryPolicy::AllkeysLru),
            MaxmemoryPolicy::VolatileLru => Some(v1alpha1::MaxmemoryPolicy::VolatileLru),
            MaxmemoryPolicy::Noeviction => Some(v1alpha1::MaxmemoryPolicy::Noeviction),
            _ => None,
        });
        Self { maxmemory: new.maxmemory.clone(), maxmemory_policy: policy }
    }
}

impl From<v1alpha1::Storage> for Storage {
    fn from(old: v1alpha1::Storage) -> Self {
        Self { size: old.size, storage_class: old.storage_class, reclaim: Reclaim::Retain }
    }
}

impl From<&Storage> for v1alpha1::Storage {
    fn from(new: &Storage) -> Self {
        Self { size: new.size.clone(), storage_class: new.storage_class.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Toleration;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    use proptest::option::of;
    use proptest::prelude::*;

    use super::super::*;

    fn text() -> impl Strategy<Value = String> {
        "[a-z0-9]{1,6}"
    }

    fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map(text(), text(), 0..3)
    }

    fn number_or_text() -> impl Strategy<Value = IntOrString> {
        prop_oneof![(0..9).prop_map(IntOrString::Int), text().prop_map(IntOrString::String)]
    }

    fn amounts() -> impl Strategy<Value = Amounts> {
        (of(number_or_text()), of(number_or_text())).prop_map(|(cpu, memory)| Amounts { cpu, memory })
    }

    fn resources() -> impl Strategy<Value = Resources> {
        (of(amounts()), of(amounts())).prop_map(|(requests, limits)| Resources { requests, limits })
    }

    fn status() -> impl Strategy<Value = Option<RedisClusterStatus>> {
        of((text(), 0..5, any::<bool>()).prop_map(|(primary, replicas, holds_data)| RedisClusterStatus {
            current_primary: Some(primary),
            replicas,
            holds_data,
            phase: Some(Phase::Running),
            ..RedisClusterStatus::default()
        }))
    }

    fn scale_down() -> impl Strategy<Value = ScaleDown> {
        prop_oneof![Just(ScaleDown::Forbid), Just(ScaleDown::Allow)]
    }

    fn old_config() -> impl Strategy<Value = v1alpha1::RedisConfig> {
        use v1alpha1::MaxmemoryPolicy::{AllkeysLru, Noeviction, VolatileLru};
        let policy = prop_oneof![Just(AllkeysLru), Just(VolatileLru), Just(Noeviction)];
        (of(text()), of(policy))
            .prop_map(|(maxmemory, maxmemory_policy)| v1alpha1::RedisConfig { maxmemory, maxmemory_policy })
    }

    fn old_storage() -> impl Strategy<Value = v1alpha1::Storage> {
        (text(), of(text())).prop_map(|(size, storage_class)| v1alpha1::Storage { size, storage_class })
    }

    fn named<K: kube::Resource>(mut object: K, labels: BTreeMap<String, String>) -> K {
        object.meta_mut().namespace = Some("shop".to_owned());
        object.meta_mut().annotations = (!labels.is_empty()).then_some(labels);
        object
    }

    prop_compose! {
        fn v1alpha1()(
            size in 1..10, image in text(), version in of(text()), config in of(old_config()), storage in of(old_storage()),
            status in status(), annotations in map()
        ) -> v1alpha1::RedisCluster {
            let spec = v1alpha1::RedisClusterSpec { size, image, version, config, storage };
            let cluster = v1alpha1::RedisCluster::new("orders", spec);
            v1alpha1::RedisCluster { status, ..named(cluster, annotations) }
        }
    }

    prop_compose! {
        fn v1beta1()(
            old in v1alpha1(), resources in of(resources()), min_replicas_to_write in of(number_or_text()),
            scale_down in scale_down()
        ) -> v1beta1::RedisCluster {
            let v1alpha1::RedisClusterSpec { size, image, version, config, storage } = old.spec;
            v1beta1::RedisCluster {
                metadata: old.metadata,
                spec: v1beta1::RedisClusterSpec {
                    size, image, version, config, storage, resources, min_replicas_to_write, scale_down,
                },
                status: old.status,
            }
        }
    }

    prop_compose! {
        fn config()(maxmemory in of(text()), policy in 0..9_usize, parameters in map()) -> RedisConfig {
            use MaxmemoryPolicy::{
                AllkeysLfu, AllkeysLru, AllkeysRandom, Noeviction, VolatileLfu, VolatileLru, VolatileRandom, VolatileTtl,
            };
            let policies = [
                AllkeysLru, VolatileLru, AllkeysLfu, VolatileLfu, AllkeysRandom, VolatileRandom, VolatileTtl, Noeviction,
            ];
            RedisConfig { maxmemory, maxmemory_policy: policies.get(policy).copied(), parameters }
        }
    }

    prop_compose! {
        fn scheduling()(node_selector in map(), keys in proptest::collection::vec(text(), 0..3), priority in of(text())) -> Scheduling {
            let tolerations = keys.into_iter().map(|key| Toleration { key: Some(key), ..Toleration::default() });
            Scheduling {
                node_selector, tolerations: tolerations.collect(), priority_class_name: priority, ..Scheduling::default()
            }
        }
    }

    prop_compose! {
        fn v1()(
            old in v1alpha1(), config in of(config()), storage in of((old_storage(), any::<bool>())), resources in of(resources()),
            writes in of((number_or_text(), any::<bool>())), scale_down in scale_down(),
            update in of((any::<bool>(), any::<bool>(), of(text()))), failover in of(of(text())), scheduling in of(scheduling())
        ) -> RedisCluster {
            let storage = storage.map(|(storage, delete)| Storage {
                reclaim: if delete { Reclaim::Delete } else { Reclaim::Retain },
                ..storage.into()
            });
            let writes = writes.map(|(min_replicas, required)| Writes {
                min_replicas,
                policy: if required { WritePolicy::Required } else { WritePolicy::Preferred },
            });
            let update = update.map(|(manual, auto, timeout)| Update {
                primary: if manual { PrimaryUpdate::Manual } else { PrimaryUpdate::Auto },
                operator_changes: if auto { OperatorChanges::Auto } else { OperatorChanges::WithNextRoll },
                timeout,
            });
            RedisCluster {
                metadata: old.metadata,
                spec: RedisClusterSpec {
                    mode: Mode::Replication,
                    size: old.spec.size,
                    image: old.spec.image,
                    version: old.spec.version,
                    storage,
                    config,
                    resources,
                    writes,
                    scale_down,
                    update,
                    failover: failover.map(|unreachable_after| Failover { unreachable_after }),
                    scheduling,
                },
                status: old.status,
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_of_v1alpha1_is_lost(cluster in v1alpha1()) {
            versions().round_trip(&cluster).unwrap();
        }

        #[test]
        fn nothing_of_v1beta1_is_lost(cluster in v1beta1()) {
            versions().round_trip(&cluster).unwrap();
        }

        #[test]
        fn nothing_of_v1_is_lost(cluster in v1()) {
            versions().round_trip(&cluster).unwrap();
        }
    }

    #[test]
    fn a_visible_change_in_an_old_version_wins_over_what_is_kept() {
        let new: RedisCluster = serde_json::from_value(serde_json::json!({
            "apiVersion": "cache.example.com/v1", "kind": "RedisCluster", "metadata": {"name": "orders"},
            "spec": {
                "size": 3, "image": "redis", "scaleDown": "Allow",
                "config": {"maxmemory": "1gb", "maxmemoryPolicy": "allkeys-lfu", "parameters": {"hz": "20"}},
            },
        }))
        .unwrap();
        let new = serde_json::to_value(new).unwrap();
        let mut old = versions().convert(&new, "v1alpha1").unwrap();
        old["spec"]["size"] = 2.into();
        old["spec"]["config"]["maxmemoryPolicy"] = "volatile-lru".into();
        let back = versions().convert(&old, "v1").unwrap();
        let spec = &back["spec"];
        assert_eq!((&spec["size"], &spec["scaleDown"]), (&2.into(), &"Allow".into()), "{back}");
        assert_eq!(spec["config"]["maxmemoryPolicy"], "volatile-lru");
        assert_eq!(
            (&spec["config"]["parameters"]["hz"], &spec["config"]["maxmemory"]),
            (&"20".into(), &"1gb".into())
        );
    }
}
