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
    /// Or the beginning of the URL, where one was told.
    pub(crate) url: Option<String>,
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

impl Targets {
    /// Whether an entry asks this operator. Any URL may be another name of it, unless one was told.
    fn ours(&self, config: &Value) -> bool {
        match (config["url"].as_str(), &self.url) {
            (Some(url), Some(base)) => {
                url.strip_prefix(base.as_str()).is_some_and(|path| path.starts_with('/'))
            }
            (Some(_), None) => true,
            (None, _) => {
                let service = &config["service"];
                (service["namespace"].as_str(), service["name"].as_str())
                    == (Some(self.service.0.as_str()), Some(self.service.1.as_str()))
            }
        }
    }

    /// What this operator is reached by.
    fn place(&self) -> String {
        let (namespace, name) = &self.service;
        self.url.clone().unwrap_or_else(|| format!("Service {namespace}/{name}"))
    }
}

impl Target {
    /// In words, whom it asks instead of this operator, if it does.
    pub(super) fn elsewhere(&self, targets: &Targets) -> Option<String> {
        // Who has put entries of others beside ours has meant it.
        let configs = self.configs();
        if configs.iter().any(|(_, config)| targets.ours(config)) {
            return None;
        }
        let (_, other) = configs.first()?;
        let asked = other["url"].as_str().map_or_else(
            || {
                let text = |field: &str| other["service"][field].as_str().unwrap_or_default();
                format!("Service {}/{}", text("namespace"), text("name"))
            },
            str::to_owned,
        );
        Some(format!(
            "{} {} asks {asked}, but this operator is reached by {}: run it in the namespace of its installation, or on your own \
             machine with --webhook-url as it was installed with, or without webhooks by --webhook-bind-address 0",
            self.kind.resource().kind,
            self.name,
            targets.place(),
        ))
    }

    /// Where it sends its questions: name of the entry, and `clientConfig`.
    fn configs(&self) -> Vec<(&Value, &Value)> {
        let Some(object) = &self.object else { return Vec::new() };
        if self.kind == Kind::Definition {
            let config = object.pointer("/spec/conversion/webhook/clientConfig");
            return config.into_iter().map(|config| (&Value::Null, config)).collect();
        }
        let entries = object["webhooks"].as_array();
        entries.into_iter().flatten().map(|entry| (&entry["name"], &entry["clientConfig"])).collect()
    }

    /// The apply that makes `bundle` the `caBundle` of each entry that asks this operator; `None` if nothing is to
    /// be done. An object that isn't there is for who installs it.
    fn patch(&self, targets: &Targets, bundle: &str) -> Option<Value> {
        let bundle = STANDARD.encode(bundle);
        let ours: Vec<_> = self.configs().into_iter().filter(|(_, config)| targets.ours(config)).collect();
        if ours.iter().all(|(_, config)| config["caBundle"] == json!(bundle)) {
            return None;
        }
        let resource = self.kind.resource();
        let head = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": self.name}});
        let with = |field: &str, value: Value| {
            let mut patch = head.clone();
            patch[field] = value;
            patch
        };
        if self.kind == Kind::Definition {
            let wanted = json!({"conversion": {"webhook": {"clientConfig": {"caBundle": bundle}}}});
            return Some(with("spec", wanted));
        }
        // All of them, since an apply gives up what it leaves out.
        let entries: Vec<Value> = ours
            .into_iter()
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
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
