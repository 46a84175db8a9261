//! The objects that a pod's environment and volumes refer to.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
    Volume,
};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};

/// Objects as they were read for one pod; a name with `None` does not exist.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, Option<ConfigMap>>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Option<Secret>>,
    /// Claims by name, with the volume that each is bound to.
    pub claims: BTreeMap<String, Option<(PersistentVolumeClaim, Option<PersistentVolume>)>>,
    /// Services whose addresses go into the environment.
    pub services: Vec<Service>,
    /// Service account tokens by audience and wanted life in seconds.
    pub tokens: Tokens,
}

/// Service account tokens by audience and wanted life in seconds.
pub type Tokens = BTreeMap<(Option<String>, i64), String>;

/// Life of a projected token when the volume does not say it.
pub const TOKEN_SECONDS: i64 = 3600;

impl Sources {
    /// Reads what the pod's volumes need. `tokens` are earlier ones that are still good.
    pub async fn of_volumes(client: &Client, pod: &Pod, tokens: Tokens) -> kube::Result<Self> {
        let mut wanted = Wanted::default();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            wanted.volume(volume);
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut sources = Self { tokens, ..Self::default() };
        sources.read(client, namespace, &wanted).await?;
        for key in wanted.tokens {
            if let Entry::Vacant(entry) = sources.tokens.entry(key) {
                let (audience, seconds) = entry.key().clone();
                entry.insert(token(client, pod, audience, seconds).await?);
            }
        }
        Ok(sources)
    }

    /// Reads what the container's environment needs.
    pub async fn of_environment(client: &Client, pod: &Pod, container: &Container) -> kube::Result<Self> {
        let mut wanted = Wanted::default();
        wanted.environment(container);
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut sources = Self::default();
        sources.read(client, namespace, &wanted).await?;
        let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
        if links {
            let services = Api::<Service>::namespaced(client.clone(), namespace);
            sources.services = services.list(&ListParams::default()).await?.items;
        }
        let master = Api::<Service>::namespaced(client.clone(), "default").get_opt("kubernetes").await?;
        sources.services.retain(|service| {
            service.metadata.name.as_deref() != Some("kubernetes") || namespace != "default"
        });
        sources.services.extend(master);
        Ok(sources)
    }

    async fn read(&mut self, client: &Client, namespace: &str, wanted: &Wanted) -> kube::Result<()> {
        let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        for name in &wanted.config_maps {
            self.config_maps.insert(name.clone(), config_maps.get_opt(name).await?);
        }
        let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
        for name in &wanted.secrets {
            self.secrets.insert(name.clone(), secrets.get_opt(name).await?);
        }
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        for name in &wanted.claims {
            let Some(claim) = claims.get_opt(name).await? else {
                self.claims.insert(name.clone(), None);
                continue;
            };
            let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
            let volume = match bound {
                Some(volume) => Api::<PersistentVolume>::all(client.clone()).get_opt(&volume).await?,
                None => None,
            };
            self.claims.insert(name.clone(), Some((claim, volume)));
        }
        Ok(())
    }
}

async fn token(client: &Client, pod: &Pod, audience: Option<String>, seconds: i64) -> kube::Result<String> {
    let metadata = &pod.metadata;
    let account =
        pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or("default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(audience.into_iter().collect()),
            expiration_seconds: Some(seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
            }),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(answer.status.and_then(|status| status.token).unwrap_or_default())
}

/// Names of objects that are referred to.
#[derive(Default)]
struct Wanted {
    config_maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
    claims: BTreeSet<String>,
    tokens: BTreeSet<(Option<String>, i64)>,
}

impl Wanted {
    fn environment(&mut self, container: &Container) {
        for from in container.env_from.iter().flatten() {
            self.config_maps.extend(from.config_map_ref.iter().map(|reference| reference.name.clone()));
            self.secrets.extend(from.secret_ref.iter().map(|reference| reference.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            self.config_maps.extend(source.config_map_key_ref.iter().map(|reference| reference.name.clone()));
            self.secrets.extend(source.secret_key_ref.iter().map(|reference| reference.name.clone()));
        }
    }

    fn volume(&mut self, volume: &Volume) {
        self.config_maps.extend(volume.config_map.iter().map(|source| source.name.clone()));
        self.secrets.extend(volume.secret.iter().filter_map(|source| source.secret_name.clone()));
        self.claims.extend(volume.persistent_volume_claim.iter().map(|source| source.claim_name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            self.config_maps.extend(source.config_map.iter().map(|source| source.name.clone()));
            self.secrets.extend(source.secret.iter().map(|source| source.name.clone()));
            self.tokens.extend(
                source
                    .service_account_token
                    .iter()
                    .map(|token| (token.audience.clone(), token.expiration_seconds.unwrap_or(TOKEN_SECONDS))),
            );
        }
    }
}
