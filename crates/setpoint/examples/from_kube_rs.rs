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
use kube::{Resource, ResourceExt};
use setpoint::{Action, Controller, Operator, Verb, reconciler};

/// What kube-rs calls the context.
struct Data {
    client: tokio::sync::OnceCell<kube::Client>,
}

/// Copies the keys of each ConfigMap labelled `copy=yes` into a Secret that it owns.
async fn reconcile(config: Arc<ConfigMap>, data: Arc<Data>) -> Result<Action, kube::Error> {
    if config.labels().get("copy").is_none_or(|copy| copy != "yes") {
        return Ok(Action::await_change());
    }
    let client = data.client.get_or_try_init(kube::Client::try_default).await?.clone();
    let secrets: Api<Secret> = Api::namespaced(client, &config.namespace().unwrap_or_default());
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

fn main() -> ExitCode {
    let data = Arc::new(Data { client: tokio::sync::OnceCell::new() });
    // What `Controller::new(api, config).owns(secrets, config).run(reconcile, error_policy, data)` was.
    let copier = Controller::new(reconciler(reconcile, data))
        .owns::<Secret>()
        .uses::<Secret>(&[Verb::Create, Verb::Patch]);
    Operator::new("copier").controller(copier).main()
}
