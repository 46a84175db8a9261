//! The scale subresource: a view of an object's replicas
//! (`pkg/registry/apps/*/storage`, `apiextensions-apiserver/pkg/registry/customresource/status_strategy.go`).

use http::HeaderMap;
use serde_json::{Value, json};
use setpoint_schema::managed::{self, ApplyRequest};
use setpoint_schema::{FieldSet, Schema};

use super::modify::Wanted;
use super::patch::{apply_refused, patch_object, require_manager};
use super::shape::served;
use super::tracked::Tracked;
use super::{Answer, PatchKind, Place, Registry, WriteOptions, Written};
use crate::admission::Attributes;
use crate::catalog::Resource;
use crate::object::{Metadata, fields};
use crate::selector::to_text;
use crate::status::{Cause, Result, Status, Subject};

const DEFINITION: &str = "io.k8s.api.autoscaling.v1.Scale";

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

    pub(crate) async fn update_scale(
        &self,
        place: &Place,
        body: &Value,
        options: &WriteOptions,
    ) -> Result<Written> {
        let replaced = |scale: &mut Value| {
            *scale = body.clone();
            Ok(())
        };
        self.change_scale(place, options, false, replaced).await
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
        let patch = super::decode::parse_json(body)?;
        let patched = |scale: &mut Value| patch_object(kind, &place.resource, scale, &patch);
        self.change_scale(place, options, false, patched).await
    }

    /// Server-side apply of the number of replicas. Who owns it is asked in terms of the scale, and noted in the object.
    async fn apply_scale(&self, place: &Place, intent: &Value, options: &WriteOptions) -> Result<Written> {
        require_manager(options)?;
        let Some(schema) = Schema::builtin(DEFINITION) else {
            return Err(Status::internal("no schema of scales"));
        };
        let merged = |scale: &mut Value| {
            let applied = managed::apply(&ApplyRequest {
                schema: &schema,
                live: Some(scale),
                intent,
                manager: &options.manager,
                force: options.force,
                subresource: "scale",
                api_version: "autoscaling/v1",
                ignored: &FieldSet::default(),
                now: self.clock.now(),
            });
            *scale = applied.map_err(|error| apply_refused(&error))?.object;
            Ok(())
        };
        self.change_scale(place, options, true, merged).await
    }

    async fn change_scale(
        &self,
        place: &Place,
        options: &WriteOptions,
        apply: bool,
        change: impl Fn(&mut Value) -> Result<()> + Send + Sync,
    ) -> Result<Written> {
        let resource = &place.resource;
        loop {
            let stored = self.read(place).await?;
            let live = served(resource, &stored);
            let old = scale_of(resource, &live);
            let mut scale = old.clone();
            if apply {
                scale["metadata"]["managedFields"] = owners_of_replicas(&live, &paths(resource).spec);
            }
            change(&mut scale)?;
            check_scale(place, &scale, &live)?;
            let request = Attributes::write(place, "scale", Some(&old), options);
            let request = request.of_kind("autoscaling", "v1", "Scale");
            let mut warnings = self.admit_body(&request, &mut scale).await?;
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
                    if apply {
                        // From now on the manager owns the number by apply: conflicts are settled.
                        let object = intent(place, replicas);
                        let tracked = Tracked::Intent { force: true };
                        return Ok(Wanted { object, tracked, warnings: Vec::new() });
                    }
                    set(&mut object, &paths(resource).spec, replicas);
                    let version = scale.meta("resourceVersion");
                    if !version.is_empty() {
                        object["metadata"]["resourceVersion"] = version.into();
                    }
                    Ok(Wanted { object, tracked: Tracked::Update, warnings: Vec::new() })
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
}

/// The part of an object that says how many replicas it has.
fn intent(place: &Place, replicas: i64) -> Value {
    let resource = &place.resource;
    let mut intent = json!({
        "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": place.name},
    });
    set(&mut intent, &paths(resource).spec, replicas);
    intent
}

/// The entries of those who own the number of replicas, as a scale shows them.
fn owners_of_replicas(object: &Value, path: &[String]) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let owns = |entry: &&Value| {
        let at = path.iter().fold(&entry["fieldsV1"], |fields, step| &fields[format!("f:{step}").as_str()]);
        at.is_object()
    };
    let shown = entries.filter(owns).map(|entry| {
        let mut shown = json!({
            "manager": entry["manager"], "operation": entry["operation"], "apiVersion": "autoscaling/v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}},
        });
        if let Some(subresource) = entry.get("subresource") {
            shown["subresource"] = subresource.clone();
        }
        shown
    });
    shown.collect()
}

fn check_scale(place: &Place, scale: &Value, live: &Value) -> Result<()> {
    if scale["kind"] != "Scale" {
        return Err(Status::bad_request("the object provided is unrecognized (must be of type Scale)"));
    }
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
