//! Options of deletions, from a body or from the query.

use http::HeaderMap;
use serde_json::{Value, json};

use super::super::decode::go::{Decoder, misfit};
use super::super::decode::{parse_options, unregistered};
use super::super::options::{dry_run, refuse};
use crate::request::{Query, integer};
use crate::status::{Cause, Result, Status};

const KIND: &str = "DeleteOptions";
const DEFINITION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const DESPITE_ERRORS: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// What somebody gave.
struct Given<'a> {
    dry_run: Vec<&'a str>,
    grace: Option<i64>,
    orphan: Option<bool>,
    propagation: Option<&'a str>,
    uid: Option<&'a str>,
    version: Option<&'a str>,
    despite_errors: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(super) dry_run: bool,
    pub(super) grace: Option<i64>,
    pub(super) uid: Option<String>,
    pub(super) version: Option<String>,
    pub(super) propagation: Option<Propagation>,
    /// To delete what cannot be read any more; what can is not deleted so.
    pub(super) despite_errors: bool,
}

impl DeleteOptions {
    /// Reads the options from the body of a request, or from the query where it has none: never from both.
    pub(crate) fn parse(headers: &HeaderMap, body: &[u8], query: &Query) -> Result<Self> {
        if body.is_empty() {
            return Self::of_query(query);
        }
        let object = parse_options(headers, body)?;
        if object["gracePeriodSeconds"].is_number()
            && let Some(number) = written_number(body, "\"gracePeriodSeconds\"")
            && number.parse::<i64>().is_err()
        {
            return Err(Status::bad_request(format!(
                "json: cannot unmarshal number {number} into Go struct field {KIND}.gracePeriodSeconds of type int64"
            )));
        }
        Self::of_value(&object)
    }

    /// Reads the options from an object, whose kind may be left out.
    pub(crate) fn of_value(object: &Value) -> Result<Self> {
        let text = |key: &str| object[key].as_str();
        let kind = text("kind").filter(|kind| !kind.is_empty()).unwrap_or(KIND);
        if kind != KIND {
            let version = text("apiVersion").unwrap_or_default();
            return Err(Status::bad_request(unregistered(version, kind)));
        }
        if let Some(why) = misfit(Decoder::Json, DEFINITION, object) {
            return Err(Status::bad_request(why));
        }
        let dry_run = object["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let precondition = |key: &str| object["preconditions"][key].as_str();
        Self::checked(&Given {
            dry_run,
            grace: object["gracePeriodSeconds"].as_i64(),
            orphan: object["orphanDependents"].as_bool(),
            propagation: text("propagationPolicy"),
            uid: precondition("uid"),
            version: precondition("resourceVersion"),
            despite_errors: object[DESPITE_ERRORS] == true,
        })
    }

    fn of_query(query: &Query) -> Result<Self> {
        let first = |key: &str| query.all(key).first().copied();
        let grace = first("gracePeriodSeconds").map(|text| integer("ParseInt", text)).transpose()?;
        let flag = |key: &str| first(key).map(|_| query.flag(key));
        Self::checked(&Given {
            dry_run: query.all("dryRun"),
            grace,
            orphan: flag("orphanDependents"),
            propagation: first("propagationPolicy"),
            uid: first("uid"),
            version: first("resourceVersion"),
            despite_errors: flag(DESPITE_ERRORS) == Some(true),
        })
    }

    fn checked(given: &Given<'_>) -> Result<Self> {
        let mut causes = Vec::new();
        let dry_run = dry_run(&given.dry_run, &mut causes);
        let propagation = match (given.propagation, given.orphan) {
            (Some(policy), Some(_)) => {
                causes.push(Cause::invalid(
                    "propagationPolicy",
                    &json!(policy),
                    "orphanDependents and deletionPropagation cannot be both set",
                ));
                None
            }
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), _) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                causes.push(Cause::unsupported("propagationPolicy", &json!(other), &supported));
                None
            }
        };
        refuse(KIND, causes)?;
        Ok(Self {
            dry_run,
            grace: given.grace.map(|grace| grace.max(0)),
            uid: given.uid.map(str::to_owned),
            version: given.version.map(str::to_owned),
            propagation,
            despite_errors: given.despite_errors,
        })
    }

    /// Refuses what only one object can be deleted with.
    pub(crate) fn check_for_many(&self) -> Result<()> {
        let mut causes = Vec::new();
        if self.despite_errors {
            let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
            causes.push(Cause::invalid(DESPITE_ERRORS, &json!(true), why));
        }
        refuse(KIND, causes)
    }
}

impl DeleteOptions {
    pub(crate) fn dry_run(&self) -> bool {
        self.dry_run
    }

    /// The object has now this version, if a version was asked for.
    pub(in crate::registry) fn expect_version(&mut self, version: u64) {
        if self.version.is_some() {
            self.version = Some(version.to_string());
        }
    }

    /// The options as an object, without its kind.
    pub(crate) fn to_value(&self) -> Value {
        let mut object = json!({});
        if self.dry_run {
            object["dryRun"] = json!(["All"]);
        }
        if let Some(grace) = self.grace {
            object["gracePeriodSeconds"] = grace.into();
        }
        for (key, value) in [("uid", &self.uid), ("resourceVersion", &self.version)] {
            if let Some(value) = value {
                object["preconditions"][key] = value.as_str().into();
            }
        }
        if let Some(propagation) = self.propagation {
            object["propagationPolicy"] = match propagation {
                Propagation::Background => "Background",
                Propagation::Foreground => "Foreground",
                Propagation::Orphan => "Orphan",
            }
            .into();
        }
        object
    }
}

/// The number of a field as a JSON body has it: Go takes `1e2` for no whole number.
fn written_number<'a>(body: &'a [u8], key: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once(key)?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    Some(&rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())])
}
