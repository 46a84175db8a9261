//! A pod's volumes: where each one's files are, and the files of those that the kubelet provides.

use bytes::Bytes;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume as PodVolume,
};

use super::environment::{PodFacts, pod_field, resource_field};
use super::runtime::{Volume, VolumeFile, VolumeFiles, VolumeSource};
use super::sources::{Sources, TOKEN_SECONDS};
use crate::quantity;

const DEFAULT_MODE: u32 = 0o644;

/// The volumes of a pod. Fails with the message of a `FailedMount` event.
pub fn volumes(pod: &Pod, sources: &Sources) -> Result<Vec<Volume>, String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .map(|volume| {
            let source = source(volume, sources).map_err(|message| failed(&volume.name, &message))?;
            Ok(Volume { name: volume.name.clone(), source })
        })
        .collect()
}

fn failed(volume: &str, message: &str) -> String {
    format!("MountVolume.SetUp failed for volume \"{volume}\" : {message}")
}

fn source(volume: &PodVolume, sources: &Sources) -> Result<VolumeSource, String> {
    if let Some(empty) = &volume.empty_dir {
        let size = empty.size_limit.as_ref();
        return Ok(VolumeSource::EmptyDir {
            memory: empty.medium.as_deref() == Some("Memory"),
            size_limit: size.and_then(|size| quantity::units(&size.0)),
        });
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let name = &claim.claim_name;
        let found = sources.claims.get(name).and_then(Option::as_ref);
        let (_, bound) = found.ok_or_else(|| format!("persistentvolumeclaim \"{name}\" not found"))?;
        let bound = bound.as_ref().ok_or_else(|| format!("PVC {name} is not bound to a volume yet"))?;
        let spec = bound.spec.as_ref();
        let volume_name = bound.metadata.name.clone().unwrap_or_default();
        let path = spec
            .and_then(|spec| {
                let host = spec.host_path.as_ref().map(|source| source.path.as_str());
                host.or_else(|| spec.local.as_ref().map(|source| source.path.as_str()))
            })
            .ok_or_else(|| {
                format!(
                    "PersistentVolume {volume_name} has neither hostPath nor local: this node cannot mount it"
                )
            })?;
        let capacity = spec.and_then(|spec| spec.capacity.as_ref()?.get("storage"));
        return Ok(VolumeSource::Persistent {
            name: volume_name,
            path: path.into(),
            capacity: capacity.and_then(|capacity| quantity::units(&capacity.0)),
            read_only: claim.read_only == Some(true),
        });
    }
    if let Some(host) = &volume.host_path {
        let kind = host.type_.clone().unwrap_or_default();
        return Ok(VolumeSource::HostPath { path: host.path.as_str().into(), kind });
    }
    let files = volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some();
    if files {
        return Ok(VolumeSource::Files);
    }
    Err("this node knows only configMap, secret, downwardAPI, projected, emptyDir, hostPath and \
         persistentVolumeClaim volumes"
        .into())
}

/// The files of each volume of the kind [`VolumeSource::Files`]. Fails with the message of a `FailedMount`
/// event.
pub fn files(pod: &Pod, facts: &PodFacts, sources: &Sources) -> Result<Vec<(String, VolumeFiles)>, String> {
    let spec = pod.spec.as_ref();
    let group = spec.and_then(|spec| spec.security_context.as_ref()).and_then(|context| context.fs_group);
    let mut all = Vec::new();
    for volume in spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let mut writer =
            Writer { pod, facts, sources, files: VolumeFiles { group, ..VolumeFiles::default() } };
        if writer.volume(volume).map_err(|message| failed(&volume.name, &message))? {
            all.push((volume.name.clone(), writer.files));
        }
    }
    Ok(all)
}

struct Writer<'a> {
    pod: &'a Pod,
    facts: &'a PodFacts,
    sources: &'a Sources,
    files: VolumeFiles,
}

impl Writer<'_> {
    /// Whether it is a volume of files.
    fn volume(&mut self, volume: &PodVolume) -> Result<bool, String> {
        if let Some(source) = &volume.config_map {
            let (items, optional) = (source.items.as_deref(), source.optional == Some(true));
            self.config_map(&source.name, items, optional, mode(source.default_mode))?;
        } else if let Some(source) = &volume.secret {
            let name = source.secret_name.as_deref().unwrap_or_default();
            let (items, optional) = (source.items.as_deref(), source.optional == Some(true));
            self.secret(name, items, optional, mode(source.default_mode))?;
        } else if let Some(source) = &volume.downward_api {
            self.downward(source.items.as_deref().unwrap_or_default(), mode(source.default_mode))?;
        } else if let Some(projected) = &volume.projected {
            let mode = mode(projected.default_mode);
            for source in projected.sources.iter().flatten() {
                if let Some(source) = &source.config_map {
                    let optional = source.optional == Some(true);
                    self.config_map(&source.name, source.items.as_deref(), optional, mode)?;
                } else if let Some(source) = &source.secret {
                    let optional = source.optional == Some(true);
                    self.secret(&source.name, source.items.as_deref(), optional, mode)?;
                } else if let Some(source) = &source.downward_api {
                    self.downward(source.items.as_deref().unwrap_or_default(), mode)?;
                } else if let Some(source) = &source.service_account_token {
                    let key = (source.audience.clone(), source.expiration_seconds.unwrap_or(TOKEN_SECONDS));
                    let token =
                        self.sources.tokens.get(&key).ok_or("the service account token was not issued")?;
                    self.put(&source.path, token.clone().into(), 0o600);
                } else {
                    return Err(
                        "this node knows only configMap, secret, downwardAPI and serviceAccountToken \
                                as projected sources"
                            .into(),
                    );
                }
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn config_map(
        &mut self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: bool,
        mode: u32,
    ) -> Result<(), String> {
        match self.sources.config_maps.get(name).and_then(Option::as_ref) {
            Some(map) => self.entries("config", config_map_entries(map), items, optional, mode),
            None if optional => Ok(()),
            None => Err(format!("configmap \"{name}\" not found")),
        }
    }

    fn secret(
        &mut self,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: bool,
        mode: u32,
    ) -> Result<(), String> {
        match self.sources.secrets.get(name).and_then(Option::as_ref) {
            Some(secret) => self.entries("secret", secret_entries(secret), items, optional, mode),
            None if optional => Ok(()),
            None => Err(format!("secret \"{name}\" not found")),
        }
    }

    fn entries(
        &mut self,
        what: &str,
        entries: Vec<(&String, Bytes)>,
        items: Option<&[KeyToPath]>,
        optional: bool,
        mode: u32,
    ) -> Result<(), String> {
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, data) in entries {
                self.put(key, data, mode);
            }
            return Ok(());
        };
        for item in items {
            match entries.iter().find(|(key, _)| **key == item.key) {
                Some((_, data)) => {
                    let mode = item.mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(mode);
                    self.put(&item.path, data.clone(), mode);
                }
                None if optional => {}
                None => return Err(format!("references non-existent {what} key: {}", item.key)),
            }
        }
        Ok(())
    }

    fn downward(&mut self, items: &[DownwardAPIVolumeFile], default: u32) -> Result<(), String> {
        for item in items {
            let data = if let Some(field) = &item.field_ref {
                pod_field(&field.field_path, self.pod, self.facts)
                    .ok_or_else(|| format!("unsupported fieldPath: {}", field.field_path))?
            } else if let Some(field) = &item.resource_field_ref {
                let name = field.container_name.as_deref().unwrap_or_default();
                let container = self
                    .pod
                    .spec
                    .iter()
                    .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
                    .find(|container| container.name == name)
                    .ok_or_else(|| format!("container {name} not found"))?;
                resource_field(field, container, self.facts)?
            } else {
                return Err(format!("{} names neither fieldRef nor resourceFieldRef", item.path));
            };
            let mode = item.mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(default);
            self.put(&item.path, data.into(), mode);
        }
        Ok(())
    }

    fn put(&mut self, path: &str, data: Bytes, mode: u32) {
        self.files.files.insert(path.to_owned(), VolumeFile { data, mode, user: None });
    }
}

fn mode(mode: Option<i32>) -> u32 {
    mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(DEFAULT_MODE)
}

fn config_map_entries(map: &ConfigMap) -> Vec<(&String, Bytes)> {
    let text = map.data.iter().flatten().map(|(key, value)| (key, Bytes::from(value.clone())));
    text.chain(map.binary_data.iter().flatten().map(|(key, value)| (key, Bytes::from(value.0.clone()))))
        .collect()
}

fn secret_entries(secret: &Secret) -> Vec<(&String, Bytes)> {
    secret.data.iter().flatten().map(|(key, value)| (key, Bytes::from(value.0.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::{Value, json};

    use super::*;

    fn pod(volumes: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"containers": [], "volumes": volumes, "securityContext": {"fsGroup": 999}},
        }))
        .unwrap()
    }

    fn sources() -> Sources {
        let map = serde_json::from_value(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AAE="}}))
            .unwrap();
        let secret = serde_json::from_value(json!({"data": {"password": "c2VjcmV0"}})).unwrap();
        let bound = serde_json::from_value(json!({
            "metadata": {"name": "pv1"},
            "spec": {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data/pv1"}},
        }))
        .unwrap();
        Sources {
            config_maps: [("cm".to_owned(), Some(map))].into(),
            secrets: [("s".to_owned(), Some(secret))].into(),
            claims: [
                ("data".to_owned(), Some((PersistentVolumeClaim::default(), Some(bound)))),
                ("pending".to_owned(), Some((PersistentVolumeClaim::default(), None))),
            ]
            .into(),
            tokens: [((None, 3607), "tok".to_owned())].into(),
            ..Sources::default()
        }
    }

    #[test]
    fn projected_volume_collects_its_sources() {
        let pod = pod(&json!([{"name": "v", "projected": {"defaultMode": 0o400, "sources": [
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "conf/a.txt", "mode": 0o755}]}},
            {"secret": {"name": "s"}},
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        ]}}]));
        let files = files(&pod, &PodFacts::default(), &sources()).unwrap();
        let [(name, files)] = files.as_slice() else { panic!("{files:?}") };
        assert_eq!((name.as_str(), files.group), ("v", Some(999)));
        let found: Vec<_> =
            files.files.iter().map(|(path, file)| (path.as_str(), &file.data[..], file.mode)).collect();
        let expected: [(&str, &[u8], u32); 4] = [
            ("conf/a.txt", b"1", 0o755),
            ("labels", b"app=\"web\"", 0o400),
            ("password", b"secret", 0o400),
            ("token", b"tok", 0o600),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn claims_give_the_directory_of_their_volume() {
        let pod = pod(&json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]));
        let volumes = volumes(&pod, &sources()).unwrap();
        let expected = VolumeSource::Persistent {
            name: "pv1".into(),
            path: "/data/pv1".into(),
            capacity: Some(1 << 30),
            read_only: false,
        };
        assert_eq!(volumes, [Volume { name: "d".into(), source: expected }]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let cases = [
            (
                json!({"persistentVolumeClaim": {"claimName": "pending"}}),
                "PVC pending is not bound to a volume yet",
            ),
            (json!({"persistentVolumeClaim": {"claimName": "x"}}), "persistentvolumeclaim \"x\" not found"),
            (json!({"configMap": {"name": "x"}}), "configmap \"x\" not found"),
            (
                json!({"secret": {"secretName": "s", "items": [{"key": "k", "path": "p"}]}}),
                "references non-existent secret key: k",
            ),
        ];
        for (source, message) in cases {
            let mut volume = source;
            volume["name"] = json!("v");
            let pod = pod(&json!([volume]));
            let result = volumes(&pod, &sources())
                .and_then(|_| files(&pod, &PodFacts::default(), &sources()).map(|_| ()));
            assert_eq!(result.unwrap_err(), format!("MountVolume.SetUp failed for volume \"v\" : {message}"));
        }
        let optional = pod(&json!([{"name": "v", "configMap": {"name": "x", "optional": true}}]));
        assert_eq!(files(&optional, &PodFacts::default(), &sources()).unwrap().len(), 1);
    }
}
