//! Which resources are served: the built-in ones and those of custom resource definitions.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use setpoint_kinds::Kind;
use setpoint_schema::Schema;

use crate::custom::CustomShape;
use crate::object_meta::NameRule;
use crate::status::{Status, Subject};

/// One resource in one version, such as `apps/v1 deployments`.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
    pub(crate) shape: Shape,
    /// The store's name for the objects, shared by all versions: `pods`, `deployments.apps`.
    pub(crate) storage: Arc<str>,
}

/// Where the fields of a resource are described.
#[derive(Debug)]
pub(crate) enum Shape {
    BuiltIn { kind: &'static Kind, schema: OnceLock<Schema> },
    Custom(Arc<CustomShape>),
}

impl Resource {
    pub(crate) fn built_in(kind: &'static Kind) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Self {
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            kind: kind.kind.to_owned(),
            list_kind: kind.list_kind.to_owned(),
            plural: kind.plural.to_owned(),
            singular: kind.singular.to_owned(),
            short_names: owned(&kind.short_names),
            categories: owned(&kind.categories),
            namespaced: kind.namespaced,
            verbs: owned(&kind.verbs),
            storage: storage_name(kind.group, kind.plural),
            shape: Shape::BuiltIn { kind, schema: OnceLock::new() },
        }
    }

    /// `v1` or `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The name of a built-in kind's definition.
    pub(crate) fn definition(&self) -> Option<&'static str> {
        match &self.shape {
            Shape::BuiltIn { kind, .. } => Some(kind.definition),
            Shape::Custom(_) => None,
        }
    }

    pub(crate) fn schema(&self) -> Schema {
        match &self.shape {
            Shape::BuiltIn { kind, schema } => schema
                .get_or_init(|| Schema::builtin(kind.definition).unwrap_or_else(Schema::untyped))
                .clone(),
            Shape::Custom(custom) => custom.schema.clone(),
        }
    }

    pub(crate) fn custom(&self) -> Option<&Arc<CustomShape>> {
        match &self.shape {
            Shape::BuiltIn { .. } => None,
            Shape::Custom(custom) => Some(custom),
        }
    }

    /// Whether requests may come in by this version.
    pub(crate) fn is_served(&self) -> bool {
        self.custom().is_none_or(|custom| custom.served)
    }

    pub(crate) fn has_subresource(&self, name: &str) -> bool {
        match &self.shape {
            Shape::BuiltIn { kind, .. } => kind.subresource(name).is_some(),
            Shape::Custom(custom) => match name {
                "status" => custom.has_status,
                "scale" => custom.scale.is_some(),
                _ => false,
            },
        }
    }

    /// Names an object of this resource in an error.
    pub(crate) fn subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject { group: &self.group, kind: &self.plural, name }
    }

    /// Names an invalid object in an error: by kind, not by resource.
    pub(crate) fn invalid_subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        if self.group == crate::events::GROUP {
            // Events are checked in their old form, and named by it.
            return Subject { group: "", kind: &self.kind, name };
        }
        Subject { group: &self.group, kind: &self.kind, name }
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    pub(crate) fn name_rule(&self) -> NameRule {
        match (self.group.as_str(), self.plural.as_str()) {
            ("rbac.authorization.k8s.io", _)
            | ("", "events")
            | ("policy", "poddisruptionbudgets")
            | ("certificates.k8s.io", "certificatesigningrequests" | "clustertrustbundles") => {
                NameRule::PathSegment
            }
            ("", "namespaces" | "services") | ("apps", "statefulsets") => NameRule::Label,
            _ => NameRule::Subdomain,
        }
    }

    /// Whether the server counts `metadata.generation` for it. Custom resources always have one; of the built-in
    /// kinds those whose strategies set it upstream.
    pub(crate) fn has_generation(&self) -> bool {
        if self.custom().is_some() {
            return true;
        }
        match self.group.as_str() {
            "apps" => self.plural != "controllerrevisions",
            "" => matches!(self.plural.as_str(), "pods" | "replicationcontrollers" | "podtemplates"),
            "autoscaling" | "batch" | "admissionregistration.k8s.io" | "flowcontrol.apiserver.k8s.io" => true,
            "policy" => self.plural == "poddisruptionbudgets",
            "discovery.k8s.io" => self.plural == "endpointslices",
            "networking.k8s.io" => {
                matches!(self.plural.as_str(), "ingresses" | "networkpolicies" | "ingressclasses")
            }
            "apiextensions.k8s.io" => self.plural == "customresourcedefinitions",
            "scheduling.k8s.io" => self.plural == "priorityclasses",
            "resource.k8s.io" => matches!(self.plural.as_str(), "deviceclasses" | "resourceslices"),
            _ => false,
        }
    }
}

/// The store's name for a resource.
pub(crate) fn storage_name(group: &str, plural: &str) -> Arc<str> {
    // Events have one home for both of their groups (see `events.rs`).
    if group.is_empty() || (group == crate::events::GROUP && plural == "events") {
        plural.into()
    } else {
        format!("{plural}.{group}").into()
    }
}

type ByPath = BTreeMap<(String, String, String), Arc<Resource>>;

/// All resources that are served now. Reading takes a snapshot.
pub(crate) struct Catalog {
    built_in: Vec<Arc<Resource>>,
    served: RwLock<Served>,
}

#[derive(Clone)]
struct Served {
    by_path: Arc<ByPath>,
    /// In the order of discovery: built-in ones first.
    all: Arc<Vec<Arc<Resource>>>,
}

impl Catalog {
    pub(crate) fn new() -> Self {
        let built_in: Vec<_> =
            setpoint_kinds::kinds().iter().map(|kind| Arc::new(Resource::built_in(kind))).collect();
        let served = RwLock::new(Served::of(built_in.clone()));
        Self { built_in, served }
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let key = (group.to_owned(), version.to_owned(), plural.to_owned());
        self.served.read().by_path.get(&key).cloned()
    }

    /// The answer to a request for a resource that there is not.
    pub(crate) fn missing(&self, group: &str, version: &str) -> Status {
        let built_in = self.built_in.iter().any(|one| one.group == group && one.version == version);
        if built_in { Status::no_resource() } else { Status::no_path() }
    }

    pub(crate) fn all(&self) -> Arc<Vec<Arc<Resource>>> {
        Arc::clone(&self.served.read().all)
    }

    /// Replaces the custom resources by `custom`.
    pub(crate) fn set_custom(&self, custom: impl IntoIterator<Item = Arc<Resource>>) {
        let mut all = self.built_in.clone();
        all.extend(custom);
        *self.served.write() = Served::of(all);
    }
}

impl Served {
    fn of(all: Vec<Arc<Resource>>) -> Self {
        let by_path = all
            .iter()
            .map(|r| ((r.group.clone(), r.version.clone(), r.plural.clone()), Arc::clone(r)))
            .collect();
        Self { by_path: Arc::new(by_path), all: Arc::new(all) }
    }
}
