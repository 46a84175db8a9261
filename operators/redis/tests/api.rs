//! The operator's API on any server: what users may write, and the children that they get, under the operator's own rights.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use redis_operator::api::{RedisCluster, ScaleDown, v1alpha1, v1beta1};
use serde_json::{Value, json};
use setpoint_test::TestEnv;

/// The example for users.
fn orders() -> Value {
    serde_saphyr::from_str(include_str!("../orders.yaml")).unwrap()
}

fn with(path: &str, value: Value) -> Value {
    let mut orders = orders();
    orders["metadata"]["namespace"] = json!("default");
    *orders.pointer_mut(path).unwrap() = value;
    orders
}

/// The example with `more` merged into its spec, in another version, under another name.
fn variant(version: &str, name: &str, more: &Value) -> Value {
    let mut orders = with("/metadata/name", json!(name));
    orders["apiVersion"] = json!(format!("cache.example.com/{version}"));
    for (field, value) in more.as_object().unwrap() {
        orders["spec"][field] = value.clone();
    }
    orders
}

#[tokio::test]
async fn the_api_server_refuses_what_the_operator_could_not_run() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(redis_operator::operator()).await.unwrap();
    let long = "a".repeat(41);
    for (path, value, says) in [
        (
            "/spec/size",
            json!(0),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            "/spec/size",
            json!(11),
            "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10",
        ),
        (
            "/spec/storage/size",
            json!("1GB"),
            "spec.storage.size: Invalid value: \"1GB\": spec.storage.size in body should match",
        ),
        (
            "/metadata/name",
            json!(long),
            "name must have at most 40 characters: names of children are derived from it",
        ),
    ] {
        let refused = env.apply(with(path, value)).await.unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    for (more, says) in [
        (json!({"image": "Redis Server"}), "spec.image: Invalid value: \"Redis Server\": "),
        (json!({"version": "seven point oh"}), "spec.version: Invalid value: "),
        (json!({"image": "redis:6.2"}), "spec.version: Invalid value: \"7.0\": \"7.0\" differs from the tag"),
        (json!({"config": {"maxmemory": "lots"}}), "spec.config.maxmemory: Invalid value: \"lots\": "),
        (json!({"config": {"maxmemory": "1gb"}}), "90 % of the memory limit of 1073741824"),
        (json!({"config": {"parameters": {"dir": "/"}}}), "spec.config.parameters: Invalid value: "),
        (json!({"config": {"parameters": {"hz": "fast"}}}), "give a whole number from 1 to 500"),
        (json!({"storage": {"size": "0Gi"}}), "spec.storage.size: Invalid value: \"0Gi\": "),
        (json!({"resources": {"limits": {"memory": "1Mi"}}}), "spec.resources: Invalid value: "),
        (json!({"writes": {"minReplicas": 3}}), "spec.writes.minReplicas: Invalid value: 3: "),
        (json!({"failover": {"unreachableAfter": "1s"}}), "spec.failover.unreachableAfter: Invalid value: "),
        (json!({"update": {"timeout": "1s"}}), "spec.update.timeout: Invalid value: "),
        (json!({"mode": "Cluster"}), "unknown variant `Cluster`, expected `Replication`"),
    ] {
        let refused = env.apply(variant("v1", "refused", &more)).await.unwrap_err().to_string();
        assert!(refused.contains(says), "{more}: {refused}");
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_taken_back_is_refused_and_what_never_came_about_can_be() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(redis_operator::operator()).await.unwrap();
    let clusters: Api<RedisCluster> = env.api("default");
    let refused = async |version: &str, more: Value| {
        env.apply(variant(version, "orders", &more)).await.unwrap_err().to_string()
    };
    env.apply(variant("v1", "orders", &json!({}))).await.unwrap();
    let smaller = refused("v1", json!({"size": 2})).await;
    assert!(smaller.contains("spec.size: ") && smaller.contains("scaleDown is Allow"), "{smaller}");
    let beta: Api<v1beta1::RedisCluster> = env.api("default");
    let old: Api<v1alpha1::RedisCluster> = env.api("default");
    let to = |size: i32| Patch::Merge(json!({"spec": {"size": size}}));
    let smaller = beta.patch("orders", &PatchParams::default(), &to(2)).await.unwrap_err().to_string();
    assert!(smaller.contains("spec.size: ") && smaller.contains("scaleDown is Allow"), "{smaller}");
    let smaller = old.patch("orders", &PatchParams::default(), &to(2)).await.unwrap_err().to_string();
    assert!(smaller.contains("spec.size: ") && smaller.contains("allow-scale-down"), "{smaller}");
    env.apply(variant("v1", "orders", &json!({"storage": {"size": "1Mi", "storageClass": "slow"}})))
        .await
        .unwrap();
    env.apply(variant("v1", "orders", &json!({"size": 2, "scaleDown": "Allow"}))).await.unwrap();
    env.apply(variant("v1", "orders", &json!({"size": 2}))).await.unwrap();
    let allowed = json!({"metadata": {"annotations": {"cache.example.com/allow-scale-down": "true"}}, "spec": {"size": 1}});
    old.patch("orders", &PatchParams::default(), &Patch::Merge(allowed)).await.unwrap();
    env.apply(variant("v1", "orders", &json!({}))).await.unwrap();

    // It has had a primary.
    let begun = json!({"status": {"term": 1, "conditions": [{
        "type": "RolloutBlocked", "status": "False", "reason": "UpToDate", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    running.stop().await.unwrap();
    clusters.patch_status("orders", &PatchParams::default(), &Patch::Merge(begun)).await.unwrap();
    let running = env.run(redis_operator::operator()).await.unwrap();
    for (more, says) in [
        (json!({"storage": null}), "spec.storage: Forbidden: it cannot be removed"),
        (
            json!({"storage": {"size": "1Mi"}}),
            "spec.storage.size: Forbidden: it cannot be lowered from 1Gi to 1Mi",
        ),
        (
            json!({"storage": {"size": "1Gi", "storageClass": "fast"}}),
            "spec.storage.storageClass: Forbidden: it cannot be changed",
        ),
        (json!({"version": "6.2"}), "spec.version: Forbidden: it cannot go back from redis:7.0 to redis:6.2"),
    ] {
        let answer = refused("v1", more.clone()).await;
        assert!(answer.contains(says), "{more}: {answer}");
    }
    env.apply(variant("v1", "orders", &json!({"storage": {"size": "1024Mi"}}))).await.unwrap();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn every_version_is_served_and_new_objects_get_the_version_of_their_servers() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(redis_operator::operator()).await.unwrap();
    let mut plain = variant("v1alpha1", "plain", &json!({}));
    plain["spec"].as_object_mut().unwrap().remove("version");
    env.apply(plain).await.unwrap();
    let new: Api<RedisCluster> = env.api("default");
    assert_eq!(new.get("plain").await.unwrap().spec.version.as_deref(), Some("7.4"));
    let config = json!({"maxmemoryPolicy": "allkeys-lfu", "parameters": {"hz": "20"}});
    env.apply(variant("v1", "orders", &json!({"config": config, "scaleDown": "Allow"}))).await.unwrap();
    let old: Api<v1alpha1::RedisCluster> = env.api("default");
    let seen = old.get("orders").await.unwrap();
    assert_eq!((seen.spec.size, seen.spec.config.clone().unwrap().maxmemory_policy), (3, None));
    let larger = Patch::Merge(json!({"spec": {"size": 4}}));
    old.patch("orders", &PatchParams::default(), &larger).await.unwrap();
    let beta: Api<v1beta1::RedisCluster> = env.api("default");
    assert_eq!(beta.get("orders").await.unwrap().spec.scale_down, ScaleDown::Allow);
    let stored = new.get("orders").await.unwrap().spec;
    assert_eq!(
        serde_json::to_value(&stored.config).unwrap(),
        config,
        "nothing is lost by a change in an old version"
    );
    assert_eq!(stored.size, 4);
    running.stop().await.unwrap();
}

/// In real time: it looks for servers, which hollow nodes don't have, over sockets.
#[tokio::test]
async fn the_children_are_made_and_put_back() {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(redis_operator::operator()).await.unwrap();
    env.apply(with("/spec/size", json!(3))).await.unwrap();
    let owned = |meta: &kube::core::ObjectMeta| {
        let owner = meta.owner_references.iter().flatten().next().map(|owner| owner.kind.clone());
        if owner.as_deref() == Some("RedisCluster") { Ok(()) } else { Err(format!("{owner:?}")) }
    };
    env.wait_for("default", "orders", "the StatefulSet", |set: &StatefulSet| owned(&set.metadata))
        .await
        .unwrap();
    let services: Api<Service> = env.api("default");
    let mut made = Vec::new();
    for service in services.list(&kube::api::ListParams::default()).await.unwrap() {
        if owned(&service.metadata).is_ok() {
            made.push(service.metadata.name.unwrap());
        }
    }
    assert!(!made.is_empty());
    let maps: Api<ConfigMap> = env.api("default");
    let maps = maps.list(&kube::api::ListParams::default()).await.unwrap();
    assert!(maps.iter().any(|map| owned(&map.metadata).is_ok()));
    let secrets: Api<Secret> = env.api("default");
    let secrets = secrets.list(&kube::api::ListParams::default()).await.unwrap();
    assert!(secrets.iter().any(|secret| owned(&secret.metadata).is_ok()));

    services.delete(&made[0], &DeleteParams::default()).await.unwrap();
    env.wait_for("default", &made[0], "the Service again", |service: &Service| owned(&service.metadata))
        .await
        .unwrap();
    running.stop().await.unwrap();
}
