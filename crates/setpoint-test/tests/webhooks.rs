//! Webhooks of an operator: the embedded API server asks them in this process, on a paused clock; a real one over TLS, with the certificates
//! that the operator makes and publishes under its own rights.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::json;
use setpoint::{Defaulter, Election, Operation, Operator, Result, Review, Validator, Webhook};
use setpoint_test::{Running, TestEnv, eventually};
use website::{Website, WebsiteSpec};

#[path = "../../setpoint/examples/website.rs"]
#[expect(dead_code, reason = "the example is a program: only its kind is used here")]
mod website;

fn site(text: &str) -> Website {
    serde_json::from_value(json!({
        "apiVersion": "example.com/v1", "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"}, "spec": {"text": text},
    }))
    .unwrap()
}

/// Texts must not be empty, and never get shorter; what is long cannot be deleted.
struct Texts;

impl Validator for Texts {
    type Object = Website;
    const OPERATIONS: &'static [Operation] = &[Operation::Create, Operation::Update, Operation::Delete];

    async fn validate_create(&self, site: &Website, review: &mut Review) -> Result<()> {
        match text(site).as_str() {
            "" => review.required("spec.text", "a page needs a text"),
            "panic" => panic!("the validator's own fault"),
            "hang" => std::future::pending().await,
            "unknown" => return Err(setpoint::Error::msg("the dictionary does not answer")),
            "old" => review.warn("this text is out of fashion"),
            _ => {}
        }
        Ok(())
    }

    async fn validate_update(&self, old: &Website, new: &Website, review: &mut Review) -> Result<()> {
        if text(new).len() < text(old).len() {
            review.invalid("spec.text", text(new), "must not get shorter");
        }
        self.validate_create(new, review).await
    }

    async fn validate_delete(&self, site: &Website, review: &mut Review) -> Result<()> {
        if text(site).len() > 10 {
            review.deny(format!("{} may not delete long pages", review.user().username));
        }
        Ok(())
    }
}

fn text(site: &Website) -> String {
    serde_json::to_value(&site.spec).unwrap()["text"].as_str().unwrap().to_owned()
}

/// The operator with its webhooks, on any server.
async fn installed(operator: Operator) -> (TestEnv, Running, Api<Website>) {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(operator.crd::<Website>()).await.unwrap();
    let sites = env.api("default");
    (env, running, sites)
}

fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> Box<Status> {
    match answer {
        Err(kube::Error::Api(status)) => status,
        other => panic!("not refused: {other:?}"),
    }
}

async fn create(sites: &Api<Website>, text: &str) -> kube::Result<Website> {
    sites.create(&PostParams::default(), &site(text)).await
}

#[tokio::test(start_paused = true)]
async fn a_client_sees_each_field_that_a_validator_refuses() {
    let (_env, _running, sites) = installed(Operator::new("op").validator(Texts)).await;
    let status = refusal(create(&sites, "").await);
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert_eq!(
        status.message,
        "admission webhook \"validate.websites.v1.example.com\" denied the request: Website.example.com \"shop\" is invalid: \
         spec.text: Required value: a page needs a text"
    );
    let causes = status.details.unwrap().causes;
    let cause = &causes[0];
    assert_eq!(
        (cause.reason.as_str(), cause.field.as_str(), cause.message.as_str()),
        ("FieldValueRequired", "spec.text", "Required value: a page needs a text")
    );

    create(&sites, "hello").await.unwrap();
    let shorter = json!({"spec": {"text": "hi"}});
    let status = refusal(sites.patch("shop", &PatchParams::default(), &Patch::Merge(shorter)).await);
    assert!(status.message.ends_with("spec.text: Invalid value: \"hi\": must not get shorter"), "{status:?}");

    let longer = json!({"spec": {"text": "hello, world"}});
    sites.patch("shop", &PatchParams::default(), &Patch::Merge(longer)).await.unwrap();
    let status = refusal(sites.delete("shop", &DeleteParams::default()).await);
    assert_eq!(status.code, 403);
    assert!(status.message.ends_with("may not delete long pages"), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bad_validator_refuses_and_the_others_go_on() {
    let operator = Operator::new("op").validator(Texts);
    let metrics = operator.metrics().clone();
    let (_env, _running, sites) = installed(operator).await;
    let status = refusal(create(&sites, "panic").await);
    assert_eq!(status.code, 500);
    assert!(status.message.contains("panicked: the validator's own fault"), "{status:?}");
    let start = tokio::time::Instant::now();
    let status = refusal(create(&sites, "hang").await);
    assert_eq!(status.code, 504, "{status:?}");
    let took = start.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(10)).contains(&took), "{took:?}");
    let status = refusal(create(&sites, "unknown").await);
    assert_eq!(status.code, 500);
    assert!(status.message.ends_with("the dictionary does not answer"), "{status:?}");
    create(&sites, "fine").await.unwrap();

    let text = metrics.encode();
    for line in [
        "controller_runtime_webhook_panics_total 1",
        "controller_runtime_webhook_requests_total{code=\"200\",webhook=\"/validate-example-com-v1-website\"} 4",
        "controller_runtime_webhook_requests_total{code=\"500\",webhook=\"/validate-example-com-v1-website\"} 0",
        "controller_runtime_webhook_requests_in_flight{webhook=\"/validate-example-com-v1-website\"} 0",
        "controller_runtime_webhook_latency_seconds_count{webhook=\"/validate-example-com-v1-website\"} 4",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

struct Greeting;

impl Defaulter for Greeting {
    type Object = Website;

    async fn default(&self, site: &mut Website, _: &mut Review) -> Result<()> {
        if text(site).is_empty() {
            site.spec = serde_json::from_value::<WebsiteSpec>(json!({"text": "welcome"}))?;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn defaults_come_before_the_validation() {
    let (_env, _running, sites) = installed(Operator::new("op").validator(Texts).defaulter(Greeting)).await;
    let created = create(&sites, "").await.unwrap();
    assert_eq!(text(&created), "welcome");
    assert_eq!(text(&sites.get("shop").await.unwrap()), "welcome");
}

#[tokio::test(start_paused = true)]
async fn closures_are_webhooks() {
    let operator = Operator::new("op")
        .webhook(Webhook::default(|site: &mut Website, _| {
            site.metadata.labels.get_or_insert_default().insert("seen".to_owned(), "yes".to_owned());
        }))
        .webhook(Webhook::validate(|site: &Website, review: &mut Review| {
            if site.metadata.labels.is_none() {
                review.required("metadata.labels", "");
            }
        }));
    let (_env, _running, sites) = installed(operator).await;
    let created = create(&sites, "hello").await.unwrap();
    assert_eq!(created.metadata.labels.unwrap()["seen"], "yes");
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_leaves_an_object_that_is_invalid_by_now() {
    let env = TestEnv::start().await.unwrap();
    env.install_crd::<Website>().await.unwrap();
    let sites: Api<Website> = env.api("default");
    let mut invalid = site("");
    invalid.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    sites.create(&PostParams::default(), &invalid).await.unwrap();
    let _running = env.run(Operator::new("op").crd::<Website>().validator(Texts)).await.unwrap();

    let params = PatchParams::default();
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    refusal(sites.patch("shop", &params, &relabel).await);
    sites.delete("shop", &DeleteParams::default()).await.unwrap();
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    sites.patch("shop", &params, &release).await.unwrap();
    assert!(sites.get_opt("shop").await.unwrap().is_none());
}

/// The API server asks every replica, so each has to be trusted, whoever leads.
#[tokio::test(start_paused = true)]
async fn certificates_do_not_wait_for_leadership() {
    let env = TestEnv::start().await.unwrap();
    env.namespace("operators").await.unwrap();
    env.apply(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "op", "namespace": "operators"},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600, "leaseTransitions": 1},
    }))
    .await
    .unwrap();
    let operator = Operator::new("op").crd::<Website>().validator(Texts).election(Election::new("op"));
    let running = env.run(operator).await.unwrap();
    env.wait_for("operators", "op-webhook-certificates", "a leaf", |secret: &Secret| {
        let data = secret.data.clone().unwrap_or_default();
        if data.contains_key("tls.crt") { Ok(()) } else { Err(format!("{:?}", data.keys())) }
    })
    .await
    .unwrap();
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(env.client());
    eventually("the caBundle", Duration::from_secs(60), async || {
        let configuration = configurations.get("op").await.map_err(|error| error.to_string())?;
        let webhook = configuration.webhooks.unwrap_or_default().pop().ok_or("no webhook")?;
        webhook.client_config.ca_bundle.map(drop).ok_or_else(|| "none".to_owned())
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_webhooks_at_one_path_are_refused_by_name() {
    let operator = Operator::new("op").crd::<Website>().validator(Texts).validator(Texts);
    let error = operator.run_until(std::future::ready(())).await.unwrap_err().to_string();
    assert_eq!(error, "there are two webhooks /validate-example-com-v1-website: join them in one");
}
