use std::fmt;

use http::{Method, Uri};
use setpoint::{Key, Verb};

/// A request to the API server in RBAC's words: a verb on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    /// What it does.
    pub verb: Verb,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name of the resource, with its sub-resource after a slash: `pods`, `websites/status`.
    pub resource: String,
    /// Namespace; none for cluster-scoped objects and reads over all namespaces.
    pub namespace: Option<String>,
    /// Name of the object; none for collections and creations.
    pub name: Option<String>,
}

impl ApiRequest {
    /// Reads method and URI. None for what is no resource, such as `/version` and discovery.
    pub(crate) fn read(method: &Method, uri: &Uri) -> Option<Self> {
        let mut path = uri.path().trim_matches('/').split('/');
        let group = match path.next()? {
            "api" => String::new(),
            "apis" => path.next()?.to_owned(),
            _ => return None,
        };
        path.next().filter(|version| !version.is_empty())?;
        let rest: Vec<&str> = path.collect();
        // `namespaces/NAME` alone is a Namespace, as are its sub-resources.
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, resource, ..] if !["status", "finalize"].contains(resource) => {
                (Some((*namespace).to_owned()), &rest[2..])
            }
            _ => (None, &rest[..]),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            // A proxied path goes on after its sub-resource.
            [plural, name, subresource, ..] => (*plural, Some(*name), Some(*subresource)),
            [] => return None,
        };
        let watch = uri.query().is_some_and(|query| {
            query.split('&').any(|pair| ["watch=1", "watch=true", "watch=t", "watch=T"].contains(&pair))
        });
        let verb = match (method.as_str(), name) {
            ("GET" | "HEAD", None) if watch => Verb::Watch,
            ("GET" | "HEAD", None) => Verb::List,
            ("GET" | "HEAD", Some(_)) => Verb::Get,
            ("POST", _) => Verb::Create,
            ("PUT", _) => Verb::Update,
            ("PATCH", _) => Verb::Patch,
            ("DELETE", None) => Verb::DeleteCollection,
            ("DELETE", Some(_)) => Verb::Delete,
            _ => return None,
        };
        let resource =
            subresource.map_or_else(|| plural.to_owned(), |subresource| format!("{plural}/{subresource}"));
        Some(Self { verb, group, resource, namespace, name: name.map(str::to_owned) })
    }

    /// Whether it may change something. Questions about rights and tokens are posted, but change nothing.
    pub fn is_write(&self) -> bool {
        let question = ["authorization.k8s.io", "authentication.k8s.io"].contains(&self.group.as_str());
        !question && !matches!(self.verb, Verb::Get | Verb::List | Verb::Watch)
    }

    /// The resource as people write it: `statefulsets.apps`, `websites.example.com/status`, `pods`.
    pub fn full_resource(&self) -> String {
        full_resource(&self.group, &self.resource)
    }

    /// The key of its object, if it names one.
    pub fn key(&self) -> Option<Key> {
        Some(Key { namespace: self.namespace.clone(), name: self.name.clone()? })
    }
}

/// `plural.group/subresource`.
pub(crate) fn full_resource(group: &str, resource: &str) -> String {
    if group.is_empty() {
        return resource.to_owned();
    }
    match resource.split_once('/') {
        Some((plural, subresource)) => format!("{plural}.{group}/{subresource}"),
        None => format!("{resource}.{group}"),
    }
}

impl fmt::Display for ApiRequest {
    /// `patch configmaps default/shop-page`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.full_resource())?;
        match (self.key(), &self.namespace) {
            (Some(key), _) => write!(f, " {key}"),
            (None, Some(namespace)) => write!(f, " in {namespace}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_rbac_reads_them() {
        for (line, expected) in [
            ("GET /api/v1/namespaces/a/pods", "list pods in a"),
            ("GET /api/v1/pods?limit=5&watch=true", "watch pods"),
            ("GET /api/v1/namespaces/a", "get namespaces a"),
            ("PUT /api/v1/namespaces/a/finalize", "update namespaces/finalize a"),
            ("POST /api/v1/namespaces/a/pods", "create pods in a"),
            ("POST /api/v1/namespaces/a/pods/x/eviction", "create pods/eviction a/x"),
            (
                "PATCH /apis/example.com/v1/namespaces/a/websites/w/status",
                "patch websites.example.com/status a/w",
            ),
            ("DELETE /apis/apps/v1/namespaces/a/statefulsets", "deletecollection statefulsets.apps in a"),
            ("DELETE /api/v1/nodes/n", "delete nodes n"),
        ] {
            let (method, uri) = line.split_once(' ').unwrap();
            let read = ApiRequest::read(&method.parse().unwrap(), &uri.parse().unwrap()).unwrap();
            assert_eq!(read.to_string(), expected, "{line}");
        }
        for uri in ["/version", "/api/v1", "/apis", "/apis/apps/v1", "/openapi/v3", "/healthz"] {
            assert_eq!(ApiRequest::read(&Method::GET, &uri.parse().unwrap()), None, "{uri}");
        }
    }
}
