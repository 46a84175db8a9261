//! Errors as Kubernetes words them: a `Status` object with code, reason, details and causes
//! (`k8s.io/apimachinery/pkg/api/errors`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use setpoint_schema::FieldError;

use crate::builtin::GoValue;

/// Why a request failed, in the shape and wording that clients of Kubernetes match on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    details: Map<String, Value>,
    /// Whether details are shown although they are empty, as upstream does where it knows only the code.
    generic: bool,
    /// Seconds for the `Retry-After` header, also in the details.
    pub(crate) retry_after: Option<u32>,
    /// A token to go on with (for an expired list).
    token: Option<Box<str>>,
    /// For the `Warning` headers.
    pub(crate) warnings: Box<[String]>,
    /// What a webhook gave, whole; it takes the place of the rest.
    given: Option<Box<Value>>,
}

pub(crate) type Result<T, E = Status> = std::result::Result<T, E>;

/// What an error is about: the resource (or kind) with its group, as `Status.details` names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) group: &'a str,
    /// The plural resource, or the kind for [`Status::invalid`].
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

impl Subject<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() { self.kind.to_owned() } else { format!("{}.{}", self.kind, self.group) }
    }

    fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        for (key, value) in [("name", self.name), ("group", self.group), ("kind", self.kind)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), value.into());
            }
        }
        details
    }
}

/// One wrong field, as it appears in `details.causes`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cause {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) field: String,
}

impl Cause {
    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired".to_owned(), message, field: field.into() }
    }

    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let message = format!("Invalid value: {value}: {detail}");
        Self { reason: "FieldValueInvalid".to_owned(), message, field: field.into() }
    }

    /// An invalid value as Go's JSON writes the struct that upstream holds it in: fields in that order, and with `<`, `>`
    /// and `&` escaped.
    pub(crate) fn invalid_struct(field: impl Into<String>, fields: &GoValue, detail: &str) -> Self {
        let message = format!("Invalid value: {fields}: {detail}");
        Self { reason: "FieldValueInvalid".to_owned(), message, field: field.into() }
    }

    pub(crate) fn of(error: &FieldError) -> Self {
        Self {
            reason: error.kind.reason().to_owned(),
            message: error.cause_message(),
            field: error.path.to_string(),
        }
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        let message = format!("Duplicate value: {value}");
        Self { reason: "FieldValueDuplicate".to_owned(), message, field: field.into() }
    }

    pub(crate) fn too_many(field: impl Into<String>, actual: usize, max: usize) -> Self {
        let message = format!("Too many: {actual}: must have at most {max} items");
        Self { reason: "FieldValueTooMany".to_owned(), message, field: field.into() }
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self {
            reason: "FieldValueForbidden".to_owned(),
            message: format!("Forbidden: {detail}"),
            field: field.into(),
        }
    }

    pub(crate) fn unsupported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|text| format!("{text:?}")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", supported.join(", "));
        Self { reason: "FieldValueNotSupported".to_owned(), message, field: field.into() }
    }
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let (details, message) = (Map::new(), message.into());
        let warnings = Box::default();
        Self {
            code,
            reason,
            message,
            details,
            generic: false,
            retry_after: None,
            token: None,
            warnings,
            given: None,
        }
    }

    fn generic(mut self) -> Self {
        self.generic = true;
        self
    }

    /// The same error, with what was noticed on the way to it.
    pub(crate) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = self.warnings.into_iter().chain(warnings).collect();
        self
    }

    /// The same error with a warning before the others.
    pub(crate) fn after_warning(mut self, warning: String) -> Self {
        self.warnings = std::iter::once(warning).chain(self.warnings).collect();
        self
    }

    /// The same error in other words.
    pub(crate) fn worded(mut self, message: String) -> Self {
        self.message = message;
        self
    }

    /// The same words with another code, reason and causes.
    pub(crate) fn answering(mut self, code: u16, reason: &'static str, causes: Vec<Value>) -> Self {
        (self.code, self.reason) = (code, reason);
        self.details.insert("causes".to_owned(), causes.into());
        self
    }

    fn about(mut self, subject: Subject<'_>) -> Self {
        self.details = subject.details();
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// `message` is the part after "is forbidden: ".
    pub(crate) fn forbidden(subject: Subject<'_>, message: &str) -> Self {
        let of = subject.qualified();
        let message = match (of.is_empty(), subject.name.is_empty()) {
            (true, _) => format!("forbidden: {message}"),
            (false, true) => format!("{of} is forbidden: {message}"),
            (false, false) => format!("{of} \"{}\" is forbidden: {message}", subject.name),
        };
        let status = Self::new(403, "Forbidden", message).about(subject);
        if of.is_empty() { status.generic() } else { status }
    }

    /// Nothing new may be created in a namespace that is being deleted.
    pub(crate) fn terminating_namespace(subject: Subject<'_>, namespace: &str) -> Self {
        let mut status = Self::forbidden(
            subject,
            &format!("unable to create new content in namespace {namespace} because it is being terminated"),
        );
        status.set_causes(vec![Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        }]);
        status
    }

    pub(crate) fn not_found(subject: Subject<'_>) -> Self {
        Self::new(404, "NotFound", format!("{} \"{}\" not found", subject.qualified(), subject.name))
            .about(subject)
    }

    /// The path names a resource that its group and version do not have.
    pub(crate) fn no_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").generic()
    }

    /// Nothing is served at the path. It has no reason, and is answered as plain text.
    pub(crate) fn no_path() -> Self {
        Self::new(404, "", "404 page not found")
    }

    /// Whether it is no Status object but a line of text.
    pub(crate) fn is_plain(&self) -> bool {
        self.code == 404 && self.reason.is_empty()
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .generic()
    }

    /// No new custom resources while their definition is being deleted.
    pub(crate) fn definition_terminating(subject: Subject<'_>) -> Self {
        Self::forbidden(subject, "create not allowed while custom resource definition is terminating")
    }

    pub(crate) fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, "NotAcceptable", message)
    }

    /// No media type of the `Accept` header is one that a built-in kind could have.
    /// Paths that can be watched name what they stream, too.
    pub(crate) fn no_representation(streams: bool) -> Self {
        let more = if streams {
            ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        } else {
            ""
        };
        Self::not_acceptable(format!(
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf{more}"
        ))
        .generic()
    }

    /// The path has JSON only.
    pub(crate) fn no_representation_but(media: &str) -> Self {
        Self::not_acceptable(format!("406: Not Acceptable\n\nAvailable representations: {media}")).generic()
    }

    /// The content type is not one that the method of a built-in kind takes.
    pub(crate) fn no_such_media() -> Self {
        Self::unsupported_media_type("415: Unsupported Media Type").generic()
    }

    pub(crate) fn already_exists(subject: Subject<'_>) -> Self {
        let message = format!("{} \"{}\" already exists", subject.qualified(), subject.name);
        Self::new(409, "AlreadyExists", message).about(subject)
    }

    /// `why` is the part after the colon.
    pub(crate) fn conflict(subject: Subject<'_>, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{}\": {why}", subject.qualified(), subject.name);
        Self::new(409, "Conflict", message).about(subject)
    }

    /// The stored object has another resourceVersion than the one the request was made from.
    pub(crate) fn modified(subject: Subject<'_>) -> Self {
        Self::conflict(
            subject,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// Other managers own fields that a server-side apply would change.
    pub(crate) fn apply_conflict(message: impl Into<String>, causes: Vec<Cause>) -> Self {
        let mut status = Self::new(409, "Conflict", message);
        status.set_causes(causes);
        status
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn with_continue(mut self, token: String) -> Self {
        self.token = Some(token.into());
        self
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// `subject.kind` is the kind here, not the resource. `causes` must not be empty.
    pub(crate) fn invalid(subject: Subject<'_>, mut causes: Vec<Cause>) -> Self {
        // What two checks say in the same words is said once.
        let mut said = BTreeSet::new();
        causes.retain(|cause| said.insert((cause.field.clone(), cause.message.clone())));
        let mut lines: Vec<String> = Vec::new();
        for cause in &causes {
            let line = if cause.field.is_empty() {
                cause.message.clone()
            } else {
                format!("{}: {}", cause.field, cause.message)
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let errors =
            if let [only] = lines.as_slice() { only.clone() } else { format!("[{}]", lines.join(", ")) };
        let message = format!("{} \"{}\" is invalid: {errors}", subject.qualified(), subject.name);
        let mut status = Self::new(422, "Invalid", message).about(subject);
        status.set_causes(causes);
        status
    }

    /// A well-formed JSON patch that does not fit the object. Upstream does not say why.
    pub(crate) fn rejected() -> Self {
        Self::new(422, "Invalid", "the server rejected our request due to an error in our request").generic()
    }

    pub(crate) fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        let mut status = Self::new(429, "TooManyRequests", message);
        if retry_after > 0 {
            status.retry_after = Some(retry_after);
            status.details.insert("retryAfterSeconds".to_owned(), retry_after.into());
        }
        status
    }

    /// The same with causes.
    pub(crate) fn with_causes(mut self, causes: Vec<Cause>) -> Self {
        self.set_causes(causes);
        self
    }

    /// An eviction that a disruption budget does not allow now.
    pub(crate) fn disruption_budget(message: &str, why: &str, retry_after: u32) -> Self {
        let mut status = Self::too_many_requests(message, retry_after);
        status.set_causes(vec![Cause {
            reason: "DisruptionBudget".to_owned(),
            message: why.to_owned(),
            field: String::new(),
        }]);
        status
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        let text = message.to_string();
        let mut status = Self::new(500, "InternalError", format!("Internal error occurred: {text}"));
        status.set_causes(vec![Cause { reason: String::new(), message: text, field: String::new() }]);
        status
    }

    /// A webhook's refusal, with what it gave for a status (`…/webhook/errors/statuserror.go`).
    pub(crate) fn denied(webhook: &str, status: Option<&Value>) -> Self {
        let mut given = status.cloned().unwrap_or_else(|| json!({}));
        let code = given["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or_default();
        let code = if (400..1000).contains(&code) { code } else { 400 };
        if matches!(given["status"].as_str(), None | Some("" | "Success")) {
            given["status"] = "Failure".into();
        }
        let denied = format!("admission webhook {webhook:?} denied the request");
        let text = |key: &str| given[key].as_str().filter(|text| !text.is_empty());
        let message = match text("message").or_else(|| text("reason")) {
            Some(why) => format!("{denied}: {why}"),
            None => format!("{denied} without explanation"),
        };
        given["code"] = code.into();
        given["message"] = message.as_str().into();
        for (key, value) in [("apiVersion", json!("v1")), ("kind", json!("Status"))] {
            given[key] = value;
        }
        if !given["metadata"].is_object() {
            given["metadata"] = json!({});
        }
        let retry_after =
            given["details"]["retryAfterSeconds"].as_u64().and_then(|seconds| seconds.try_into().ok());
        Self { retry_after, given: Some(Box::new(given)), ..Self::new(code, "", message) }
    }

    /// Objects of a list that cannot be read.
    pub(crate) fn unreadable(subject: Subject<'_>, faults: Vec<(String, String)>) -> Self {
        let of = subject.qualified();
        let first = faults.first().map_or("", |(_, why)| why);
        let more = match faults.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        let message = format!("failed to read one or more {of} from the storage: {first}{more}");
        let mut status = Self::new(500, "StorageReadError", message).about(subject);
        let cause =
            |(field, message)| Cause { reason: "UnexpectedServerResponse".to_owned(), message, field };
        status.set_causes(faults.into_iter().map(cause).collect());
        status
    }

    /// An error that a real server passes on without a reason.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// What the node of a pod does not have; `why` is a whole sentence.
    pub(crate) fn unsupported(why: impl Into<String>) -> Self {
        Self::new(501, "NotImplemented", why)
    }

    /// What an answer depends on does not answer.
    pub(crate) fn service_unavailable(why: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", why)
    }

    /// What Setpoint does not have; `what` names it.
    pub(crate) fn not_implemented(what: &str) -> Self {
        Self::new(501, "NotImplemented", format!("{what} is not implemented by this API server (Setpoint)"))
    }

    /// The request took too long.
    pub(crate) fn timeout() -> Self {
        Self::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
    }

    /// Whether this is [`timeout`](Self::timeout), which upstream's filter writes past everything that negotiates.
    pub(crate) fn is_timeout(&self) -> bool {
        self.reason == "Timeout" && self.details.is_empty()
    }

    /// A watch has no time at all.
    pub(crate) fn deadline_exceeded() -> Self {
        Self::new(500, "InternalError", "context deadline exceeded")
    }

    /// The requested resourceVersion is newer than the store's.
    pub(crate) fn too_large_version(requested: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        let mut status = Self::new(504, "Timeout", message);
        status.set_causes(vec![Cause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        }]);
        status.retry_after = Some(1);
        status.details.insert("retryAfterSeconds".to_owned(), 1.into());
        status
    }

    fn set_causes(&mut self, causes: Vec<Cause>) {
        let causes: Vec<Value> = causes
            .into_iter()
            .map(|cause| {
                let mut object = Map::new();
                for (key, value) in
                    [("reason", cause.reason), ("message", cause.message), ("field", cause.field)]
                {
                    if !value.is_empty() {
                        object.insert(key.to_owned(), value.into());
                    }
                }
                Value::Object(object)
            })
            .collect();
        if !causes.is_empty() {
            self.details.insert("causes".to_owned(), Value::Array(causes));
        }
    }

    /// The error as a `v1.Status` object.
    pub(crate) fn to_value(&self) -> Value {
        if let Some(given) = &self.given {
            return (**given).clone();
        }
        let mut object = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if let Some(token) = &self.token {
            object["metadata"]["continue"] = (**token).into();
        }
        if !self.reason.is_empty() {
            object["reason"] = self.reason.into();
        }
        if !self.details.is_empty() || self.generic {
            object["details"] = Value::Object(self.details.clone());
        }
        object
    }
}

/// The answer to a deletion that removed the object.
pub(crate) fn success(subject: Subject<'_>, uid: Option<&str>) -> Value {
    let mut details = subject.details();
    if let Some(uid) = uid {
        details.insert("uid".to_owned(), uid.into());
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_kubernetes() {
        let pod = Subject { group: "", kind: "pods", name: "a" };
        let deployment = Subject { group: "apps", kind: "deployments", name: "a" };
        assert_eq!(Status::not_found(pod).message, "pods \"a\" not found");
        assert_eq!(Status::already_exists(deployment).message, "deployments.apps \"a\" already exists");
        let error = |field: &str| Cause {
            reason: "FieldValueRequired".into(),
            message: "Required value".into(),
            field: field.into(),
        };
        let subject = Subject { group: "apps", kind: "Deployment", name: "a" };
        let invalid = Status::invalid(subject, vec![error("spec.a"), error("spec.b")]);
        assert_eq!(
            invalid.message,
            "Deployment.apps \"a\" is invalid: [spec.a: Required value, spec.b: Required value]"
        );
        assert_eq!(invalid.to_value()["details"]["causes"][1]["field"], "spec.b");
    }
}
