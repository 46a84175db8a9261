use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use setpoint_apiserver::{ApiServer, Identity};
use tokio::task::JoinHandle;

use super::*;
use crate::webhook::certificates::authority::Pair;
use crate::webhook::certificates::publish::Kind;

const HOST: &str = "op-webhook.ops.svc";
const SECOND: Duration = Duration::from_secs(1);

struct World {
    client: Client,
    clock: Clock,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::system();
        let api = ApiServer::builder().clock(clock).build();
        let world = Self { client: Client::new(api.service(Identity::admin()), "ops"), clock };
        world.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops"}})).await;
        let service = json!({"namespace": "ops", "name": "op-webhook", "path": "/x"});
        let webhook = |name: &str, service: &Value| {
            json!({"name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": service},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]})
        };
        let foreign = json!({"namespace": "other", "name": "op-webhook", "path": "/x"});
        world.apply(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "op"},
            "webhooks": [webhook("a.example.com", &service), webhook("b.example.com", &service), webhook("c.example.com", &foreign)],
        })).await;
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
        world.apply(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "sites.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "sites", "kind": "Site"},
                "versions": [version("v1", true), version("v1beta1", false)],
                "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                    "clientConfig": {"service": {"namespace": "ops", "name": "op-webhook", "path": "/convert"}}}}},
        })).await;
        world
    }

    fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        Api::all_with(
            self.client.clone(),
            &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
        )
    }

    async fn apply(&self, object: Value) {
        let api = self.api(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let params = PatchParams::apply("test").force();
        api.patch(object["metadata"]["name"].as_str().unwrap(), &params, &Patch::Apply(&object))
            .await
            .unwrap();
    }

    /// A replica.
    fn keep(&self, lifetimes: Lifetimes) -> (Served, JoinHandle<()>) {
        let served = Served::new(false);
        let targets = Targets {
            url: None,
            service: ("ops".to_owned(), "op-webhook".to_owned()),
            manager: "op-ca-bundle".to_owned(),
            objects: vec![
                (Kind::Validating, "op".to_owned()),
                (Kind::Definition, "sites.example.com".to_owned()),
                (Kind::Mutating, "not-installed".to_owned()),
            ],
        };
        let keeper = Keeper {
            client: self.client.clone(),
            clock: self.clock,
            namespace: "ops".to_owned(),
            name: "op-webhook-certificates".to_owned(),
            names: vec![HOST.to_owned()],
            lifetimes,
            targets,
            served: served.clone(),
        };
        (served, tokio::spawn(keeper.run()))
    }

    /// The bundles that the API server has: of each entry of the configuration, and of the definition.
    async fn bundles(&self) -> Vec<Option<String>> {
        let hooks = self.api("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");
        let hooks = hooks.get("op").await.unwrap().data;
        let crd = self.api("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        let crd = crd.get("sites.example.com").await.unwrap().data;
        let entries = hooks["webhooks"].as_array().unwrap().iter();
        entries
            .map(|entry| &entry["clientConfig"]["caBundle"])
            .chain([&crd["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]])
            .map(|bundle| Some(String::from_utf8(STANDARD.decode(bundle.as_str()?).unwrap()).unwrap()))
            .collect()
    }
}

/// As an API server does that has this bundle.
fn verify(leaf: &Pair, bundle: &str, clock: Clock) -> Result<(), rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap())?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let leaf = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(clock.now().as_second().try_into().unwrap()));
    verifier.verify_server_cert(&leaf, &[], &ServerName::try_from(HOST).unwrap(), &[], now).map(drop)
}

/// In simulated time: two replicas rotate authorities again and again, and at each moment what either of them serves is
/// trusted by an API server, even by one that learns of a new bundle 200 s late.
#[tokio::test(start_paused = true)]
async fn replicas_rotate_without_a_moment_of_distrust() {
    let world = World::new().await;
    let lifetimes = Lifetimes { authority: SECOND * 6000, leaf: SECOND * 2000, overlap: SECOND * 300 };
    let replicas = [world.keep(lifetimes), world.keep(lifetimes)];
    for (served, _) in &replicas {
        served.ready().await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!((replicas[0].0.check(), replicas[1].0.check()), (Ok(()), Ok(())));

    let mut known: Vec<String> = Vec::new();
    let mut authorities = BTreeSet::new();
    let mut leaves = BTreeSet::new();
    while authorities.len() < 11 {
        let bundles = world.bundles().await;
        let [Some(a), Some(b), None, Some(crd)] = bundles.as_slice() else { panic!("{bundles:?}") };
        assert!(a == b && a == crd, "one bundle everywhere");
        let first = CertificateDer::from_pem_slice(a.as_bytes()).unwrap();
        authorities.insert(first.to_vec());
        known.push(a.clone());
        let late = &known[known.len().saturating_sub(10)];
        for (served, _) in &replicas {
            let leaf = served.pair().unwrap();
            for bundle in [a, late] {
                // Both are checked when they are new, and from time to time since they end.
                if leaves.insert((leaf.certificate.clone(), bundle.clone())) || known.len().is_multiple_of(20)
                {
                    verify(&leaf, bundle, world.clock).unwrap();
                }
            }
        }
        assert!(known.len() < 10_000, "only {} authorities so far", authorities.len());
        tokio::time::sleep(SECOND * 20).await;
    }
    assert!(leaves.len() >= 20, "{}", leaves.len());
    assert_eq!(replicas[0].0.pair(), replicas[1].0.pair(), "they agree");
}

#[tokio::test(start_paused = true)]
async fn a_bundle_that_somebody_resets_is_put_back_at_once() {
    let world = World::new().await;
    let lifetimes = super::super::Certificates::own().lifetimes;
    let (served, _task) = world.keep(lifetimes);
    served.ready().await;
    tokio::time::sleep(SECOND).await;
    let before = world.bundles().await;
    let hooks = world.api("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");
    let mut entries = hooks.get("op").await.unwrap().data["webhooks"].take();
    entries[1]["clientConfig"]["caBundle"] = json!(STANDARD.encode(&served.pair().unwrap().certificate));
    let reset = Patch::Merge(json!({"webhooks": entries.clone()}));
    let after = hooks.patch("op", &PatchParams::default(), &reset).await.unwrap();
    assert_eq!(after.data["webhooks"], entries, "it is reset");
    tokio::time::sleep(SECOND).await;
    assert_eq!(world.bundles().await, before);
    // And only the bundles are ours.
    let object = hooks.get("op").await.unwrap();
    let entries = object.metadata.managed_fields.unwrap();
    let ours = entries.iter().find(|entry| entry.manager.as_deref() == Some("op-ca-bundle")).unwrap();
    let fields = serde_json::to_value(ours.fields_v1.as_ref().unwrap()).unwrap();
    let entry = json!({".": {}, "f:name": {}, "f:clientConfig": {"f:caBundle": {}}});
    let expected = json!({"f:webhooks": {"k:{\"name\":\"a.example.com\"}": entry, "k:{\"name\":\"b.example.com\"}": entry}});
    assert_eq!(fields, expected);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_gone_or_spoiled_is_made_anew() {
    let world = World::new().await;
    let lifetimes = super::super::Certificates::own().lifetimes;
    let (served, _task) = world.keep(lifetimes);
    served.ready().await;
    tokio::time::sleep(SECOND).await;
    let first = served.pair();
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "ops");
    let spoiled = json!({"data": {"signing-ca.crt": STANDARD.encode("nothing")}});
    secrets.patch("op-webhook-certificates", &PatchParams::default(), &Patch::Merge(spoiled)).await.unwrap();
    tokio::time::sleep(SECOND).await;
    let second = served.pair();
    assert_ne!(second, first);
    secrets.delete("op-webhook-certificates", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_ne!(served.pair(), second);
    let bundles = world.bundles().await;
    verify(&served.pair().unwrap(), bundles[3].as_ref().unwrap(), world.clock).unwrap();
}
