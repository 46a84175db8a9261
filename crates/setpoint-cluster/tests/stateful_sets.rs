//! StatefulSets on hollow nodes, in simulated time.

mod world;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use setpoint_cluster::kubelet::NodeConfig;
use setpoint_cluster::{Cluster, HollowRuntime};

use world::{World, pods};

#[tokio::test(start_paused = true)]
async fn three_replicas_become_ready_one_after_the_other() {
    let world = World::start(Cluster::builder().hollow_nodes(3)).await;
    world.create_set("web", json!({"replicas": 3})).await;
    let status = world.set_status("web", |status| status["readyReplicas"] == 3).await;
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    assert_eq!((&status["replicas"], &status["observedGeneration"]), (&json!(3), &json!(1)));
    let pods = pods(&world.client, "default").await;
    let nodes: std::collections::BTreeSet<_> =
        pods.iter().map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned()).collect();
    assert_eq!(nodes.len(), 3, "spread over the nodes: {nodes:?}");
    for (index, pod) in pods.iter().enumerate() {
        assert_eq!(pod["metadata"]["name"], format!("web-{index}"));
        assert_eq!(pod["status"]["phase"], "Running");
        assert!(pod["status"]["podIP"].as_str().unwrap().starts_with("10.244."), "{pod:#}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_moves_at_rest() {
    let world = World::start(Cluster::builder().hollow_nodes(2)).await;
    world.create_set("web", json!({"replicas": 2})).await;
    world.set_status("web", |status| status["readyReplicas"] == 2 && status["availableReplicas"] == 2).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = world.cluster.api().revision();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.cluster.api().revision(), before, "an hour at rest");
}

#[tokio::test(start_paused = true)]
async fn killed_container_restarts_with_back_off() {
    let world = World::start(Cluster::builder()).await;
    world.create_set("web", json!({"replicas": 1})).await;
    world.set_status("web", |status| status["readyReplicas"] == 1).await;
    let node = world.cluster.node("hollow-0").unwrap();
    let container = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0].clone();

    assert!(node.kill("default", "web-0", "c"));
    let pod = world
        .pod("web-0", |pod| container(pod)["restartCount"] == 1 && container(pod)["ready"] == true)
        .await;
    assert_eq!(container(&pod)["lastState"]["terminated"]["exitCode"], 137);

    assert!(node.kill("default", "web-0", "c"));
    let seen = tokio::time::Instant::now();
    let waiting =
        |pod: &serde_json::Value| container(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    world.pod("web-0", waiting).await;
    assert!(seen.elapsed() < Duration::from_millis(200), "published after {:?}", seen.elapsed());
    world.set_status("web", |status| status["readyReplicas"].as_i64().unwrap_or(0) == 0).await;
    world.pod("web-0", |pod| container(pod)["restartCount"] == 2 && container(pod)["ready"] == true).await;
    let waited = seen.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(12)).contains(&waited), "{waited:?}");
    let events = Api::<Event>::namespaced(world.client.clone(), "default");
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    for reason in ["SuccessfulCreate", "Scheduled", "Pulled", "Created", "Started", "BackOff"] {
        assert!(reasons.contains(&reason), "{reason} in {reasons:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn scales_up_and_down() {
    let world = World::start(Cluster::builder().hollow_nodes(2)).await;
    world.create_set("web", json!({"replicas": 1})).await;
    world.set_status("web", |status| status["readyReplicas"] == 1).await;
    world.patch_set("web", json!({"spec": {"replicas": 4}})).await;
    world.set_status("web", |status| status["readyReplicas"] == 4).await;
    world.patch_set("web", json!({"spec": {"replicas": 1}})).await;
    world.set_status("web", |status| status["replicas"] == 1 && status["readyReplicas"] == 1).await;
    let names: Vec<_> =
        pods(&world.client, "default").await.iter().map(|pod| pod["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["web-0"]);
}

#[tokio::test(start_paused = true)]
async fn rolling_update_replaces_all_and_on_delete_none() {
    let world = World::start(Cluster::builder().hollow_nodes(2)).await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
    world.create_set("web", json!({"replicas": 2})).await;
    world.create_set("db", json!({"replicas": 2, "updateStrategy": {"type": "OnDelete"}})).await;
    for set in ["web", "db"] {
        world.set_status(set, |status| status["readyReplicas"] == 2).await;
        world.patch_set(set, image.clone()).await;
    }
    let done = |status: &serde_json::Value| {
        status["updatedReplicas"] == 2
            && status["readyReplicas"] == 2
            && status["currentRevision"] == status["updateRevision"]
    };
    world.set_status("web", done).await;
    let status = world.set_status("db", |status| status["observedGeneration"] == 2).await;
    assert_eq!(status["updatedReplicas"].as_i64().unwrap_or(0), 0, "{status:#}");
    let db = Api::<Pod>::namespaced(world.client.clone(), "default");
    db.delete("db-1", &DeleteParams::default()).await.unwrap();
    world.set_status("db", |status| status["updatedReplicas"] == 1 && status["readyReplicas"] == 2).await;
    let images: Vec<_> = pods(&world.client, "default")
        .await
        .iter()
        .map(|pod| {
            format!(
                "{}={}",
                pod["metadata"]["name"].as_str().unwrap(),
                pod["spec"]["containers"][0]["image"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(images, ["db-0=v1", "db-1=v2", "web-0=v2", "web-1=v2"]);
}

#[tokio::test(start_paused = true)]
async fn pod_that_fits_nowhere_says_so_and_goes_on_when_there_is_room() {
    let world = World::start(Cluster::builder()).await;
    let container = json!({"name": "c", "image": "v1", "resources": {"requests": {"cpu": "20"}}});
    let template = json!({"metadata": {"labels": {"app": "big"}}, "spec": {"containers": [container]}});
    world.create_set("big", json!({"replicas": 2, "template": template})).await;
    world.set_status("big", |status| status["readyReplicas"] == 1).await;
    let reason = |pod: &serde_json::Value| pod["status"]["conditions"][0]["reason"].clone();
    let pending = world.pod("big-1", |pod| reason(pod) == "Unschedulable").await;
    let message = "0/1 nodes are available: 1 Insufficient cpu.";
    assert_eq!(pending["status"]["conditions"][0]["message"], message);
    assert_eq!(pending["status"]["phase"], "Pending");
    world.event("FailedScheduling", message).await;

    let more = HollowRuntime::new(9, *world.cluster.clock());
    world.cluster.add_node(NodeConfig::new("more"), more).await.unwrap();
    let running = world.pod("big-1", |pod| pod["status"]["phase"] == "Running").await;
    assert_eq!(running["spec"]["nodeName"], "more");
    let scheduled =
        running["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "PodScheduled");
    assert_eq!(scheduled.unwrap()["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn missing_image_waits_with_an_event() {
    let world = World::start(Cluster::builder()).await;
    world.cluster.node("hollow-0").unwrap().remove_image("v1");
    world.create_set("web", json!({"replicas": 1})).await;
    let reason =
        |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    world.pod("web-0", |pod| reason(pod) == "ErrImagePull").await;
    world.pod("web-0", |pod| reason(pod) == "ImagePullBackOff").await;
    world.event("Failed", "it has every other image").await;
}

#[tokio::test(start_paused = true)]
async fn deleted_pod_gets_its_grace() {
    let world = World::start(Cluster::builder()).await;
    let node = world.cluster.node("hollow-0").unwrap();
    node.script(|_, _| setpoint_cluster::Behaviour { stop_delay: None, ..Default::default() });
    let api = Api::<Pod>::namespaced(world.client.clone(), "default");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"terminationGracePeriodSeconds": 7, "containers": [{"name": "c", "image": "v1"}]}});
    api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    world.pod("p", |pod| pod["status"]["phase"] == "Running").await;
    let start = tokio::time::Instant::now();
    api.delete("p", &DeleteParams::default()).await.unwrap();
    world
        .until("pod p is gone", async || {
            api.get_opt("p").await.unwrap().map_or(Ok(()), |pod| Err(format!("{:?}", pod.status)))
        })
        .await;
    let took = start.elapsed();
    assert!((Duration::from_secs(7)..Duration::from_secs(8)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn config_map_volumes_follow_their_config_map() {
    use k8s_openapi::api::core::v1::ConfigMap;
    let world = World::start(Cluster::builder().volume_refresh(Duration::from_secs(5))).await;
    let maps = Api::<ConfigMap>::namespaced(world.client.clone(), "default");
    let map = |text: &str| {
        serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": "cm"}, "data": {"a": text}})).unwrap()
    };
    let api = Api::<Pod>::namespaced(world.client.clone(), "default");
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "v1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
    }});
    api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    world.event("FailedMount", "configmap \"cm\" not found").await;
    maps.create(&PostParams::default(), &map("1")).await.unwrap();
    world.pod("p", |pod| pod["status"]["phase"] == "Running").await;
    let node = world.cluster.node("hollow-0").unwrap();
    let file = || {
        node.volume("default", "p", "v").and_then(|files| files.files.get("a").map(|file| file.data.clone()))
    };
    assert_eq!(file().as_deref(), Some(b"1".as_slice()));
    maps.patch("cm", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "2"}}))).await.unwrap();
    world
        .until("the file is new", async || {
            if file().as_deref() == Some(b"2") { Ok(()) } else { Err(format!("{:?}", file())) }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn claims_are_bound_before_their_pods_start_and_outlive_them() {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    let world = World::start(Cluster::builder().hollow_nodes(2)).await;
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    world.create_set("db", json!({"replicas": 2, "volumeClaimTemplates": [claim]})).await;
    world.set_status("db", |status| status["readyReplicas"] == 2).await;
    let claims = Api::<PersistentVolumeClaim>::namespaced(world.client.clone(), "default");
    let bound = |claims: Vec<PersistentVolumeClaim>| {
        let volume = |claim: &PersistentVolumeClaim| claim.spec.as_ref().unwrap().volume_name.clone();
        claims
            .iter()
            .map(|claim| (claim.metadata.name.clone().unwrap(), volume(claim).unwrap()))
            .collect::<Vec<_>>()
    };
    let before = bound(claims.list(&ListParams::default()).await.unwrap().items);
    assert_eq!(before.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["data-db-0", "data-db-1"]);
    world.patch_set("db", json!({"spec": {"replicas": 0}})).await;
    world.set_status("db", |status| status["replicas"] == 0).await;
    world.patch_set("db", json!({"spec": {"replicas": 2}})).await;
    world.set_status("db", |status| status["readyReplicas"] == 2).await;
    assert_eq!(
        bound(claims.list(&ListParams::default()).await.unwrap().items),
        before,
        "the same volumes again"
    );
}

#[tokio::test(start_paused = true)]
async fn orphaned_pods_are_adopted_by_a_new_set() {
    let world = World::start(Cluster::builder()).await;
    world.create_set("web", json!({"replicas": 2})).await;
    world.set_status("web", |status| status["readyReplicas"] == 2).await;
    let uid = |pod: &serde_json::Value| pod["metadata"]["uid"].clone();
    let before: Vec<_> = pods(&world.client, "default").await.iter().map(uid).collect();
    let sets = Api::<k8s_openapi::api::apps::v1::StatefulSet>::namespaced(world.client.clone(), "default");
    let orphan = DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    sets.delete("web", &orphan).await.unwrap();
    let orphaned =
        |pod: &serde_json::Value| pod["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty);
    world.pod("web-0", |pod| pod.is_object() && orphaned(pod)).await;
    world
        .until("the set is gone", async || {
            sets.get_opt("web").await.unwrap().map_or(Ok(()), |set| Err(format!("{:?}", set.metadata)))
        })
        .await;
    world.create_set("web", json!({"replicas": 2})).await;
    world.pod("web-1", |pod| pod["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet").await;
    world.set_status("web", |status| status["readyReplicas"] == 2).await;
    assert_eq!(pods(&world.client, "default").await.iter().map(uid).collect::<Vec<_>>(), before);
}
