use std::fmt::{self, Display};

use serde::Serialize;
use serde_json::{Value, json};

use super::request::{AdmissionRequest, User};
use crate::Kind;

/// A request under review: what is known about it, and what a webhook finds.
///
/// Findings are collected, so that a user sees all that is wrong at once. They reach the client as the API
/// server's own do: one message, and a cause for each field in the Status's details.
#[derive(Debug)]
pub struct Review {
    request: AdmissionRequest,
    warnings: Vec<String>,
    fields: Vec<Finding>,
    denial: Option<String>,
}

/// What is wrong with a field: reason and text as `k8s.io/apimachinery/pkg/util/validation/field` has them.
#[derive(Debug)]
struct Finding {
    field: String,
    reason: &'static str,
    message: String,
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl Review {
    pub(super) fn new(request: AdmissionRequest) -> Self {
        Self { request, warnings: Vec::new(), fields: Vec::new(), denial: None }
    }

    /// What is asked for.
    pub fn request(&self) -> &AdmissionRequest {
        &self.request
    }

    /// Who asks.
    pub fn user(&self) -> &User {
        &self.request.user
    }

    /// Warns who asks, whether the request passes or not: `kubectl` shows it. The API server cuts long ones; stay
    /// below 120 characters.
    pub fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// The field's `value` is not allowed, and `detail` says what would be: `must be at least 1`. A field is
    /// written as its path: `spec.ports[0].name`.
    pub fn invalid(&mut self, field: impl Display, value: impl Serialize, detail: impl Display) {
        self.find(field, "FieldValueInvalid", format!("Invalid value: {}: {detail}", shown(&value)));
    }

    /// The field has to be there.
    pub fn required(&mut self, field: impl Display, detail: impl Display) {
        self.find(field, "FieldValueRequired", with_detail("Required value", &detail));
    }

    /// The field must not be set, or not be changed, in these circumstances.
    pub fn forbidden(&mut self, field: impl Display, detail: impl Display) {
        self.find(field, "FieldValueForbidden", with_detail("Forbidden", &detail));
    }

    /// The field's `value` is none of the `supported` ones.
    pub fn not_supported<S: Serialize>(
        &mut self,
        field: impl Display,
        value: impl Serialize,
        supported: impl IntoIterator<Item = S>,
    ) {
        let supported: Vec<String> = supported.into_iter().map(|value| shown(&value)).collect();
        let message =
            format!("Unsupported value: {}: supported values: {}", shown(&value), supported.join(", "));
        self.find(field, "FieldValueNotSupported", message);
    }

    /// The field's `value` is there already and may be there once.
    pub fn duplicate(&mut self, field: impl Display, value: impl Serialize) {
        self.find(field, "FieldValueDuplicate", format!("Duplicate value: {}", shown(&value)));
    }

    /// The field refers to something that isn't there.
    pub fn not_found(&mut self, field: impl Display, value: impl Serialize) {
        self.find(field, "FieldValueNotFound", format!("Not found: {}", shown(&value)));
    }

    /// Refuses the request as a whole, for a reason that belongs to no field.
    pub fn deny(&mut self, message: impl Into<String>) {
        let message = message.into();
        self.denial = Some(match self.denial.take() {
            Some(earlier) => format!("{earlier}; {message}"),
            None => message,
        });
    }

    /// Whether something was found that refuses the request.
    pub fn refused(&self) -> bool {
        self.denial.is_some() || !self.fields.is_empty()
    }

    fn find(&mut self, field: impl Display, reason: &'static str, message: String) {
        self.fields.push(Finding { field: field.to_string(), reason, message });
    }

    /// The Status that refuses the request: 422 with a cause for each field, 403 for a denial alone.
    fn refusal(&self, kind: &Kind, name: &str) -> Option<Value> {
        if self.fields.is_empty() {
            let message = self.denial.as_ref()?;
            return Some(status(403, "Forbidden", message));
        }
        let causes: Vec<Value> = self
            .fields
            .iter()
            .map(|Finding { field, reason, message }| json!({"reason": reason, "message": message, "field": field}))
            .collect();
        let mut said: Vec<String> = self.fields.iter().map(ToString::to_string).collect();
        said.extend(self.denial.clone());
        // As an aggregated error is written upstream: brackets from two on.
        let said = if let [one] = said.as_slice() { one.clone() } else { format!("[{}]", said.join(", ")) };
        let mut status = status(422, "Invalid", &format!("{kind} {name:?} is invalid: {said}"));
        status["details"] = json!({"name": name, "group": kind.group, "kind": kind.kind, "causes": causes});
        Some(status)
    }

    /// The `response` of the review.
    pub(super) fn response(self, kind: &Kind, name: &str) -> Value {
        let mut response = match self.refusal(kind, name) {
            Some(status) => refusing(&self.request.uid, &status),
            None => json!({"uid": self.request.uid, "allowed": true}),
        };
        if !self.warnings.is_empty() {
            response["warnings"] = json!(self.warnings);
        }
        response
    }
}

/// A `response` that refuses.
pub(super) fn refusing(uid: &str, status: &Value) -> Value {
    json!({"uid": uid, "allowed": false, "status": status})
}

/// A Status of a failure.
pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"status": "Failure", "code": code, "reason": reason, "message": message})
}

fn with_detail(what: &str, detail: &impl Display) -> String {
    let detail = detail.to_string();
    if detail.is_empty() { what.to_owned() } else { format!("{what}: {detail}") }
}

/// A value as upstream's field errors show it: text in quotes, the rest as JSON.
fn shown(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("<{error}>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review() -> Review {
        let request = json!({"uid": "1", "operation": "CREATE", "name": "shop"});
        Review::new(serde_json::from_value(request).unwrap())
    }

    fn website() -> Kind {
        Kind {
            group: "example.com".to_owned(),
            version: "v1".to_owned(),
            kind: "Website".to_owned(),
            plural: "websites".to_owned(),
            namespaced: true,
        }
    }

    #[test]
    fn findings_are_written_as_the_api_server_writes_them() {
        let mut review = review();
        review.invalid("spec.size", 0, "must be at least 1");
        review.required("spec.image", "");
        review.forbidden("spec.mode", "cannot be changed");
        review.not_supported("spec.mode", "fast", ["a", "b"]);
        review.duplicate("spec.ports[1].name", "http");
        review.not_found("spec.class", "gold");
        let response = review.response(&website(), "shop");
        assert_eq!(
            response["status"]["message"],
            "Website.example.com \"shop\" is invalid: [spec.size: Invalid value: 0: must be at least 1, spec.image: Required value, \
             spec.mode: Forbidden: cannot be changed, spec.mode: Unsupported value: \"fast\": supported values: \"a\", \"b\", \
             spec.ports[1].name: Duplicate value: \"http\", spec.class: Not found: \"gold\"]"
        );
        assert_eq!(
            response["status"]["details"]["causes"][0],
            json!({"reason": "FieldValueInvalid", "message": "Invalid value: 0: must be at least 1", "field": "spec.size"})
        );
        assert_eq!((&response["status"]["code"], &response["allowed"]), (&json!(422), &json!(false)));
    }

    #[test]
    fn one_finding_has_no_brackets_and_a_denial_is_403() {
        let mut one = review();
        one.required("spec.image", "an image is needed");
        let response = one.response(&website(), "shop");
        let expected =
            "Website.example.com \"shop\" is invalid: spec.image: Required value: an image is needed";
        assert_eq!(response["status"]["message"], expected);

        let mut denied = review();
        denied.deny("not on a Friday");
        denied.warn("Fridays are for tests");
        let response = denied.response(&website(), "shop");
        assert_eq!(response["status"], status(403, "Forbidden", "not on a Friday"));
        assert_eq!(response["warnings"], json!(["Fridays are for tests"]));
    }

    #[test]
    fn nothing_found_is_allowed() {
        assert_eq!(review().response(&website(), "shop"), json!({"uid": "1", "allowed": true}));
    }
}
