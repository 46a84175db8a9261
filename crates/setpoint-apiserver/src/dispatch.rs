//! From a request to its answer: authorization, routing, and the guard around both.

use std::collections::VecDeque;
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use http::request::Parts;
use http::{Request, Response};
use serde_json::Value;
use setpoint_clock::Clock;

use crate::admission;
use crate::authz::{Attributes, authorize, denial_of};
use crate::body::Body;
use crate::catalog::Resource;
use crate::containers;
use crate::deadline;
use crate::discovery;
use crate::identity::Identity;
use crate::impersonation::impersonate;
use crate::object::{Metadata, fields};
use crate::paths;
use crate::policies::StoredPolicies;
use crate::registry::{
    Answer, DeleteOptions, ListOptions, ListPage, PatchKind, Place, SCALE, WatchEvent, WatchStream,
    WriteOptions, Written, parse_body, parse_object, read_posted,
};
use crate::render::{Form, failure, respond};
use crate::request::{Query, ResourceRequest, Target};
use crate::request_body::{discard, read};
use crate::reviews;
use crate::server::{ApiServer, Inner};
use crate::status::{Result, Status, Subject};
use crate::token_request;
use crate::warnings::{warn, warn_all};

/// Answers a request of a user, or of somebody who is none. A panic costs only this request.
pub(crate) async fn answer<B>(api: ApiServer, user: Result<Identity>, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (parts, body) = request.into_parts();
    let errors = Form::of_errors(&parts.headers, parts.uri.query());
    let guarded = AssertUnwindSafe(async {
        // Strangers do not get room for what they send.
        match user.and_then(|user| Asked::of(&api.inner, user, parts)) {
            Ok(asked) => asked.route(&api.inner, read(body).await?).await,
            Err(status) => {
                discard(body).await;
                Err(status)
            }
        }
    });
    let response = match guarded.catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(status)) => failure(&status, &errors),
        Err(_) => {
            let status =
                Status::internal("a panic while the request was answered; this is a bug in Setpoint");
            failure(&status, &errors)
        }
    };
    // An answer shows no more than what would survive a crash.
    let store = &api.inner.registry.store;
    match store.kept(store.revision()).await {
        Ok(()) => response,
        Err(problem) => failure(&Status::internal(&problem), &errors),
    }
}

/// A request for a resource, as its handlers see it.
pub(crate) struct Call<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) user: &'a Identity,
    pub(crate) request: ResourceRequest,
    pub(crate) query: Query,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    pub(crate) form: Form,
    pub(crate) place: Place,
}

/// What is asked, of somebody who may ask it.
struct Asked {
    user: Identity,
    parts: Parts,
    query: Query,
    target: Target,
    limit: Option<Duration>,
}

impl Asked {
    /// Who asks, perhaps for somebody else, and whether they may.
    fn of(inner: &Inner, user: Identity, parts: Parts) -> Result<Self> {
        let query = Query::parse(parts.uri.query());
        let target = Target::of(&parts.method, parts.uri.path(), &query)?;
        let limit = deadline::of(&target, &query)?;
        let posed = asking(&user, &parts, &target, &query, |asked| {
            impersonate(asked, &parts.headers, &inner.last_modes, &inner.registry)
        })?;
        let user = posed.unwrap_or(user);
        asking(&user, &parts, &target, &query, |asked| permit(inner, asked))?;
        Ok(Self { user, parts, query, target, limit })
    }

    async fn route(self, inner: &Inner, body: Bytes) -> Result<Response<Body>> {
        let Self { user, parts, query, target, limit } = self;
        let request = match target {
            Target::Path(path) => {
                // In a box: every request has a future with room for all of this.
                let (registry, tokens) = (&inner.registry, &inner.tokens);
                let answer = paths::answer(registry, tokens, &parts.method, &path, &parts.headers, &query);
                return Box::pin(answer).await;
            }
            Target::Resource(request) => request,
        };
        let found = inner.registry.catalog.find(&request.group, &request.version, &request.resource);
        let resource =
            found.ok_or_else(|| inner.registry.catalog.missing(&request.group, &request.version))?;
        check_route(&resource, &request)?;
        let place = Place {
            resource: Arc::clone(&resource),
            namespace: if resource.namespaced { request.namespace.clone() } else { String::new() },
            name: request.name.clone(),
        };
        let form = if request.is_stream() {
            Form::json()
        } else {
            Form::of(&request, &resource, &parts.headers, &query)?
        };
        let deprecation = match resource.custom() {
            Some(custom) => custom.deprecation.clone(),
            None => deprecated(&resource).map(str::to_owned),
        };
        let call = Call { inner, user: &user, request, query, parts, body, form, place }.answer();
        let answer = match limit {
            // What it waits for, a webhook or a disk, may take longer than the client does.
            Some(limit) => tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(Status::timeout())),
            None => call.await,
        };
        match (answer, deprecation) {
            (Ok(mut response), Some(text)) => {
                let others: Vec<_> = response.headers().get_all("warning").iter().cloned().collect();
                response.headers_mut().remove("warning");
                warn(&mut response, &text);
                for other in others {
                    response.headers_mut().append("warning", other);
                }
                Ok(response)
            }
            (Err(status), Some(text)) => Err(status.after_warning(text)),
            (answer, None) => answer,
        }
    }
}

/// What the users of a built-in kind should know.
fn deprecated(resource: &Resource) -> Option<&'static str> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        ("", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        _ => None,
    }
}

/// Gives `then` what a request asks for, in the words of authorization.
fn asking<T>(
    user: &Identity,
    parts: &Parts,
    target: &Target,
    query: &Query,
    then: impl FnOnce(&Attributes<'_>) -> Result<T>,
) -> Result<T> {
    let request = match target {
        Target::Resource(request) => request,
        Target::Path(path) => {
            let verb = parts.method.as_str().to_ascii_lowercase();
            return then(&Attributes {
                user,
                verb: &verb,
                group: "",
                resource: "",
                subresource: "",
                namespace: None,
                name: "",
                path: Some(path),
            });
        }
    };
    // A list of one name needs only the right to that name.
    let selected = match request.verb {
        "list" | "watch" => ListOptions::parse(query)?.fields.name().map(str::to_owned),
        _ => None,
    };
    then(&Attributes {
        user,
        verb: request.verb,
        group: &request.group,
        resource: &request.resource,
        subresource: &request.subresource,
        namespace: Some(request.namespace.as_str()).filter(|namespace| !namespace.is_empty()),
        name: selected.as_deref().unwrap_or(&request.name),
        path: None,
    })
}

/// Refuses what the user may not do.
fn permit(inner: &Inner, asked: &Attributes<'_>) -> Result<()> {
    let decision = authorize(asked, &StoredPolicies(&inner.registry.store));
    if decision.allowed {
        return Ok(());
    }
    let text = denial_of(asked, &decision);
    Err(Status::forbidden(Subject { group: asked.group, kind: asked.resource, name: asked.name }, &text))
}

/// Refuses paths and verbs that the resource does not have.
fn check_route(resource: &Resource, request: &ResourceRequest) -> Result<()> {
    let in_namespace = !request.namespace.is_empty() && request.resource != "namespaces";
    let no_route = || if resource.custom().is_some() { Status::no_path() } else { Status::no_resource() };
    if in_namespace && !resource.namespaced {
        return Err(no_route());
    }
    if resource.namespaced && request.namespace.is_empty() {
        if !request.name.is_empty() {
            return Err(no_route());
        }
        // What is in namespaces is deleted in one at a time.
        if request.verb == "deletecollection" && resource.custom().is_some() {
            return Err(no_route());
        }
        if matches!(request.verb, "create" | "deletecollection") {
            return Err(Status::method_not_allowed());
        }
    }
    if request.subresource.is_empty() {
        let named = matches!(request.verb, "update" | "patch") && request.name.is_empty();
        let posted = request.verb == "create" && !request.name.is_empty();
        if named || posted || !resource.verbs.iter().any(|verb| verb == request.verb) {
            return Err(Status::method_not_allowed());
        }
        return Ok(());
    }
    let known = |listed: &discovery::Listed<'_>| {
        listed.name == request.subresource
            && !listed.verbs.is_empty()
            && !listed.verbs.contains(&request.verb)
    };
    match resource.has_subresource(&request.subresource) {
        true if discovery::subresources(resource).iter().any(known) => Err(Status::method_not_allowed()),
        true => Ok(()),
        // Upstream looks for an object first, and names it.
        false if resource.custom().is_some() => Err(Status::not_found(resource.subject(&request.name))),
        false => Err(Status::no_resource()),
    }
}

impl Call<'_> {
    async fn answer(self) -> Result<Response<Body>> {
        let subresource = self.request.subresource.as_str();
        let mut warnings = Vec::new();
        if matches!(subresource, "exec" | "attach" | "portforward" | "proxy") {
            let registry = &self.inner.registry;
            warnings = registry.admit_connect(&self.place, subresource, &self.query, self.user).await?;
        }
        let mut response = self.routed().await?;
        warn_all(&mut response, &warnings);
        Ok(response)
    }

    async fn routed(mut self) -> Result<Response<Body>> {
        match (self.request.subresource.as_str(), self.request.verb) {
            ("" | "status" | "ephemeralcontainers" | "resize" | "approval", "get") => {
                self.inner
                    .registry
                    .check_version_asked(self.query.get("resourceVersion").unwrap_or_default())?;
                let stored = self.inner.registry.read(&self.place).await?;
                Ok(self.object(200, &Answer::Stored(stored)))
            }
            ("", "list") => self.list().await,
            ("", "watch") => self.watch(),
            ("", "create") => self.create().await,
            ("" | "status" | "ephemeralcontainers" | "resize" | "approval", "update") => {
                let mut options = self.options("UpdateOptions")?;
                let body;
                (body, options.duplicates) =
                    parse_object(&self.place.resource, &self.parts.headers, &self.body)?;
                let subresource = &self.request.subresource;
                Ok(self.written(&self.inner.registry.update(&self.place, subresource, body, &options).await?))
            }
            ("" | "status" | "ephemeralcontainers" | "resize" | "approval", "patch") => {
                let options = self.options("PatchOptions")?;
                let kind = PatchKind::of(&self.parts.headers, &self.place.resource)?;
                let subresource = &self.request.subresource;
                let written =
                    self.inner.registry.patch(&self.place, subresource, kind, &self.body, &options).await?;
                Ok(self.written(&written))
            }
            ("", "delete") => {
                let options = self.delete_options()?;
                Ok(self.written(&self.inner.registry.delete(&self.place, &options, self.user).await?))
            }
            ("", "deletecollection") => self.delete_collection().await,
            ("scale", "get") => {
                Ok(self.object(200, &Answer::Other(self.inner.registry.get_scale(&self.place).await?)))
            }
            ("scale", "update") => {
                let mut options = self.options("UpdateOptions")?;
                let body;
                (body, options.duplicates) = parse_object(&SCALE, &self.parts.headers, &self.body)?;
                Ok(self.written(&self.inner.registry.update_scale(&self.place, &body, &options).await?))
            }
            ("scale", "patch") => {
                let options = self.options("PatchOptions")?;
                let (headers, registry) = (&self.parts.headers, &self.inner.registry);
                Ok(self.written(&registry.patch_scale(&self.place, headers, &self.body, &options).await?))
            }
            ("log", "get") => containers::logs(&self).await,
            ("exec", "get" | "create") => Box::pin(containers::exec(&mut self)).await,
            ("attach", "get" | "create") => Box::pin(containers::attach(&mut self)).await,
            ("portforward", "get" | "create") => containers::port_forward(&mut self),
            ("proxy", _) => Box::pin(containers::proxy(&mut self)).await,
            ("binding", "create") => {
                let (body, options, warnings) =
                    self.posted(("", "v1", "Binding"), Some("io.k8s.api.core.v1.Binding")).await?;
                self.answered(self.inner.registry.bind(&self.place, &body, &options).await, warnings)
            }
            ("eviction", "create") => {
                let (body, options, warnings) =
                    self.posted(("policy", "v1", "Eviction"), Some("io.k8s.api.policy.v1.Eviction")).await?;
                self.answered(self.inner.registry.evict(&self.place, &body, &options), warnings)
            }
            ("finalize", "update") => {
                let options = self.options("UpdateOptions")?;
                let body = parse_body(&self.parts.headers, &self.body)?;
                Ok(self.written(&self.inner.registry.finalize(&self.place, &body, &options).await?))
            }
            ("token", "create") => {
                let mut warnings = Vec::new();
                let object = self.token(&mut warnings).await.map(Answer::Other);
                self.answered(
                    object.map(|object| Written { code: 201, object, warnings: Vec::new() }),
                    warnings,
                )
            }
            (subresource, verb) => Err(Status::not_implemented(&format!(
                "{verb} of the subresource {}/{subresource}",
                self.request.resource
            ))),
        }
    }

    /// The body of a POST that is no object of the resource but of `kind` (group, version, kind), admitted; with the warnings of
    /// admission. `tracked_as` is its definition, if admission sees managed fields of it.
    async fn posted(
        &self,
        kind: (&str, &str, &str),
        tracked_as: Option<&str>,
    ) -> Result<(Value, WriteOptions, Vec<String>)> {
        let options = self.options("CreateOptions")?;
        let mut body = parse_body(&self.parts.headers, &self.body)?;
        let mut warnings = Vec::new();
        if let Some(definition) = tracked_as.or_else(|| self.place.resource.definition()) {
            warnings = read_posted(kind, definition, &mut body, &options)?;
        }
        let subresource = self.request.subresource.as_str();
        if let Some(definition) = tracked_as {
            let version = kind.0.to_owned() + if kind.0.is_empty() { "" } else { "/" } + kind.1;
            if body["metadata"].is_object() {
                let namespace = || self.place.namespace.as_str().into();
                fields(&mut body["metadata"]).entry("namespace").or_insert_with(namespace);
            }
            self.inner.registry.own_body(definition, &version, &mut body, &options, subresource);
        }
        let request = admission::Attributes::write(&self.place, subresource, None, &options);
        let request = request.of_kind(kind.0, kind.1, kind.2);
        warnings.extend(self.inner.registry.admit_body(&request, &mut body).await?);
        Ok((body, options, warnings))
    }

    /// A token for the service account.
    async fn token(&self, warnings: &mut Vec<String>) -> Result<Value> {
        let options = self.options("CreateOptions")?;
        let registry = &self.inner.registry;
        let mut body = parse_body(&self.parts.headers, &self.body)?;
        let kind = ("authentication.k8s.io", "v1", "TokenRequest");
        let definition = "io.k8s.api.authentication.v1.TokenRequest";
        warnings.extend(read_posted(kind, definition, &mut body, &options)?);
        let mut body = token_request::decode(registry, &self.place, body, &options)?;
        let request = admission::Attributes::write(&self.place, "token", None, &options);
        let request = request.of_kind("authentication.k8s.io", "v1", "TokenRequest");
        registry.mutate(&request, &mut body, warnings).await?;
        let asked = token_request::Asked::of(registry, &self.place, body)?;
        registry.validate(&request, asked.body(), warnings).await?;
        asked.sign(self.inner)
    }

    /// The answer to a write, with the warnings of its admission.
    fn answered(&self, written: Result<Written>, mut warnings: Vec<String>) -> Result<Response<Body>> {
        match written {
            Ok(written) => {
                warnings.extend(written.warnings);
                Ok(self.written(&Written { warnings, ..written }))
            }
            Err(status) => Err(status.with_warnings(warnings)),
        }
    }

    fn options(&self, kind: &str) -> Result<WriteOptions> {
        WriteOptions::parse(kind, &self.query, &self.parts.headers, self.user)
    }

    fn delete_options(&self) -> Result<DeleteOptions> {
        DeleteOptions::parse(&self.parts.headers, &self.body, &self.query)
    }

    fn now(&self) -> jiff::Timestamp {
        self.inner.registry.clock.now()
    }

    fn object(&self, code: u16, answer: &Answer) -> Response<Body> {
        self.form.answer(&self.place.resource, code, answer, self.now())
    }

    fn written(&self, written: &Written) -> Response<Body> {
        let mut response = self.object(written.code, &written.object);
        warn_all(&mut response, &written.warnings);
        response
    }

    async fn create(&self) -> Result<Response<Body>> {
        let resource = &self.place.resource;
        if reviews::is_review(&resource.group) {
            let kind = (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str());
            let (mut body, options, warnings) = self.posted(kind, None).await?;
            self.inner.registry.own(resource, &mut body, &options, "");
            let object = reviews::answer(self.inner, self.user, &self.place, body).map(Answer::Other);
            let written = object.map(|object| Written { code: 201, object, warnings: Vec::new() });
            return self.answered(written, warnings);
        }
        if resource.is("", "bindings") {
            return self.bind().await;
        }
        let mut options = self.options("CreateOptions")?;
        let body;
        (body, options.duplicates) = parse_object(resource, &self.parts.headers, &self.body)?;
        Ok(self.written(&self.inner.registry.create(&self.place, body, &options).await?))
    }

    /// The old form of a binding: the pod's name is in the body.
    async fn bind(&self) -> Result<Response<Body>> {
        let registry = &self.inner.registry;
        let pods = registry.catalog.find("", "v1", "pods").ok_or_else(Status::no_resource)?;
        let (body, options, warnings) =
            self.posted(("", "v1", "Binding"), Some("io.k8s.api.core.v1.Binding")).await?;
        let place = Place { resource: pods, name: body.meta("name").to_owned(), ..self.place.clone() };
        self.answered(registry.bind(&place, &body, &options).await, warnings)
    }

    async fn list(&self) -> Result<Response<Body>> {
        let options = ListOptions::parse(&self.query)?;
        let page = self.inner.registry.list(&self.place.resource, &self.place.namespace, &options).await?;
        Ok(self.form.list(&self.place.resource, page, self.now()).await)
    }

    fn watch(self) -> Result<Response<Body>> {
        let options = match self.place.name.as_str() {
            "" => ListOptions::parse(&self.query)?,
            // Only the legacy path names an object.
            name => ListOptions::parse(&self.query.with("fieldSelector", &format!("metadata.name={name}")))?,
        };
        let registry = &self.inner.registry;
        let watch = registry.watch(&self.place.resource, &self.place.namespace, options)?;
        Ok(respond(200, self.form.stream_media(), Body::stream(lines(watch, self.form, registry.clock))))
    }

    async fn delete_collection(&self) -> Result<Response<Body>> {
        let list = ListOptions::parse(&self.query)?;
        let options = self.delete_options()?;
        options.check_for_many()?;
        let (items, revision) =
            self.inner.registry.delete_collection(&self.place, &list, &options, self.user).await?;
        let page = ListPage { items, revision, token: None, remaining: None };
        Ok(self.form.list(&self.place.resource, page, self.now()).await)
    }
}

/// How many bytes of a watch are made at once: no more than that waits for a client that does not read. The rest is
/// shared with everybody.
const LINES: usize = 64 << 10;

/// The lines of a watch, as they come.
fn lines(watch: WatchStream, form: Form, clock: Clock) -> impl futures::Stream<Item = Bytes> + Send {
    let lines = Lines { watch, form, clock, first: true, waiting: VecDeque::new() };
    // In a box, since it moves with each event.
    stream::unfold(Box::new(lines), async |mut lines| Some((lines.next().await?, lines))).boxed()
}

struct Lines {
    watch: WatchStream,
    form: Form,
    clock: Clock,
    /// Whether no object was shown yet.
    first: bool,
    /// Events whose lines are still to be made.
    waiting: VecDeque<WatchEvent>,
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        if self.waiting.is_empty() {
            self.waiting = VecDeque::from(self.watch.next().await?);
        }
        let mut size = 0;
        let full = |event: &WatchEvent| {
            size += event.size();
            size > LINES
        };
        // At least one, however large.
        let count = self.waiting.iter().position(full).unwrap_or(self.waiting.len()).max(1);
        let events: Vec<_> = self.waiting.drain(..count).collect();
        Some(self.form.watch_lines(&self.watch.resource, &events, &mut self.first, self.clock.now()))
    }
}
