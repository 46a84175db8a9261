//! Fields that somebody else owns.

use std::fmt;

use super::entries::{Entry, Operation};
use crate::field_set::{FieldSet, Path};

/// A field that an apply would change and somebody else owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The owner, as Kubernetes prints it: `"kubectl" using v1`.
    pub owner: String,
    /// The field, printed `.spec.replicas`.
    pub path: Path,
}

impl Conflict {
    /// The message of the cause with reason `FieldManagerConflict`; its field is [`Conflict::path`].
    pub fn message(&self) -> String {
        format!("conflict with {}", self.owner)
    }
}

/// All conflicts of an apply. Printed as the message of the 409 that the server answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    pub(super) fn add(&mut self, owner: &Entry, fields: &FieldSet) {
        let owner = print(owner);
        self.0.extend(fields.paths().into_iter().map(|path| Conflict { owner: owner.clone(), path }));
    }
}

fn print(entry: &Entry) -> String {
    let mut owner = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        owner = format!("{owner} with subresource {:?}", entry.subresource);
    }
    if entry.operation == Operation::Update {
        owner = format!("{owner} using {}", entry.api_version);
    }
    owner
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: {}: {}", only.message(), only.path);
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut owner = None;
        for conflict in &self.0 {
            if owner != Some(&conflict.owner) {
                let newline = if owner.is_some() { "\n" } else { "" };
                write!(f, "{newline}conflicts with {}:", conflict.owner)?;
                owner = Some(&conflict.owner);
            }
            write!(f, "\n- {}", conflict.path)?;
        }
        Ok(())
    }
}
