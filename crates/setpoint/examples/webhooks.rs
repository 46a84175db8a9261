//! An operator with defaults, validation and two versions of its kind.
//!
//! ```console
//! cargo run --example webhooks -- manifests --image registry.example.com/website-operator:v1 | kubectl apply --server-side -f -
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use setpoint::{
    Action, Context, Controller, Defaulter, Operator, Reconciler, Result, Review, Spoke, Validator, Versions,
};

/// A page to be served.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Website", namespaced)]
pub struct WebsiteSpec {
    /// The text of the page.
    pub text: String,
    /// The title of the page.
    pub title: Option<String>,
}

/// The version before: it had no title.
pub mod v1beta1 {
    use super::{CustomResource, Deserialize, JsonSchema, Serialize};

    /// A page to be served.
    #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1beta1", kind = "Website", namespaced)]
    pub struct WebsiteSpec {
        /// The text of the page.
        pub body: String,
    }
}

impl Spoke<Website> for v1beta1::Website {
    fn to_hub(self) -> Result<Website> {
        Ok(Website { metadata: self.metadata, spec: WebsiteSpec { text: self.spec.body, title: None } })
    }

    fn from_hub(hub: &Website) -> Result<Self> {
        let spec = v1beta1::WebsiteSpec { body: hub.spec.text.clone() };
        Ok(Self { metadata: hub.metadata.clone(), spec })
    }
}

struct Titles;

impl Defaulter for Titles {
    type Object = Website;

    async fn default(&self, site: &mut Website, _: &mut Review) -> Result<()> {
        site.spec.title.get_or_insert_with(|| "Untitled".to_owned());
        Ok(())
    }
}

struct Texts;

impl Validator for Texts {
    type Object = Website;

    async fn validate_create(&self, site: &Website, review: &mut Review) -> Result<()> {
        if site.spec.text.is_empty() {
            review.required("spec.text", "a page needs a text");
        }
        Ok(())
    }
}

struct Web;

impl Reconciler for Web {
    type Object = Website;

    async fn reconcile(&self, _site: Arc<Website>, _cx: &Context<Website>) -> Result<Action> {
        Ok(Action::await_change())
    }
}

/// The operator.
pub fn operator() -> Operator {
    Operator::new("website-operator")
        .versions(Versions::<Website>::hub().spoke::<v1beta1::Website>())
        .defaulter(Titles)
        .validator(Texts)
        .controller(Controller::new(Web))
}

fn main() -> ExitCode {
    operator().main()
}
