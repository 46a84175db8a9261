//! Tokens of service accounts, given out on request (`pkg/registry/core/serviceaccount/storage/token.go`).

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::object::{Metadata, fields, timestamp};
use crate::registry::{Place, Registry, WriteOptions, another_kind};
use crate::server::Inner;
use crate::status::{Cause, Result, Status, Subject};
use crate::store::{Key, Stored};
use crate::tokens::{Bound, Grant, ISSUER};

const API_VERSION: &str = "authentication.k8s.io/v1";
const KIND: &str = "TokenRequest";
const DEFINITION: &str = "io.k8s.api.authentication.v1.TokenRequest";
/// Seconds of a token that asks for none.
const DEFAULT_LIFETIME: i64 = 3600;

/// The body of a request as decoding leaves it.
///
/// # Errors
/// When it is of another kind.
pub(crate) fn decode(
    registry: &Registry,
    place: &Place,
    mut body: Value,
    options: &WriteOptions,
) -> Result<Value> {
    let (version, kind) = (text_of(&body, "apiVersion"), text_of(&body, "kind"));
    if !kind.is_empty() && (version, kind) != (API_VERSION, KIND) {
        return Err(another_kind("authentication.k8s.io", KIND, version, kind));
    }
    check_identity(place, &body)?;
    fields(&mut body);
    body["apiVersion"] = API_VERSION.into();
    body["kind"] = KIND.into();
    let spec = fields(&mut body["spec"]);
    spec.entry("expirationSeconds").or_insert_with(|| DEFAULT_LIFETIME.into());
    body["metadata"] = json!({"namespace": place.namespace});
    registry.own_body(DEFINITION, API_VERSION, &mut body, options, "token");
    // Its Go type writes the reference even without one, so that it is never new as a whole.
    let reference = body.pointer_mut("/metadata/managedFields/0/fieldsV1/f:spec/f:boundObjectRef");
    if let Some(Value::Object(owned)) = reference {
        owned.remove(".");
    }
    Ok(body)
}

/// A request that can be met.
pub(crate) struct Asked {
    body: Value,
    namespace: String,
    account: Arc<Stored>,
    audiences: Vec<String>,
    lifetime: SignedDuration,
    bound: Bound,
}

impl Asked {
    /// What a request for the service account at `place` asks for.
    ///
    /// # Errors
    /// When the account or the object is missing, or the request is invalid.
    pub(crate) fn of(registry: &Registry, place: &Place, mut body: Value) -> Result<Self> {
        let account = registry.get(place)?;
        let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_LIFETIME);
        check_lifetime(seconds)?;
        let bound = match &body["spec"]["boundObjectRef"] {
            Value::Null => Bound::default(),
            reference => bound_object(registry, place, reference)?,
        };
        let metadata = fields(&mut body["metadata"]);
        metadata.insert("name".to_owned(), place.name.as_str().into());
        metadata.insert("creationTimestamp".to_owned(), registry.now().into());
        metadata.insert("uid".to_owned(), account.value.meta("uid").into());
        let given = body["spec"]["audiences"].as_array().into_iter().flatten();
        let mut audiences: Vec<String> =
            given.filter_map(|audience| audience.as_str().map(str::to_owned)).collect();
        if audiences.is_empty() {
            audiences.push(ISSUER.to_owned());
        }
        let spec = fields(&mut body["spec"]);
        spec.entry("boundObjectRef").or_insert(Value::Null);
        spec.insert("audiences".to_owned(), json!(audiences));
        body["status"] = json!({"token": "", "expirationTimestamp": null});
        let lifetime = SignedDuration::from_secs(seconds);
        Ok(Self { body, namespace: place.namespace.clone(), account, audiences, lifetime, bound })
    }

    /// The request as it is admitted.
    pub(crate) fn body(&self) -> &Value {
        &self.body
    }

    /// The request with its token.
    pub(crate) fn sign(mut self, inner: &Inner) -> Result<Value> {
        let registry = &inner.registry;
        let grant = Grant {
            namespace: &self.namespace,
            account: &self.account.value,
            audiences: self.audiences,
            lifetime: self.lifetime,
            bound: self.bound,
        };
        let (token, expires) = inner.tokens.sign(&grant, registry.clock.now(), &registry.store)?;
        self.body["status"] = json!({"token": token, "expirationTimestamp": timestamp(expires)});
        Ok(self.body)
    }
}

fn text_of<'a>(body: &'a Value, key: &str) -> &'a str {
    body[key].as_str().unwrap_or_default()
}

/// Refuses a body that names another account than the path.
fn check_identity(place: &Place, body: &Value) -> Result<()> {
    let (namespace, name) = (body.meta("namespace"), body.meta("name"));
    if !namespace.is_empty() && namespace != place.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if !name.is_empty() && name != place.name {
        let detail = "must match the service account name if specified";
        let cause = Cause::invalid("metadata.name", &name.into(), detail);
        let subject = Subject { group: "authentication.k8s.io", kind: KIND, name: &place.name };
        return Err(Status::invalid(subject, vec![cause]));
    }
    Ok(())
}

fn check_lifetime(seconds: i64) -> Result<()> {
    let detail = match seconds {
        ..600 => "may not specify a duration less than 10 minutes",
        600..=0x1_0000_0000 => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let cause = Cause::invalid("spec.expirationSeconds", &seconds.into(), detail);
    Err(Status::invalid(Subject { group: "authentication.k8s.io", kind: KIND, name: "" }, vec![cause]))
}

/// The object that a token is to live as long as, and the node of a pod.
fn bound_object(registry: &Registry, place: &Place, reference: &Value) -> Result<Bound> {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (kind, name, uid, version) = (text("kind"), text("name"), text("uid"), text("apiVersion"));
    let plural = match kind {
        "Pod" if !version.contains('/') => "pods",
        "Secret" if !version.contains('/') => "secrets",
        "Node" if !version.contains('/') => "nodes",
        other => {
            let group = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
            let text = format!("cannot bind token to object of type {group}, Kind={other}");
            return Err(Status::bad_request(text));
        }
    };
    let namespace = if plural == "nodes" { "" } else { place.namespace.as_str() };
    let found = registry.store.get(plural, &Key::new(namespace, name));
    let found = found.ok_or_else(|| Status::not_found(Subject { group: "", kind: plural, name }))?;
    if kind == "Pod" && found.value["spec"]["serviceAccountName"].as_str().unwrap_or_default() != place.name {
        return Err(Status::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            place.name
        )));
    }
    let live = found.value.meta("uid");
    if !uid.is_empty() && uid != live {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(Subject { group: "", kind, name }, &why));
    }
    let itself = Some((kind.to_owned(), name.to_owned(), live.to_owned()));
    let node = found.value["spec"]["nodeName"].as_str().filter(|node| kind == "Pod" && !node.is_empty());
    let node = node.map(|node| {
        let stored = registry.store.get("nodes", &Key::new("", node));
        (node.to_owned(), stored.map_or_else(String::new, |stored| stored.value.meta("uid").to_owned()))
    });
    Ok(Bound { itself, node })
}
