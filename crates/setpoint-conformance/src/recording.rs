//! Recordings: what a server answered, one file for each topic.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;
use thiserror::Error;

use crate::run::Recorded;

/// Why recordings could not be read or written.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not a recording.
    #[error("{path}: {source}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// The recorded answers of one topic's cases.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Answers by case.
    pub cases: BTreeMap<String, Vec<Recorded>>,
}

fn file(folder: &Path, topic: &str) -> PathBuf {
    folder.join("recordings").join(format!("{topic}.json"))
}

impl Recording {
    /// Reads the recording of a topic; an empty one when there is none.
    ///
    /// # Errors
    /// When the file cannot be read or is not a recording.
    pub fn load(folder: &Path, topic: &str) -> Result<Self, RecordingError> {
        let path = file(folder, topic);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(RecordingError::Io { path, source }),
        };
        let cases = serde_json::from_str(&text).map_err(|source| RecordingError::Format { path, source })?;
        Ok(Self { cases })
    }

    /// Writes it, with an answer's body on a line of its own, so that a change shows as one line.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, folder: &Path, topic: &str) -> Result<(), RecordingError> {
        let mut text = String::from("{");
        for (index, (case, answers)) in self.cases.iter().enumerate() {
            let _ = write!(text, "{}\n{}: [", if index == 0 { "" } else { "," }, Value::from(case.as_str()));
            for (index, answer) in answers.iter().enumerate() {
                let _ = write!(text, "{}\n  {}", if index == 0 { "" } else { "," }, answer.lines());
            }
            text.push_str("\n]");
        }
        text.push_str("\n}\n");
        let path = file(folder, topic);
        fs::write(&path, text).map_err(|source| RecordingError::Io { path, source })
    }
}
