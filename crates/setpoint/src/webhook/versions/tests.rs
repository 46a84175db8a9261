use std::sync::atomic::{AtomicI64, Ordering};

use kube::CustomResource;
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

use super::*;

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Cache", namespaced)]
struct CacheSpec {
    /// The old versions call it `size`.
    replicas: i32,
    /// Only here.
    policy: Option<String>,
    /// In the old versions a list of names.
    #[serde(default)]
    users: Vec<User>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct User {
    name: String,
    rights: Option<String>,
}

mod v1alpha1 {
    use super::*;

    #[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1alpha1", kind = "Cache", namespaced)]
    pub(super) struct CacheSpec {
        pub(super) size: i32,
        /// Only here.
        pub(super) legacy: Option<bool>,
        #[serde(default)]
        pub(super) users: Vec<Named>,
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    pub(super) struct Named {
        pub(super) name: String,
    }
}

mod v1beta1 {
    use super::*;

    #[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1beta1", kind = "Cache", namespaced)]
    pub(super) struct CacheSpec {
        pub(super) size: i32,
        pub(super) policy: Option<String>,
    }
}

impl Spoke<Cache> for v1alpha1::Cache {
    fn to_hub(self) -> Result<Cache> {
        if self.spec.size < 0 {
            return Err(crate::Error::msg("less than nothing"));
        }
        let users = self.spec.users.into_iter().map(|user| User { name: user.name, rights: None }).collect();
        Ok(Cache {
            metadata: self.metadata,
            spec: CacheSpec { replicas: self.spec.size, policy: None, users },
        })
    }

    fn from_hub(hub: &Cache) -> Result<Self> {
        let users = hub.spec.users.iter().map(|user| v1alpha1::Named { name: user.name.clone() }).collect();
        let spec = v1alpha1::CacheSpec { size: hub.spec.replicas, legacy: None, users };
        Ok(Self { metadata: hub.metadata.clone(), spec })
    }
}

impl Spoke<Cache> for v1beta1::Cache {
    fn to_hub(self) -> Result<Cache> {
        // Forgets the metadata: what the API server would refuse.
        let spec = CacheSpec { replicas: self.spec.size, policy: self.spec.policy, users: Vec::new() };
        Ok(Cache { metadata: kube::core::ObjectMeta::default(), spec })
    }

    fn from_hub(hub: &Cache) -> Result<Self> {
        let spec = v1beta1::CacheSpec { size: hub.spec.replicas, policy: hub.spec.policy.clone() };
        Ok(Self { metadata: hub.metadata.clone(), spec })
    }
}

fn versions() -> Versions<Cache> {
    Versions::hub().spoke::<v1beta1::Cache>().spoke::<v1alpha1::Cache>()
}

fn hub(spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Cache",
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "labels": {"x": "y"}}, "spec": spec})
}

#[test]
fn what_an_old_version_cannot_express_survives_an_edit_in_it() {
    let users = json!([{"name": "ann", "rights": "all"}, {"name": "bob", "rights": "read"}]);
    let stored = hub(&json!({"replicas": 3, "policy": "lru", "users": users}));
    let mut old = versions().convert(&stored, "v1alpha1").unwrap();
    assert_eq!(old["spec"], json!({"size": 3, "users": [{"name": "ann"}, {"name": "bob"}]}));
    assert!(old["metadata"]["annotations"][LOST].is_string(), "{old}");

    old["spec"] = json!({"size": 5, "users": [{"name": "bob"}, {"name": "eve"}]});
    let back = versions().convert(&old, "v1").unwrap();
    let users = json!([{"name": "bob", "rights": "read"}, {"name": "eve"}]);
    assert_eq!(back, hub(&json!({"replicas": 5, "policy": "lru", "users": users})), "no annotation is left");
}

#[test]
fn what_the_hub_cannot_express_survives_too_and_so_do_unknown_fields() {
    let old = json!({"apiVersion": "example.com/v1alpha1", "kind": "Cache", "metadata": {"name": "a"},
        "spec": {"size": 1, "legacy": true, "users": [], "unknown": {"x": 1}}});
    let new = versions().convert(&old, "v1").unwrap();
    assert_eq!(new["spec"], json!({"replicas": 1, "users": []}));
    assert_eq!(versions().convert(&new, "v1alpha1").unwrap(), old);
    let sideways = versions().convert(&old, "v1beta1").unwrap();
    assert_eq!(sideways["spec"], json!({"size": 1}));
    assert_eq!(versions().convert(&sideways, "v1alpha1").unwrap(), old);
}

#[test]
fn an_object_that_every_version_can_express_gets_no_annotation() {
    let plain = hub(&json!({"replicas": 1, "users": []}));
    let old = versions().convert(&plain, "v1alpha1").unwrap();
    assert_eq!(old["metadata"], plain["metadata"]);
}

#[test]
fn metadata_that_a_conversion_forgets_stays() {
    let beta = json!({"apiVersion": "example.com/v1beta1", "kind": "Cache",
        "metadata": {"name": "a", "uid": "u", "labels": {"x": "y"}}, "spec": {"size": 1}});
    assert_eq!(versions().convert(&beta, "v1").unwrap()["metadata"], beta["metadata"]);
}

#[test]
fn what_cannot_be_converted_says_why() {
    let say = |object: &Value, to: &str| versions().convert(object, to).unwrap_err().to_string();
    let object = hub(&json!({"replicas": 1}));
    assert_eq!(
        say(&object, "v2"),
        "\"v2\" is no version of Cache.example.com: these are v1, v1alpha1, v1beta1"
    );
    let other = json!({"apiVersion": "example.com/v1", "kind": "Other"});
    assert!(say(&other, "v1beta1").contains("is no version of Cache.example.com"));
    let negative = json!({"apiVersion": "example.com/v1alpha1", "kind": "Cache",
        "metadata": {"name": "a", "namespace": "ns"}, "spec": {"size": -1}});
    assert_eq!(say(&negative, "v1"), "ns/a from v1alpha1 to v1: less than nothing");
}

#[test]
fn the_definition_has_all_versions_and_stores_one() {
    let stored = |versions: Versions<Cache>| -> Vec<(String, bool)> {
        let crd = versions.crd().unwrap();
        crd.spec.versions.into_iter().map(|version| (version.name, version.storage)).collect()
    };
    let expected =
        |at: &str| ["v1", "v1beta1", "v1alpha1"].map(|name| (name.to_owned(), name == at)).to_vec();
    assert_eq!(stored(versions()), expected("v1"));
    assert_eq!(stored(versions().storing("v1beta1")), expected("v1beta1"));
    let error = versions().storing("v2").crd().unwrap_err().to_string();
    assert_eq!(error, "Cache.example.com has no version v2 that could be stored");
    let error = versions().spoke::<v1alpha1::Cache>().crd().unwrap_err().to_string();
    assert_eq!(error, "Cache.example.com has two versions v1alpha1");
}

static CALLS: AtomicI64 = AtomicI64::new(0);

#[test]
fn a_conversion_that_is_not_always_the_same_is_found_with_the_field() {
    let moody = Converter {
        to_hub: |value| {
            let mut hub = value.clone();
            hub["spec"] = json!({"replicas": 10 + CALLS.fetch_add(1, Ordering::Relaxed), "users": []});
            Ok(hub)
        },
        ..versions().all.spokes["v1beta1"]
    };
    let mut versions = Versions::<Cache>::hub();
    versions.all.spokes.insert("v1beta1".to_owned(), moody);
    let error = versions.round_trip(&hub(&json!({"replicas": 1, "users": []}))).unwrap_err().to_string();
    assert_eq!(error, "from v1 to v1beta1 and back, spec.replicas became 11 and was 1");
}

fn any_hub() -> impl Strategy<Value = Cache> {
    let user = ("[a-e]", prop::option::of("[a-z]{0,3}")).prop_map(|(name, rights)| User { name, rights });
    let spec = (0..9, prop::option::of("[a-z]{0,3}"), prop::collection::vec(user, 0..4));
    spec.prop_map(|(replicas, policy, users)| Cache::new("a", CacheSpec { replicas, policy, users }))
}

fn any_old() -> impl Strategy<Value = v1alpha1::Cache> {
    let user = "[a-e]".prop_map(|name| v1alpha1::Named { name });
    let spec = (0..9, prop::option::of(any::<bool>()), prop::collection::vec(user, 0..4));
    spec.prop_map(|(size, legacy, users)| {
        v1alpha1::Cache::new("a", v1alpha1::CacheSpec { size, legacy, users })
    })
}

proptest! {
    #[test]
    fn nothing_is_lost_from_the_hub(hub in any_hub()) {
        versions().round_trip(&hub)?;
    }

    #[test]
    fn nothing_is_lost_from_the_oldest_version(old in any_old()) {
        versions().round_trip(&old)?;
    }
}
