//! Lists: selectors, versions, pages.

use std::sync::Arc;

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::Registry;
use super::conversion::{Unreadable, by_webhook};
use super::fields::{check_fields, field_of};
use crate::catalog::Resource;
use crate::request::Query;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::{Cause, Result, Status};
use crate::store::{Key, Snapshot, Stored};

#[derive(Clone, Debug, Default)]
pub(crate) struct ListOptions {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
    pub(crate) version: Option<String>,
    pub(crate) version_match: Option<String>,
    pub(crate) limit: usize,
    pub(crate) token: Option<String>,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) timeout: Option<i64>,
}

impl ListOptions {
    pub(crate) fn parse(query: &Query) -> Result<Self> {
        let text = |key: &str| query.get(key).map(str::to_owned);
        Ok(Self {
            labels: LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?,
            fields: FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())?,
            version: text("resourceVersion"),
            version_match: text("resourceVersionMatch"),
            limit: match query.number("limit")? {
                // What may be as old as the server has it is answered whole, from upstream's cache.
                _ if query.get("resourceVersion") == Some("0") => 0,
                limit => limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or_default(),
            },
            token: text("continue"),
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial_events: query.get("sendInitialEvents").map(|text| text == "true"),
            timeout: query.number("timeoutSeconds")?,
        })
    }

    /// The asked version as a number; 0 for "any" and for none.
    pub(super) fn revision(&self) -> Result<u64> {
        let Some(text) = &self.version else { return Ok(0) };
        parse_version(text).map_err(|why| {
            Status::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {why}"
            ))
        })
    }

    /// Refuses combinations that make no sense (upstream: `ValidateListOptions`).
    pub(super) fn check(&self, watch: bool) -> Result<()> {
        let mut causes = Vec::new();
        let version = self.version.as_deref();
        if let Some(given) = self.version_match.as_deref() {
            if watch && self.send_initial_events.is_none() {
                causes.push(Cause::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            if !watch && version.is_none() {
                causes.push(Cause::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if watch && self.send_initial_events.is_some() && given != "NotOlderThan" {
                causes.push(Cause::forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            if self.token.is_some() && !watch {
                causes.push(Cause::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            match given {
                "NotOlderThan" => {}
                "Exact" if !watch => {
                    if version == Some("0") {
                        causes.push(Cause::forbidden(
                            "resourceVersionMatch",
                            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                        ));
                    }
                }
                other => {
                    let supported: &[&str] =
                        if watch { &["NotOlderThan"] } else { &["Exact", "NotOlderThan", ""] };
                    causes.push(Cause::unsupported("resourceVersionMatch", &json!(other), supported));
                }
            }
        } else if watch && self.send_initial_events.is_some() {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if watch && self.token.as_deref().is_some_and(|token| !token.is_empty()) {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if !watch && self.send_initial_events.is_some() {
            causes.push(Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
        }
        super::options::refuse("ListOptions", causes)
    }

    /// Whether the object is selected.
    pub(super) fn selects(&self, resource: &Resource, object: &Value) -> bool {
        self.labels.matches(object)
            && (self.fields.is_empty() || self.fields.matches(|field| field_of(resource, object, field)))
    }

    /// Whether a stored object is selected. Reads no more of it than it must: all objects of a kind come by here.
    pub(super) fn selects_stored(&self, resource: &Resource, stored: &Stored) -> bool {
        if self.selects_all() {
            return true;
        }
        let in_head = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
        let object = if self.fields.fields().all(in_head) { stored.head() } else { stored.decode() };
        self.selects(resource, &object)
    }

    pub(super) fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

/// A version as Go reads it: digits and nothing else.
pub(super) fn parse_version(text: &str) -> Result<u64, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("invalid syntax");
    }
    text.parse().map_err(|_| "value out of range")
}

/// Part of a list.
#[derive(Debug)]
pub(crate) struct ListPage {
    pub(crate) items: Vec<Arc<Stored>>,
    pub(crate) revision: u64,
    /// The token for the next page.
    pub(crate) token: Option<String>,
    /// How many more objects there are, when that is known (it isn't with selectors).
    pub(crate) remaining: Option<usize>,
}

/// How many objects of a list are taken before others have a turn on this thread.
const SEEN_AT_ONCE: usize = 8192;
/// The same where a selector has to look into each: about a millisecond.
pub(super) const READ_AT_ONCE: usize = 256;

impl Registry {
    /// Lists the objects of a namespace, or of all when it is empty.
    pub(crate) async fn list(
        &self,
        resource: &Arc<Resource>,
        namespace: &str,
        options: &ListOptions,
    ) -> Result<ListPage> {
        options.check(false)?;
        check_fields(resource, &options.fields)?;
        let (snapshot, start) = self.snapshot_for(resource, options)?;
        // A selector sees what a reader sees, so conversion comes before; without one, a page needs no more than its own objects.
        let needed = if options.limit > 0 && options.selects_all() { options.limit } else { usize::MAX };
        let mut converted = match by_webhook(resource) {
            Some(_) => {
                let stored = snapshot.range(namespace, start.as_ref()).take(needed);
                let stored = stored.map(|(_, stored)| Arc::clone(stored)).collect();
                let converted = self.all_in_version(resource, stored).await;
                Some(converted.map_err(|all| Unreadable::on_list(&all, resource))?.into_iter())
            }
            None => None,
        };
        let mut items = Vec::new();
        let mut next = None;
        // A list of one name is a look-up.
        let single = options.fields.name().is_some() && (!namespace.is_empty() || !resource.namespaced);
        let all = options.selects_all();
        for (seen, (key, stored)) in snapshot.range(namespace, start.as_ref()).enumerate() {
            if seen % if all { SEEN_AT_ONCE } else { READ_AT_ONCE } == 0 && seen > 0 {
                tokio::task::yield_now().await;
            }
            // Whether what follows is selected is not looked at: the next page may turn out empty.
            if options.limit > 0 && items.len() == options.limit && !single {
                next = Some(key.clone());
                break;
            }
            let stored = converted.as_mut().and_then(Iterator::next).unwrap_or_else(|| Arc::clone(stored));
            if options.selects_stored(resource, &stored) {
                items.push(stored);
            }
        }
        let remaining = next.as_ref().filter(|_| all);
        let remaining = remaining.map(|next| snapshot.count(namespace, next));
        if next.is_some() {
            self.store.pin(&resource.storage, &snapshot);
        }
        let mut token = next.map(|key| token(snapshot.revision, &key));
        if by_webhook(resource).is_some() {
            // A list that went through a conversion writes an empty token, too.
            token.get_or_insert_default();
        }
        Ok(ListPage { items, revision: snapshot.revision, token, remaining })
    }

    fn snapshot_for(&self, resource: &Resource, options: &ListOptions) -> Result<(Snapshot, Option<Key>)> {
        if let Some(text) = &options.token {
            let (revision, start) = parse_token(text)?;
            if options.version.as_deref().is_some_and(|version| version != "0") {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let now = self.store.revision();
            if revision > now {
                return Err(Status::too_large_version(revision, now));
            }
            let snapshot = if revision == 0 {
                self.store.snapshot(&resource.storage)
            } else {
                self.store.snapshot_at(&resource.storage, revision).map_err(|_| expired_token(&start))?
            };
            return Ok((snapshot, Some(start)));
        }
        let wanted = options.revision()?;
        let now = self.store.snapshot(&resource.storage);
        if wanted > now.revision {
            return Err(Status::too_large_version(wanted, now.revision));
        }
        // A version with a limit means exactly that one, unless told otherwise.
        let exact = options.version_match.as_deref() == Some("Exact")
            || (options.version_match.is_none() && options.limit > 0);
        if exact && wanted > 0 {
            let expired = |_| Status::expired("The resourceVersion for the provided list is too old.");
            return Ok((self.store.snapshot_at(&resource.storage, wanted).map_err(expired)?, None));
        }
        Ok((now, None))
    }
}

/// Go's decoder does not look at the bits that are left over at the end.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&base64::alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

fn token(revision: u64, next: &Key) -> String {
    let start = if next.namespace.is_empty() {
        next.name.clone()
    } else {
        format!("{}/{}", next.namespace, next.name)
    };
    let token = json!({"v": TOKEN_VERSION, "rv": revision, "start": start});
    URL_SAFE_NO_PAD.encode(token.to_string())
}

/// Reads a token as upstream does (`k8s.io/apiserver/pkg/storage/continue.go`).
fn parse_token(text: &str) -> Result<(u64, Key)> {
    let invalid = |why: &str| Status::bad_request(format!("invalid continue token: {why}"));
    let unread = |why: &str| invalid(&format!("continue key is not valid: {why}"));
    let bytes = LENIENT.decode(text).map_err(|error| match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => {
            unread(&format!("illegal base64 data at input byte {at}"))
        }
        _ => unread(&format!("illegal base64 data at input byte {}", text.len() / 4 * 4)),
    })?;
    // Bytes that are no JSON from the first one on: Go's decoder shows it.
    if let Some(first) = bytes.first().filter(|first| !b"{[\"-0123456789tfn \t\r\n".contains(first)) {
        let first = char::from(*first);
        return Err(unread(&format!("invalid character '{first}' looking for beginning of value")));
    }
    let token: Value = serde_json::from_slice(&bytes).map_err(|error| {
        if error.is_eof() { unread("unexpected end of JSON input") } else { unread(&error.to_string()) }
    })?;
    let version = token["v"].as_str().unwrap_or_default();
    if version != TOKEN_VERSION {
        return Err(unread(&format!("server does not recognize this encoded version {version}")));
    }
    let revision = token["rv"].as_i64().unwrap_or_default();
    if revision == 0 {
        return Err(unread(&format!("incorrect encoded start resourceVersion (version {version})")));
    }
    let start = token["start"].as_str().unwrap_or_default();
    if start.is_empty() {
        return Err(unread(&format!("encoded start key empty (version {version})")));
    }
    if start.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(unread(start));
    }
    let (namespace, name) = start.split_once('/').unwrap_or(("", start));
    // A negative version asks for whatever is there now.
    Ok((revision.try_into().unwrap_or(0), Key::new(namespace, name)))
}

/// Says that the pages' snapshot is gone, with a token that goes on in the present.
fn expired_token(start: &Key) -> Status {
    let start = if start.namespace.is_empty() {
        start.name.clone()
    } else {
        format!("{}/{}", start.namespace, start.name)
    };
    let token = URL_SAFE_NO_PAD.encode(json!({"v": TOKEN_VERSION, "rv": -1, "start": start}).to_string());
    Status::expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
        .with_continue(token)
}
