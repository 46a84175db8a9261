//! A function as kube-rs takes it gets the operator's client: its rights, its deadlines, and the plan are the operator's.
#![allow(clippy::unwrap_used, reason = "tests")]

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, PostParams};
use serde_json::json;
use setpoint::Controller;
use setpoint_test::TestEnv;

#[path = "../../setpoint/examples/from_kube_rs.rs"]
#[expect(dead_code, reason = "the example is a program: its main is not called here")]
mod from_kube_rs;

#[tokio::test(start_paused = true)]
async fn a_function_of_kube_rs_works_with_the_operators_client() {
    let env = TestEnv::start().await.unwrap();
    let config =
        json!({"metadata": {"name": "settings", "labels": {"copy": "yes"}}, "data": {"color": "red"}});
    let maps: Api<ConfigMap> = env.api("default");
    maps.create(&PostParams::default(), &serde_json::from_value(config).unwrap()).await.unwrap();

    // Each pass is under an account of its own, and has its data made for that.
    let copier = || setpoint::reconciler(from_kube_rs::reconcile, |client| from_kube_rs::Data { client });
    let controller = setpoint::AnyController::from(
        Controller::new(copier())
            .owns::<Secret>()
            .uses::<Secret>(&[setpoint::Verb::Create, setpoint::Verb::Patch]),
    );
    for _ in 0..2 {
        let seen = env.reconcile(controller.clone(), "default/settings").await.unwrap();
        seen.action().unwrap();
        assert_eq!(seen.written(), ["patch secrets default/settings"]);
    }
    let refused = env.reconcile(Controller::new(copier()), "default/settings").await.unwrap_err().to_string();
    assert!(refused.contains("missing is patch on secrets"), "{refused}");

    let running = env.run(from_kube_rs::operator()).await.unwrap();
    env.api::<Secret>("default").delete("settings", &kube::api::DeleteParams::default()).await.unwrap();
    env.wait_for("default", "settings", "the copy", |_: &Secret| Ok(())).await.unwrap();
    running.stop().await.unwrap();
}
