//! A complete operator: each Website becomes a ConfigMap with its page.
//!
//! ```console
//! cargo run --example website -- manifests | kubectl apply --server-side -f -
//! cargo run --example website -- run
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResource;
use kube::core::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use setpoint::{Action, Context, Controller, Event, Operator, Reconciler, Result};

/// A page to be served.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Website", namespaced, status = "WebsiteStatus")]
pub struct WebsiteSpec {
    /// The text of the page.
    pub text: String,
}

/// What was done for a Website.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebsiteStatus {
    /// The ConfigMap that holds the page.
    pub page: Option<String>,
}

/// Writes the page of each Website.
pub struct Web;

impl Reconciler for Web {
    type Object = Website;

    async fn reconcile(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<Action> {
        let name = site.metadata.name.clone().unwrap_or_default();
        let page = ConfigMap {
            metadata: ObjectMeta { name: Some(format!("{name}-page")), ..ObjectMeta::default() },
            data: Some([("index.html".to_owned(), site.spec.text.clone())].into()),
            ..ConfigMap::default()
        };
        let page = cx.apply(page).await?;
        if site.status.is_none() {
            cx.event(Event::normal("Published", format!("the page of {name} is in a ConfigMap")));
        }
        cx.status(WebsiteStatus { page: page.metadata.name.clone() }).await?;
        Ok(Action::await_change())
    }
}

/// The operator: what it declares here is all that it may do.
pub fn operator() -> Operator {
    Operator::new("website-operator")
        .version(env!("CARGO_PKG_VERSION"))
        .crd::<Website>()
        .controller(Controller::new(Web).owns::<ConfigMap>())
}

fn main() -> ExitCode {
    operator().main()
}
