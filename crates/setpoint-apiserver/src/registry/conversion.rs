//! Custom resources from one version into another by webhook
//! (`apiextensions-apiserver/pkg/apiserver/conversion/webhook_converter.go`).
//!
//! ```text
//! read:  stored ─▶ its own version's defaults ─▶ ConversionReview ─▶ checks, metadata restored ─▶ pruned ─▶ reader
//! write: request's version, admitted and valid ─▶ ConversionReview ─▶ store ─▶ as read ─▶ writer
//! ```
//!
//! Objects that are stored in the version of the request are never sent. Nothing is kept: what a webhook says today holds today.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::shape::{served_value, storage_form};
use super::{Answer, Place, Registry};
use crate::catalog::Resource;
use crate::custom::Conversion;
use crate::object::{Metadata, go_type};
use crate::object_meta;
use crate::status::Status;
use crate::store::{Key, Stored};
use crate::webhooks::unexpected;

/// How long a webhook may take (upstream: the default of its client).
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most objects of one review.
const BATCH: usize = 500;
const KIND: &str = "ConversionReview";
const GROUP: &str = "apiextensions.k8s.io";

/// A stored object that cannot be read in the wanted version.
#[derive(Debug)]
pub(crate) struct Unreadable {
    key: Key,
    revision: u64,
    why: String,
}

impl Unreadable {
    fn of(stored: &Stored, why: String) -> Self {
        let key = Key::new(stored.value.meta("namespace"), stored.value.meta("name"));
        Self { key, revision: stored.revision, why }
    }

    fn undecodable(&self) -> String {
        format!("object not decodable revision={}: {}", self.revision, self.why)
    }

    fn corrupt(&self, resource: &Resource, root: &str) -> String {
        let namespace =
            if self.key.namespace.is_empty() { String::new() } else { format!("{}/", self.key.namespace) };
        let key = format!("{root}/{}/{}/{namespace}{}", resource.group, resource.plural, self.key.name);
        format!(
            "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {}",
            self.undecodable()
        )
    }

    /// For who wants to read or delete it.
    pub(super) fn on_read(&self, resource: &Resource) -> Status {
        Status::internal(self.corrupt(resource, ""))
    }

    /// For who wants to watch all of them.
    pub(super) fn first_on_read(all: &[Self], resource: &Resource) -> Status {
        all.first().map_or_else(|| Status::internal("no object can be read"), |one| one.on_read(resource))
    }

    /// For who wants to change it.
    pub(super) fn on_update(&self) -> Status {
        Status::unknown(self.undecodable())
    }

    /// For who wants to list all of them with others.
    pub(super) fn on_list(all: &[Self], resource: &Resource) -> Status {
        let causes = all.iter().map(|one| {
            let (namespace, name) = (&one.key.namespace, &one.key.name);
            let key = format!("/registry/{}/{}/{namespace}/{name}", resource.group, resource.plural);
            (key.replace("//", "/"), one.corrupt(resource, "/registry"))
        });
        Status::unreadable(resource.subject("list"), causes.collect())
    }
}

/// Why a webhook did not convert objects.
#[derive(Debug)]
enum Unconverted {
    /// It could not be asked.
    Unasked(String),
    /// What it answered.
    Answered(String),
}

impl From<Unconverted> for String {
    fn from(unconverted: Unconverted) -> Self {
        match unconverted {
            Unconverted::Unasked(why) | Unconverted::Answered(why) => why,
        }
    }
}

/// The conversion by webhook of a custom resource, if it has one.
pub(super) fn by_webhook(resource: &Resource) -> Option<&Conversion> {
    resource.custom()?.conversion.as_ref()
}

impl Registry {
    /// The object at `place`, in the version of its resource.
    ///
    /// # Errors
    /// When there is none, or it cannot be converted.
    pub(crate) async fn read(&self, place: &Place) -> Result<Arc<Stored>, Status> {
        let stored = self.get(place)?;
        self.in_version(&place.resource, stored).await.map_err(|error| error.on_read(&place.resource))
    }

    /// A stored object in the version of `resource`, as far as a webhook is needed for that.
    pub(super) async fn in_version(
        &self,
        resource: &Resource,
        stored: Arc<Stored>,
    ) -> Result<Arc<Stored>, Unreadable> {
        let Some(conversion) = by_webhook(resource) else { return Ok(stored) };
        if stored.is_in(&resource.api_version()) {
            return Ok(stored);
        }
        let converted = self.convert_stored(resource, conversion, std::slice::from_ref(&stored)).await;
        match converted {
            Ok(mut one) => Ok(one.pop().unwrap_or(stored)),
            Err(why) => Err(Unreadable::of(&stored, why.into())),
        }
    }

    /// An answer in the version of `resource`.
    pub(super) async fn answer_in_version(
        &self,
        resource: &Resource,
        answer: Answer,
    ) -> Result<Answer, Status> {
        match answer {
            Answer::Stored(stored) => {
                let read = self.in_version(resource, stored).await;
                read.map(Answer::Stored).map_err(|error| error.on_read(resource))
            }
            Answer::Draft(object) if by_webhook(resource).is_some() => {
                let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
                let Some(from) = self.version_of(resource, &version) else {
                    return Ok(Answer::Draft(object));
                };
                let converted = self.converted(&from, resource, object).await;
                converted.map(Answer::Draft).map_err(Status::unknown)
            }
            // Nothing was stored; the writer still sees what would be read.
            Answer::Draft(object)
                if resource.custom().is_some() && object["apiVersion"] != resource.api_version() =>
            {
                Ok(Answer::Draft(served_value(resource, object)))
            }
            other => Ok(other),
        }
    }

    /// Stored objects in the version of `resource`, in the same order.
    ///
    /// # Errors
    /// All that cannot be read.
    pub(super) async fn all_in_version(
        &self,
        resource: &Resource,
        mut stored: Vec<Arc<Stored>>,
    ) -> Result<Vec<Arc<Stored>>, Vec<Unreadable>> {
        let Some(conversion) = by_webhook(resource) else { return Ok(stored) };
        let wanted = resource.api_version();
        let other: Vec<usize> = (0..stored.len()).filter(|&index| !stored[index].is_in(&wanted)).collect();
        let mut unreadable = Vec::new();
        for batch in other.chunks(BATCH) {
            let objects: Vec<_> = batch.iter().map(|&index| Arc::clone(&stored[index])).collect();
            match self.convert_stored(resource, conversion, &objects).await {
                Ok(converted) => {
                    for (&index, object) in batch.iter().zip(converted) {
                        stored[index] = object;
                    }
                }
                Err(Unconverted::Unasked(why)) => {
                    unreadable.extend(objects.iter().map(|one| Unreadable::of(one, why.clone())));
                }
                // Upstream asks for each object by itself, so one that is bad says nothing about the others.
                Err(Unconverted::Answered(_)) => {
                    for &index in batch {
                        match self.in_version(resource, Arc::clone(&stored[index])).await {
                            Ok(one) => stored[index] = one,
                            Err(one) => unreadable.push(one),
                        }
                    }
                }
            }
        }
        if unreadable.is_empty() { Ok(stored) } else { Err(unreadable) }
    }

    /// Has a webhook convert stored objects, in one review.
    async fn convert_stored(
        &self,
        resource: &Resource,
        conversion: &Conversion,
        stored: &[Arc<Stored>],
    ) -> Result<Vec<Arc<Stored>>, Unconverted> {
        let mut objects = Vec::with_capacity(stored.len());
        for one in stored {
            let mut object = one.decode();
            let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
            let from = self.version_of(resource, &version).ok_or_else(|| {
                Unconverted::Answered(format!(
                    "request to convert CR from an invalid group/version: {version}"
                ))
            })?;
            if let Some(custom) = from.custom() {
                custom.complete(&mut object);
            }
            objects.push(object);
        }
        let converted = self.convert(resource, conversion, objects).await?;
        let pairs = stored.iter().zip(converted);
        Ok(pairs.map(|(before, object)| Stored::encode(&object, before.revision)).collect())
    }

    /// A valid object of `resource` as it is stored.
    pub(super) async fn to_storage(&self, resource: &Resource, object: Value) -> Result<Value, Status> {
        if let (Some(conversion), Some(custom)) = (by_webhook(resource), resource.custom())
            && object["apiVersion"] != custom.storage_version.as_str()
            && let Some(to) = self.version_of(resource, &custom.storage_version)
        {
            let mut converted = self.convert(&to, conversion, vec![object]).await.map_err(Status::unknown)?;
            return Ok(converted.pop().unwrap_or_default());
        }
        Ok(storage_form(resource, object))
    }

    /// `object`, which is in the version of `from`, in that of `to`.
    ///
    /// # Errors
    /// Why a webhook did not convert it.
    pub(crate) async fn converted(
        &self,
        from: &Resource,
        to: &Resource,
        object: Value,
    ) -> Result<Value, String> {
        if from.version == to.version && from.group == to.group {
            return Ok(object);
        }
        match by_webhook(to) {
            Some(conversion) => {
                Ok(self.convert(to, conversion, vec![object]).await?.pop().unwrap_or_default())
            }
            None => Ok(served_value(to, storage_form(from, object))),
        }
    }

    /// Has a webhook convert objects into the version of `to`.
    async fn convert(
        &self,
        to: &Resource,
        conversion: &Conversion,
        mut objects: Vec<Value>,
    ) -> Result<Vec<Value>, Unconverted> {
        let versions: Vec<Value> = objects
            .iter_mut()
            .map(|object| {
                let meta = object["metadata"].as_object_mut();
                meta.and_then(|meta| meta.remove("resourceVersion")).unwrap_or_default()
            })
            .collect();
        let first = objects.first().unwrap_or(&Value::Null);
        let of = format!(
            "conversion webhook for {}, Kind={}",
            first["apiVersion"].as_str().unwrap_or_default(),
            first["kind"].as_str().unwrap_or_default()
        );
        let Some(version) = conversion.review_version() else {
            return Err(Unconverted::Unasked("no supported conversion review versions".to_owned()));
        };
        let (uid, wanted) = (self.entropy.uuid(), to.api_version());
        let review = json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": KIND,
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        });
        // Few requests call a webhook: the others need no room for it.
        let answer = Box::pin(self.call_webhook(&conversion.client, TIMEOUT, &review)).await;
        let answer = answer.map_err(|error| Unconverted::Unasked(format!("{of} failed: {}", error.why())))?;
        let converted = read(version, &uid, answer)
            .map_err(|why| Unconverted::Answered(format!("{of} failed: {why}")))?;
        if converted.len() != objects.len() {
            let (found, expected) = (converted.len(), objects.len());
            return Err(Unconverted::Answered(format!("{of} returned {found} objects, expected {expected}")));
        }
        let several = objects.len() > 1;
        let pairs = objects.iter().zip(converted).zip(versions).enumerate();
        pairs
            .map(|(index, ((original, converted), version))| {
                let index = several.then_some(index);
                let mut object =
                    checked(original, converted, &wanted, &of, index).map_err(Unconverted::Answered)?;
                if let Some(custom) = to.custom() {
                    setpoint_schema::prune(&custom.schema, &mut object);
                }
                if !version.is_null() {
                    object["metadata"]["resourceVersion"] = version;
                }
                Ok(object)
            })
            .collect()
    }
}

/// The objects of an answer to the review `uid` of `version`.
fn read(version: &str, uid: &str, mut review: Value) -> Result<Vec<Value>, String> {
    if version == "v1" && (review["kind"] != KIND || review["apiVersion"] != format!("{GROUP}/v1")) {
        return Err(unexpected(&review, GROUP, KIND));
    }
    let mut response = review["response"].take();
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let answered = response["uid"].as_str().unwrap_or_default();
    if version == "v1" && answered != uid {
        return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let text = |key: &str| response["result"][key].as_str().unwrap_or_default();
    if text("status") != "Success" {
        let message = text("message");
        return Err(match message {
            "" => format!("response.result.status was '{}', not 'Success'", text("status")),
            message => message.to_owned(),
        });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Checks a converted object against the original, whose metadata it gets back but for labels and annotations. `index` is its
/// place where there are several.
fn checked(
    original: &Value,
    mut converted: Value,
    wanted: &str,
    of: &str,
    index: Option<usize>,
) -> Result<Value, String> {
    if converted.is_null() {
        return Err("unexpected end of JSON input".to_owned());
    }
    if !converted.is_object() {
        let kind = match converted {
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            Value::Array(_) => "array",
            _ => "null",
        };
        return Err(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"));
    }
    let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
    if text(&converted, "kind").is_empty() {
        return Err(format!("Object 'Kind' is missing in '{converted}'"));
    }
    let (object, place) = match index {
        None => ("object".to_owned(), "object at index 0".to_owned()),
        Some(index) => {
            let place = format!("converted object at index {index}");
            (place.clone(), place)
        }
    };
    let got = text(&converted, "apiVersion");
    if got != wanted {
        return Err(format!(
            "{of} returned invalid {place}: invalid groupVersion (expected {wanted}, received {got})"
        ));
    }
    let (expected, got) = (text(original, "kind"), text(&converted, "kind"));
    if expected != got {
        return Err(format!(
            "{of} returned invalid {place}: invalid kind (expected {expected}, received {got})"
        ));
    }
    for (field, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (expected, got) = (original.meta(field), converted.meta(field));
        if expected != got {
            return Err(format!(
                "{of} returned invalid {object}: must have the same {name}: {expected} != {got}"
            ));
        }
    }
    let invalid = |why: &str| match index {
        None => format!("{of} returned invalid metadata: {why}"),
        Some(index) => format!("{of} returned invalid metadata in object at index {index}: {why}"),
    };
    let given = match converted.get_mut("metadata").map(Value::take) {
        Some(Value::Object(given)) => given,
        Some(other) => {
            let found = go_type(&other);
            return Err(invalid(&format!("invalid metadata of type {found} in converted object")));
        }
        None => return Err(invalid("missing metadata in converted object")),
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let texts = restored(field, &given).map_err(|why| invalid(&why))?;
        match texts {
            Some(texts) => drop(metadata.insert(field.to_owned(), texts)),
            None => drop(metadata.remove(field)),
        }
    }
    converted["metadata"] = metadata.into();
    Ok(converted)
}

/// The labels or annotations that a webhook gave.
fn restored(field: &str, given: &Map<String, Value>) -> Result<Option<Value>, String> {
    match given.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(texts)) => {
            if let Some((key, value)) = texts.iter().find(|(_, value)| !value.is_string()) {
                let found = go_type(value);
                return Err(format!(
                    "metadata.{field}[{key}] must be a string, but is {found} in converted object"
                ));
            }
            let texts = Value::Object(texts.clone());
            let mut causes = Vec::new();
            match field {
                "labels" => object_meta::labels(&texts, "metadata.labels", &mut causes),
                _ => object_meta::annotations(&texts, "metadata.annotation", &mut causes),
            }
            let faults: Vec<String> =
                causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
            match faults.as_slice() {
                [] => Ok(Some(texts)),
                [only] => Err(only.clone()),
                _ => Err(format!("[{}]", faults.join(", "))),
            }
        }
        Some(other) => {
            Err(format!("invalid metadata.{field} of type {} in converted object", go_type(other)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(change: impl FnOnce(&mut Value)) -> Result<Value, String> {
        let original = json!({"apiVersion": "g/v1", "kind": "K",
            "metadata": {"name": "a", "uid": "u", "generation": 3, "labels": {"a": "b"}}, "spec": {"x": 1}});
        let mut converted = original.clone();
        converted["apiVersion"] = "g/v2".into();
        change(&mut converted);
        checked(&original, converted, "g/v2", "conversion webhook for g/v1, Kind=K", None)
    }

    #[test]
    fn only_labels_and_annotations_may_change() {
        let changed = of(|object| {
            object["metadata"] = json!({"name": "a", "uid": "u", "generation": 9, "labels": {"c": "d"}});
        });
        let expected = json!({"name": "a", "uid": "u", "generation": 3, "labels": {"c": "d"}});
        assert_eq!(changed.unwrap()["metadata"], expected);
        for (change, why) in [
            (
                json!({"apiVersion": "g/v1", "kind": "K"}),
                "object at index 0: invalid groupVersion (expected g/v2, received g/v1)",
            ),
            (
                json!({"apiVersion": "g/v2", "kind": "L"}),
                "object at index 0: invalid kind (expected K, received L)",
            ),
            (
                json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "b"}}),
                "object: must have the same name: a != b",
            ),
        ] {
            let error = of(|object| *object = change.clone()).unwrap_err();
            assert_eq!(error, format!("conversion webhook for g/v1, Kind=K returned invalid {why}"));
        }
    }
}
