//! A reconcile function as kube-rs's `Controller` takes it, moved to Setpoint without a change of its body.
//!
//! ```console
//! cargo run --example from_kube_rs -- run
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Client, Resource, ResourceExt};
use setpoint::{Action, Controller, Operator, Verb, reconciler};

/// What kube-rs calls the context.
pub struct Data {
    /// The operator's.
    pub client: Client,
}

/// Copies the keys of each ConfigMap labelled `copy=yes` into a Secret that it owns.
pub async fn reconcile(config: Arc<ConfigMap>, data: Arc<Data>) -> Result<Action, kube::Error> {
    if config.labels().get("copy").is_none_or(|copy| copy != "yes") {
        return Ok(Action::await_change());
    }
    let secrets: Api<Secret> = Api::namespaced(data.client.clone(), &config.namespace().unwrap_or_default());
    let copy = Secret {
        metadata: ObjectMeta {
            name: Some(config.name_any()),
            owner_references: config.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        string_data: config.data.clone(),
        ..Secret::default()
    };
    secrets.patch(&config.name_any(), &PatchParams::apply("copier"), &Patch::Apply(&copy)).await?;
    Ok(Action::requeue(Duration::from_secs(300)))
}

/// What `Controller::new(api, config).owns(secrets, config).run(reconcile, error_policy, data)` was.
pub fn operator() -> Operator {
    let copier = Controller::new(reconciler(reconcile, |client| Data { client }))
        .owns::<Secret>()
        .uses::<Secret>(&[Verb::Create, Verb::Patch]);
    Operator::new("copier").version(env!("CARGO_PKG_VERSION")).controller(copier)
}

fn main() -> ExitCode {
    operator().main()
}
