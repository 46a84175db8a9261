//! Creation.

use serde_json::Value;

use super::admit::refuse_unsupported;
use super::decode::check_kind;
use super::prepare::{refuse_invalid, write_warnings};
use super::shape::{Tracked, check, clean, storage_form, track};
use super::{Answer, Place, Registry, WriteOptions, Written};
use crate::custom;
use crate::object::Metadata;
use crate::object_meta;
use crate::status::{Result, Status, Subject};
use crate::store::{Holder, Key, Refused};

/// How often a generated name that is taken is drawn anew (upstream: `maxNameGenerationCreateAttempts`).
const NAME_ATTEMPTS: usize = 8;

impl Registry {
    /// Creates an object from the body of a POST. `place.name` is empty, or must be that of the object.
    pub(crate) fn create(&self, place: &Place, body: &Value, options: &WriteOptions) -> Result<Written> {
        if body["metadata"]["resourceVersion"].as_str().is_some_and(|v| !v.is_empty() && v != "0") {
            return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
        }
        let generated = body.meta("name").is_empty() && !body.meta("generateName").is_empty();
        let mut attempt = 1;
        loop {
            match self.create_tracked(place, body.clone(), options, Tracked::Update) {
                Err(taken) if taken.reason == "AlreadyExists" && generated && attempt < NAME_ATTEMPTS => {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// The rest of a creation; server-side apply comes in here with managed fields of its own.
    pub(super) fn create_tracked(
        &self,
        place: &Place,
        mut object: Value,
        options: &WriteOptions,
        tracked: Tracked,
    ) -> Result<Written> {
        let mut place = place.clone();
        let resource = place.resource.clone();
        check_kind(&resource, &mut object)?;
        let mut warnings = clean(&resource, &mut object, options)?;
        warnings.extend(object_meta::drop_repeated_owners(&mut object));
        // What the server adds from here on belongs to nobody.
        track(&resource, None, &mut object, options, "", tracked, self.clock.now());
        let _defining = self.defining(&resource);
        self.prepare_create(&mut place, &mut object)?;
        self.check_holders(&place)?;
        self.check_escalation(&resource, &options.user, &object, None)?;
        self.admit_create(&resource, &mut object)?;
        let _allocating = self.allocate(&resource, &mut object, None)?;
        let mut causes = object_meta::validate(&object, &resource);
        causes.extend(check(&resource, &object, None, ""));
        refuse_invalid(&resource, &place.name, causes)?;
        refuse_unsupported(&resource, &object)?;
        warnings.extend(write_warnings(&resource, &object, None));
        warnings.extend(self.idle_warning(&resource));
        if options.dry_run {
            if self.get(&place).is_ok() {
                return Err(Status::already_exists(resource.subject(&place.name)));
            }
            return Ok(Written { code: 201, object: Answer::Draft(object), warnings });
        }
        let object = storage_form(&resource, object);
        let stored = self
            .store
            .create(&resource.storage, &place.key(), &holders(&place), object)
            .map_err(|refused| self.refused(&place, &refused))?;
        self.after_write(&resource, &stored.value);
        Ok(Written { code: 201, object: Answer::Stored(stored), warnings })
    }

    /// Refuses new objects in a namespace that is missing or going away (upstream: the admission plugin
    /// `NamespaceLifecycle`), and of a definition that is.
    fn check_holders(&self, place: &Place) -> Result<()> {
        if place.resource.custom().is_some_and(|custom| custom.terminating) {
            return Err(Status::definition_terminating(place.resource.subject(&place.name)));
        }
        if !place.resource.namespaced {
            return Ok(());
        }
        let name = place.namespace.as_str();
        let Some(namespace) = self.store.get("namespaces", &Key::new("", name)) else {
            return Err(Status::not_found(Subject { group: "", kind: "namespaces", name }));
        };
        if namespace.value.is_deleting() {
            return Err(Status::terminating_namespace(place.resource.subject(&place.name), name));
        }
        Ok(())
    }

    /// Why the store refused a new object.
    fn refused(&self, place: &Place, refused: &Refused) -> Status {
        match refused {
            Refused::Taken => Status::already_exists(place.resource.subject(&place.name)),
            // All was well a moment ago. What is well again now was another namespace, or the definition is what has gone.
            Refused::Unheld => self.check_holders(place).err().unwrap_or_else(Status::no_resource),
        }
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
