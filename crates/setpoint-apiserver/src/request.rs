//! What a request asks for, read from its method, path and query
//! (`k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`).

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;

use crate::status::{Result, Status};

/// The target of a request: a resource, or another path such as `/healthz` or a discovery document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Resource(ResourceRequest),
    Path(String),
}

/// A request for a resource, an object or a subresource. Absent parts are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResourceRequest {
    /// The verb of RBAC: get, list, watch, create, update, patch, delete, deletecollection.
    pub(crate) verb: &'static str,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Path segments after the subresource (of `proxy`), joined by `/`.
    pub(crate) rest: String,
}

impl ResourceRequest {
    /// Whether it is about a pod's or service's own streams, which last as long as they like.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy")
    }
}

impl Target {
    /// Reads method and path; the query decides between `list` and `watch`.
    pub(crate) fn of(method: &Method, path: &str, query: &Query) -> Result<Self> {
        let segments: Vec<Cow<'_, str>> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| percent_decode_str(segment).decode_utf8())
            .collect::<Result<_, _>>()
            .map_err(|_| Status::bad_request("the path is not valid UTF-8"))?;
        let texts: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
        let (group, version, rest) = match texts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return Ok(Self::Path(path.to_owned())),
        };
        // The older way to watch; clients still have it (upstream: `specialVerbs`).
        let (legacy_watch, rest) = match rest {
            ["watch", tail @ ..] if !tail.is_empty() && *method == Method::GET => (true, tail),
            _ => (false, rest),
        };
        let (namespace, rest) = match rest {
            // A namespace is an object itself, and /status and /finalize are its subresources.
            ["namespaces", namespace, tail @ ..] if !matches!(tail, [] | ["status" | "finalize"]) => {
                (*namespace, tail)
            }
            ["namespaces", namespace, ..] => (*namespace, rest),
            _ => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        let name = part(1);
        let subresource = part(2);
        let watch = query.flag("watch");
        let verb = match *method {
            Method::GET if legacy_watch || name.is_empty() && watch => "watch",
            Method::GET if name.is_empty() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ => return Err(Status::method_not_allowed()),
        };
        Ok(Self::Resource(ResourceRequest {
            verb,
            group: group.to_owned(),
            version: version.to_owned(),
            resource: rest[0].to_owned(),
            subresource,
            namespace: namespace.to_owned(),
            name,
            rest: rest.get(3..).unwrap_or_default().join("/"),
        }))
    }
}

/// The decoded query of a request, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        let decode =
            |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (decode(key), decode(value)))
            .collect();
        Self(pairs)
    }

    /// The query with one more pair.
    pub(crate) fn with(&self, key: &str, value: &str) -> Self {
        let mut pairs = self.0.clone();
        pairs.push((key.to_owned(), value.to_owned()));
        Self(pairs)
    }

    /// The first non-empty value of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, v)| k == key && !v.is_empty()).map(|(_, value)| value.as_str())
    }

    /// All values of `key`.
    pub(crate) fn all(&self, key: &str) -> Vec<&str> {
        self.0.iter().filter(|(k, _)| k == key).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether `key` is set to anything but "false" or "0".
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.0.iter().any(|(k, v)| k == key && !matches!(v.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    /// The value of `key` as a number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<i64>> {
        self.get(key).map(|text| integer("ParseInt", text)).transpose()
    }
}

/// Reads a number as Go's `strconv` does.
pub(crate) fn integer(function: &str, text: &str) -> Result<i64> {
    text.parse().map_err(|_| {
        Status::bad_request(format!("strconv.{function}: parsing {text:?}: {}", unread_number(text)))
    })
}

/// Why a text is no number of 64 bits, in Go's words.
pub(crate) fn unread_number(text: &str) -> &'static str {
    let digits = text.trim_start_matches(['+', '-']);
    let whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole && digits.len() + 1 >= text.len() { "value out of range" } else { "invalid syntax" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(method: &Method, path: &str) -> ResourceRequest {
        match Target::of(method, path, &Query::default()).unwrap() {
            Target::Resource(request) => request,
            Target::Path(path) => panic!("{path} is not a resource"),
        }
    }

    #[test]
    fn paths_are_read() {
        let pod = resource(&Method::GET, "/api/v1/namespaces/a/pods/b/log");
        assert_eq!((pod.verb, &*pod.namespace, &*pod.resource), ("get", "a", "pods"));
        assert_eq!((&*pod.name, &*pod.subresource), ("b", "log"));
        let namespace = resource(&Method::PUT, "/api/v1/namespaces/a/finalize");
        assert_eq!((namespace.verb, &*namespace.resource), ("update", "namespaces"));
        assert_eq!(
            (&*namespace.name, &*namespace.namespace, &*namespace.subresource),
            ("a", "a", "finalize")
        );
        let list = resource(&Method::GET, "/apis/apps/v1/deployments");
        assert_eq!((list.verb, &*list.group, &*list.namespace), ("list", "apps", ""));
        let watch = resource(&Method::GET, "/api/v1/watch/namespaces/a/pods/b");
        assert_eq!((watch.verb, &*watch.namespace, &*watch.name), ("watch", "a", "b"));
        Target::of(&Method::HEAD, "/api/v1/namespaces/a/pods/b", &Query::default()).unwrap_err();
        let all = resource(&Method::DELETE, "/apis/apps/v1/namespaces/x/deployments");
        assert_eq!((all.verb, &*all.namespace), ("deletecollection", "x"));
        assert_eq!(
            Target::of(&Method::GET, "/apis/apps/v1", &Query::default()).unwrap(),
            Target::Path("/apis/apps/v1".into())
        );
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse(Some("labelSelector=a%3Db&watch=true&watch=&limit=5&x=a+b"));
        assert_eq!(query.get("labelSelector"), Some("a=b"));
        assert!(query.flag("watch"));
        assert_eq!(query.number("limit").unwrap(), Some(5));
        assert_eq!(query.get("x"), Some("a b"));
    }
}
