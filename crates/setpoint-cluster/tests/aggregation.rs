//! Aggregated ClusterRoles, in simulated time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use setpoint_cluster::Cluster;
use tokio::time::{Instant, sleep};

fn rule(resource: &str) -> Value {
    json!({"apiGroups": ["example.com"], "resources": [resource], "verbs": ["get"]})
}

async fn create(roles: &Api<ClusterRole>, role: Value) {
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    roles.create(&PostParams::default(), &role).await.unwrap();
}

async fn has_rules(roles: &Api<ClusterRole>, name: &str, wanted: &[&str]) -> ClusterRole {
    let wanted: Vec<Value> = wanted.iter().map(|resource| rule(resource)).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let role = roles.get(name).await.unwrap();
        let seen = json!(role.rules.clone().unwrap_or_default());
        if seen == json!(wanted) {
            return role;
        }
        assert!(Instant::now() < deadline, "rules of {name} after 60 s: {seen}, wanted {wanted:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rules_follow_the_roles_that_are_selected() {
    let cluster = Cluster::builder().hollow_nodes(1).seed(1).start().await.unwrap();
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let part = |name: &str, label: &str, resources: &[&str]| {
        let rules: Vec<Value> = resources.iter().map(|resource| rule(resource)).collect();
        json!({"metadata": {"name": name, "labels": {label: "yes"}}, "rules": rules})
    };
    let whole = |name: &str, labels: Value, selectors: &[&str]| {
        let selectors: Vec<_> =
            selectors.iter().map(|label| json!({"matchLabels": {*label: "yes"}})).collect();
        json!({"metadata": {"name": name, "labels": labels}, "aggregationRule": {"clusterRoleSelectors": selectors}})
    };
    create(&roles, part("b", "one", &["b", "shared"])).await;
    create(&roles, part("a", "two", &["a"])).await;
    // Selects itself too, which counts for nothing; the outer one gathers what the inner one has gathered.
    create(&roles, whole("inner", json!({"one": "yes", "three": "yes"}), &["one", "two"])).await;
    create(&roles, whole("outer", json!({}), &["three"])).await;
    has_rules(&roles, "inner", &["b", "shared", "a"]).await;
    has_rules(&roles, "outer", &["b", "shared", "a"]).await;

    create(&roles, part("c", "one", &["shared", "c"])).await;
    let role = has_rules(&roles, "inner", &["b", "shared", "c", "a"]).await;
    let manager = role.managed_fields().iter().find(|entry| {
        entry.manager.as_deref() == Some("clusterrole-aggregation-controller")
            && entry.operation.as_deref() == Some("Apply")
    });
    assert_eq!(json!(manager.unwrap().fields_v1), json!({"f:rules": {}}));
    has_rules(&roles, "outer", &["b", "shared", "c", "a"]).await;

    // What somebody writes into it is put right; what is not selected any more goes.
    let patch = Patch::Merge(json!({"rules": [rule("mine")]}));
    roles.patch("inner", &PatchParams::default(), &patch).await.unwrap();
    has_rules(&roles, "inner", &["b", "shared", "c", "a"]).await;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"one": "no"}}}));
    roles.patch("b", &PatchParams::default(), &patch).await.unwrap();
    has_rules(&roles, "inner", &["shared", "c", "a"]).await;
    roles.delete("a", &DeleteParams::default()).await.unwrap();
    has_rules(&roles, "outer", &["shared", "c"]).await;

    // Then it is at rest.
    let before = roles.get("outer").await.unwrap().resource_version();
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(roles.get("outer").await.unwrap().resource_version(), before);
}

#[tokio::test(start_paused = true)]
async fn the_default_roles_are_filled() {
    let cluster = Cluster::builder().hollow_nodes(1).seed(1).start().await.unwrap();
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let view = json!({"metadata": {"name": "crontabs-view", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [rule("crontabs")]});
    create(&roles, view).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    for name in ["view", "edit", "admin"] {
        loop {
            let rules = json!(roles.get(name).await.unwrap().rules.unwrap_or_default()).to_string();
            if rules.contains("configmaps") && rules.contains("crontabs") {
                break;
            }
            assert!(Instant::now() < deadline, "rules of {name} after 60 s: {rules}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}
