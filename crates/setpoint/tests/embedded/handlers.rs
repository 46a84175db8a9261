use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use setpoint::{Context, Error, Handlers, Result, Update, handlers};

use crate::world::{Website, WebsiteStatus, World, eventually, settle};

/// Says what it was called for; the first call for an update fails.
#[derive(Clone, Default)]
struct Said {
    lines: Arc<Mutex<Vec<String>>>,
    failed: Arc<Mutex<bool>>,
}

impl Handlers for Said {
    type Object = Website;

    async fn on_create(&self, site: Arc<Website>, cx: &Context<Website>) -> Result<()> {
        self.lines.lock().push(format!("create {}: {}", site.name_any(), site.spec.text));
        // A status of its own is no change that it is called for.
        cx.status(WebsiteStatus { pages: None, text: Some(site.spec.text.clone()) }).await?;
        Ok(())
    }

    async fn on_update(&self, update: Update<Website>, _: &Context<Website>) -> Result<()> {
        let paths: Vec<&str> = update.diff.iter().map(|field| &*field.path).collect();
        let line = format!(
            "update {}: {} -> {} ({})",
            update.new.name_any(),
            update.old.spec.text,
            update.new.spec.text,
            paths.join(", ")
        );
        self.lines.lock().push(line);
        if !std::mem::replace(&mut *self.failed.lock(), true) {
            return Err(Error::msg("the place where pages are kept does not answer"));
        }
        Ok(())
    }

    async fn on_delete(&self, site: Arc<Website>, _: &Context<Website>) -> Result<()> {
        self.lines.lock().push(format!("delete {}", site.name_any()));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn each_change_is_handled_until_it_succeeds_and_once_over_restarts() {
    let mut world = World::new().await;
    let said = Said::default();
    world.start(handlers(said.clone(), "example.com/pages"));
    world.create_site("a", "one").await;
    settle().await;
    assert_eq!(*said.lines.lock(), ["create a: one"]);

    let change = Patch::Merge(json!({"metadata": {"labels": {"team": "red"}}, "spec": {"text": "two"}}));
    world.sites().patch("a", &PatchParams::default(), &change).await.unwrap();
    settle().await;
    let update = "update a: one -> two (metadata.labels.team, spec.text)";
    assert_eq!(said.lines.lock()[1..], [update, update], "again after the failure, then never");

    // A new process handles what has changed meanwhile, and nothing else.
    world.stop().await;
    world
        .sites()
        .patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"text": "three"}})))
        .await
        .unwrap();
    said.lines.lock().clear();
    world.start(handlers(said.clone(), "example.com/pages"));
    settle().await;
    assert_eq!(*said.lines.lock(), ["update a: two -> three (spec.text)"]);

    world.sites().delete("a", &DeleteParams::default()).await.unwrap();
    eventually("the site is gone", || async {
        match world.sites().get_opt("a").await.unwrap() {
            None => Ok(()),
            Some(site) => Err(site),
        }
    })
    .await;
    assert_eq!(said.lines.lock().last().unwrap(), "delete a");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_nobody_can_read_is_told() {
    let mut world = World::new().await;
    let said = Said::default();
    world.start(handlers(said.clone(), "example.com/pages"));
    world.create_site("a", "one").await;
    settle().await;
    let broken = json!({"metadata": {"annotations": {"example.com/pages-last-handled": "{"}}, "spec": {"text": "two"}});
    world.sites().patch("a", &PatchParams::default(), &Patch::Merge(broken)).await.unwrap();
    settle().await;
    assert_eq!(*said.lines.lock(), ["create a: one"]);
    let mended = json!({"metadata": {"annotations": {"example.com/pages-last-handled": null}}, "spec": {"text": "three"}});
    world.sites().patch("a", &PatchParams::default(), &Patch::Merge(mended)).await.unwrap();
    settle().await;
    assert_eq!(said.lines.lock()[1..], ["create a: three"]);
    world.stop().await;
}
