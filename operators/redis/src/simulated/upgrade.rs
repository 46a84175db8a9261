//! Another build of the operator takes over: nothing restarts, and what it doesn't know it leaves alone.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::EnvVar;

use super::*;
use crate::api::Storage;
use crate::render::{First, Identity as Names, Passwords, Revision, TEMPLATE_HASH};
use crate::settings::Settings;

/// A later build, which makes everything that pods are made of or read in another way.
struct Later;

impl Revision for Later {
    fn number(&self) -> i32 {
        2
    }

    fn config_map(&self, identity: &Names, settings: &Settings, maxmemory: u64) -> ConfigMap {
        let mut map = First.config_map(identity, settings, maxmemory);
        map.data.as_mut().unwrap().get_mut("redis.conf").unwrap().push_str("# later\n");
        map
    }

    fn system_secret(&self, identity: &Names, passwords: &Passwords) -> Secret {
        let mut secret = First.system_secret(identity, passwords);
        secret.data.as_mut().unwrap().insert("later".into(), ByteString(b"later".to_vec()));
        secret
    }

    fn stateful_set(
        &self,
        identity: &Names,
        settings: &Settings,
        storage: Option<&Storage>,
        replicas: u32,
    ) -> StatefulSet {
        let mut set = First.stateful_set(identity, settings, storage, replicas);
        let template = &mut set.spec.template;
        let later = EnvVar { name: "LATER".into(), value: Some("yes".into()), ..EnvVar::default() };
        template.spec.as_mut().unwrap().containers[0].env.get_or_insert_default().push(later);
        let annotations = template.metadata.as_mut().unwrap().annotations.as_mut().unwrap();
        annotations.get_mut(TEMPLATE_HASH).unwrap().push_str("-later");
        set
    }
}

fn two_builds() -> Revisions {
    Revisions::of(First, [Arc::new(Later) as Arc<dyn Revision>])
}

impl Rig {
    /// UID of each pod, by name.
    async fn pods(&self) -> BTreeMap<String, Option<String>> {
        let pods = self.api::<Pod>().list(&ListParams::default()).await.unwrap();
        pods.into_iter().map(|pod| (pod.name_any(), pod.uid())).collect()
    }

    async fn revision(&self) -> Option<i32> {
        self.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap().render_revision
    }

    /// How many pods were made by the later build.
    async fn later(&self) -> usize {
        let pods = self.api::<Pod>().list(&ListParams::default()).await.unwrap();
        let is_later = |pod: &&Pod| {
            let env = pod.spec.as_ref().unwrap().containers[0].env.as_ref().unwrap();
            env.iter().any(|variable| variable.name == "LATER")
        };
        pods.iter().filter(is_later).count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_operator_restarts_nothing_until_the_user_changes_the_pods() {
    let mut rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.ready("orders", 3).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(rig.revision().await, Some(1));
    let (before, pods) = (rig.versions().await, rig.pods().await);
    assert!(before.len() >= 14, "{before:?}");

    rig.stop_operator().await;
    rig.revisions = two_builds();
    rig.start_operator().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(rig.versions().await, before, "no object was written, no pod replaced");

    // What needs no restart needs none of the new build either, and what is put back is what was there.
    rig.patch("orders", json!({"config": {"maxmemory": "100mb"}})).await.unwrap();
    rig.api::<Secret>().delete("orders-system", &DeleteParams::default()).await.unwrap();
    rig.patch("orders", json!({"size": 4})).await.unwrap();
    rig.ready("orders", 4).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((rig.revision().await, rig.later().await), (Some(1), 0), "one more of the same");
    let secret = rig.api::<Secret>().get("orders-system").await.unwrap();
    assert!(!secret.data.unwrap().contains_key("later"));
    let now = rig.pods().await;
    assert!(pods.iter().all(|(name, uid)| now.get(name) == Some(uid)), "the first three still run");

    // A change that replaces the pods anyway brings the new build's way.
    rig.patch("orders", json!({"version": "7.2"})).await.unwrap();
    eventually("all pods are of the new build", Duration::from_secs(600), async || {
        let _ = rig.write("orders").await;
        match rig.later().await {
            4 => Ok(()),
            some => Err(format!("{some} of 4\n{}", rig.story("orders").await)),
        }
    })
    .await
    .unwrap();
    rig.ready("orders", 4).await;
    assert_eq!((rig.revision().await, rig.lost("orders").await), (Some(2), 0));
    assert_eq!(rig.forbidden(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_taken_back_takes_the_new_build_back_too() {
    let mut rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.ready("orders", 3).await;
    rig.stop_operator().await;
    rig.revisions = two_builds();
    rig.start_operator().await;
    for node in rig.cluster.nodes().values() {
        node.remove_image("redis:9.9");
    }
    rig.patch("orders", json!({"version": "9.9"})).await.unwrap();
    eventually("the roll is stuck", Duration::from_secs(600), async || {
        let status = rig.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap();
        let blocked = status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "RolloutBlocked" && condition.status == "True");
        if blocked { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(rig.revision().await, Some(2));
    let before = rig.pods().await;
    rig.patch("orders", json!({"version": "7.0"})).await.unwrap();
    rig.ready("orders", 3).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    rig.ready("orders", 3).await;
    assert_eq!((rig.revision().await, rig.later().await), (Some(1), 0));
    let now = rig.pods().await;
    let kept = before.iter().filter(|(name, uid)| now.get(*name) == Some(*uid));
    assert_eq!(kept.count(), 2, "only the pod that never ran is replaced");
}

#[tokio::test(start_paused = true)]
async fn an_older_operator_leaves_alone_what_it_does_not_know() {
    let mut rig = Rig::new().await;
    rig.stop_operator().await;
    rig.revisions = two_builds();
    rig.start_operator().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    assert_eq!((rig.revision().await, rig.later().await), (Some(2), 3));
    rig.stop_operator().await;
    rig.revisions = Revisions::default();
    rig.start_operator().await;
    eventually("the condition says so", BOUND, async || {
        let status = rig.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap();
        let told = status.conditions.iter().any(|condition| condition.reason == "UnknownRevision");
        if told { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
    rig.patch("orders", json!({"version": "7.2", "size": 5})).await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!((rig.revision().await, rig.later().await), (Some(2), 3));
    rig.kill(&primary);
    eventually("a write after the death", BOUND, async || {
        if rig.write("orders").await { Ok(()) } else { Err(rig.story("orders").await) }
    })
    .await
    .unwrap();
    rig.stop_operator().await;
    rig.revisions = two_builds();
    rig.start_operator().await;
    rig.ready("orders", 5).await;
    assert_eq!(rig.lost("orders").await, 0);
}
