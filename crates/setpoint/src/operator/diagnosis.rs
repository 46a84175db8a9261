//! What keeps an operator from working, said in one line with what to do about it.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use http::Request;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::config::KubeconfigError;
use serde_json::Value;

use super::OperatorError;
use crate::{Kind, Rights, Rule, Scope};

/// How often a missing kind is looked for again.
const KIND_POLL: Duration = Duration::from_secs(5);

/// An error with its causes, each said once, without the layers that only say that a request failed.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<kube::Error>() {
        // kube's own text repeats the whole status in debug form.
        Some(kube::Error::Api(status)) => return status.message.clone(),
        // Whether a pod's files are there tells nothing outside one.
        Some(kube::Error::InferConfig(both)) => {
            return format!("not inside a pod, and {}", both.source().map_or_else(String::new, chain));
        }
        _ => {}
    }
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = match error.downcast_ref::<KubeconfigError>() {
            // kube's own text has the path in two kinds of quotes.
            Some(KubeconfigError::ReadConfig(cause, path)) => {
                format!("cannot read the kubeconfig {}: {cause}", path.display())
            }
            _ => error.to_string(),
        };
        next = error.source();
        let layer = words.starts_with("ServiceError") || words.starts_with("client error");
        if (layer && next.is_some()) || text.ends_with(&words) {
            continue;
        }
        // Many errors end with their cause's words; the cause then comes by itself.
        let cause = next.map(ToString::to_string).unwrap_or_default();
        let words = words
            .strip_suffix(&cause)
            .filter(|own| !cause.is_empty() && own.ends_with(": "))
            .map_or(words.as_str(), |own| own.trim_end_matches(": "));
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(words);
    }
    text
}

/// Asks for the server's version, which every authenticated user may.
pub(super) async fn reach(client: &Client, url: &str) -> Result<(), OperatorError> {
    let url = url.trim_end_matches('/').to_owned();
    match client.apiserver_version().await {
        Ok(version) => {
            tracing::info!(url, version = version.git_version, "connected");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 401 => {
            Err(OperatorError::Unauthorized { url, reason: status.message })
        }
        // Whoever forbids this still answers.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => Err(OperatorError::Unreachable { url, reason: chain(&error) }),
    }
}

/// Says which of `kinds` the cluster does not serve, and says so again when they appear. The caches wait for
/// them by themselves; ends when all are there.
pub(super) async fn await_kinds(client: Client, operator: String, mut kinds: Vec<Kind>) {
    let mut said = false;
    loop {
        let mut missing = Vec::new();
        for kind in kinds {
            match serves(&client, &kind).await {
                Ok(true) if said => tracing::info!("{kind} is served now"),
                Ok(true) => {}
                Ok(false) => missing.push(kind),
                // The caches report a server that does not answer.
                Err(error) => tracing::debug!(%kind, reason = chain(&error), "discovery failed"),
            }
        }
        if missing.is_empty() {
            return;
        }
        if !said {
            for Kind { plural, group, version, .. } in &missing {
                tracing::warn!(
                    "the cluster does not serve {plural}.{group} in version {version}: install the CRD with `{operator} install --crds`; waiting for it"
                );
            }
            said = true;
        }
        kinds = missing;
        tokio::time::sleep(KIND_POLL).await;
    }
}

async fn serves(client: &Client, kind: &Kind) -> Result<bool, kube::Error> {
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let request = Request::get(format!("{root}/{}", kind.api_version())).body(Vec::new());
    match client.request::<Value>(request.map_err(kube::Error::HttpError)?).await {
        Ok(list) => {
            let resources = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
            Ok(resources.iter().any(|resource| resource["name"] == kind.plural.as_str()))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// A namespace of `scope` that does not exist. Whoever may not read namespaces is not told.
pub(super) async fn missing_namespace(client: &Client, scope: &Scope) -> Option<String> {
    let Scope::Namespaces(names) = scope else { return None };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in names {
        if let Ok(None) = namespaces.get_metadata_opt(name).await {
            return Some(name.clone());
        }
    }
    None
}

/// Says which namespace is missing: what a cache of it waits for is nothing.
pub(super) async fn report_missing_namespace(client: Client, scope: Scope) {
    if let Some(name) = missing_namespace(&client, &scope).await {
        tracing::warn!("there is no namespace {name}, which --watch-namespaces names: waiting for it");
    }
}

/// Says which of the operator's rights the cluster does not grant it, by asking for each
/// (SelfSubjectAccessReview, open to every authenticated user).
pub(super) async fn report_missing_rights(client: Client, operator: String, rights: Rights, scope: Scope) {
    let missing = missing_rights(&client, &rights, &scope).await;
    if !missing.is_empty() {
        tracing::warn!(
            "the cluster does not allow this account to {}: grant it with `{operator} manifests | kubectl apply --server-side -f -`",
            missing.join("; ")
        );
    }
}

/// The missing rights in words, such as `list, watch configmaps (in team-a)`.
async fn missing_rights(client: &Client, rights: &Rights, scope: &Scope) -> Vec<String> {
    let everywhere = vec![None];
    let listed: Vec<Option<String>> = match scope {
        Scope::All => everywhere.clone(),
        Scope::Namespaces(names) => names.iter().cloned().map(Some).collect(),
    };
    let questions: Vec<(&Rule, Option<String>)> = rights
        .rules()
        .flat_map(|rule| {
            let places = if rule.namespaced { &listed } else { &everywhere };
            places.iter().map(move |place| (rule, place.clone()))
        })
        .collect();
    let mut missing: BTreeMap<(&Option<String>, String), Vec<&str>> = BTreeMap::new();
    // One after the other: a burst would leave as many idle connections behind.
    for (rule, place) in &questions {
        if denied(client, rule, place.as_deref()).await {
            missing.entry((place, resource(rule))).or_default().push(&rule.verb);
        }
    }
    missing
        .into_iter()
        .map(|((place, resource), verbs)| {
            let place = place.as_ref().map_or_else(String::new, |place| format!(" (in {place})"));
            format!("{} {resource}{place}", verbs.join(", "))
        })
        .collect()
}

/// `configmaps`, `websites.example.com`, `websites.example.com/status`.
fn resource(rule: &Rule) -> String {
    let (plural, sub) =
        rule.resource.split_once('/').map_or((rule.resource.as_str(), None), |(a, b)| (a, Some(b)));
    let dot = if rule.group.is_empty() { "" } else { "." };
    let slash = sub.map_or_else(String::new, |sub| format!("/{sub}"));
    format!("{plural}{dot}{}{slash}", rule.group)
}

/// Whether the server denies `rule`. A question that it cannot answer counts as no denial.
async fn denied(client: &Client, rule: &Rule, namespace: Option<&str>) -> bool {
    let (resource, subresource) = match rule.resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (rule.resource.as_str(), None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(rule.group.clone()),
                resource: Some(resource.to_owned()),
                subresource,
                name: rule.name.clone(),
                namespace: namespace.map(str::to_owned),
                verb: Some(rule.verb.clone()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    match Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await {
        Ok(answer) => !answer.status.is_none_or(|status| status.allowed),
        Err(error) => {
            tracing::debug!(reason = chain(&error), "an access review failed");
            false
        }
    }
}

#[cfg(test)]
mod tests;
