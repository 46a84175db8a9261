//! The status of ValidatingAdmissionPolicies, in simulated time.
#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use setpoint_cluster::Cluster;
use tokio::time::{Instant, sleep};

/// The status once the newest generation was looked at.
async fn status(policies: &Api<ValidatingAdmissionPolicy>, name: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let policy = policies.get(name).await.unwrap();
        let status = json!(policy.status);
        if status["observedGeneration"].as_i64() == policy.metadata.generation {
            return status;
        }
        assert!(Instant::now() < deadline, "the status of {name} after 60 s: {status}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn expressions_that_do_not_fit_their_kinds_are_named() {
    let cluster = Cluster::builder().hollow_nodes(1).seed(1).start().await.unwrap();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client());
    let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments", "statefulsets"]});
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": "a"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [
            {"expression": "object.spec.replicas < 5", "messageExpression": "string(object.spec.nope)"},
            {"expression": "object.spec.strategy.type == 'Recreate'"},
        ]},
    }))
    .unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    let found = status(&policies, "a").await;
    let warnings = &found["typeChecking"]["expressionWarnings"];
    assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].messageExpression", "{found}");
    let of = |kind: &str| {
        format!(
            "apps/v1, Kind={kind}: compilation failed: ERROR: <input>:1:19: undefined field 'nope'\n | string(object.spec.nope)\n | ..................^\n"
        )
    };
    assert_eq!(warnings[0]["warning"], format!("{}\n{}", of("Deployment"), of("StatefulSet")));
    assert_eq!(warnings[1]["fieldRef"], "spec.validations[1].expression");
    let second = warnings[1]["warning"].as_str().unwrap();
    assert!(second.starts_with("apps/v1, Kind=StatefulSet: ") && !second.contains("Deployment"), "{second}");

    let fixed = json!({"spec": {"validations": [{"expression": "object.spec.replicas < 5"}]}});
    let policy = policies.patch("a", &PatchParams::default(), &Patch::Merge(fixed)).await.unwrap();
    // Applying an empty struct in the place of a full one leaves none, as upstream.
    assert_eq!(status(&policies, "a").await, json!({"observedGeneration": 2}));
    let manager = policy.managed_fields().iter().find(|entry| {
        entry.manager.as_deref() == Some("validatingadmissionpolicy-status")
            && entry.subresource.as_deref() == Some("status")
    });
    assert!(manager.is_some(), "{:?}", policy.managed_fields());
}
