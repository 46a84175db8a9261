//! The README's test, of the README's operator.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use setpoint_test::TestEnv;

#[path = "../../setpoint/examples/website.rs"]
#[expect(dead_code, reason = "the example is a program: its main is not called here")]
mod website;

#[tokio::test(start_paused = true)]
async fn a_website_gets_its_page() {
    let env = TestEnv::embedded().await.unwrap();
    let running = env.run(website::operator()).await.unwrap();
    env.apply(json!({
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"text": "hello"},
    }))
    .await
    .unwrap();
    env.wait_for("default", "shop-page", "the page to say hello", |page: &ConfigMap| {
        let text = page.data.as_ref().and_then(|data| data.get("index.html"));
        if text.is_some_and(|text| text == "hello") { Ok(()) } else { Err(format!("{text:?}")) }
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}
