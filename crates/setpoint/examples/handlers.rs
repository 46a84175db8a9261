//! An operator in the style of callbacks: what is done when an object appears, changes and goes.
//!
//! ```console
//! cargo run --example handlers -- run
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use setpoint::{Context, Event, Handlers, Operator, Result, Update, handlers};

/// Tells what happens to ConfigMaps.
struct Teller;

impl Handlers for Teller {
    type Object = ConfigMap;

    async fn on_create(&self, config: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<()> {
        cx.event(Event::normal("Created", format!("{} is here", config.name_any())));
        Ok(())
    }

    async fn on_update(&self, update: Update<ConfigMap>, cx: &Context<ConfigMap>) -> Result<()> {
        for field in update.diff {
            cx.event(Event::normal("Changed", field.path));
        }
        Ok(())
    }

    async fn on_delete(&self, config: Arc<ConfigMap>, cx: &Context<ConfigMap>) -> Result<()> {
        cx.event(Event::normal("Deleted", format!("{} goes", config.name_any())));
        Ok(())
    }
}

fn main() -> ExitCode {
    Operator::new("teller").controller(handlers(Teller, "example.com/teller")).main()
}
