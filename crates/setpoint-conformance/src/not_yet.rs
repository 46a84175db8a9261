//! The list of cases that the embedded server does not pass yet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// Why the list could not be read.
#[derive(Debug, Error)]
pub enum NotYetError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line has no reason.
    #[error("{path}, line {line}: a case needs a reason after its name")]
    Reason {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

/// Names of cases (`topic/case`) with the reason for each.
#[derive(Clone, Debug, Default)]
pub struct NotYet(BTreeMap<String, String>);

impl NotYet {
    /// Forgets the cases whose names do not contain `only`.
    pub fn keep(&mut self, only: &str) {
        self.0.retain(|name, _| name.contains(only));
    }

    /// Reads a file of lines `topic/case reason`; lines that start with `#` are comments.
    ///
    /// # Errors
    /// When the file cannot be read, or a case has no reason.
    pub fn load(path: &Path) -> Result<Self, NotYetError> {
        let text =
            fs::read_to_string(path).map_err(|source| NotYetError::Io { path: path.to_owned(), source })?;
        let mut cases = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, reason) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| NotYetError::Reason { path: path.to_owned(), line: index + 1 })?;
            cases.insert(name.to_owned(), reason.trim().to_owned());
        }
        Ok(Self(cases))
    }
}

/// What is wrong with the results of a run (case → whether it passed): cases that fail and are not listed, that pass
/// and are listed, or that are listed and don't exist.
pub fn verdict(results: &BTreeMap<String, bool>, not_yet: &NotYet) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, passed) in results {
        match (passed, not_yet.0.contains_key(name)) {
            (true, true) => wrong.push(format!("{name} passes now: take it off not-yet.txt")),
            (false, false) => wrong.push(format!("{name} fails")),
            _ => {}
        }
    }
    for name in not_yet.0.keys().filter(|name| !results.contains_key(*name)) {
        wrong.push(format!("{name} is in not-yet.txt, but there is no such case"));
    }
    wrong
}
