//! One reconcile, and everything that can be seen of it.

use serde_json::Value;
use setpoint::{Action, Ended, Error, Report};

use crate::witness::Sent;

/// What one reconcile came to; from [`crate::TestEnv::reconcile`].
#[derive(Clone, Debug)]
pub struct Pass {
    /// Why it ran, what it wrote, which events it recorded (none of them is sent), and how it ended.
    pub report: Report,
    /// What was sent to the API server other than reads, in its order. Nothing is sent where nothing would change.
    pub sent: Vec<Sent>,
}

impl Pass {
    /// The action.
    ///
    /// # Errors
    /// What the reconcile failed with (a panic and the time limit too), or that there is no such object.
    pub fn action(&self) -> Result<Action, Error> {
        match &self.report.ended {
            Ended::Succeeded(action) => Ok(*action),
            Ended::Gone => Err(Error::msg(format!("there is no {}", self.report.object))),
            Ended::Failed { error, .. } => Err(Error::msg(error.clone())),
        }
    }

    /// What was sent, in words: `patch configmaps default/page`.
    pub fn written(&self) -> Vec<String> {
        self.sent.iter().map(|sent| sent.request.to_string()).collect()
    }

    /// What was last sent to the object of this name: `seen.body("configmaps", "page")`.
    pub fn body(&self, resource: &str, name: &str) -> Option<&Value> {
        let of = |sent: &&Sent| {
            let request = &sent.request;
            let resource_is = request.resource == resource || request.full_resource() == resource;
            // A creation has its name in the body only.
            let named = request.name.as_deref().or(sent.body["metadata"]["name"].as_str());
            resource_is && named == Some(name)
        };
        self.sent.iter().rev().find(of).map(|sent| &sent.body)
    }

    /// The reasons of the events.
    pub fn reasons(&self) -> Vec<&str> {
        self.report.events.iter().map(|event| event.reason.as_str()).collect()
    }

    /// Why it ran, in words.
    pub fn causes(&self) -> Vec<String> {
        self.report.causes.iter().map(ToString::to_string).collect()
    }
}
