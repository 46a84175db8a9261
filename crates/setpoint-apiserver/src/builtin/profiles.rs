//! Annotations that once chose the profiles of containers (`applyAppArmorVersionSkew`, `ValidateSeccompPodAnnotations`).

use serde_json::{Value, json};

use super::edit::{child, items, text};

/// The prefix of the annotation for a container's `AppArmor` profile.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// What is said about such an annotation.
pub(crate) const OLD_APP_ARMOR: &str = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
pub(crate) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(crate) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub(crate) const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Gives the containers of a new pod the `AppArmor` profiles that annotations choose, and answers with warnings about these.
pub(crate) fn take_annotated(pod: &mut Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if pod["spec"]["os"]["name"] == "windows" || !pod["metadata"]["annotations"].is_object() {
        return warnings;
    }
    let annotations = pod["metadata"]["annotations"].clone();
    let whole = pod["spec"]["securityContext"]["appArmorProfile"].clone();
    for kind in CONTAINERS {
        for container in items(&mut pod["spec"], kind) {
            let key = format!("{APP_ARMOR}{}", text(container, "name"));
            let Some(chosen) = annotations[&key].as_str() else { continue };
            if !container["securityContext"]["appArmorProfile"].is_null() {
                continue;
            }
            let profile = app_armor(chosen);
            if profile.as_ref() == Some(&whole) {
                continue;
            }
            if let Some(profile) = profile {
                child(container, "securityContext")["appArmorProfile"] = profile;
            }
            warnings.push(format!("metadata.annotations[{key}]: {OLD_APP_ARMOR}"));
        }
    }
    warnings
}

/// The annotation of a template that chooses the `AppArmor` profile of a container, where no field does.
pub(crate) fn annotated(template: &Value, container: &Value) -> Option<String> {
    let key = format!("{APP_ARMOR}{}", text(container, "name"));
    let chosen = template["metadata"]["annotations"][&key].as_str()?;
    let whole = &template["spec"]["securityContext"]["appArmorProfile"];
    let own = &container["securityContext"]["appArmorProfile"];
    let odd = own.is_null() && (whole.is_null() || app_armor(chosen).as_ref() != Some(whole));
    odd.then_some(key)
}

fn app_armor(chosen: &str) -> Option<Value> {
    match chosen {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let profile = chosen.strip_prefix("localhost/").filter(|profile| !profile.trim().is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": profile}))
        }
    }
}

/// Whether the value of an annotation for seccomp names a profile.
pub(crate) fn is_seccomp(chosen: &str) -> bool {
    match chosen.strip_prefix("localhost/") {
        Some(path) => !path.starts_with('/') && !path.split('/').any(|part| part == ".."),
        None => matches!(chosen, "runtime/default" | "docker/default" | "unconfined"),
    }
}
