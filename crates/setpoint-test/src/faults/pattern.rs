use setpoint::Verb;

use crate::request::ApiRequest;

/// Which requests: all of a sort, or only those to a resource, a namespace, an object.
#[derive(Clone, Debug)]
pub struct Requests {
    verbs: Option<Vec<Verb>>,
    resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
}

const WRITES: &[Verb] = &[Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::DeleteCollection];

impl Requests {
    /// Each of them, watches too.
    pub fn any() -> Self {
        Self { verbs: None, resource: None, namespace: None, name: None }
    }

    /// Creations, replacements, patches (applies too) and deletions.
    pub fn writes() -> Self {
        Self::of(WRITES)
    }

    /// Reads of single objects and lists; no watches.
    pub fn reads() -> Self {
        Self::of(&[Verb::Get, Verb::List])
    }

    /// Watches.
    pub fn watches() -> Self {
        Self::of(&[Verb::Watch])
    }

    /// These verbs.
    pub fn of(verbs: &[Verb]) -> Self {
        Self { verbs: Some(verbs.to_vec()), ..Self::any() }
    }

    /// Only to this resource, by its plural: `configmaps`, `websites/status`, and where the plural is not enough
    /// `statefulsets.apps`.
    pub fn to(mut self, resource: impl Into<String>) -> Self {
        self.resource = Some(resource.into());
        self
    }

    /// Only in this namespace.
    pub fn within(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only of objects of this name. A creation without a name in its path has none.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether a request is meant. A watch or list names no object, so a pattern with a name does not mean it.
    pub(super) fn matches(&self, request: &ApiRequest) -> bool {
        self.matches_event(request, request.namespace.as_deref(), request.name.as_deref())
    }

    /// Whether a watch is meant, of whatever namespace and objects.
    pub(super) fn matches_watch(&self, watch: &ApiRequest) -> bool {
        self.matches_resource(watch)
    }

    /// Whether an event of a watch is meant.
    pub(super) fn matches_event(
        &self,
        watch: &ApiRequest,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> bool {
        self.matches_resource(watch)
            && matches(self.namespace.as_ref(), namespace)
            && matches(self.name.as_ref(), name)
    }

    fn matches_resource(&self, request: &ApiRequest) -> bool {
        self.verbs.as_ref().is_none_or(|verbs| verbs.contains(&request.verb))
            && self
                .resource
                .as_ref()
                .is_none_or(|resource| *resource == request.resource || *resource == request.full_resource())
    }
}

fn matches(wanted: Option<&String>, is: Option<&str>) -> bool {
    wanted.is_none_or(|wanted| Some(wanted.as_str()) == is)
}
