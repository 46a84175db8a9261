//! Faults between an operator and the API server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use setpoint::Reason;
use setpoint_test::{Fault, Faults, Requests, Running, TestEnv, throughout};
use tokio::time::Instant;
use website::Website;

#[path = "../../setpoint/examples/website.rs"]
#[expect(dead_code, reason = "the example is a program: its main is not called here")]
mod website;

async fn start(faults: &Faults) -> (TestEnv, Running) {
    let env = TestEnv::start().await.unwrap();
    let running = env.run(faults.under(website::operator())).await.unwrap();
    (env, running)
}

async fn say(env: &TestEnv, text: &str) {
    env.apply(json!({
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"text": text},
    }))
    .await
    .unwrap();
}

async fn page_says(env: &TestEnv, text: &str) {
    env.wait_for("default", "shop-page", &format!("the page to say {text}"), |page: &ConfigMap| {
        let is = page.data.as_ref().and_then(|data| data.get("index.html"));
        if is.is_some_and(|is| is == text) { Ok(()) } else { Err(format!("{is:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn failures_conflicts_and_lost_answers_are_lived_through() {
    let faults = Faults::new();
    let set = [
        faults.fail(Requests::writes().to("configmaps"), 503).times(2),
        faults.conflict(Requests::writes().to("configmaps").named("shop-page")).once(),
        faults.refuse(Requests::writes().to("websites/status").within("default")).once(),
        faults.lose_answer(Requests::writes().to("websites.example.com/status")).once(),
        // Never asked for.
        faults.fail(Requests::any().to("configmaps").named("other"), 500),
    ];
    let (env, running) = start(&faults).await;
    say(&env, "hello").await;
    page_says(&env, "hello").await;
    env.wait_for("default", "shop", "its status", |site: &Website| {
        site.status.clone().ok_or_else(String::new)
    })
    .await
    .unwrap();
    setpoint_test::eventually("all faults", Duration::from_secs(60), async || {
        let happened = set.each_ref().map(Fault::happened);
        if happened == [2, 1, 1, 1, 0] { Ok(()) } else { Err(format!("{happened:?}")) }
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn delays_and_hanging_requests_take_their_time() {
    let faults = Faults::new();
    faults.delay(Requests::writes().to("configmaps"), Duration::from_secs(3)).once();
    let (env, running) = start(&faults).await;
    let began = Instant::now();
    say(&env, "hello").await;
    page_says(&env, "hello").await;
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    // Two pass before the third hangs: the page, the status (which does not change), the next page.
    faults.hang(Requests::writes().to("configmaps")).after(1).once();
    say(&env, "bye").await;
    page_says(&env, "bye").await;
    let began = Instant::now();
    say(&env, "again").await;
    page_says(&env, "again").await;
    assert!(began.elapsed() >= Duration::from_secs(30), "the deadline of a request: {:?}", began.elapsed());
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_frozen_watch_leaves_the_cache_stale_until_it_is_lifted() {
    let faults = Faults::new();
    let (env, running) = start(&faults).await;
    say(&env, "hello").await;
    page_says(&env, "hello").await;
    let frozen = faults.freeze(Requests::watches().to("configmaps"));
    let pages = env.api::<ConfigMap>("default");
    pages.delete("shop-page", &DeleteParams::default()).await.unwrap();
    throughout(
        "the operator does not see that the page is gone",
        Duration::from_secs(3),
        async || match pages.get_opt("shop-page").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await
    .unwrap();
    frozen.lift();
    page_says(&env, "hello").await;
    running.stop().await.unwrap();
}

/// The operator's own apply goes past a change that it has not heard of, and its answer is newer than that change's event.
#[tokio::test(start_paused = true)]
async fn a_change_that_an_own_write_overtakes_is_a_cause_all_the_same() {
    let faults = Faults::new();
    let env = TestEnv::start().await.unwrap();
    let operator = faults.under(website::operator());
    let reports = operator.reports().clone();
    let running = env.run(operator).await.unwrap();
    say(&env, "hello").await;
    page_says(&env, "hello").await;
    let frozen = faults.freeze(Requests::watches().to("configmaps"));
    let touch = Patch::Merge(json!({"metadata": {"labels": {"touched": "yes"}}}));
    env.api::<ConfigMap>("default").patch("shop-page", &PatchParams::default(), &touch).await.unwrap();
    say(&env, "bye").await;
    page_says(&env, "bye").await;
    let because_of_the_page = || {
        let causes = reports.all().into_iter().flat_map(|report| report.causes.clone());
        let of_page = causes.filter(|cause| {
            cause.reason == Reason::Changed
                && cause.object.as_ref().is_some_and(|object| object.key.name == "shop-page")
        });
        of_page.count()
    };
    assert_eq!(because_of_the_page(), 0);
    frozen.lift();
    setpoint_test::eventually("a reconcile for the label", Duration::from_secs(10), async || {
        if because_of_the_page() == 1 { Ok(()) } else { Err(format!("{:?}", reports.all())) }
    })
    .await
    .unwrap();
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_is_lost_and_the_next_one_is_not() {
    let faults = Faults::new();
    let (env, running) = start(&faults).await;
    say(&env, "hello").await;
    page_says(&env, "hello").await;
    let lost = faults.drop_events(Requests::watches().to("configmaps").named("shop-page")).once();
    let pages = env.api::<ConfigMap>("default");
    let deface = Patch::Merge(json!({"data": {"index.html": "defaced"}}));
    pages.patch("shop-page", &PatchParams::default(), &deface).await.unwrap();
    throughout("nobody puts the page back", Duration::from_secs(3), async || {
        let page = pages.get("shop-page").await.map_err(|error| error.to_string())?;
        if page.data.unwrap_or_default()["index.html"] == "defaced" { Ok(()) } else { Err("put back".into()) }
    })
    .await
    .unwrap();
    assert_eq!(lost.happened(), 1);
    let touch = Patch::Merge(json!({"metadata": {"labels": {"touched": "yes"}}}));
    pages.patch("shop-page", &PatchParams::default(), &touch).await.unwrap();
    page_says(&env, "hello").await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_at_any_write_it_goes_on() {
    let mut crashes = 0;
    loop {
        let faults = Faults::new();
        faults.crash_after(crashes + 1);
        let (env, running) = start(&faults).await;
        say(&env, "hello").await;
        let crashed = tokio::time::timeout(Duration::from_secs(5), faults.crashed()).await.is_ok();
        drop(running);
        if !crashed {
            break;
        }
        crashes += 1;
        assert_eq!(faults.writes(), crashes);
        let running = env.run(website::operator()).await.unwrap();
        page_says(&env, "hello").await;
        env.wait_for("default", "shop", "its status", |site: &Website| {
            site.status.clone().ok_or_else(String::new)
        })
        .await
        .unwrap();
        running.stop().await.unwrap();
    }
    assert!(crashes >= 2, "the page and the status, and perhaps the event: {crashes}");
}
