//! Children changed or deleted by hand: they are put back, no write is lost, and nobody fights.

use super::*;

const LABELS: [&str; 2] = ["cache.example.com/cluster", "app.kubernetes.io/managed-by"];

/// What somebody does to an object: a merge patch, or its deletion.
type Edit = (&'static str, &'static str, String, Option<Value>);

fn edits(primary: &str, replica: &str, scripts: &str) -> Vec<Edit> {
    let mut edits: Vec<Edit> = Vec::new();
    let mut edit = |version, kind, name: &str, patch: Value| {
        edits.push((version, kind, name.to_owned(), (!patch.is_null()).then_some(patch)));
    };
    let unowned = json!({"metadata": {"ownerReferences": null}});
    for patch in [
        json!({"spec": {"replicas": 1}}),
        json!({"spec": {"replicas": 0}}),
        json!({"spec": {"replicas": 5}}),
        json!({"spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
        json!({"spec": {"template": {"metadata": {"annotations": {"cache.example.com/template-hash": "x"}}}}}),
        json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null, "cache.example.com/cluster": "x"}}}),
        unowned.clone(),
        Value::Null,
    ] {
        edit("apps/v1", "StatefulSet", "orders", patch);
    }
    for name in ["orders", "orders-ro", "orders-nodes"] {
        for patch in [
            json!({"spec": {"selector": {"cache.example.com/cluster": "other"}}}),
            json!({"spec": {"selector": {"more": "than-any-pod-has"}}}),
            unowned.clone(),
            Value::Null,
        ] {
            edit("v1", "Service", name, patch);
        }
    }
    for patch in [json!({"data": {"redis.conf": ""}}), json!({"data": null}), unowned.clone(), Value::Null] {
        edit("v1", "ConfigMap", "orders-config", patch);
    }
    edit("v1", "ConfigMap", scripts, Value::Null);
    for patch in [
        json!({"data": {"setpoint": "eA=="}}),
        json!({"data": {"repl": null}}),
        json!({"data": {"users.acl": ""}}),
        json!({"data": null}),
        unowned.clone(),
        Value::Null,
    ] {
        edit("v1", "Secret", "orders-system", patch);
    }
    for patch in [json!({"spec": {"maxUnavailable": 3}}), unowned.clone(), Value::Null] {
        edit("policy/v1", "PodDisruptionBudget", "orders", patch);
    }
    for pod in [primary, replica] {
        let claim = format!("data-{pod}");
        for label in LABELS {
            edit("v1", "PersistentVolumeClaim", &claim, json!({"metadata": {"labels": {label: null}}}));
            edit("v1", "Pod", pod, json!({"metadata": {"labels": {label: null}}}));
            edit("v1", "Pod", pod, json!({"metadata": {"labels": {label: "other"}}}));
        }
        for role in [json!(null), json!("nonsense"), json!("primary"), json!("replica")] {
            edit("v1", "Pod", pod, json!({"metadata": {"labels": {ROLE: role}}}));
        }
        edit(
            "v1",
            "Pod",
            pod,
            json!({"metadata": {"annotations": {"cache.example.com/template-hash": "x"}}}),
        );
        edit("v1", "Pod", pod, unowned.clone());
        edit("v1", "Pod", pod, Value::Null);
    }
    edits
}

impl Rig {
    async fn by_hand(&self, (version, kind, name, patch): &Edit) {
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(self.cluster.client(), NAMESPACE, &resource);
        let done = match patch {
            Some(patch) => api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ()),
            None => api.delete(name, &DeleteParams::default()).await.map(|_| ()),
        };
        done.unwrap_or_else(|error| panic!("{kind} {name} {patch:?}: {error}"));
    }

    /// Runs until a write is accepted again, while there is never more than one server that accepts writes.
    pub(super) async fn recovers(&self, what: &str) {
        let waited = eventually(format!("a write after {what}"), BOUND, async || {
            let accepting = self.world.with(|world, now| {
                let ips: Vec<String> = world.servers.keys().cloned().collect();
                ips.into_iter().filter(|ip| world.accepts_writes(ip, now)).collect::<Vec<_>>()
            });
            assert!(accepting.len() <= 1, "{what}: {accepting:?} accept writes");
            let written = self.service("orders").await.is_some() && self.write("orders").await;
            if written { Ok(()) } else { Err(format!("{accepting:?}")) }
        });
        if let Err(error) = waited.await {
            panic!("{error}\n{}", self.story("orders").await);
        }
    }

    /// `what` is got over, and stays so: all three servers work and no acknowledged write is lost.
    async fn unharmed(&self, what: &str) {
        self.recovers(what).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.recovers(what).await;
        eprintln!("{what}");
        self.well("orders", 3).await;
        assert_eq!(self.lost("orders").await, 0, "{what}: acknowledged writes are gone");
    }

    /// Kind, name and resource version of the cluster, its pods and its children.
    pub(super) async fn versions(&self) -> Vec<String> {
        let mut versions = Vec::new();
        for (group, kind) in [
            ("cache.example.com/v1", "RedisCluster"),
            ("apps/v1", "StatefulSet"),
            ("v1", "Service"),
            ("v1", "ConfigMap"),
            ("v1", "Secret"),
            ("v1", "Pod"),
            ("v1", "PersistentVolumeClaim"),
            ("policy/v1", "PodDisruptionBudget"),
        ] {
            let (group, version) = group.rsplit_once('/').unwrap_or(("", group));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::namespaced_with(self.cluster.client(), NAMESPACE, &resource);
            for object in api.list(&ListParams::default()).await.unwrap() {
                versions.push(format!(
                    "{kind} {} {}",
                    object.name_any(),
                    object.resource_version().unwrap_or_default()
                ));
            }
        }
        versions
    }
}

#[tokio::test(start_paused = true)]
async fn children_changed_by_hand_are_put_back() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.well("orders", 3).await;
    assert!(rig.write("orders").await);
    let scripts = rig.api::<ConfigMap>().list(&ListParams::default()).await.unwrap();
    let scripts = scripts.iter().map(ResourceExt::name_any).find(|name| name.contains("scripts")).unwrap();
    let count = edits("p", "r", &scripts).len();
    for number in 0..count {
        let primary = rig.ready("orders", 3).await;
        let replica = ["orders-0", "orders-1", "orders-2"].into_iter().find(|pod| *pod != primary).unwrap();
        let edit = edits(&primary, replica, &scripts).swap_remove(number);
        let what = format!("{edit:?} (primary {primary})");
        rig.by_hand(&edit).await;
        // A label put on by hand is in force until it is taken off; the server behind it accepts no write.
        let soon = Duration::from_secs(2);
        eventually(format!("one pod with the label after {what}"), soon, async || {
            let of_primary = ListParams::default().labels(&format!("{ROLE}=primary"));
            let labelled = rig.api::<Pod>().list(&of_primary).await.unwrap().items.len();
            if labelled <= 1 { Ok(()) } else { Err(format!("{labelled} pods")) }
        })
        .await
        .unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.unharmed(&what).await;
        let pods = rig.api::<Pod>().list(&ListParams::default()).await.unwrap();
        assert_eq!(pods.items.len(), 3, "{what}");
        for pod in &pods {
            assert!(
                pod.owner_references().iter().any(|owner| owner.controller == Some(true)),
                "{what}: {:?}",
                pod.metadata
            );
        }
        for set in rig.api::<StatefulSet>().list(&ListParams::default()).await.unwrap() {
            assert!(!set.owner_references().is_empty(), "{what}: {:?}", set.metadata);
        }
        // One look of the resync is allowed to write.
        tokio::time::sleep(Duration::from_secs(70)).await;
        let before = rig.versions().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(rig.versions().await, before, "{what}: somebody still writes");
    }
    assert_eq!(rig.forbidden(), Vec::<String>::new(), "every right was derived");
}

/// What the operator remembers in the status, changed by somebody: no second primary, no write lost.
#[tokio::test(start_paused = true)]
async fn a_status_changed_by_hand_does_no_harm() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.well("orders", 3).await;
    let clusters = rig.api::<RedisCluster>();
    for number in 0..9 {
        let primary = rig.ready("orders", 3).await;
        let replica = ["orders-0", "orders-1", "orders-2"].into_iter().find(|pod| *pod != primary).unwrap();
        let patch = [
            json!({"currentPrimary": replica, "targetPrimary": replica}),
            json!({"currentPrimary": replica}),
            json!({"targetPrimary": replica}),
            json!({"currentPrimary": null, "targetPrimary": null}),
            json!({"currentPrimary": "orders-9", "targetPrimary": "nonsense"}),
            json!({"members": []}),
            json!({"members": ["orders-7", "x", primary]}),
            json!({"writeQuorum": -3, "term": -1, "holdsData": false}),
            json!({"writeQuorum": 9, "term": 5, "conditions": null}),
        ]
        .into_iter()
        .nth(number)
        .unwrap();
        assert!(rig.write("orders").await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let what = format!("{patch} (primary {primary})");
        clusters
            .patch_status("orders", &PatchParams::default(), &Patch::Merge(json!({ "status": patch })))
            .await
            .unwrap();
        rig.unharmed(&what).await;
    }
}
