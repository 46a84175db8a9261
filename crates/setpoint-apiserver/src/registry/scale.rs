//! The scale subresource: a view of an object's replicas
//! (`pkg/registry/apps/*/storage`, `apiextensions-apiserver/pkg/registry/customresource/status_strategy.go`).

use std::sync::{Arc, LazyLock};

use http::HeaderMap;
use serde_json::{Value, json};
use setpoint_kinds::Kind;
use setpoint_schema::managed::{self, ApplyRequest, Entries, Entry, Operation, UpdateRequest};
use setpoint_schema::{Element, FieldSet};

use super::decode::parse_json_naming;
use super::modify::Wanted;
use super::patch::{apply_refused, check_form, check_type, patch_object, require_manager};
use super::shape::{clean, served};
use super::tracked::Tracked;
use super::{Answer, PatchKind, Place, Registry, WriteOptions, Written, patched};
use crate::admission::Attributes;
use crate::catalog::Resource;
use crate::object::{Metadata, fields};
use crate::selector::to_text;
use crate::status::{Cause, Result, Status, Subject};

const API_VERSION: &str = "autoscaling/v1";
/// Upstream: `invalidSpecReplicas`.
const UNSET: i64 = -2_147_483_648;

/// Scales as if they were objects of a resource of their own.
pub(crate) static SCALE: LazyLock<Arc<Resource>> = LazyLock::new(|| {
    static KIND: LazyLock<Kind> = LazyLock::new(|| {
        let text = r#"{"group": "autoscaling", "version": "v1", "kind": "Scale", "list_kind": "ScaleList", "plural": "scales", "singular": "scale",
            "namespaced": true, "verbs": [], "definition": "io.k8s.api.autoscaling.v1.Scale"}"#;
        #[expect(clippy::expect_used, reason = "the text above is one")]
        serde_json::from_str(text).expect("a kind")
    });
    Arc::new(Resource::built_in(&KIND))
});

/// Where the numbers are, as paths of field names.
struct Paths {
    spec: Vec<String>,
    status: Vec<String>,
    selector: Option<Vec<String>>,
}

fn paths(resource: &Resource) -> Paths {
    let split = |path: &str| path.trim_start_matches('.').split('.').map(str::to_owned).collect();
    match resource.custom().and_then(|custom| custom.scale.as_ref()) {
        Some(scale) => Paths {
            spec: split(&scale.spec),
            status: split(&scale.status),
            selector: scale.selector.as_deref().map(split),
        },
        None => Paths {
            spec: split("spec.replicas"),
            status: split("status.replicas"),
            selector: Some(split("spec.selector")),
        },
    }
}

fn at<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(object, |value, field| &value[field.as_str()])
}

fn scale_of(resource: &Resource, object: &Value) -> Value {
    let paths = paths(resource);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !object["metadata"][field].is_null() {
            metadata[field] = object["metadata"][field].clone();
        }
    }
    let spec = at(object, &paths.spec).as_i64().unwrap_or_default();
    let status = at(object, &paths.status).as_i64().unwrap_or_default();
    let mut scale = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata,
        "spec": {}, "status": {"replicas": status},
    });
    if spec != 0 {
        scale["spec"]["replicas"] = spec.into();
    }
    let selector = paths.selector.as_deref().map(|path| at(object, path));
    let selector = match selector {
        Some(Value::String(text)) => text.clone(),
        Some(selector @ Value::Object(_)) => to_text(selector),
        _ => String::new(),
    };
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

impl Registry {
    pub(crate) async fn get_scale(&self, place: &Place) -> Result<Value> {
        let stored = self.read(place).await?;
        if let Some(scale) = place.resource.custom().and_then(|custom| custom.scale.as_ref())
            && at(&stored.value, &paths(&place.resource).spec).is_null()
        {
            // Upstream: `scaleFromCustomResource`, where the number of replicas has no default.
            return Err(Status::internal(format!("the spec replicas field {:?} does not exist", scale.spec)));
        }
        Ok(scale_of(&place.resource, &served(&place.resource, &stored)))
    }

    /// Replaces the scale by the body of a PUT.
    pub(crate) async fn update_scale(
        &self,
        place: &Place,
        body: &Value,
        options: &WriteOptions,
    ) -> Result<Written> {
        let replaced = |live: &Value, warnings: &mut Vec<String>| {
            let mut new = body.clone();
            check_kind_of(&new)?;
            let cleaned = clean(&SCALE, &mut new, options, None);
            warnings.extend(cleaned.map_err(|status| unreadable(place, status))?);
            self.track_scale(live, &mut new, options);
            Ok(new)
        };
        self.change_scale(place, options, replaced).await
    }

    pub(crate) async fn patch_scale(
        &self,
        place: &Place,
        headers: &HeaderMap,
        body: &[u8],
        options: &WriteOptions,
    ) -> Result<Written> {
        let kind = PatchKind::of(headers, &place.resource)?;
        if kind == PatchKind::Apply {
            return self.apply_scale(place, &super::decode::parse_yaml(body)?, options).await;
        }
        let (patch, faults) =
            parse_json_naming(body).map_err(|_| Status::bad_request("invalid JSON patch"))?;
        check_form(kind, &patch)?;
        let patched = |live: &Value, warnings: &mut Vec<String>| {
            let mut new = live.clone();
            patch_object(kind, &SCALE, &mut new, &patch)?;
            let patch = patched::Patch { kind, value: &patch, faults: &faults };
            warnings.extend(patched::check(&SCALE, live, &new, &patch, options)?);
            check_kind_of(&new)?;
            warnings.extend(clean(&SCALE, &mut new, options, None)?);
            self.track_scale(live, &mut new, options);
            Ok(new)
        };
        self.change_scale(place, options, patched).await
    }

    /// Server-side apply of the number of replicas.
    async fn apply_scale(&self, place: &Place, intent: &Value, options: &WriteOptions) -> Result<Written> {
        require_manager(options)?;
        check_type(&SCALE, intent)?;
        let applied = |live: &Value, _: &mut Vec<String>| {
            let owned = live["metadata"]["managedFields"].as_array().is_some_and(|owners| !owners.is_empty());
            // Upstream converts a scale as if it were a custom resource, and fails.
            let inconvertible = |what: &str| {
                Status::unknown(format!(
                    "{what}, Kind=Scale) to proper version: request to convert CR to an invalid group/version: autoscaling/v1"
                ))
            };
            let custom = place.resource.custom().is_some();
            if custom && !owned {
                return Err(inconvertible(
                    "failed to create manager for existing fields: failed to convert live object (/; autoscaling/v1",
                ));
            }
            let applied = managed::apply(&ApplyRequest {
                schema: &SCALE.schema(),
                live: Some(live),
                intent,
                manager: &options.manager,
                force: options.force,
                subresource: "scale",
                api_version: API_VERSION,
                ignored: &FieldSet::default(),
                now: self.clock.now(),
            });
            let object = applied.map_err(|error| apply_refused(&error))?.object;
            if custom {
                let of = format!("{}/{}", place.namespace, place.name);
                return Err(inconvertible(&format!("failed to convert new object ({of}; autoscaling/v1")));
            }
            Ok(object)
        };
        self.change_scale(place, options, applied).await
    }

    /// Notes in the managed fields of a scale who changes it.
    fn track_scale(&self, live: &Value, new: &mut Value, options: &WriteOptions) {
        let request = UpdateRequest {
            schema: &SCALE.schema(),
            live: Some(live),
            manager: &options.manager,
            subresource: "scale",
            api_version: API_VERSION,
            ignored: &FieldSet::default(),
            now: self.clock.now(),
        };
        managed::update(&request, new);
    }

    /// Writes the number of replicas into the object; `change` makes the new scale from the one that there is, whose managed fields are those of
    /// the owners of the number.
    async fn change_scale(
        &self,
        place: &Place,
        options: &WriteOptions,
        change: impl Fn(&Value, &mut Vec<String>) -> Result<Value> + Send + Sync,
    ) -> Result<Written> {
        let resource = &place.resource;
        let paths = paths(resource);
        loop {
            let mut warnings = Vec::new();
            let stored = self.read(place).await?;
            let live = served(resource, &stored);
            let old = scale_of(resource, &live);
            let unset = resource.custom().is_some() && at(&live, &paths.spec).is_null();
            let mut known = old.clone();
            owners_of_replicas(self, resource, &live).write(&mut known);
            if unset {
                // As upstream, which sees by that whether somebody sets it.
                known["spec"]["replicas"] = UNSET.into();
            }
            let mut scale = change(&known, &mut warnings)?;
            if scale["spec"]["replicas"] == UNSET {
                let path = resource.custom().and_then(|custom| custom.scale.as_ref());
                let path = path.map_or("", |scale| scale.spec.as_str());
                return Err(Status::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
            }
            check_scale(place, &scale, &live)?;
            let owners = merge_owners(self, resource, &live, &scale);
            // Admission is not told of them.
            Entries::default().write(&mut scale);
            let request = Attributes::write(place, "scale", Some(&old), options);
            let request = request.of_kind("autoscaling", "v1", "Scale");
            warnings.extend(self.admit_body(&request, &mut scale).await?);
            check_scale(place, &scale, &live)?;
            // What was admitted is a change of this version.
            let mut moved = false;
            let written = self
                .modify(place, "scale", options, |now| {
                    if now.meta("resourceVersion") != live.meta("resourceVersion") {
                        moved = true;
                        return Err(Status::modified(resource.subject(&place.name)));
                    }
                    let mut object = now.clone();
                    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or_default();
                    set(&mut object, &paths.spec, replicas);
                    let version = scale.meta("resourceVersion");
                    if !version.is_empty() {
                        object["metadata"]["resourceVersion"] = version.into();
                    }
                    owners.clone().write(&mut object);
                    Ok(Wanted { object, tracked: Tracked::Done, warnings: Vec::new() })
                })
                .await;
            if moved {
                continue;
            }
            let written = written?;
            let scale = match &written.object {
                Answer::Stored(stored) => scale_of(resource, &served(resource, stored)),
                Answer::Draft(value) | Answer::Other(value) => scale_of(resource, value),
            };
            warnings.extend(written.warnings);
            return Ok(Written { object: Answer::Other(scale), warnings, code: written.code });
        }
    }

    /// Where a version of `resource` has its number of replicas: nothing for a version that is no more, an empty path for one without scale.
    fn replicas_in(&self, resource: &Resource, api_version: &str) -> Option<Vec<Element>> {
        let version = self.version(resource, api_version)?;
        if version.custom().is_some_and(|custom| custom.scale.is_none()) {
            return Some(Vec::new());
        }
        Some(paths(&version).spec.iter().map(|field| Element::field(field.as_str())).collect())
    }
}

/// Those who own the number of replicas, as a scale shows them (upstream: `ScaleHandler.ToSubresource`).
fn owners_of_replicas(registry: &Registry, resource: &Resource, object: &Value) -> Entries {
    let owners = Entries::of(object).unwrap_or_default().0.into_iter().filter(|entry| {
        let path = registry.replicas_in(resource, &entry.api_version);
        path.is_some_and(|path| !path.is_empty() && entry.fields.has(&path))
    });
    let shown = owners.map(|entry| Entry {
        api_version: API_VERSION.to_owned(),
        fields: FieldSet::of_fields(&[&["spec", "replicas"]]),
        ..entry
    });
    Entries(shown.collect())
}

/// The managed fields of an object after its scale was written (upstream: `ScaleHandler.ToParent`, which loses the times of all who own the number
/// by the scale).
fn merge_owners(registry: &Registry, resource: &Resource, object: &Value, scale: &Value) -> Entries {
    let in_scale = [Element::field("spec"), Element::field("replicas")];
    let mut scaling = Entries::of(scale).unwrap_or_default().0;
    let mut merged = Vec::new();
    for mut entry in Entries::of(object).unwrap_or_default().0 {
        let Some(path) = registry.replicas_in(resource, &entry.api_version) else { continue };
        if !path.is_empty() && entry.fields.has(&path) {
            let kept = scaling.iter().position(|other| {
                // Who updates is known by his version as well, and that is another one here.
                other.operation == Operation::Apply
                    && (&other.manager, other.operation, &other.subresource)
                        == (&entry.manager, entry.operation, &entry.subresource)
            });
            if let Some(index) = kept {
                scaling.remove(index);
            } else {
                let mut number = FieldSet::default();
                number.insert(path);
                entry.fields = entry.fields.difference(&number);
            }
        }
        if !entry.fields.is_empty() {
            merged.push(entry);
        }
    }
    let own = registry.replicas_in(resource, &resource.api_version()).unwrap_or_default();
    let owning = scaling.into_iter().filter(|entry| entry.fields.has(&in_scale));
    merged.extend(owning.map(|entry| {
        let mut fields = FieldSet::default();
        fields.insert(own.iter().cloned());
        Entry { api_version: resource.api_version(), fields, time: None, ..entry }
    }));
    Entries(merged)
}

/// A body of the wrong kind.
fn check_kind_of(scale: &Value) -> Result<()> {
    if scale["kind"] == "Scale" {
        return Ok(());
    }
    Err(Status::bad_request("the object provided is unrecognized (must be of type Scale)"))
}

/// Why a scale cannot be read: for custom resources upstream does not know the type to name.
fn unreadable(place: &Place, status: Status) -> Status {
    if place.resource.custom().is_none() {
        return status;
    }
    Status::bad_request("no kind is registered for the type v1.Scale in scheme \"pkg/runtime/scheme.go:111\"")
}

fn check_scale(place: &Place, scale: &Value, live: &Value) -> Result<()> {
    let name = scale.meta("name");
    if !name.is_empty() && name != place.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            place.name
        )));
    }
    let uid = scale.meta("uid");
    if !uid.is_empty() && uid != live.meta("uid") {
        return Err(super::modify::uid_precondition(place, uid, live.meta("uid")));
    }
    if place.resource.custom().is_some() {
        // What the number may be is checked with the whole object.
        return Ok(());
    }
    let replicas = &scale["spec"]["replicas"];
    let bad = match replicas.as_i64() {
        Some(count) => count < 0,
        None => !replicas.is_null(),
    };
    if bad {
        let cause = Cause::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        let subject = Subject { group: "autoscaling", kind: "Scale", name: &place.name };
        return Err(Status::invalid(subject, vec![cause]));
    }
    Ok(())
}

fn set(object: &mut Value, path: &[String], replicas: i64) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut value = object;
    for field in parents {
        value = fields(value).entry(field.as_str()).or_insert(Value::Null);
    }
    fields(value).insert(last.clone(), replicas.into());
}
