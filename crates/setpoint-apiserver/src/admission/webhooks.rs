//! Admission by webhooks (`k8s.io/apiserver/pkg/admission/plugin/webhook`).
//!
//! ```text
//! configurations by name ─▶ each hook: selectors, rules, conditions ─▶ the object in the version that the rule names
//!       mutating:   one after the other, each sees what those before it made; once more where something changed after them
//!       validating: all at once; the first refusal counts
//!                         └─▶ AdmissionReview ─▶ answer: allowed, warnings, patch │ refusal │ failure, by failurePolicy
//! ```

mod matching;
mod mutating;
mod review;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;

pub(super) use self::mutating::Reinvocation;
use self::review::{Answer, Refusal};
use super::Attributes;
use crate::admission::versions::Versioned;
use crate::registry::Registry;
use crate::status::{Result, Status};

const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";

/// One webhook of a configuration.
#[derive(Clone, Debug)]
struct Hook {
    /// Its configuration, and its place there.
    configuration: Arc<Value>,
    index: usize,
}

impl Hook {
    fn spec(&self) -> &Value {
        &self.configuration["webhooks"][self.index]
    }

    fn text(&self, key: &str) -> &str {
        self.spec()[key].as_str().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.text("name")
    }

    /// Whether its failures let the request pass.
    fn fails_open(&self) -> bool {
        self.text("failurePolicy") == "Ignore"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.spec()["timeoutSeconds"].as_u64().unwrap_or(10))
    }
}

/// Why a request does not go on.
enum Failed {
    /// The webhook could not be asked, or its answer not be understood: its failure policy decides.
    Calling(String),
    /// For good, whatever the policy.
    Refused(Status),
}

impl Failed {
    /// The error of the request, unless the webhook's failures let it pass.
    fn decide(self, hook: &Hook) -> Result<()> {
        match self {
            Self::Refused(status) => Err(status),
            Self::Calling(why) => {
                let text = format!("failed calling webhook {:?}: {why}", hook.name());
                if hook.fails_open() {
                    tracing::warn!("{text}; its failure policy lets the request pass");
                    return Ok(());
                }
                Err(Status::internal(text))
            }
        }
    }
}

impl Registry {
    /// The webhooks of all configurations, in their order.
    fn hooks(&self, storage: &str) -> Vec<Hook> {
        let snapshot = self.store.snapshot(storage);
        let of = |configuration: &Arc<Value>| {
            let count = configuration["webhooks"].as_array().map_or(0, Vec::len);
            let configuration = Arc::clone(configuration);
            (0..count).map(move |index| Hook { configuration: Arc::clone(&configuration), index })
        };
        snapshot.objects.values().flat_map(|stored| of(&stored.value.shared())).collect()
    }

    /// Asks every validating webhook that the request concerns.
    pub(super) async fn ask_validating_webhooks(
        &self,
        request: &Attributes<'_>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        if matching::is_exempt(request) {
            return Ok(());
        }
        let mut calls = Vec::new();
        for hook in self.hooks(VALIDATING) {
            if let Some(versioned) = self.concerns(&hook, request, object).await? {
                calls.push((hook, versioned));
            }
        }
        let asked = calls.iter().map(|(hook, versioned)| async move {
            let mut said = Vec::new();
            let answer = self.ask(hook, request, versioned, false, &mut said).await;
            (answer.map(drop), said)
        });
        let mut refusal = None;
        for ((answer, said), (hook, _)) in join_all(asked).await.into_iter().zip(&calls) {
            warnings.extend(said);
            let refused = answer.err().and_then(|failed| failed.decide(hook).err());
            refusal = refusal.or(refused);
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Sends one review and reads the answer.
    async fn ask(
        &self,
        hook: &Hook,
        request: &Attributes<'_>,
        versioned: &Versioned,
        mutating: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Answer, Failed> {
        let spec = hook.spec();
        if request.dry_run() && !matches!(hook.text("sideEffects"), "None" | "NoneOnDryRun") {
            let text = format!("admission webhook {:?} does not support dry run", hook.name());
            return Err(Failed::Refused(Status::bad_request(text)));
        }
        let versions = spec["admissionReviewVersions"].as_array().into_iter().flatten();
        let version = versions.filter_map(Value::as_str).find(|version| matches!(*version, "v1" | "v1beta1"));
        let Some(version) = version else {
            let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            return Err(Failed::Calling(why.to_owned()));
        };
        let uid = self.entropy.uuid();
        let review = review::request(version, &uid, request, versioned);
        let answered = Box::pin(self.call_webhook(&spec["clientConfig"], hook.timeout(), &review)).await;
        let answered = answered.map_err(|error| Failed::Calling(error.to_string()))?;
        let answer = review::read(version, &uid, mutating, answered)
            .map_err(|why| Failed::Calling(format!("received invalid webhook response: {why}")))?;
        warnings.extend(answer.warnings.iter().cloned());
        match &answer.refusal {
            Some(Refusal(status)) => Err(Failed::Refused(Status::denied(hook.name(), status.as_ref()))),
            None => Ok(answer),
        }
    }
}
