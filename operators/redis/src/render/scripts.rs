use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::ConfigMap;
use sha2::{Digest, Sha256};

use super::Identity;

/// The immutable ConfigMap with the pods' scripts. Its name carries their hash and is part of the pod
/// template, so that a new operator cannot change scripts under running pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Scripts {
    /// Name of the ConfigMap.
    pub name: String,
    /// The ConfigMap.
    pub config_map: ConfigMap,
}

/// The scripts of `identity`'s pods.
pub fn scripts(identity: &Identity) -> Scripts {
    let data: BTreeMap<String, String> = [
        ("start.sh", include_str!("scripts/start.sh")),
        ("probe.sh", include_str!("scripts/probe.sh")),
        ("prestop.sh", include_str!("scripts/prestop.sh")),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .into();
    let name = identity.child(&format!(
        "scripts-{}",
        hash8(data.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]))
    ));
    let config_map = ConfigMap {
        metadata: identity.metadata(name.clone()),
        data: Some(data),
        immutable: Some(true),
        ..ConfigMap::default()
    };
    Scripts { name, config_map }
}

/// The first eight hexadecimal digits of the SHA-256 over `parts`, each preceded by its length.
pub(super) fn hash8<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(4).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
