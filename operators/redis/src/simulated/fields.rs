//! Every field of the spec, one at a time: what is impossible is refused with its path, or told in a condition and
//! an event that name the field; taking it back heals; other clusters go on.

use std::collections::BTreeSet;

use super::*;
use crate::api::versions;

/// What a value leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The API server refuses it.
    Refused,
    /// It is told, on a new cluster, too.
    Impossible,
    /// It is told on a cluster that runs with another value.
    Unsupported,
    /// It is carried out.
    Taken,
}
use Expected::{Impossible, Refused, Taken, Unsupported};

fn base() -> Value {
    json!({
        "size": 3, "image": "redis", "version": "7.0",
        "config": {"maxmemory": "100mb", "maxmemoryPolicy": "noeviction"},
        "storage": {"size": "1Gi"},
    })
}

/// Takes every change back: a merge patch to [`base`].
fn reset() -> Value {
    let mut base = base();
    for (path, _) in trials().into_iter().filter(|(path, _)| !path.contains('.')) {
        if base.get(path).is_none() {
            base[path] = Value::Null;
        }
    }
    base["config"]["parameters"] = Value::Null;
    base["storage"]["storageClass"] = Value::Null;
    base["storage"]["reclaim"] = Value::Null;
    base
}

/// Values for each field; null removes it.
fn trials() -> BTreeMap<&'static str, Vec<(Value, Expected)>> {
    let far = "9".repeat(30);
    [
        (
            "size",
            vec![
                (json!(null), Refused),
                (json!(0), Refused),
                (json!(-1), Refused),
                (json!(11), Refused),
                (json!(2.5), Refused),
                (json!("three"), Refused),
                (json!(1_u64 << 40), Refused),
                (json!(2), Refused),
            ],
        ),
        (
            "image",
            vec![
                (json!(null), Refused),
                (json!(""), Refused),
                (json!(7), Refused),
                (json!(" "), Impossible),
                (json!("Redis Server"), Impossible),
                (json!("redis:6.2"), Impossible),
                (json!("registry.example.com/redis"), Taken),
            ],
        ),
        (
            "version",
            vec![
                (json!(7), Refused),
                (json!([]), Refused),
                (json!(""), Impossible),
                (json!("seven point oh"), Impossible),
                (json!(null), Taken),
                (json!("7.2"), Taken),
            ],
        ),
        ("mode", vec![(json!("Cluster"), Refused), (json!(1), Refused), (json!(null), Taken)]),
        ("config", vec![(json!("x"), Refused), (json!([]), Refused), (json!(null), Taken)]),
        (
            "config.parameters",
            vec![
                (json!("x"), Refused),
                (json!({"hz": 20}), Refused),
                (json!({"hz": "0"}), Impossible),
                (json!({"dir": "/"}), Impossible),
                (json!({"no-such": "thing"}), Impossible),
                (json!({"hz": "20", "notify-keyspace-events": "Ex"}), Taken),
                (json!({"databases": "32"}), Taken),
            ],
        ),
        ("resources", vec![(json!("x"), Refused), (json!([]), Refused)]),
        ("resources.requests", vec![(json!("x"), Refused)]),
        ("resources.requests.cpu", vec![(json!("x"), Refused), (json!([]), Refused)]),
        ("resources.requests.memory", vec![(json!("lots"), Refused), (json!({}), Refused)]),
        ("resources.limits", vec![(json!("x"), Refused)]),
        ("resources.limits.cpu", vec![(json!("-1"), Refused), (json!([]), Refused)]),
        (
            "resources.limits.memory",
            vec![
                (json!("1GB"), Refused),
                (json!(1), Impossible),
                (json!("1Mi"), Impossible),
                (json!("2Gi"), Taken),
            ],
        ),
        ("writes", vec![(json!("x"), Refused), (json!({}), Taken)]),
        (
            "writes.minReplicas",
            vec![
                (json!("many"), Refused),
                (json!(1.5), Refused),
                (json!(3), Impossible),
                (json!(-1), Impossible),
                (json!(2), Taken),
                (json!("1"), Impossible),
            ],
        ),
        ("writes.policy", vec![(json!("x"), Refused), (json!("Required"), Taken)]),
        ("scaleDown", vec![(json!("x"), Refused), (json!(true), Refused), (json!("Allow"), Taken)]),
        ("update", vec![(json!("x"), Refused)]),
        ("update.primary", vec![(json!("x"), Refused), (json!("Manual"), Taken)]),
        ("update.operatorChanges", vec![(json!("x"), Refused), (json!("Auto"), Taken)]),
        (
            "update.timeout",
            vec![
                (json!("x"), Refused),
                (json!(10), Refused),
                (json!("1s"), Impossible),
                (json!("5m"), Taken),
            ],
        ),
        ("failover", vec![(json!("x"), Refused)]),
        (
            "failover.unreachableAfter",
            vec![
                (json!("soon"), Refused),
                (json!("1s"), Impossible),
                (json!("9h"), Impossible),
                (json!("5s"), Taken),
            ],
        ),
        ("scheduling", vec![(json!("x"), Refused)]),
        ("scheduling.nodeSelector", vec![(json!("x"), Refused), (json!({"disk": 1}), Refused)]),
        ("scheduling.affinity", vec![(json!("x"), Refused)]),
        (
            "scheduling.tolerations",
            vec![(json!("x"), Refused), (json!([{"key": "batch", "operator": "Exists"}]), Taken)],
        ),
        ("scheduling.topologySpreadConstraints", vec![(json!("x"), Refused), (json!([{}]), Refused)]),
        ("scheduling.priorityClassName", vec![(json!(1), Refused)]),
        ("storage.reclaim", vec![(json!("x"), Refused), (json!("Delete"), Taken)]),
        (
            "config.maxmemory",
            vec![
                (json!(5), Refused),
                (json!("lots"), Impossible),
                (json!(""), Impossible),
                (json!("0"), Impossible),
                (json!("-1"), Impossible),
                (json!("64gb"), Impossible),
                (json!(far), Impossible),
                (json!(null), Taken),
                (json!("200mb"), Taken),
            ],
        ),
        (
            "config.maxmemoryPolicy",
            vec![
                (json!(""), Refused),
                (json!("allkeys"), Refused),
                (json!(1), Refused),
                (json!(null), Taken),
                (json!("allkeys-lru"), Taken),
            ],
        ),
        ("storage", vec![(json!("1Gi"), Refused), (json!([]), Refused), (json!(null), Unsupported)]),
        (
            "storage.size",
            vec![
                (json!(null), Refused),
                (json!(""), Refused),
                (json!("1GB"), Refused),
                (json!("-1Gi"), Refused),
                (json!(1), Refused),
                (json!("0Gi"), Impossible),
                (json!(format!("{far}Gi")), Impossible),
                (json!("1Mi"), Unsupported),
            ],
        ),
        (
            "storage.storageClass",
            vec![
                (json!(1), Refused),
                (json!("Not A Name"), Impossible),
                (json!("gold"), Impossible),
                (json!(""), Impossible),
            ],
        ),
    ]
    .into()
}

/// Paths of all fields below `schema`.
fn fields(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        // The types of Kubernetes' own pod fields are not ours.
        if path != "scheduling.affinity" {
            fields(field, &path, found);
        }
        found.insert(path);
    }
}

/// `value` at `path` in an otherwise empty object.
fn at(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, name| json!({ name: inner }))
}

/// Puts what `more` has into `into`.
fn merge(into: &mut Value, more: Value) {
    match more {
        Value::Object(fields) => {
            for (name, value) in fields {
                merge(&mut into[name], value);
            }
        }
        value => *into = value,
    }
}

impl Rig {
    /// Waits until `name` is as its spec says, and all of its status speaks of this spec.
    pub(super) async fn well(&self, name: &str, size: i32) {
        let clusters = self.api::<RedisCluster>();
        let waited =
            eventually(format!("{name} is as its spec says"), Duration::from_secs(400), async || {
                let cluster = clusters.get(name).await.map_err(|error| error.to_string())?;
                let Some(status) = cluster.status else { return Err("no status".to_owned()) };
                let says = |kind: &str, reason: &str| {
                    status.conditions.iter().any(|condition| {
                        condition.type_ == kind
                            && condition.reason == reason
                            && condition.observed_generation == cluster.metadata.generation
                    })
                };
                let fine = says("Ready", "AllInSync")
                    && says("ConfigApplied", "Applied")
                    && says("RolloutBlocked", "UpToDate")
                    && says("Progressing", "Settled")
                    && !status.conditions.iter().any(|condition| condition.type_ == "StorageResized");
                if fine && status.ready_replicas == size { Ok(()) } else { Err(format!("{status:#?}")) }
            });
        if let Err(error) = waited.await {
            panic!("{error}\n{}", self.story(name).await);
        }
    }

    /// Whether a write through the Service would be accepted.
    async fn serves(&self, name: &str) -> bool {
        let Some(ip) = self.service(name).await else { return false };
        self.world.with(|world, now| world.accepts_writes(&ip, now))
    }

    /// Waits until a condition and a warning of `name` say `field`.
    async fn told(&self, name: &str, field: &str, what: &str) {
        let waited = eventually(format!("{what} is told"), BOUND, async || {
            let status = self.api::<RedisCluster>().get(name).await.unwrap().status.unwrap_or_default();
            let condition = status.conditions.iter().any(|condition| condition.message.contains(field));
            let events =
                self.api::<k8s_openapi::api::events::v1::Event>().list(&ListParams::default()).await.unwrap();
            let event = events.iter().any(|event| {
                event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name)
                    && event.type_.as_deref() == Some("Warning")
                    && event.note.as_deref().unwrap_or_default().contains(field)
            });
            if condition && event { Ok(()) } else { Err(format!("{condition} {event} {status:#?}")) }
        });
        if let Err(error) = waited.await {
            panic!("{error}\n{}", self.story(name).await);
        }
    }
}

#[test]
fn no_field_of_the_spec_is_forgotten() {
    let crd = serde_json::to_value(versions().crd().unwrap()).unwrap();
    let tried: BTreeSet<String> = trials().into_keys().map(str::to_owned).collect();
    for version in crd["spec"]["versions"].as_array().unwrap() {
        let mut found = BTreeSet::new();
        fields(&version["schema"]["openAPIV3Schema"]["properties"]["spec"], "", &mut found);
        if version["name"] == "v1" {
            assert_eq!(found, tried, "every field is tried, and only those");
        } else {
            let more: Vec<_> = found.difference(&tried).collect();
            assert!(more.is_empty() || more == ["minReplicasToWrite"], "{more:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_field_changed_on_a_running_cluster() {
    let rig = Rig::new().await;
    rig.create("orders", base()).await;
    rig.create("carts", spec(1)).await;
    rig.well("orders", 3).await;
    rig.well("carts", 1).await;
    assert!(rig.write("orders").await);
    for (path, values) in trials() {
        // Beyond the first 25 there is one event about an object in five minutes.
        let told = values.iter().filter(|(_, expected)| matches!(expected, Impossible | Unsupported)).count();
        tokio::time::sleep(Duration::from_secs(300) * u32::try_from(told).unwrap()).await;
        for (value, expected) in values {
            let what = format!("spec.{path} = {value}");
            let answer = rig.patch("orders", at(path, value)).await;
            assert!(rig.serves("carts").await, "{what}: others go on");
            if expected == Refused {
                let error = answer.expect_err(&what).to_string();
                assert!(error.contains(&format!("spec.{path}")), "{what}: {error}");
                continue;
            }
            answer.expect(&what);
            match expected {
                Taken => rig.well("orders", 3).await,
                _ => rig.told("orders", &format!("spec.{}", told_as(path)), &what).await,
            }
            assert!(rig.write("orders").await, "{what}: the cluster serves");
            rig.patch("orders", reset()).await.unwrap();
            rig.well("orders", 3).await;
            assert_eq!(rig.lost("orders").await, 0, "{what}");
        }
    }
    assert_eq!(rig.forbidden(), Vec::<String>::new(), "every right was derived");
}

/// The path that a message about a change of `path` names: storage and resources are told as a whole.
fn told_as(path: &str) -> &str {
    match path.split_once('.') {
        Some((whole @ ("storage" | "resources"), _)) => whole,
        _ => path,
    }
}

#[tokio::test(start_paused = true)]
async fn every_impossible_field_of_a_new_cluster() {
    let rig = Rig::new().await;
    rig.create("carts", spec(1)).await;
    rig.well("carts", 1).await;
    let impossible = trials().into_iter().flat_map(|(path, values)| {
        values
            .into_iter()
            .filter(|(_, expected)| *expected == Impossible)
            .map(move |(value, _)| (path, value))
    });
    for (number, (path, value)) in impossible.enumerate() {
        let (name, what) = (format!("new-{number}"), format!("spec.{path} = {value}"));
        let mut wanted = base();
        wanted["size"] = json!(1);
        merge(&mut wanted, at(path, value));
        rig.create(&name, wanted).await;
        rig.told(&name, &format!("spec.{}", told_as(path)), &what).await;
        assert!(rig.serves("carts").await, "{what}: others go on");
        let mut fixed = reset();
        fixed["size"] = json!(1);
        rig.patch(&name, fixed).await.unwrap();
        rig.well(&name, 1).await;
    }
    assert_eq!(rig.forbidden(), Vec::<String>::new(), "every right was derived");
}
