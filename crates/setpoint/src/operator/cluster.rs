use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderValue;
use http::header::WARNING;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiResource, Scope};
use parking_lot::Mutex;
use serde_json::Value;

use super::diagnosis::chain;

/// Objects of any kind on a cluster, as `install` and `uninstall` see them.
pub(super) struct Cluster {
    client: kube::Client,
    manager: String,
    dry_run: bool,
    /// What discovery said about kinds that are served.
    known: Mutex<HashMap<GroupVersionKind, (ApiResource, Scope)>>,
    /// What the API server warned of and nobody was told.
    warnings: Arc<Mutex<Vec<String>>>,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    Created,
    Configured,
    Unchanged,
}

impl Applied {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// An object that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    /// The server refused or did not answer.
    #[error("{object}: {reason}")]
    Request {
        /// Kind and name.
        object: String,
        /// Why.
        reason: String,
    },
    /// Somebody else owns a field.
    #[error("{object}: {reason}; --force-conflicts takes the fields over")]
    Conflict {
        /// Kind and name.
        object: String,
        /// Which fields.
        reason: String,
    },
    /// The cluster does not serve the kind.
    #[error("the cluster does not serve {kind} in {api_version}, which {object} is")]
    NotServed {
        /// Kind and name.
        object: String,
        /// The kind.
        kind: String,
        /// Group and version.
        api_version: String,
    },
}

impl ClusterError {
    /// Whether the object's namespace does not exist.
    pub(super) fn is_without_namespace(&self) -> bool {
        matches!(self, Self::Request { reason, .. } if reason.starts_with("namespaces ") && reason.ends_with(" not found"))
    }
}

/// Kind, namespace and name of an object in words.
pub(super) fn named(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match text("/metadata/namespace") {
        "" => format!("{} {}", text("/kind"), text("/metadata/name")),
        namespace => format!("{} {namespace}/{}", text("/kind"), text("/metadata/name")),
    }
}

impl Cluster {
    pub(super) fn new(client: kube::Client, manager: String, dry_run: bool) -> Self {
        let warnings = Arc::<Mutex<Vec<String>>>::default();
        let (heard, namespace) = (Arc::clone(&warnings), client.default_namespace().to_owned());
        let listening = tower::service_fn(move |request| {
            let (client, heard) = (client.clone(), Arc::clone(&heard));
            async move {
                let answer = client.send(request).await?;
                heard.lock().extend(answer.headers().get_all(WARNING).iter().filter_map(warning));
                Ok::<_, kube::Error>(answer)
            }
        });
        let client = kube::Client::new(listening, namespace);
        Self { client, manager, dry_run, known: Mutex::default(), warnings }
    }

    /// What the API server has warned of since the last call, each once.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut *self.warnings.lock());
        warnings.dedup();
        warnings
    }

    /// Applies `object` (server-side). With `force` fields of others are taken over.
    pub(super) async fn apply(&self, object: &Value, force: bool) -> Result<Applied, ClusterError> {
        let (api, name) = self.api(object).await?;
        let failed = |error: kube::Error| request_error(object, &error);
        let before = api.get_opt(&name).await.map_err(failed)?;
        let mut params = PatchParams::apply(&self.manager);
        params.force = force;
        params.dry_run = self.dry_run;
        let after = api.patch(&name, &params, &Patch::Apply(object)).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 409 => {
                ClusterError::Conflict { object: named(object), reason: status.message.clone() }
            }
            error => failed(error),
        })?;
        Ok(match before {
            None => Applied::Created,
            Some(before) if before.metadata.resource_version == after.metadata.resource_version => {
                Applied::Unchanged
            }
            // A dry run gives no new version.
            Some(before) if self.dry_run && before.data == after.data => Applied::Unchanged,
            Some(_) => Applied::Configured,
        })
    }

    /// The object as it is now, if it exists.
    pub(super) async fn get(&self, object: &Value) -> Result<Option<DynamicObject>, ClusterError> {
        let (api, name) = self.api(object).await?;
        api.get_opt(&name).await.map_err(|error| request_error(object, &error))
    }

    /// Deletes the object; whether it was there.
    pub(super) async fn delete(&self, object: &Value) -> Result<bool, ClusterError> {
        let (api, name) = match self.api(object).await {
            // Without its kind it cannot exist.
            Err(ClusterError::NotServed { .. }) => return Ok(false),
            found => found?,
        };
        match api.delete(&name, &self.delete_params()).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(request_error(object, &error)),
        }
    }

    fn delete_params(&self) -> DeleteParams {
        DeleteParams { dry_run: self.dry_run, ..DeleteParams::background() }
    }

    /// All objects of a CustomResourceDefinition, in its first served version.
    pub(super) async fn instances(&self, crd: &Value) -> Result<Vec<DynamicObject>, ClusterError> {
        let Some(resource) = resource(crd) else { return Ok(Vec::new()) };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(request_error(crd, &error)),
        }
    }

    /// Deletes exactly this instance of a CustomResourceDefinition.
    pub(super) async fn delete_instance(
        &self,
        crd: &Value,
        instance: &DynamicObject,
    ) -> Result<(), ClusterError> {
        let Some(resource) = resource(crd) else { return Ok(()) };
        let namespace = instance.metadata.namespace.as_deref();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let uid = instance.metadata.uid.clone();
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..self.delete_params()
        };
        match api.delete(instance.metadata.name.as_deref().unwrap_or_default(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
            Err(error) => Err(request_error(crd, &error)),
        }
    }

    async fn api(&self, object: &Value) -> Result<(Api<DynamicObject>, String), ClusterError> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let not_served = || ClusterError::NotServed {
            object: named(object),
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
        };
        let known = self.known.lock().get(&gvk).cloned();
        let (resource, scope) = if let Some(known) = known {
            known
        } else {
            let (resource, capabilities) =
                kube::discovery::pinned_kind(&self.client, &gvk).await.map_err(|error| match error {
                    kube::Error::Api(status) if status.code == 404 => not_served(),
                    kube::Error::Discovery(_) => not_served(),
                    error => request_error(object, &error),
                })?;
            self.known.lock().insert(gvk, (resource.clone(), capabilities.scope.clone()));
            (resource, capabilities.scope)
        };
        let api = match (scope, text("/metadata/namespace")) {
            (Scope::Namespaced, namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            (Scope::Cluster, _) => Api::all_with(self.client.clone(), &resource),
        };
        Ok((api, text("/metadata/name").to_owned()))
    }
}

/// The resource that a CustomResourceDefinition defines, in its first served version.
fn resource(crd: &Value) -> Option<ApiResource> {
    let spec = &crd["spec"];
    let served = |version: &&Value| version["served"] == true;
    let version = spec["versions"].as_array()?.iter().find(served)?["name"].as_str()?;
    let gvk = GroupVersionKind::gvk(spec["group"].as_str()?, version, spec["names"]["kind"].as_str()?);
    Some(ApiResource::from_gvk_with_plural(&gvk, spec["names"]["plural"].as_str()?))
}

/// The text of a `Warning` header: `299 - "text"`.
fn warning(value: &HeaderValue) -> Option<String> {
    let text = std::str::from_utf8(value.as_bytes()).ok()?;
    let text = text.get(text.find('"')? + 1..text.rfind('"')?)?;
    Some(text.replace("\\\"", "\"").replace("\\\\", "\\"))
}

fn request_error(object: &Value, error: &kube::Error) -> ClusterError {
    ClusterError::Request { object: named(object), reason: chain(error) }
}
