//! Objects in the versions in which other managers own their fields.
//!
//! A kind with several versions may name its fields differently in each. What a manager owns is named as in the version in which it wrote, so a
//! change has to be looked at in all versions that managers use. Converting may need somebody else, so nothing here does it: what is missing is
//! answered with [`Needed`], and the caller asks again when he has it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::compare::{Comparison, compare};
use super::entries::{self, Entries};
use crate::{field_set::FieldSet, schema::Schema};

/// A conversion that is needed before something can be said.
#[derive(Clone, Debug, PartialEq)]
pub struct Needed {
    /// The object, without managed fields.
    pub object: Value,
    /// The group and version to convert it into.
    pub api_version: String,
}

/// Conversions that were made.
#[derive(Clone, Debug, Default)]
pub struct Versions(Vec<(Needed, Option<(Schema, Value)>)>);

impl Versions {
    /// Adds a conversion with the schema of its version; `None` when the kind has no such version.
    pub fn add(&mut self, needed: Needed, converted: Option<(Schema, Value)>) {
        self.0.push((needed, converted));
    }

    /// `object`, which `schema` is for, in a version; `None` when the kind has no such version.
    pub(super) fn get(
        &self,
        schema: &Schema,
        object: &Value,
        api_version: &str,
    ) -> Result<Option<(Schema, Value)>, Needed> {
        let mut object = object.clone();
        entries::take(&mut object);
        if object.get("apiVersion").and_then(Value::as_str) == Some(api_version) {
            return Ok(Some((schema.clone(), object)));
        }
        let known = self.0.iter().find(|(of, _)| of.api_version == api_version && of.object == object);
        match known {
            Some((_, converted)) => Ok(converted.clone()),
            None => Err(Needed { object, api_version: api_version.to_owned() }),
        }
    }
}

/// What a write changed, as each manager names it.
pub(super) struct Comparisons {
    own: Comparison,
    /// Of other versions; `None` where the kind has no such version.
    others: BTreeMap<String, Option<Comparison>>,
}

impl Comparisons {
    /// Compares two objects in the version that both are in, and in those of `entries` if versions are to be told apart.
    pub(super) fn of(
        schema: &Schema,
        (old, new): (&Value, &Value),
        own: &str,
        ignored: &FieldSet,
        entries: &Entries,
        versions: Option<&Versions>,
    ) -> Result<Self, Needed> {
        let mut others = BTreeMap::new();
        for entry in &entries.0 {
            let Some(versions) = versions else { break };
            if entry.api_version == own || others.contains_key(&entry.api_version) {
                continue;
            }
            let old = versions.get(schema, old, &entry.api_version)?;
            let new = versions.get(schema, new, &entry.api_version)?;
            let comparison = old.zip(new).map(|((schema, old), (_, new))| {
                // What an endpoint resets is named in its own version only.
                compare(&schema, &old, &new, &FieldSet::default())
            });
            others.insert(entry.api_version.clone(), comparison);
        }
        Ok(Self { own: compare(schema, old, new, ignored), others })
    }

    /// In the version of the write.
    pub(super) fn into_own(self) -> Comparison {
        self.own
    }

    pub(super) fn in_version(&self, api_version: &str) -> Option<&Comparison> {
        self.others.get(api_version).map_or(Some(&self.own), Option::as_ref)
    }
}
