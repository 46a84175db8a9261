use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::CertificateError;

/// The objects whose `caBundle` has to be the operator's: its webhook configurations and CustomResourceDefinitions.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    /// The Service that they must name to be ours: namespace and name.
    pub(crate) service: (String, String),
    /// Who owns the `caBundle`s, and nothing else.
    pub(crate) manager: String,
    /// Kind and name of each.
    pub(crate) objects: Vec<(Kind, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutating,
    Validating,
    Definition,
}

/// An object of [`Targets`], as it was read.
pub(super) struct Target {
    pub(super) api: Api<DynamicObject>,
    pub(super) name: String,
    /// Of the list that it was read by: where a watch goes on.
    pub(super) version: String,
    kind: Kind,
    object: Option<Value>,
}

impl Kind {
    /// Group and resource, as RBAC names them.
    pub(crate) fn target(self) -> (&'static str, &'static str) {
        match self {
            Self::Mutating => ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
            Self::Validating => ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
            Self::Definition => ("apiextensions.k8s.io", "customresourcedefinitions"),
        }
    }

    fn resource(self) -> ApiResource {
        let (group, version, kind) = match self {
            Self::Mutating => ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration"),
            Self::Validating => ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration"),
            Self::Definition => ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
    }
}

impl Targets {
    /// Reads them all.
    pub(super) async fn read(&self, client: &Client) -> Result<Vec<Target>, CertificateError> {
        let mut targets = Vec::new();
        for (kind, name) in &self.objects {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
            let only = ListParams::default().fields(&format!("metadata.name={name}"));
            let mut list = api.list(&only).await.map_err(|source| CertificateError::Api {
                what: format!("{kind:?} {name} cannot be read"),
                source,
            })?;
            targets.push(Target {
                api,
                name: name.clone(),
                version: list.metadata.resource_version.unwrap_or_default(),
                kind: *kind,
                object: list.items.pop().map(|object| object.data),
            });
        }
        Ok(targets)
    }
}

impl Target {
    /// The apply that makes `bundle` the `caBundle` of each entry that names our Service or a URL; `None` if nothing is to
    /// be done. An object that isn't there is for who installs it.
    fn patch(&self, targets: &Targets, bundle: &str) -> Option<Value> {
        let bundle = STANDARD.encode(bundle);
        let ours = |config: &Value| {
            let service = &config["service"];
            service.is_null()
                || (&service["namespace"], &service["name"])
                    == (&json!(targets.service.0), &json!(targets.service.1))
        };
        let object = self.object.as_ref()?;
        let resource = self.kind.resource();
        let head = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": self.name}});
        let with = |field: &str, value: Value| {
            let mut patch = head.clone();
            patch[field] = value;
            patch
        };
        if self.kind == Kind::Definition {
            let config = object.pointer("/spec/conversion/webhook/clientConfig")?;
            let wanted = json!({"conversion": {"webhook": {"clientConfig": {"caBundle": bundle}}}});
            return (ours(config) && config["caBundle"] != json!(bundle)).then(|| with("spec", wanted));
        }
        let entries = object["webhooks"].as_array()?.iter().filter(|entry| ours(&entry["clientConfig"]));
        let entries: Vec<&Value> = entries.collect();
        if entries.iter().all(|entry| entry["clientConfig"]["caBundle"] == json!(bundle)) {
            return None;
        }
        // All of them, since an apply gives up what it leaves out.
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|entry| json!({"name": entry["name"], "clientConfig": {"caBundle": bundle}}))
            .collect();
        Some(with("webhooks", json!(entries)))
    }

    /// Whether it needs no apply.
    pub(super) fn has(&self, targets: &Targets, bundle: &str) -> bool {
        self.patch(targets, bundle).is_none()
    }

    /// Makes `bundle` its `caBundle`, whoever has set another one.
    pub(super) async fn publish(&self, targets: &Targets, bundle: &str) -> Result<(), CertificateError> {
        let Some(patch) = self.patch(targets, bundle) else { return Ok(()) };
        let params = PatchParams::apply(&targets.manager).force();
        let published = self.api.patch(&self.name, &params, &Patch::Apply(&patch)).await;
        published.map(drop).map_err(|source| CertificateError::Api {
            what: format!("caBundle of {} {} cannot be set", self.kind.resource().kind, self.name),
            source,
        })
    }
}
