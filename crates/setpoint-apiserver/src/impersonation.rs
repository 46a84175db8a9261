//! Users who act as others: the `Impersonate-…` headers
//! (`k8s.io/apiserver/pkg/endpoints/filters/impersonation`).
//!
//! There are several ways to be allowed. The old one is the verb `impersonate` on users, groups and so on. The newer ones each
//! have a kind of users and ask twice: for `impersonate-on:MODE:VERB` on what is requested, and for `impersonate:MODE` on who is
//! impersonated. The first that allows it decides; otherwise the first refusal is answered.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::HeaderMap;
use parking_lot::RwLock;

use crate::authz::{Attributes, authorize, denial, denial_of};
use crate::headers::{text, texts};
use crate::identity::Identity;
use crate::object_meta::{is_label, is_subdomain};
use crate::policies::StoredPolicies;
use crate::registry::Registry;
use crate::status::{Result, Status, Subject};

const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// From this number on, one wildcard is tried before each thing by itself.
const MANY: usize = 4;
/// Of so many users it is remembered which mode worked.
const REMEMBERED: usize = 10_000;

/// A way to be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A service account's token says on which node it is: it may act as that node.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Everybody who is neither a node nor a service account.
    UserInfo,
    Legacy,
}

const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "",
        }
    }

    fn verb(self) -> String {
        if self == Self::Legacy { "impersonate".to_owned() } else { format!("impersonate:{}", self.name()) }
    }

    /// Whether this way is for the wanted user at all.
    fn applies(self, wanted: &Wanted, requestor: &Identity) -> bool {
        let only_name = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let (node, account) = (node(&wanted.name), account(&wanted.name));
        match self {
            Self::AssociatedNode => {
                let at = requestor.extra.get(NODE_NAME).map_or(&[][..], Vec::as_slice);
                only_name
                    && self::account(&requestor.user).is_some()
                    && matches!((node, at), (Some(node), [only]) if only == node)
            }
            Self::ArbitraryNode => only_name && node.is_some(),
            Self::ServiceAccount => only_name && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }
}

/// Who the headers ask for, as they say it.
#[derive(Debug, Default)]
struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Which mode last worked for a user: it is tried first, and its refusal is the one that is answered.
#[derive(Debug, Default)]
pub(crate) struct LastModes(RwLock<BTreeMap<String, Mode>>);

impl LastModes {
    fn get(&self, user: &str) -> Option<Mode> {
        self.0.read().get(user).copied()
    }

    fn set(&self, user: &str, mode: Mode) {
        if self.get(user) == Some(mode) {
            return;
        }
        let mut modes = self.0.write();
        if modes.len() >= REMEMBERED {
            modes.clear();
        }
        modes.insert(user.to_owned(), mode);
    }
}

/// Whom the headers name; `None` without such headers. `request` is what the user asks for, whose name is the caller's.
pub(crate) fn impersonate(
    request: &Attributes<'_>,
    headers: &HeaderMap,
    last: &LastModes,
    registry: &Registry,
) -> Result<Option<Identity>> {
    let Some(wanted) = wanted(headers)? else { return Ok(None) };
    let remembered = last.get(&request.user.user);
    let others = MODES.into_iter().filter(|mode| Some(*mode) != remembered);
    let mut first = None;
    for mode in remembered.into_iter().chain(others) {
        if !mode.applies(&wanted, request.user) {
            continue;
        }
        let check = Check { mode, request, registry };
        match check.user(&wanted) {
            Ok(user) => {
                last.set(&request.user.user, mode);
                return Ok(Some(user));
            }
            Err(status) => first = first.or(Some(status)),
        }
    }
    Err(first.unwrap_or_else(|| Status::internal("all impersonation modes failed")))
}

fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>> {
    let mut wanted = Wanted {
        name: text(headers, "impersonate-user").into_owned(),
        uid: text(headers, "impersonate-uid").into_owned(),
        groups: texts(headers, "impersonate-group").map(Cow::into_owned).collect(),
        ..Wanted::default()
    };
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix("impersonate-extra-") {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            wanted.extra.entry(key).or_default().extend(texts(headers, name).map(Cow::into_owned));
        }
    }
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty() {
        return Ok(None);
    }
    Err(Status::bad_request(format!("requested {} without impersonating a user name", wanted.as_go())))
}

impl Wanted {
    /// As Go prints the struct (`%#v`).
    fn as_go(&self) -> String {
        let list = |values: &[String]| {
            let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
            format!("[]string{{{}}}", quoted.join(", "))
        };
        let groups = if self.groups.is_empty() { "[]string(nil)".to_owned() } else { list(&self.groups) };
        let extra = if self.extra.is_empty() {
            "map[string][]string(nil)".to_owned()
        } else {
            let pairs: Vec<String> =
                self.extra.iter().map(|(key, values)| format!("{key:?}:{}", list(values))).collect();
            format!("map[string][]string{{{}}}", pairs.join(", "))
        };
        format!(
            "&user.DefaultInfo{{Name:{:?}, UID:{:?}, Groups:{groups}, Extra:{extra}}}",
            self.name, self.uid
        )
    }
}

/// The questions of one mode.
struct Check<'a> {
    mode: Mode,
    request: &'a Attributes<'a>,
    registry: &'a Registry,
}

impl Check<'_> {
    fn user(&self, wanted: &Wanted) -> Result<Identity> {
        if self.mode != Mode::Legacy {
            let verb = format!("impersonate-on:{}:{}", self.mode.name(), self.request.verb);
            self.ask(&Attributes { verb: &verb, ..*self.request })?;
        }
        let mut user = Identity {
            user: wanted.name.clone(),
            uid: wanted.uid.clone(),
            groups: wanted.groups.clone(),
            extra: wanted.extra.clone(),
        };
        let core = if self.mode == Mode::Legacy { "" } else { AUTHENTICATION };
        match (account(&wanted.name), node(&wanted.name)) {
            (Some((namespace, name)), _) => {
                if wanted.groups.is_empty() {
                    let all = "system:serviceaccounts";
                    user.groups = vec![all.to_owned(), format!("{all}:{namespace}")];
                }
                self.may(core, "serviceaccounts", "", Some(namespace), name)?;
            }
            (None, Some(name)) if self.mode != Mode::Legacy => {
                user.groups = vec!["system:nodes".to_owned()];
                let name = if self.mode == Mode::AssociatedNode { "*" } else { name };
                self.may(core, "nodes", "", None, name)?;
            }
            _ => self.may(core, "users", "", None, &wanted.name)?,
        }
        if !wanted.uid.is_empty() {
            self.may(AUTHENTICATION, "uids", "", None, &wanted.uid)?;
        }
        self.groups(core, &wanted.groups)?;
        self.extra(&wanted.extra)?;
        let more = if wanted.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
        let settled = |group: &String| *group == more || *group == UNAUTHENTICATED;
        if !user.groups.iter().any(settled) {
            user.groups.push(more.to_owned());
        }
        Ok(user)
    }

    fn groups(&self, core: &str, groups: &[String]) -> Result<()> {
        if self.mode != Mode::Legacy {
            if groups.iter().any(String::is_empty) {
                return Err(self.refusal(
                    core,
                    "groups",
                    "",
                    "impersonating the empty string group is not allowed",
                ));
            }
            if let Some(masters) = groups.iter().find(|group| *group == crate::authz::MASTERS) {
                let why = "impersonating the system:masters group is not allowed";
                return Err(self.refusal(core, "groups", masters, why));
            }
            if groups.len() >= MANY && self.may(core, "groups", "", None, "*").is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.may(core, "groups", "", None, group))
    }

    fn extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<()> {
        let resource = "userextras";
        if self.mode != Mode::Legacy {
            let empty = extra.values().flatten().any(String::is_empty);
            let why = if extra.contains_key("") {
                "impersonating the empty string key in extra is not allowed"
            } else if empty {
                "impersonating the empty string value in extra is not allowed"
            } else {
                ""
            };
            if !why.is_empty() {
                return Err(self.refusal(AUTHENTICATION, resource, "", why));
            }
            let count: usize = extra.values().map(Vec::len).sum();
            if count >= MANY && self.may(AUTHENTICATION, resource, "*", None, "*").is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.may(AUTHENTICATION, resource, key, None, value)?;
            }
        }
        Ok(())
    }

    fn may(
        &self,
        group: &str,
        resource: &str,
        subresource: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<()> {
        let (verb, user) = (self.mode.verb(), self.request.user);
        self.ask(&Attributes { user, verb: &verb, group, resource, subresource, namespace, name, path: None })
    }

    fn ask(&self, attributes: &Attributes<'_>) -> Result<()> {
        let decision = authorize(attributes, &StoredPolicies(&self.registry.store));
        if decision.allowed {
            return Ok(());
        }
        Err(forbidden(attributes, &denial_of(attributes, &decision)))
    }

    fn refusal(&self, group: &str, resource: &str, name: &str, why: &str) -> Status {
        let (verb, user) = (self.mode.verb(), self.request.user);
        let attributes = Attributes {
            user,
            verb: &verb,
            group,
            resource,
            subresource: "",
            namespace: None,
            name,
            path: None,
        };
        forbidden(&attributes, &denial(&attributes, why))
    }
}

fn forbidden(attributes: &Attributes<'_>, text: &str) -> Status {
    let subject = Subject { group: attributes.group, kind: attributes.resource, name: attributes.name };
    Status::forbidden(subject, text)
}

/// Namespace and name of a service account's user name.
fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (is_label(namespace) && is_subdomain(name)).then_some((namespace, name))
}

/// The name of a node's user name.
fn node(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| is_subdomain(name))
}
