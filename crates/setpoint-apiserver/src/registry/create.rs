//! Creation.

use serde_json::Value;

use super::decode::check_kind;
use super::prepare::{finalizer_warnings, refuse_invalid};
use super::shape::{Tracked, check, clean, storage_form, track};
use super::{Answer, Place, Registry, WriteOptions, Written};
use crate::object::Metadata;
use crate::object_meta;
use crate::status::{Result, Status};
use crate::store::{Change, Expect};

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
        let mut warnings = clean(&resource, &mut object, options.validation)?;
        // What the server adds from here on belongs to nobody.
        track(&resource, None, &mut object, options, "", tracked, self.clock.now());
        self.prepare_create(&mut place, &mut object)?;
        self.check_namespace(&place)?;
        self.check_escalation(&resource, &options.user, &object, None)?;
        self.admit_create(&resource, &mut object)?;
        let _allocating = self.allocate(&resource, &mut object, None)?;
        let mut causes = object_meta::validate(&object, &resource);
        causes.extend(check(&resource, &object, None, ""));
        refuse_invalid(&resource, &place.name, causes)?;
        warnings.extend(finalizer_warnings(&resource, &object));
        if options.dry_run {
            if self.get(&place).is_ok() {
                return Err(Status::already_exists(resource.subject(&place.name)));
            }
            return Ok(Written { code: 201, object: Answer::Draft(object), warnings });
        }
        let stored = self
            .store
            .write(
                &resource.storage,
                &place.key(),
                Expect::Absent,
                Change::Put(storage_form(&resource, object)),
            )
            .map_err(|_| Status::already_exists(resource.subject(&place.name)))?;
        self.after_write(&resource, &stored.value);
        Ok(Written { code: 201, object: Answer::Stored(stored), warnings })
    }
}
