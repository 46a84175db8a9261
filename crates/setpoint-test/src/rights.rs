//! Whether an operator has the rights that it needs, and needs the rights that it has.

use std::collections::BTreeSet;

use setpoint::Operator;
use setpoint_manifests::Rule;

use crate::request::full_resource;
use crate::suite;
use crate::witness::{Refusal, Witness};

/// What a test demands of an operator's rights.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demands {
    pub(crate) refusals_allowed: bool,
    /// Whether each right has to be used, but for those of these resources.
    pub(crate) all_used: Option<BTreeSet<String>>,
}

/// A right: group, resource, verb.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) verb: String,
}

/// The rights of one operator and what it did with them.
#[derive(Clone)]
pub(crate) struct Audit {
    operator: String,
    granted: BTreeSet<Right>,
    witness: Witness,
}

const READS: [&str; 3] = ["get", "list", "watch"];
const APPLIES: [&str; 2] = ["create", "patch"];

impl Audit {
    pub(crate) fn of(operator: &Operator, witness: Witness) -> Self {
        Self { operator: operator.name().to_owned(), granted: granted(operator), witness }
    }

    /// Writes what was used down for the whole suite.
    pub(crate) fn note(&self) {
        suite::note(&self.operator, &self.used());
    }

    fn used(&self) -> BTreeSet<Right> {
        let used = self.witness.used().into_iter();
        used.map(|(group, resource, verb, _)| Right { group, resource, verb: verb.as_str().to_owned() })
            .collect()
    }

    /// What does not fit, as one message.
    pub(crate) fn complaint(&self, demands: &Demands) -> Option<String> {
        let mut lines = Vec::new();
        if !demands.refusals_allowed {
            lines.extend(refused(&self.witness.refusals()));
        }
        if let Some(except) = &demands.all_used {
            lines.extend(unused(&self.granted, &self.used(), except));
        }
        (!lines.is_empty()).then(|| format!("the rights of operator {}: {}", self.operator, lines.join("; ")))
    }
}

/// What an operator declares.
pub(crate) fn granted(operator: &Operator) -> BTreeSet<Right> {
    let rights = operator.rights();
    let right = |rule: &Rule| Right {
        group: rule.group.clone(),
        resource: rule.resource.clone(),
        verb: rule.verb.clone(),
    };
    rights.rules().map(right).collect()
}

/// One line for each right that is missing.
fn refused(refusals: &[Refusal]) -> Vec<String> {
    let mut lines = Vec::new();
    for Refusal { request, message } in refusals {
        let line = format!(
            "missing is {} on {}: the API server said: {message} (declare it in the controller: owns, watches, uses; or let the \
             test expect this with TestEnv::allow_refusals)",
            request.verb,
            request.full_resource(),
        );
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// One line for each resource of which a right was never used. Reading is one right, and so is applying: the SDK
/// reads by whatever verb is the cheapest. Not counted are rights that are for no request of one's own
/// (`finalizers`), and those that the SDK itself adds (events, reading a status).
pub(crate) fn unused(
    granted: &BTreeSet<Right>,
    used: &BTreeSet<Right>,
    except: &BTreeSet<String>,
) -> Vec<String> {
    let was_used = |group: &str, resource: &str, verbs: &[&str]| {
        used.iter().any(|right| {
            right.group == group && right.resource == resource && verbs.contains(&right.verb.as_str())
        })
    };
    let mut lines = BTreeSet::new();
    for Right { group, resource, verb } in granted {
        let name = full_resource(group, resource);
        let of_the_sdk = group == "events.k8s.io"
            || resource.ends_with("/finalizers")
            || resource.ends_with("/status") && verb == "get";
        if of_the_sdk || except.contains(&name) {
            continue;
        }
        let (alike, what): (&[&str], String) = match verb.as_str() {
            verb if READS.contains(&verb) => (&READS, "reading".to_owned()),
            // A status is patched only; a child is created and patched.
            verb if APPLIES.contains(&verb) => (&APPLIES, "create and patch".to_owned()),
            verb => (&[verb], verb.to_owned()),
        };
        let any = group == "*" || resource == "*";
        if !any && !was_used(group, resource, alike) {
            lines.insert(format!("never used is {what} on {name}"));
        }
    }
    lines.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(group: &str, resource: &str, verb: &str) -> Right {
        Right { group: group.to_owned(), resource: resource.to_owned(), verb: verb.to_owned() }
    }

    #[test]
    fn unused_rights_are_named_once_for_what_goes_together() {
        let granted = [
            right("", "configmaps", "list"),
            right("", "configmaps", "get"),
            right("", "configmaps", "create"),
            right("", "configmaps", "patch"),
            right("", "pods/eviction", "create"),
            right("apps", "statefulsets", "delete"),
            right("example.com", "websites/finalizers", "update"),
            right("events.k8s.io", "events", "create"),
        ];
        let granted = BTreeSet::from(granted);
        let seen = BTreeSet::from([right("", "configmaps", "watch")]);
        let except = BTreeSet::from(["pods/eviction".to_owned()]);
        assert_eq!(
            unused(&granted, &seen, &except),
            ["never used is create and patch on configmaps", "never used is delete on statefulsets.apps"]
        );
        let seen = BTreeSet::from([
            right("", "configmaps", "watch"),
            right("", "configmaps", "patch"),
            right("apps", "statefulsets", "delete"),
        ]);
        assert_eq!(unused(&granted, &seen, &except), Vec::<String>::new());
    }
}
