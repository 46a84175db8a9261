//! Options that writes share: dry run, field manager, field validation, force.

use http::HeaderMap;
use http::header::USER_AGENT;
use serde_json::{Value, json};

use crate::headers::text;
use crate::identity::Identity;
use crate::request::Query;
use crate::status::{Cause, Result, Status, Subject};

/// What to do about fields that the schema does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WriteOptions {
    /// Who writes.
    pub(crate) user: Identity,
    pub(crate) dry_run: bool,
    /// Who owns the fields that are set; from the user agent when the query names nobody.
    pub(crate) manager: String,
    /// Whether the query named the manager.
    pub(crate) manager_given: bool,
    pub(crate) validation: FieldValidation,
    /// Whether the query said what to do about unknown fields.
    pub(crate) validation_given: bool,
    pub(crate) force: bool,
    pub(crate) force_given: bool,
    /// What is wrong with the body although it could be read: fields that it gives twice.
    pub(crate) duplicates: Vec<String>,
}

impl WriteOptions {
    /// `kind` names the options in errors: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
    pub(crate) fn parse(kind: &str, query: &Query, headers: &HeaderMap, user: &Identity) -> Result<Self> {
        let mut causes = Vec::new();
        let dry_run = dry_run(&query.all("dryRun"), &mut causes);
        let validation = match query.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                causes.push(Cause::unsupported("fieldValidation", &json!(other), &supported));
                FieldValidation::Warn
            }
        };
        let given = query.get("fieldManager");
        if given.is_some_and(|manager| manager.len() > 128) {
            causes.push(Cause {
                reason: "FieldValueTooLong".to_owned(),
                message: "Too long: may not be more than 128 bytes".to_owned(),
                field: "fieldManager".to_owned(),
            });
        }
        if given.is_some_and(|manager| manager.chars().any(char::is_control)) {
            causes.push(Cause::invalid(
                "fieldManager",
                &json!(given),
                "should only contain printable characters",
            ));
        }
        refuse(kind, causes)?;
        let agent = text(headers, USER_AGENT);
        let from_agent = agent.split(['/', ' ']).next().filter(|name| !name.is_empty()).unwrap_or("unknown");
        Ok(Self {
            user: user.clone(),
            dry_run,
            manager: given.unwrap_or(from_agent).to_owned(),
            manager_given: given.is_some(),
            validation,
            validation_given: query.get("fieldValidation").is_some(),
            force: query.get("force") == Some("true"),
            force_given: query.get("force").is_some(),
            duplicates: Vec::new(),
        })
    }
}

impl WriteOptions {
    /// What the query said, as `CreateOptions` and `UpdateOptions` have it.
    pub(crate) fn to_value(&self) -> Value {
        let mut object = json!({});
        if self.dry_run {
            object["dryRun"] = json!(["All"]);
        }
        if self.manager_given {
            object["fieldManager"] = self.manager.as_str().into();
        }
        if self.validation_given {
            object["fieldValidation"] = match self.validation {
                FieldValidation::Ignore => "Ignore",
                FieldValidation::Warn => "Warn",
                FieldValidation::Strict => "Strict",
            }
            .into();
        }
        object
    }
}

/// Reads the values of `dryRun`, of which only "All" exists.
pub(super) fn dry_run(values: &[&str], causes: &mut Vec<Cause>) -> bool {
    if values.iter().any(|&value| value != "All") {
        causes.push(Cause::unsupported("dryRun", &json!(values), &["All"]));
    }
    !values.is_empty()
}

/// Fails with the wrong options, if there are any.
pub(super) fn refuse(kind: &str, causes: Vec<Cause>) -> Result<()> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(Subject { group: "meta.k8s.io", kind, name: "" }, causes))
}
