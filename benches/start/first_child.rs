use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use setpoint_test::TestEnv;

use crate::failure::Failure;
use crate::website;

/// What most tests of an operator are made of: a cluster, a CRD, the operator under its derived rights, a child.
pub(crate) async fn first_child() -> Result<(), Failure> {
    let env = TestEnv::embedded().await?;
    let _running = env.run(website::operator()).await?;
    env.apply(json!({
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"text": "hello"},
    }))
    .await?;
    env.wait_for("default", "shop-page", "the first child", |_: &ConfigMap| Ok(())).await?;
    Ok(())
}
