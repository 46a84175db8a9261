//! What each namespace is born with: the ServiceAccount `default` and the ConfigMap with the cluster's CA.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use setpoint::kube::ResourceExt;
use setpoint::kube::core::ObjectMeta;
use setpoint::{Action, Context, Controller, Key, Object, Reconciler, Result, Selector, Verb, Watch};
use setpoint_apiserver::ApiServer;

/// The ConfigMap that every pod's token volume projects.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Puts back what a live namespace always has.
pub(crate) struct NamespaceDefaults {
    /// Has the CA that signs its certificate.
    api: ApiServer,
}

impl NamespaceDefaults {
    pub(crate) fn controller(api: ApiServer) -> Controller<Self> {
        Controller::new(Self { api })
            .named("namespace-defaults")
            .field_manager("kube-controller-manager")
            .watches_as(named("default"), |old: Option<&ServiceAccount>, new, _| namespace_of(old.or(new)))
            .watches_as(named(ROOT_CA), |old: Option<&ConfigMap>, new, _| namespace_of(old.or(new)))
            .uses::<ServiceAccount>(&[Verb::Create, Verb::Patch])
            .uses::<ConfigMap>(&[Verb::Create, Verb::Patch])
    }
}

/// Watches only the objects of this name, of all namespaces.
fn named<K: Object<DynamicType: Default>>(name: &str) -> Watch<K> {
    Watch::new().selector(Selector::all().fields(format!("metadata.name={name}")))
}

fn namespace_of<K: ResourceExt>(object: Option<&K>) -> Vec<Key> {
    object.and_then(ResourceExt::namespace).map(Key::cluster).into_iter().collect()
}

impl Reconciler for NamespaceDefaults {
    type Object = Namespace;

    async fn reconcile(&self, namespace: Arc<Namespace>, cx: &Context<Namespace>) -> Result<Action> {
        if namespace.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let metadata = |name: &str| ObjectMeta {
            name: Some(name.to_owned()),
            namespace: namespace.metadata.name.clone(),
            ..ObjectMeta::default()
        };
        let account = ServiceAccount { metadata: metadata("default"), ..ServiceAccount::default() };
        put_back(cx, account).await?;
        let ca = ConfigMap {
            metadata: metadata(ROOT_CA),
            data: Some([("ca.crt".to_owned(), self.api.ca_pem()?)].into()),
            ..ConfigMap::default()
        };
        put_back(cx, ca).await?;
        Ok(Action::await_change())
    }
}

/// Applies `object`, unless it is on its way out: its end leads here again.
async fn put_back<K>(cx: &Context<Namespace>, object: K) -> Result<()>
where
    K: Object<DynamicType: Default>,
{
    let there = cx.get::<K>(Key::of(&object)).await?;
    if there.is_none_or(|there| there.meta().deletion_timestamp.is_none()) {
        cx.apply(object).unowned().adopt().await?;
    }
    Ok(())
}
