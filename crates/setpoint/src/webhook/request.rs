use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// What a client asks the API server to do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Create it.
    Create,
    /// Change it, however: replace, patch, apply.
    Update,
    /// Delete it.
    Delete,
    /// Connect to it: exec, proxy and the like.
    Connect,
}

impl Operation {
    /// As rules of webhook configurations write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who made a request, as the API server authenticated them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct User {
    /// The user's name, such as `system:serviceaccount:shop:web-operator`.
    pub username: String,
    /// The uid, where there is one.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// What the API server says about a request beside the objects: the `request` of an `AdmissionReview`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    /// The review's own id.
    pub uid: String,
    /// What is to be done.
    pub operation: Operation,
    /// The object's name. Empty for an object whose name the server generates.
    #[serde(default)]
    pub name: String,
    /// The object's namespace, if it has one.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The sub-resource that was asked for, such as `status`.
    #[serde(default, rename = "subResource")]
    pub subresource: Option<String>,
    /// Who asks.
    #[serde(default, rename = "userInfo")]
    pub user: User,
    /// Whether nothing will be stored: a webhook must not have effects then.
    #[serde(default)]
    pub dry_run: bool,
    /// The options of the request, such as `DeleteOptions`.
    #[serde(default)]
    pub options: Value,
}

/// A request with its objects, as they came.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    #[serde(flatten)]
    pub(super) request: AdmissionRequest,
    #[serde(default)]
    pub(super) object: Value,
    #[serde(default, rename = "oldObject")]
    pub(super) old: Value,
}
