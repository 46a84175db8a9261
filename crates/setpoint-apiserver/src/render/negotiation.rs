//! Which form an answer has: what `Accept` asks for, of what there is (`k8s.io/apiserver/pkg/endpoints/handlers/negotiation`).

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};

use super::{Encoding, Form, View};
use crate::catalog::Resource;
use crate::headers::text;
use crate::request::{Query, ResourceRequest};
use crate::status::{Result, Status};

/// What may be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    /// Documents and errors: no views.
    Document,
    /// The groups of discovery, also aggregated.
    Groups,
    /// Objects; whether they have a protobuf form of their own.
    Objects { protobuf: bool },
    /// Events of a watch.
    Events { protobuf: bool },
}

impl Form {
    /// The form of the answer to a request for a resource: the acceptable one that fits it.
    pub(crate) fn of(
        request: &ResourceRequest,
        resource: &Resource,
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Self> {
        let protobuf = resource.custom().is_none();
        let offer =
            if request.verb == "watch" { Offer::Events { protobuf } } else { Offer::Objects { protobuf } };
        let lists = matches!(request.verb, "list" | "watch");
        if resource.custom().is_none() && !has_representation(&text(headers, ACCEPT)) {
            return Err(Status::no_representation(lists));
        }
        let form =
            Self::choose(headers, query, offer).ok_or_else(|| Status::not_acceptable(refusal(offer)))?;
        match &form.view {
            View::Metadata { of_list: false } if request.verb == "list" => {
                let package =
                    resource.group.split('.').next().filter(|name| !name.is_empty()).unwrap_or("core");
                let what = match resource.custom() {
                    Some(_) => "*unstructured.UnstructuredList".to_owned(),
                    None => format!("*{package}.{}", resource.list_kind),
                };
                Err(Status::not_acceptable(format!(
                    "you requested PartialObjectMetadata, but the requested object is a list ({what})"
                )))
            }
            View::Table(include) if !matches!(include.as_str(), "None" | "Metadata" | "Object") => {
                Err(Status::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {include:?}: must be 'Metadata', 'Object', 'None', or empty"
                )))
            }
            _ => Ok(form),
        }
    }

    /// The form of a document, such as one of discovery.
    pub(crate) fn negotiate(headers: &HeaderMap, query: &Query) -> Result<Self> {
        if !has_representation(&text(headers, ACCEPT)) {
            return Err(Status::no_representation(false));
        }
        Self::choose(headers, query, Offer::Document)
            .ok_or_else(|| Status::not_acceptable(refusal(Offer::Document)))
    }

    /// The form of `/api` or `/apis`, for who takes all groups at once.
    pub(crate) fn negotiate_groups(headers: &HeaderMap, query: &Query) -> Option<Self> {
        Self::choose(headers, query, Offer::Groups)
    }

    /// The form of an error: JSON where nothing else is acceptable.
    pub(crate) fn of_errors(headers: &HeaderMap, query: Option<&str>) -> Self {
        Self::choose(headers, &Query::parse(query), Offer::Document).unwrap_or_else(Self::json)
    }

    /// The acceptable form that the `Accept` header prefers: by quality, then by order.
    fn choose(headers: &HeaderMap, query: &Query, offer: Offer) -> Option<Self> {
        let accept = text(headers, ACCEPT);
        let (pretty, gzip) = (is_pretty(headers, query), takes_gzip(headers));
        if accept.trim().is_empty() {
            return Some(Self { pretty, gzip, ..Self::json() });
        }
        let mut clauses: Vec<&str> = accept.split(',').collect();
        clauses.sort_by_key(|clause| std::cmp::Reverse(quality(clause)));
        clauses.into_iter().find_map(|clause| {
            let encoding = match media(clause) {
                "application/json" | "application/*" | "*/*" => Encoding::Json,
                "application/yaml" if !matches!(offer, Offer::Events { .. }) => Encoding::Yaml,
                "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
                _ => return None,
            };
            let parameter = |name: &str| {
                clause.split(';').skip(1).find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
            };
            let streams = parameter("stream").is_none_or(|stream| stream == "watch");
            let view = match (parameter("as"), parameter("g"), parameter("v")) {
                // Whoever takes all groups at once gets them, whatever stands before.
                (None, None, None) if offer == Offer::Groups => return None,
                (None, None, None) => View::Object,
                (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2"))
                    if offer == Offer::Groups =>
                {
                    View::Groups
                }
                _ if matches!(offer, Offer::Document | Offer::Groups) => return None,
                (Some("Table"), Some("meta.k8s.io"), Some("v1")) => {
                    View::Table(query.get("includeObject").unwrap_or("Metadata").to_owned())
                }
                (
                    Some(kind @ ("PartialObjectMetadata" | "PartialObjectMetadataList")),
                    Some("meta.k8s.io"),
                    Some("v1"),
                ) => View::Metadata { of_list: kind == "PartialObjectMetadataList" },
                _ => return None,
            };
            let protobuf =
                !matches!(offer, Offer::Objects { protobuf: false } | Offer::Events { protobuf: false });
            // Tables have no protobuf form, objects of custom resources neither; their metadata does.
            let fits = encoding != Encoding::Protobuf
                || match view {
                    View::Object => protobuf,
                    View::Table(_) => false,
                    View::Metadata { .. } | View::Groups => true,
                };
            let pretty = pretty || parameter("pretty") == Some("1");
            (streams && fits).then_some(Self { encoding, view, pretty, gzip })
        })
    }
}

fn media(clause: &str) -> &str {
    clause.split(';').next().unwrap_or_default().trim()
}

/// Whether a route of a built-in kind has anything for the `Accept` header, views and streams aside.
fn has_representation(accept: &str) -> bool {
    let known = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "*/*"];
    accept.trim().is_empty() || accept.split(',').any(|clause| known.contains(&media(clause)))
}

fn refusal(offer: Offer) -> String {
    let known = match offer {
        Offer::Events { protobuf: true } => {
            "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        }
        _ => "application/json, application/yaml, application/vnd.kubernetes.protobuf",
    };
    format!("only the following media types are accepted: {known}")
}

/// People get lines, as far as they can be told from programs.
fn is_pretty(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(given) = query.get("pretty") {
        return matches!(given, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    let agent = text(headers, USER_AGENT);
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|person| agent.starts_with(person))
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let given = text(headers, ACCEPT_ENCODING);
    given.split(',').any(|token| media(token) == "gzip")
}

/// The quality of a clause of an `Accept` header, in thousandths.
fn quality(clause: &str) -> u32 {
    let given = clause.split(';').skip(1).find_map(|part| part.trim().strip_prefix("q="));
    given.and_then(|text| text.trim().parse::<f32>().ok()).map_or(1000, |quality| (quality * 1000.0) as u32)
}
