//! Tokens of service accounts, given out on request (`pkg/registry/core/serviceaccount/storage/token.go`).

use jiff::SignedDuration;
use serde_json::{Value, json};
use setpoint_schema::managed::{self, UpdateRequest};
use setpoint_schema::{FieldSet, Schema};

use crate::object::{Metadata, fields, timestamp};
use crate::registry::{Place, Registry, WriteOptions, another_kind};
use crate::server::Inner;
use crate::status::{Cause, Result, Status, Subject};
use crate::store::Key;
use crate::tokens::{Bound, Grant, ISSUER};

const API_VERSION: &str = "authentication.k8s.io/v1";
const KIND: &str = "TokenRequest";
/// Seconds of a token that asks for none.
const DEFAULT_LIFETIME: i64 = 3600;

/// Gives out a token of the service account at `place`.
pub(crate) fn answer(inner: &Inner, place: &Place, mut body: Value, options: &WriteOptions) -> Result<Value> {
    let registry = &inner.registry;
    let (version, kind) = (text_of(&body, "apiVersion"), text_of(&body, "kind"));
    if !kind.is_empty() && (version, kind) != (API_VERSION, KIND) {
        return Err(another_kind("authentication.k8s.io", KIND, version, kind));
    }
    check_identity(place, &body)?;
    let account = registry.get(place)?;
    let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_LIFETIME);
    check_lifetime(seconds)?;
    let bound = match &body["spec"]["boundObjectRef"] {
        Value::Null => Bound::default(),
        reference => bound_object(registry, place, reference)?,
    };
    fields(&mut body);
    body["apiVersion"] = API_VERSION.into();
    body["kind"] = KIND.into();
    let spec = fields(&mut body["spec"]);
    spec.insert("expirationSeconds".to_owned(), seconds.into());
    body["metadata"] = json!({
        "name": place.name, "namespace": place.namespace, "creationTimestamp": registry.now(),
        "uid": account.value.meta("uid"),
    });
    // Before the audiences are filled in: those are the server's.
    own(&mut body, options, registry);
    let mut audiences: Vec<String> = body["spec"]["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let grant = Grant {
        namespace: &place.namespace,
        account: &account.value,
        audiences: audiences.clone(),
        lifetime: SignedDuration::from_secs(seconds),
        bound,
    };
    let (token, expires) = inner.tokens.sign(&grant, registry.clock.now(), &registry.store)?;
    let spec = fields(&mut body["spec"]);
    spec.entry("boundObjectRef").or_insert(Value::Null);
    spec.insert("audiences".to_owned(), json!(audiences));
    body["status"] = json!({"token": token, "expirationTimestamp": timestamp(expires)});
    Ok(body)
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

fn own(body: &mut Value, options: &WriteOptions, registry: &Registry) {
    let Some(schema) = Schema::builtin("io.k8s.api.authentication.v1.TokenRequest") else { return };
    let request = UpdateRequest {
        schema: &schema,
        live: None,
        manager: &options.manager,
        subresource: "token",
        api_version: API_VERSION,
        ignored: &FieldSet::default(),
        now: registry.clock.now(),
    };
    managed::update(&request, body);
    // Its Go type writes the reference even without one, so that it is never new as a whole.
    let reference = body.pointer_mut("/metadata/managedFields/0/fieldsV1/f:spec/f:boundObjectRef");
    if let Some(Value::Object(owned)) = reference {
        owned.remove(".");
    }
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
