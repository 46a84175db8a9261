//! Creation.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::decode::check_kind;
use super::prepare::{refuse_invalid, set_namespace, wipe, write_warnings};
use super::shape::{check, clean, complete, drafted, forget_nulls};
use super::tracked::Tracked;
use super::unsupported::refuse_kind;
use super::{Answer, Place, Registry, WriteOptions, Written};
use crate::admission::Attributes;
use crate::builtin::take_annotated;
use crate::custom;
use crate::identity::Identity;
use crate::object::{Metadata, fields, meta_mut};
use crate::object_meta;
use crate::status::{Result, Status};
use crate::store::{Holder, Key, Refused, Stored};

/// How often a generated name that is taken is drawn anew (upstream: `maxNameGenerationCreateAttempts`).
const NAME_ATTEMPTS: usize = 8;

const VERSIONED: &str = "resourceVersion should not be set on objects to be created";

/// Whether an object has a version already.
fn is_versioned(object: &Value) -> bool {
    !matches!(object.meta("resourceVersion"), "" | "0")
}

/// How an object is created.
#[derive(Clone, Copy)]
struct How {
    tracked: Tracked,
    /// Else by an update or apply, whose user need not be one who may create.
    by_post: bool,
}

impl Registry {
    /// Creates an object from the body of a POST. `place.name` is empty, or must be that of the object.
    pub(crate) async fn create(
        &self,
        place: &Place,
        mut body: Value,
        options: &WriteOptions,
    ) -> Result<Written> {
        check_kind(&place.resource, &mut body)?;
        if is_versioned(&body) {
            return Err(Status::unknown(VERSIONED));
        }
        self.create_written(place, body, options, How { tracked: Tracked::Update, by_post: true }).await
    }

    /// Creates the object of an update or apply that found none, if the user may create it, too. Server-side apply brings managed fields of its own.
    pub(super) async fn create_missing(
        &self,
        place: &Place,
        object: Value,
        options: &WriteOptions,
        tracked: Tracked,
    ) -> Result<Written> {
        self.create_written(place, object, options, How { tracked, by_post: false }).await
    }

    async fn create_written(
        &self,
        place: &Place,
        object: Value,
        options: &WriteOptions,
        how: How,
    ) -> Result<Written> {
        let mut warnings = Vec::new();
        match self.create_admitted(place, object, options, how, &mut warnings).await {
            Ok(object) => Ok(Written { code: 201, object, warnings }),
            Err(status) => Err(status.with_warnings(warnings)),
        }
    }

    async fn create_admitted(
        &self,
        place: &Place,
        mut object: Value,
        options: &WriteOptions,
        how: How,
        warnings: &mut Vec<String>,
    ) -> Result<Answer> {
        let resource = &place.resource;
        check_kind(resource, &mut object)?;
        let applied = (how.tracked == Tracked::Done).then(|| object.clone());
        // Given and empty is not the same as not given to the class that the pod is of.
        let no_overhead = resource.is("", "pods") && is_empty_map(&object["spec"]["overhead"]);
        warnings.extend(clean(resource, &mut object, options, applied.as_ref())?);
        warnings.extend(object_meta::drop_repeated_owners(&mut object, false));
        set_namespace(place, &mut object)?;
        wipe(&mut object);
        let unnamed = |key: &str| object.meta(key).is_empty();
        if resource.is("", "limitranges") && unnamed("name") && unnamed("generateName") {
            let name = self.entropy.uuid().into();
            meta_mut(&mut object).insert("name".to_owned(), name);
        }
        // What the server adds from here on belongs to nobody.
        if how.tracked == Tracked::Update {
            self.own(resource, &mut object, options, "");
        }
        if no_overhead {
            object["spec"]["overhead"] = Value::Object(Map::new());
        }
        refuse_kind(resource)?;
        let place = Place { name: object.meta("name").to_owned(), ..place.clone() };
        check_definition(&place)?;
        let versioned = is_versioned(&object);
        self.mutate(&Attributes::write(&place, "", None, options), &mut object, warnings).await?;
        if is_versioned(&object) && !versioned {
            return Err(Status::unknown(VERSIONED));
        }
        set_namespace(&place, &mut object)?;
        warnings.extend(object_meta::drop_repeated_owners(&mut object, true));
        self.check_escalation(resource, &options.user, &object, None)?;
        if !place.name.is_empty() || object.meta("generateName").is_empty() {
            return self.create_named(place, object, options, how, warnings).await;
        }
        let noted = warnings.len();
        for _ in 1..NAME_ATTEMPTS {
            match self.create_named(place.clone(), object.clone(), options, how, warnings).await {
                Err(taken) if taken.reason == "AlreadyExists" => warnings.truncate(noted),
                result => return result,
            }
        }
        self.create_named(place, object, options, how, warnings).await
    }

    /// Gives a new object what the server decides, and stores it if it is valid and admitted.
    async fn create_named(
        &self,
        mut place: Place,
        mut object: Value,
        options: &WriteOptions,
        how: How,
        warnings: &mut Vec<String>,
    ) -> Result<Answer> {
        let resource = Arc::clone(&place.resource);
        if resource.is("", "pods") {
            warnings.extend(take_annotated(&mut object));
        }
        self.prepare_create(&mut place, &mut object);
        if resource.is("certificates.k8s.io", "certificatesigningrequests") {
            sign(&mut object, &options.user);
        }
        let _reserved = self.allocate(&resource, &mut object, None)?;
        complete(&resource, &mut object);
        let mut causes = object_meta::validate(&object, &resource);
        causes.extend(check(&resource, &object, None, "", warnings));
        refuse_invalid(&resource, &place.name, causes)?;
        warnings.extend(write_warnings(&resource, &object, None));
        warnings.extend(self.idle_warning(&resource));
        if !how.by_post {
            self.check_may_create(&place, &options.user)?;
        }
        self.validate(&Attributes::write(&place, "", None, options), &object, warnings).await?;
        if resource.is("", "pods") && is_empty_map(&object["spec"]["overhead"]) {
            fields(&mut object["spec"]).remove("overhead");
        }
        forget_nulls(&resource, &mut object);
        if options.dry_run {
            // What cannot be stored is refused here, too.
            self.to_storage(&resource, object.clone()).await?;
            if self.get(&place).is_ok() {
                return Err(self.taken(&place));
            }
            return Ok(Answer::Draft(drafted(&resource, object)));
        }
        let object = self.to_storage(&resource, object).await?;
        let stored = self.store_new(&place, &object)?;
        self.answer_in_version(&resource, Answer::Stored(stored)).await
    }

    fn store_new(&self, place: &Place, object: &Value) -> Result<Arc<Stored>> {
        let resource = &place.resource;
        let _defining = self.defining(resource);
        let stored = self
            .store
            .create(&resource.storage, &place.key(), &holders(place), object)
            .map_err(|refused| self.refused(place, &refused))?;
        self.after_write(resource, &stored);
        Ok(stored)
    }

    /// There is such an object, for a while yet or for longer.
    fn taken(&self, place: &Place) -> Status {
        let status = Status::already_exists(place.resource.subject(&place.name));
        match self.get(place) {
            Ok(live) if !live.value.meta("deletionTimestamp").is_empty() => {
                let message = format!("object is being deleted: {}", status.message);
                status.worded(message)
            }
            _ => status,
        }
    }

    /// Why the store refused a new object.
    fn refused(&self, place: &Place, refused: &Refused) -> Status {
        match refused {
            Refused::Taken => self.taken(place),
            // All was well a moment ago. What is well again now was another namespace, or the definition is what has gone.
            Refused::Unheld => {
                let gone = check_definition(place).and_then(|()| self.check_namespace(place));
                gone.err().unwrap_or_else(Status::no_resource)
            }
        }
    }
}

fn is_empty_map(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// Refuses new objects of a definition that is going away.
fn check_definition(place: &Place) -> Result<()> {
    if place.resource.custom().is_some_and(|custom| custom.terminating) {
        return Err(Status::definition_terminating(place.resource.subject(&place.name)));
    }
    Ok(())
}

/// Writes into a request for a certificate who asks (upstream: `csrStrategy.PrepareForCreate`).
fn sign(request: &mut Value, user: &Identity) {
    let spec = fields(&mut request["spec"]);
    for key in ["username", "uid", "groups", "extra"] {
        spec.remove(key);
    }
    spec.insert("username".to_owned(), user.user.clone().into());
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), user.uid.clone().into());
    }
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), serde_json::json!(user.extra));
    }
}

/// What must be there, and stay, for an object to be created.
fn holders(place: &Place) -> Vec<Holder<'_>> {
    let mut holders = Vec::new();
    if place.resource.namespaced {
        let key = Key::new("", place.namespace.as_str());
        holders.push(Holder { resource: "namespaces", key, uid: None });
    }
    if let Some(custom) = place.resource.custom() {
        let key = Key::new("", format!("{}.{}", place.resource.plural, place.resource.group));
        holders.push(Holder { resource: custom::STORAGE, key, uid: Some(&custom.definition) });
    }
    holders
}
