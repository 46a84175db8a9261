//! Storage migration: every object of a kind is written again until none is stored in an old version.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{GroupVersionKind, PartialObjectMeta};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result, Runtime};

/// How long after a look at the definition objects are written at the earliest: by then every API server stores new objects
/// in the version that the definition names.
const SETTLED: Duration = Duration::from_secs(60);
/// Objects that are listed at a time.
const PAGE: u32 = 500;
/// How often a definition is looked at that another release may have changed.
const INTERVAL: Duration = Duration::from_secs(600);
/// The pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Migrates the kinds of these definitions, now and when their stored version changes, until `stop`.
pub(crate) async fn run(crds: Vec<String>, runtime: Runtime, stop: CancellationToken) -> Result<()> {
    let mut pause = FIRST_PAUSE;
    let migrate = async {
        loop {
            let mut failed = Vec::new();
            for name in &crds {
                if let Err(error) = migrate(runtime.client(), name).await {
                    failed.push(format!("{name}: {error}"));
                }
            }
            if failed.is_empty() {
                pause = FIRST_PAUSE;
                tokio::time::sleep(INTERVAL).await;
            } else {
                tracing::warn!(reasons = failed.join("; "), "storage migration is not complete");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(INTERVAL);
            }
        }
    };
    stop.run_until_cancelled(migrate).await;
    Ok(())
}

/// Writes every object of the kind again, if some may be stored in an old version, and says in the definition's status that
/// none is any more.
async fn migrate(client: &Client, name: &str) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let Some((_, before)) = stored(&crds, name).await? else { return Ok(()) };
    tokio::time::sleep(SETTLED).await;
    let Some((crd, version)) = stored(&crds, name).await? else { return Ok(()) };
    if version != before {
        return Err(Error::msg("the stored version has just changed"));
    }
    let count = rewrite(client, &crd, &version).await?;
    // Only if the definition is still the one whose objects were written.
    let trimmed = json!({
        "metadata": {"resourceVersion": crd.resource_version()},
        "status": {"storedVersions": [version]},
    });
    crds.patch_status(name, &PatchParams::default(), &Patch::Merge(trimmed)).await?;
    tracing::info!(crd = name, version, objects = count, "every object is stored in the current version");
    Ok(())
}

/// The definition and the version that it stores, if there may be objects in another one.
async fn stored(
    crds: &Api<CustomResourceDefinition>,
    name: &str,
) -> Result<Option<(CustomResourceDefinition, String)>> {
    let Some(crd) = crds.get_opt(name).await? else { return Ok(None) };
    let Some(version) = crd.spec.versions.iter().find(|version| version.storage) else { return Ok(None) };
    let version = version.name.clone();
    let stored = crd.status.as_ref().and_then(|status| status.stored_versions.clone()).unwrap_or_default();
    Ok(stored.iter().any(|stored| *stored != version).then_some((crd, version)))
}

/// A patch of nothing is a write where the stored bytes are of another version, and none where they are not.
async fn rewrite(client: &Client, crd: &CustomResourceDefinition, version: &str) -> Result<usize> {
    let names = &crd.spec.names;
    let kind = GroupVersionKind::gvk(&crd.spec.group, version, &names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut page = ListParams::default().limit(PAGE);
    let mut count = 0;
    let mut failures = Vec::new();
    loop {
        let list = all.list_metadata(&page).await?;
        for object in &list.items {
            match touch(client, &resource, object).await {
                Ok(()) => count += 1,
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    let namespace = object.namespace().unwrap_or_default();
                    failures.push(Error::msg(format!("{namespace}/{}: {error}", object.name_any())));
                }
            }
        }
        match list.metadata.continue_ {
            Some(token) if !token.is_empty() => page = page.continue_token(&token),
            _ => break,
        }
    }
    Error::all(failures).map_or(Ok(count), Err)
}

async fn touch(
    client: &Client,
    resource: &ApiResource,
    object: &PartialObjectMeta<DynamicObject>,
) -> kube::Result<()> {
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let nothing = Patch::Merge(json!({}));
    api.patch_metadata(&object.name_any(), &PatchParams::default(), &nothing).await.map(drop)
}
