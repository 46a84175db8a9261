//! The `AdmissionReview`: what is sent, and what may come back (`…/webhook/request/admissionreview.go`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::admission::Attributes;
use crate::admission::expressions::resource_of;
use crate::admission::versions::Versioned;
use crate::webhooks::unexpected;

const KIND: &str = "AdmissionReview";
const GROUP: &str = "admission.k8s.io";

/// What a webhook answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) warnings: Vec<String>,
    pub(super) patch: Vec<u8>,
    pub(super) patch_type: String,
    /// Why the request is refused, if it is.
    pub(super) refusal: Option<Refusal>,
}

/// The `Status` of a refusal, as far as the webhook gave one.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Option<Value>);

/// The review of a request in `version`.
pub(super) fn request(version: &str, uid: &str, request: &Attributes<'_>, versioned: &Versioned) -> Value {
    let kind = request.kind.to_value();
    let user = request.user;
    let mut info = json!({"username": user.user, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    let mut body = json!({
        "uid": uid,
        "kind": versioned.kind,
        "resource": versioned.resource_value(),
        "requestKind": kind,
        "requestResource": resource_of(request),
        "operation": request.operation.name(),
        "userInfo": info,
        "object": versioned.object,
        "oldObject": versioned.old,
        "dryRun": request.dry_run(),
        "options": request.options_object(),
    });
    let texts = [
        ("subResource", request.subresource),
        ("requestSubResource", request.subresource),
        ("name", request.place.name.as_str()),
        ("namespace", request.namespace()),
    ];
    for (key, text) in texts {
        if !text.is_empty() {
            body[key] = text.into();
        }
    }
    json!({"apiVersion": format!("{GROUP}/{version}"), "kind": KIND, "request": body})
}

/// Reads the answer to the review `uid` of `version`.
///
/// # Errors
/// When it is not a valid answer.
pub(super) fn read(version: &str, uid: &str, mutating: bool, mut review: Value) -> Result<Answer, String> {
    let Value::Object(mut response) = review["response"].take() else {
        return Err("webhook response was absent".to_owned());
    };
    let text = |response: &Map<String, Value>, key: &str| {
        response.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let encoded = text(&response, "patch");
    let patch = STANDARD.decode(&encoded).unwrap_or_default();
    let kind = response.get("patchType").and_then(Value::as_str).map(str::to_owned);
    if version == "v1" {
        let answered = text(&response, "uid");
        if answered != uid {
            return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
        }
        if review["kind"] != KIND || review["apiVersion"] != format!("{GROUP}/v1") {
            return Err(unexpected(&review, GROUP, KIND));
        }
        match (mutating, patch.is_empty(), &kind) {
            (true, false, None) => {
                return Err("webhook returned response.patch but not response.patchType".to_owned());
            }
            (true, true, Some(_)) => {
                return Err("webhook returned response.patchType but not response.patch".to_owned());
            }
            (true, _, Some(kind)) if kind.is_empty() => {
                return Err("webhook returned invalid response.patchType of \"\"".to_owned());
            }
            (false, false, _) => return Err("validating webhook may not return response.patch".to_owned()),
            (false, _, Some(_)) => {
                return Err("validating webhook may not return response.patchType".to_owned());
            }
            _ => {}
        }
    }
    let allowed = response.get("allowed") == Some(&Value::Bool(true));
    let texts = response.get("warnings").and_then(Value::as_array).into_iter().flatten();
    Ok(Answer {
        warnings: texts.filter_map(Value::as_str).map(str::to_owned).collect(),
        patch: if mutating { patch } else { Vec::new() },
        // The first version knew only one, and did not ask for its name.
        patch_type: if version == "v1" { kind.unwrap_or_default() } else { "JSONPatch".to_owned() },
        refusal: (!allowed).then(|| Refusal(response.remove("status").filter(Value::is_object))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mutating: bool, response: &Value) -> Result<Answer, String> {
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        read("v1", "u", mutating, review)
    }

    #[test]
    fn answers_are_checked() {
        assert!(of(false, &json!({"uid": "u", "allowed": true})).unwrap().refusal.is_none());
        let patched =
            of(true, &json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "W10="}));
        assert_eq!(patched.unwrap().patch, b"[]");
        assert!(of(true, &json!({"uid": "u", "allowed": true, "patch": "W10="})).is_err());
        assert!(of(false, &json!({"uid": "u", "allowed": true, "patch": "W10="})).is_err());
        assert_eq!(of(false, &json!({"uid": "v"})).unwrap_err(), "expected response.uid=\"u\", got \"v\"");
        assert_eq!(of(false, &Value::Null).unwrap_err(), "webhook response was absent");
    }
}
