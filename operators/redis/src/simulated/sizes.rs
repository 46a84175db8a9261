//! Fewer servers, larger volumes, other settings of the servers.

use k8s_openapi::api::storage::v1::StorageClass;

use super::*;

impl Rig {
    async fn condition(&self, kind: &str) -> Option<(String, String, String)> {
        let status = self.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap_or_default();
        let found = status.conditions.into_iter().find(|condition| condition.type_ == kind)?;
        Some((found.status, found.reason, found.message))
    }

    async fn claims(&self) -> BTreeMap<String, String> {
        let claims = self.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
        let size = |claim: &PersistentVolumeClaim| {
            let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
            Some(requests["storage"].0.clone())
        };
        claims.iter().map(|claim| (claim.name_any(), size(claim).unwrap_or_default())).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn servers_are_removed_and_their_volumes_stay_unless_they_are_to_go() {
    let rig = Rig::new().await;
    rig.create("orders", spec(4)).await;
    let first = rig.ready("orders", 4).await;
    assert!(rig.write("orders").await);
    let refused = rig.patch("orders", json!({"size": 3})).await.unwrap_err();
    assert!(refused.to_string().contains("scaleDown is Allow"), "{refused}");
    let asked = json!({"metadata": {"annotations": {"cache.example.com/switchover": "orders-3"}}});
    let clusters = rig.api::<RedisCluster>();
    clusters.patch("orders", &PatchParams::default(), &Patch::Merge(asked)).await.unwrap();
    eventually("the last server is the primary", BOUND, async || match rig.ready("orders", 4).await {
        primary if primary == "orders-3" => Ok(()),
        primary => Err(primary),
    })
    .await
    .unwrap();

    rig.patch("orders", json!({"size": 3, "scaleDown": "Allow"})).await.unwrap();
    let primary = rig.ready("orders", 3).await;
    assert_ne!(primary, "orders-3");
    assert_eq!(rig.lost("orders").await, 0);
    assert!(rig.claims().await.contains_key("data-orders-3"), "it stays");
    rig.patch("orders", json!({"size": 1, "storage": {"reclaim": "Delete"}})).await.unwrap();
    rig.ready("orders", 1).await;
    assert!(rig.write("orders").await);
    eventually("the volumes of removed servers are gone", BOUND, async || {
        let claims = rig.claims().await;
        if claims.len() == 1 { Ok(()) } else { Err(format!("{claims:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(rig.lost("orders").await, 0);
    rig.patch("orders", json!({"size": 3})).await.unwrap();
    rig.ready("orders", 3).await;
    assert_eq!(rig.lost("orders").await, 0, "{first} began");
    assert_eq!(rig.forbidden(), Vec::<String>::new());
    rig.api::<RedisCluster>().delete("orders", &DeleteParams::default()).await.unwrap();
    eventually("nothing is left", BOUND, async || {
        let claims = rig.claims().await;
        if claims.is_empty() { Ok(()) } else { Err(format!("{claims:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_size_that_was_lowered_past_the_checks_removes_nothing() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.ready("orders", 3).await;
    // As by the scale of v1alpha1, whose schema allows it: the rule of v1 is taken away.
    let definitions: Api<DynamicObject> = Api::all_with(
        rig.cluster.client(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    let mut definition = definitions.get("redisclusters.cache.example.com").await.unwrap();
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    definition.data.pointer_mut(schema).unwrap().as_object_mut().unwrap().remove("x-kubernetes-validations");
    definitions
        .replace("redisclusters.cache.example.com", &PostParams::default(), &definition)
        .await
        .unwrap();
    eventually("the rule is gone", BOUND, async || {
        rig.patch("orders", json!({"size": 1})).await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    eventually("it is told", BOUND, async || match rig.condition("Progressing").await {
        Some((_, reason, _)) if reason == "ScaleDownForbidden" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let pods = rig.api::<Pod>().list(&ListParams::default()).await.unwrap().items.len();
    assert_eq!(pods, 3);
    rig.patch("orders", json!({"size": 3})).await.unwrap();
    rig.well("orders", 3).await;
}

#[tokio::test(start_paused = true)]
async fn volumes_grow_without_an_interruption() {
    let rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    let primary = rig.ready("orders", 3).await;
    assert!(rig.write("orders").await);
    let pods = async || -> Vec<Option<String>> {
        let pods = rig.api::<Pod>().list(&ListParams::default()).await.unwrap();
        pods.iter().map(ResourceExt::uid).collect()
    };
    let before = pods().await;
    let uid = rig.api::<StatefulSet>().get("orders").await.unwrap().uid();
    rig.patch("orders", json!({"storage": {"size": "2Gi"}})).await.unwrap();
    eventually("all claims and the StatefulSet have the new size", BOUND, async || {
        assert!(rig.write("orders").await, "writes go on");
        let claims = rig.claims().await;
        let set = rig.api::<StatefulSet>().get_opt("orders").await.unwrap();
        let renewed = set.filter(|set| set.uid() != uid && set.metadata.deletion_timestamp.is_none());
        let owned = rig.api::<Pod>().list(&ListParams::default()).await.unwrap().iter().all(|pod| {
            renewed.as_ref().is_some_and(|set| {
                pod.owner_references().iter().any(|owner| Some(&owner.uid) == set.uid().as_ref())
            })
        });
        let done = claims.len() == 3 && claims.values().all(|size| size == "2Gi") && owned;
        if done { Ok(()) } else { Err(format!("{claims:?} {:?} {owned}", renewed.map(|set| set.metadata))) }
    })
    .await
    .unwrap();
    rig.well("orders", 3).await;
    assert_eq!((rig.ready("orders", 3).await, pods().await), (primary, before), "no server restarted");
    assert_eq!(
        rig.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap().storage_size.as_deref(),
        Some("2Gi")
    );
    rig.patch("orders", json!({"size": 4})).await.unwrap();
    rig.ready("orders", 4).await;
    assert_eq!(rig.claims().await["data-orders-3"], "2Gi");
    assert_eq!((rig.lost("orders").await, rig.forbidden()), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn volumes_whose_class_forbids_it_stay_and_the_change_can_be_taken_back() {
    let rig = Rig::new().await;
    let classes: Api<StorageClass> = Api::all(rig.cluster.client());
    let provisioner = classes.list(&ListParams::default()).await.unwrap().items.remove(0).provisioner;
    rig.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fixed"}, "provisioner": provisioner,
    }))
    .await;
    let mut wanted = spec(2);
    wanted["storage"] = json!({"size": "1Gi", "storageClass": "fixed"});
    rig.create("orders", wanted).await;
    rig.ready("orders", 2).await;
    rig.patch("orders", json!({"storage": {"size": "2Gi"}})).await.unwrap();
    eventually("it is told", BOUND, async || match rig.condition("StorageResized").await {
        Some((status, _, message))
            if status == "False" && message.contains("\"fixed\" does not allow it") =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    assert!(rig.write("orders").await);
    assert!(rig.claims().await.values().all(|size| size == "1Gi"));
    rig.patch("orders", json!({"storage": {"size": "1Gi"}})).await.unwrap();
    rig.well("orders", 2).await;
}
