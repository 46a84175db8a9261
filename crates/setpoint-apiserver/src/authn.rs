//! Who sends a request over the network: a bearer token's owner, or nobody in particular; and whom an administrator
//! poses as.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::authz::{Attributes, authorize, denial};
use crate::identity::Identity;
use crate::policies::StoredPolicies;
use crate::registry::Registry;
use crate::status::{Result, Status, Subject};
use crate::tokens::{ISSUER, Tokens};

const ANONYMOUS: &str = "system:anonymous";

/// The user of a request without credentials.
fn anonymous() -> Identity {
    Identity {
        user: ANONYMOUS.to_owned(),
        groups: vec!["system:unauthenticated".to_owned()],
        ..Identity::default()
    }
}

/// The owner of the request's bearer token. A wrong token is refused; none, or another scheme, makes the user anonymous.
pub(crate) fn authenticate(headers: &HeaderMap, tokens: &Tokens, registry: &Registry) -> Result<Identity> {
    let given = headers.get(AUTHORIZATION).and_then(|given| given.to_str().ok()).unwrap_or_default();
    let token = given
        .trim()
        .split_once(' ')
        .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()));
    match token {
        None | Some("") => Ok(anonymous()),
        Some(token) => tokens.authenticate(token, &[ISSUER], registry).ok_or_else(Status::unauthorized),
    }
}

/// Whom the request's `Impersonate-…` headers name, if the user may pose as all of it
/// (`k8s.io/apiserver/pkg/endpoints/filters/impersonation`).
pub(crate) fn impersonate(user: Identity, headers: &HeaderMap, registry: &Registry) -> Result<Identity> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .collect();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix("impersonate-extra-"), value.to_str()) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            extra.entry(key).or_default().push(value.to_owned());
        }
    }
    let Some(name) = text("impersonate-user") else {
        if groups.is_empty() && extra.is_empty() && !headers.contains_key("impersonate-uid") {
            return Ok(user);
        }
        // Upstream prints its own struct.
        let listed: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
        return Err(Status::bad_request(format!(
            "requested &user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:[]string{{{}}}, Extra:map[string][]string(nil)}} without impersonating a user name",
            text("impersonate-uid").unwrap_or_default(),
            listed.join(", "),
        )));
    };
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, account)) => may(&user, "", "serviceaccounts", Some(namespace), account, registry)?,
        None => may(&user, "", "users", None, &name, registry)?,
    }
    for group in &groups {
        may(&user, "", "groups", None, group, registry)?;
    }
    for (key, values) in &extra {
        for value in values {
            let resource = format!("userextras/{key}");
            may(&user, "authentication.k8s.io", &resource, None, value, registry)?;
        }
    }
    let mut posed = match account {
        Some((namespace, account)) if groups.is_empty() => Identity::service_account(namespace, account, ""),
        _ if name == ANONYMOUS => {
            groups.push("system:unauthenticated".to_owned());
            Identity { user: name, groups, ..Identity::default() }
        }
        _ => Identity::new(name, groups),
    };
    if let Some(uid) = text("impersonate-uid") {
        may(&user, "authentication.k8s.io", "uids", None, &uid, registry)?;
        posed.uid = uid;
    }
    posed.extra = extra;
    Ok(posed)
}

fn may(
    user: &Identity,
    group: &str,
    resource: &str,
    namespace: Option<&str>,
    name: &str,
    registry: &Registry,
) -> Result<()> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes =
        Attributes { user, verb: "impersonate", group, resource, subresource, namespace, name, path: None };
    let decision = authorize(&attributes, &StoredPolicies(&registry.store));
    if decision.allowed {
        return Ok(());
    }
    let text = denial(&attributes, &decision.reason);
    Err(Status::forbidden(Subject { group, kind: resource, name }, &text))
}
