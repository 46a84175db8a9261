//! Webhooks of an operator that runs as a process on this machine, under the rights that `install` gave it, asked by the API server over TLS.

use std::process::Stdio;

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};
use setpoint_test::TestEnv;

use super::{Running, example, free_address, get, kubeconfig_of_the_account, stderr, until};

fn site(version: &str, name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": format!("example.com/{version}"), "kind": "Website", "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installed_operator_defaults_validates_and_converts() {
    let env = TestEnv::without_controllers().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (admin, account, log) =
        (directory.path().join("admin"), directory.path().join("account"), directory.path().join("log"));
    std::fs::write(&admin, env.kubeconfig().unwrap()).unwrap();
    let (webhooks, health) = (free_address(), free_address());
    let url = format!("https://{webhooks}");
    let installed = example("webhooks")
        .args(["install", "--namespace", "sites", "--image", "registry.example.com/website:v1"])
        .args(["--webhook-url", &url, "--kubeconfig"])
        .arg(&admin)
        .output()
        .unwrap();
    assert_eq!(installed.status.code(), Some(0), "{}", stderr(&installed));
    assert!(!stderr(&installed).contains("Service sites/website-operator-webhook"), "{}", stderr(&installed));

    std::fs::write(&account, kubeconfig_of_the_account(&env).await).unwrap();
    let _running = Running(
        example("webhooks")
            .args(["run", "--metrics-bind-address", "0", "--health-probe-bind-address", &health])
            .args(["--webhook-bind-address", &webhooks, "--webhook-url", &url, "--kubeconfig"])
            .arg(&account)
            .stderr(Stdio::from(std::fs::File::create(&log).unwrap()))
            .spawn()
            .unwrap(),
    );
    until("readiness", &log, async || get(&health, "/readyz").starts_with("HTTP/1.1 200").then_some(()))
        .await;

    let api = |version: &str| -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", version, "Website"));
        Api::namespaced_with(env.client(), "default", &resource)
    };
    let (v1, v1beta1) = (api("v1"), api("v1beta1"));
    let params = PostParams::default();
    // An API server learns of a new caBundle a moment after it was written.
    let created = until("an answer of the webhooks", &log, async || {
        v1.create(&params, &site("v1", "shop", &json!({"text": "hello"}))).await.ok()
    })
    .await;
    assert_eq!(created.data["spec"], json!({"text": "hello", "title": "Untitled"}));
    let refused =
        v1.create(&params, &site("v1", "empty", &json!({"text": ""}))).await.unwrap_err().to_string();
    assert!(refused.contains("spec.text: Required value: a page needs a text"), "{refused}");
    // The other version is converted on its way in and out, and its requests are defaulted and validated as the hub's.
    let old = v1beta1.get("shop").await.unwrap();
    assert_eq!(old.data["spec"], json!({"body": "hello"}));
    v1beta1.create(&params, &site("v1beta1", "old", &json!({"body": "bye"}))).await.unwrap();
    assert_eq!(v1.get("old").await.unwrap().data["spec"], json!({"text": "bye", "title": "Untitled"}));
    let refused = v1beta1.create(&params, &site("v1beta1", "none", &json!({"body": ""}))).await;
    assert!(refused.unwrap_err().to_string().contains("a page needs a text"));
}
