use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, ValidationDirective};
use kube::{Client, ResourceExt};
use serde_json::Value;
use setpoint::{Action, Context, Controller, Operator, Reconciler, Result, Review, Webhook};
use setpoint_apiserver::{ApiServer, Identity};

/// Longer than anything takes on a busy machine.
pub const BOUND: Duration = Duration::from_secs(60);

/// Does nothing with ConfigMaps.
pub struct Idle;

impl Reconciler for Idle {
    type Object = ConfigMap;

    async fn reconcile(&self, _: Arc<ConfigMap>, _: &Context<ConfigMap>) -> Result<Action> {
        Ok(Action::await_change())
    }
}

pub fn operator() -> Operator {
    Operator::new("op").controller(Controller::new(Idle))
}

/// With a webhook, too.
pub fn with_webhook() -> Operator {
    operator().webhook(Webhook::validate(|_: &ConfigMap, _: &mut Review| {}))
}

pub struct World {
    pub api: ApiServer,
    pub admin: Client,
}

impl World {
    pub fn new() -> Self {
        let api = ApiServer::builder().build();
        let admin = Client::new(api.service(Identity::admin()), "default");
        Self { api, admin }
    }

    /// Applies an object as the cluster's administrator; a field that the API server doesn't know is an error.
    pub async fn try_apply(&self, object: &Value) -> kube::Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let kind = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
        let api = self.of(&kind, object.namespace().as_deref());
        let mut params = PatchParams::apply("test").force();
        params.field_validation = Some(ValidationDirective::Strict);
        api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await
    }

    pub async fn apply(&self, object: &Value) {
        let applied = self.try_apply(object).await;
        applied.unwrap_or_else(|error| panic!("{} {}: {error}", object["kind"], object["metadata"]["name"]));
    }

    fn of(&self, kind: &GroupVersionKind, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(kind);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.admin.clone(), namespace, &resource),
            None => Api::all_with(self.admin.clone(), &resource),
        }
    }
}
