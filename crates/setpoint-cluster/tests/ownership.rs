//! Garbage collection, endpoints and volumes on a cluster of hollow nodes, in simulated time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use setpoint_cluster::Cluster;
use tokio::time::{Instant, sleep};

async fn cluster() -> Cluster {
    Cluster::builder().hollow_nodes(1).seed(1).start().await.unwrap()
}

fn api<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Api::namespaced(client.clone(), "default")
}

async fn create<K>(client: &Client, object: Value) -> K
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
    K::DynamicType: Default,
{
    let object: K = serde_json::from_value(object).unwrap();
    api::<K>(client).create(&PostParams::default(), &object).await.unwrap()
}

/// Probes until it gives `Ok`; the message is what was seen last.
async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(seen) if Instant::now() > deadline => panic!("{what}: not so after 60 s; last seen: {seen}"),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

fn config_map(name: &str, owners: &[&ConfigMap]) -> Value {
    let owners: Vec<_> = owners
        .iter()
        .map(|owner| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid(),
                   "blockOwnerDeletion": true})
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

async fn names(client: &Client) -> Vec<String> {
    let list = api::<ConfigMap>(client).list(&ListParams::default()).await.unwrap();
    list.iter().map(ResourceExt::name_any).filter(|name| name != "kube-root-ca.crt").collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_owned_goes_with_its_last_owner() {
    let cluster = cluster().await;
    let client = cluster.client();
    let a: ConfigMap = create(&client, config_map("a", &[])).await;
    let b: ConfigMap = create(&client, config_map("b", &[])).await;
    let child: ConfigMap = create(&client, config_map("child", &[&a, &b])).await;
    let _: ConfigMap = create(&client, config_map("grandchild", &[&child])).await;
    api::<ConfigMap>(&client).delete("a", &DeleteParams::default()).await.unwrap();
    eventually("the child to be owned by b alone", async || {
        let child = api::<ConfigMap>(&client).get("child").await.map_err(|error| error.to_string())?;
        let owners: Vec<_> = child.owner_references().iter().map(|owner| owner.name.clone()).collect();
        if owners == ["b"] { Ok(()) } else { Err(format!("{owners:?}")) }
    })
    .await;
    api::<ConfigMap>(&client).delete("b", &DeleteParams::default()).await.unwrap();
    eventually("all of them to be gone", async || {
        let left = names(&client).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_orphan_stays_and_foreground_waits() {
    let cluster = cluster().await;
    let client = cluster.client();
    let owner: ConfigMap = create(&client, config_map("owner", &[])).await;
    let _: ConfigMap = create(&client, config_map("orphan", &[&owner])).await;
    let orphan = DeleteParams {
        propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    api::<ConfigMap>(&client).delete("owner", &orphan).await.unwrap();
    eventually("the owner to be gone and the orphan to be free", async || {
        let left = names(&client).await;
        let orphan = api::<ConfigMap>(&client).get("orphan").await.map_err(|error| error.to_string())?;
        let owners = orphan.owner_references().len();
        if left == ["orphan"] && owners == 0 { Ok(()) } else { Err(format!("{left:?}, {owners} owners")) }
    })
    .await;

    let owner: ConfigMap = create(&client, config_map("owner", &[])).await;
    let mut child: ConfigMap = serde_json::from_value(config_map("child", &[&owner])).unwrap();
    child.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    api::<ConfigMap>(&client).create(&PostParams::default(), &child).await.unwrap();
    api::<ConfigMap>(&client).delete("owner", &DeleteParams::foreground()).await.unwrap();
    eventually("the child to be deleted, but held", async || {
        let child = api::<ConfigMap>(&client).get("child").await.map_err(|error| error.to_string())?;
        if child.metadata.deletion_timestamp.is_some() { Ok(()) } else { Err("not deleted".to_owned()) }
    })
    .await;
    assert!(names(&client).await.contains(&"owner".to_owned()), "the owner went before its child");
    let free = json!({"metadata": {"finalizers": null}});
    api::<ConfigMap>(&client)
        .patch("child", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(free))
        .await
        .unwrap();
    eventually("owner and child to be gone", async || {
        let left = names(&client).await;
        if left == ["orphan"] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_never_was_is_no_owner() {
    let cluster = cluster().await;
    let client = cluster.client();
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "nobody"}]);
    let mut object = config_map("child", &[]);
    object["metadata"]["ownerReferences"] = owner;
    let _: ConfigMap = create(&client, object).await;
    eventually("the child to be gone", async || {
        let left = names(&client).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_service_points_at_its_ready_pods() {
    let cluster = cluster().await;
    let client = cluster.client();
    let _: Service = create(
        &client,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}),
    )
    .await;
    let _: Pod = create(
        &client,
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]}}),
    )
    .await;
    let slices = ListParams::default().labels("kubernetes.io/service-name=web");
    let ready = async |wanted: usize| {
        eventually("the ready endpoints of the Service", async || {
            let slices =
                api::<EndpointSlice>(&client).list(&slices).await.map_err(|error| error.to_string())?;
            let endpoints: Vec<_> =
                slices.items.iter().flat_map(|slice| slice.endpoints.iter().flatten()).cloned().collect();
            let ready = endpoints
                .iter()
                .filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.ready == Some(true)))
                .count();
            if ready == wanted && !slices.items.is_empty() { Ok(()) } else { Err(format!("{endpoints:?}")) }
        })
        .await;
    };
    ready(1).await;
    let other = json!({"metadata": {"labels": {"app": "other"}}});
    api::<Pod>(&client)
        .patch("web", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(other))
        .await
        .unwrap();
    ready(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_a_volume_and_gives_it_back() {
    let cluster = cluster().await;
    let client = cluster.client();
    let _: PersistentVolumeClaim = create(
        &client,
        json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    )
    .await;
    let volume = eventually("the claim to be bound", async || {
        let claim =
            api::<PersistentVolumeClaim>(&client).get("data").await.map_err(|error| error.to_string())?;
        let status = claim.status.unwrap_or_default();
        let volume = claim.spec.unwrap_or_default().volume_name;
        match (status.phase.as_deref(), volume) {
            (Some("Bound"), Some(volume)) => Ok(volume),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let bound = volumes.get(&volume).await.unwrap();
    assert_eq!(bound.spec.unwrap().storage_class_name.as_deref(), Some("standard"));
    api::<PersistentVolumeClaim>(&client).delete("data", &DeleteParams::default()).await.unwrap();
    eventually("the volume to be gone", async || match volumes.get_opt(&volume).await {
        Ok(None) => Ok(()),
        Ok(Some(volume)) => Err(format!("{:?} {:?}", volume.status, volume.metadata.finalizers)),
        Err(error) => Err(error.to_string()),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_with_all_that_is_in_it() {
    use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
    let cluster = cluster().await;
    let client = cluster.client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let shop: Namespace = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    namespaces.create(&PostParams::default(), &shop).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "shop");
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), "shop");
    eventually("what a namespace is born with", async || {
        let account = accounts.get_opt("default").await.map_err(|error| error.to_string())?.is_some();
        let ca = configs.get_opt("kube-root-ca.crt").await.map_err(|error| error.to_string())?;
        let ca = ca.and_then(|ca| ca.data?.remove("ca.crt")).unwrap_or_default();
        if account && ca.contains("BEGIN CERTIFICATE") { Ok(()) } else { Err(format!("{account}, {ca:?}")) }
    })
    .await;
    let mut held: ConfigMap = serde_json::from_value(config_map("held", &[])).unwrap();
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    configs.create(&PostParams::default(), &held).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]}}))
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    eventually("the namespace to say what it waits for", async || {
        let shop = namespaces.get("shop").await.map_err(|error| error.to_string())?;
        let conditions = shop.status.and_then(|status| status.conditions).unwrap_or_default();
        let messages: Vec<_> = conditions.into_iter().filter_map(|condition| condition.message).collect();
        let left = messages.iter().any(|message| message.contains("configmaps") && !message.contains("pods"));
        if left { Ok(()) } else { Err(format!("{messages:?}")) }
    })
    .await;
    let free = json!({"metadata": {"finalizers": null}});
    configs.patch("held", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(free)).await.unwrap();
    eventually("the namespace to be gone", async || match namespaces.get_opt("shop").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_circle_of_owners_goes_whole() {
    let cluster = cluster().await;
    let client = cluster.client();
    let a: ConfigMap = create(&client, config_map("a", &[])).await;
    let b: ConfigMap = create(&client, config_map("b", &[&a])).await;
    let c: ConfigMap = create(&client, config_map("c", &[&b])).await;
    let itself: ConfigMap = create(&client, config_map("itself", &[])).await;
    let maps = api::<ConfigMap>(&client);
    for (name, owner) in [("a", &c), ("itself", &itself)] {
        let patch =
            json!({"metadata": {"ownerReferences": config_map("", &[owner])["metadata"]["ownerReferences"]}});
        maps.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        maps.delete(name, &DeleteParams::foreground()).await.unwrap();
    }
    eventually("the circle is gone", async || {
        let left = names(&client).await;
        if left.iter().any(|name| ["a", "b", "c", "itself"].contains(&name.as_str())) {
            return Err(format!("{:?}", maps.list(&ListParams::default()).await.unwrap().items));
        }
        Ok(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_owners_goes_from_its_end() {
    let cluster = cluster().await;
    let client = cluster.client();
    for parameters in [DeleteParams::foreground(), DeleteParams::background()] {
        let mut owner: ConfigMap = create(&client, config_map("c0", &[])).await;
        for index in 1..5 {
            owner = create(&client, config_map(&format!("c{index}"), &[&owner])).await;
        }
        api::<ConfigMap>(&client).delete("c0", &parameters).await.unwrap();
        eventually("the chain is gone", async || {
            let left: Vec<_> =
                names(&client).await.into_iter().filter(|name| name.starts_with('c')).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn objects_are_collected_in_whatever_version_they_are_served() {
    let cluster = cluster().await;
    let client = cluster.client();
    let owner: ConfigMap = create(&client, config_map("owner", &[])).await;
    let reference = config_map("", &[&owner])["metadata"]["ownerReferences"].clone();
    let version = |name: &str, serves: bool, stores: bool| {
        json!({"name": name, "served": serves, "storage": stores,
               "schema": {"openAPIV3Schema": {"type": "object"}}})
    };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
                 "versions": [version("v1alpha1", true, true)]},
    });
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    let gadgets = |version: &str| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", version, "Gadget"));
        Api::<DynamicObject>::namespaced_with(client.clone(), "default", &resource)
    };
    let gadget = |version: &str, name: &str| -> DynamicObject {
        let meta = json!({"name": name, "ownerReferences": reference});
        let api_version = format!("example.com/{version}");
        serde_json::from_value(json!({"apiVersion": api_version, "kind": "Gadget", "metadata": meta}))
            .unwrap()
    };
    gadgets("v1alpha1").create(&PostParams::default(), &gadget("v1alpha1", "first")).await.unwrap();
    let versions =
        json!({"spec": {"versions": [version("v1", true, true), version("v1alpha1", false, false)]}});
    definitions.patch("gadgets.example.com", &PatchParams::default(), &Patch::Merge(versions)).await.unwrap();
    gadgets("v1").create(&PostParams::default(), &gadget("v1", "second")).await.unwrap();
    api::<ConfigMap>(&client).delete("owner", &DeleteParams::default()).await.unwrap();
    eventually("what was owned is gone", async || {
        let left = gadgets("v1").list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        if left.items.is_empty() { Ok(()) } else { Err(format!("{:?}", left.items)) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_says_what_there_is_and_gives_back_what_goes() {
    use k8s_openapi::api::core::v1::{ResourceQuota, Secret};

    let cluster = cluster().await;
    let client = cluster.client();
    let hard = json!({"secrets": "1", "count/services": "5"});
    create::<ResourceQuota>(&client, json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
    let used = async |secrets: &str| {
        eventually("quota", async || {
            let status = json!(api::<ResourceQuota>(&client).get("q").await.unwrap().status);
            // The API server's own Service is in this namespace.
            let wanted = json!({"hard": hard, "used": {"secrets": secrets, "count/services": "1"}});
            if status == wanted { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    };
    used("0").await;
    create::<Secret>(&client, json!({"metadata": {"name": "a"}})).await;
    used("1").await;
    let second: Secret = serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap();
    let refused = api::<Secret>(&client).create(&PostParams::default(), &second).await.unwrap_err();
    let why = "secrets \"b\" is forbidden: exceeded quota: q, requested: secrets=1, used: secrets=1, limited: secrets=1";
    assert!(refused.to_string().contains(why), "{refused}");
    api::<Secret>(&client).delete("a", &DeleteParams::default()).await.unwrap();
    used("0").await;
    create::<Secret>(&client, json!({"metadata": {"name": "b"}})).await;
}

#[tokio::test(start_paused = true)]
async fn the_root_ca_comes_back_when_its_last_holder_lets_go() {
    let cluster = cluster().await;
    let configs: Api<ConfigMap> = api(&cluster.client());
    let name = "kube-root-ca.crt";
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let held = configs.patch(name, &PatchParams::default(), &Patch::Merge(hold)).await.unwrap();
    configs.delete(name, &DeleteParams::default()).await.unwrap();
    sleep(Duration::from_secs(600)).await;
    let still = configs.get(name).await.unwrap();
    assert_eq!(still.uid(), held.uid());
    let free = json!({"metadata": {"finalizers": null}});
    configs.patch(name, &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
    eventually("a new ConfigMap", async || match configs.get_opt(name).await {
        Ok(Some(made)) if made.uid() != held.uid() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// They were deleted: the data of whoever restores his objects before his definitions.
#[tokio::test(start_paused = true)]
async fn what_is_owned_by_an_unknown_kind_stays_and_what_is_owned_from_elsewhere_goes() {
    let cluster = cluster().await;
    let client = cluster.client();
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    let space: k8s_openapi::api::core::v1::Namespace = serde_json::from_value(space).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &space).await.unwrap();
    let foreign: ConfigMap = serde_json::from_value(config_map("foreign", &[])).unwrap();
    let foreign =
        Api::namespaced(client.clone(), "other").create(&PostParams::default(), &foreign).await.unwrap();
    let owner = json!({"apiVersion": "nope.io/v1", "kind": "Nope", "name": "x", "uid": "u"});
    let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unknown", "ownerReferences": [owner]}});
    let _: ConfigMap = create(&client, unknown).await;
    let _: ConfigMap = create(&client, config_map("elsewhere", &[&foreign])).await;
    eventually("the one with an owner elsewhere to be gone", async || {
        let names = names(&client).await;
        if names == ["unknown"] { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
    eventually("an event that says why", async || {
        let events: Api<k8s_openapi::api::core::v1::Event> = api(&client);
        let events = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let said = events.iter().find(|event| event.reason.as_deref() == Some("OwnerRefInvalidNamespace"));
        said.map(drop).ok_or_else(|| format!("{} others", events.items.len()))
    })
    .await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(names(&client).await, ["unknown"]);
}
