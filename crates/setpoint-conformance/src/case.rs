//! Cases: what is sent. `conformance/README.md` describes the format for those who write them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::client_certificates::ClientCertificate;

/// Why cases could not be read.
#[derive(Debug, Error)]
pub enum CaseError {
    /// A file or folder could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not YAML, or not of the form that cases have.
    #[error("{path}: {message}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, with its place.
        message: String,
    },
    /// Two cases of a topic have the same name.
    #[error("{path}: two cases are called {name}")]
    Twice {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
}

/// All cases, and what in their answers differs from run to run.
#[derive(Clone, Debug)]
pub struct Suite {
    /// Topics by file name.
    pub topics: Vec<Topic>,
    /// What is replaced in answers before they are recorded or compared.
    pub volatile: Volatile,
}

/// The cases of one file.
#[derive(Clone, Debug)]
pub struct Topic {
    /// The file's name without its extension.
    pub name: String,
    /// Cases in the order of the file.
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicFile {
    /// Only a place for YAML anchors.
    #[serde(default, rename = "shared")]
    _shared: Value,
    cases: Vec<Case>,
}

/// Requests that are sent one after another, and whose answers are compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The name, unique in its topic.
    #[serde(rename = "case")]
    pub name: String,
    /// What the case's webhook server answers: path → answer.
    #[serde(default)]
    pub webhooks: Value,
    /// Steps that only prepare: they must succeed and are not recorded.
    #[serde(default)]
    pub given: Vec<Step>,
    /// The steps.
    pub steps: Vec<Step>,
}

/// One request, or one act upon a watch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Step {
    /// `METHOD PATH`, `WATCH PATH`, `EVENTS`, `HOOKS PATH` or `WAIT [METHOD] PATH`.
    #[serde(rename = "do")]
    pub action: String,
    /// The body, sent as JSON.
    pub body: Option<Value>,
    /// The body as text, for what is not JSON.
    pub raw: Option<String>,
    /// The body as base64, for what is not text.
    pub base64: Option<String>,
    /// The kind of a patch (`merge`, `json`, `strategic`, `apply`), or a content type.
    #[serde(rename = "type")]
    pub media: Option<String>,
    /// The `Accept` header.
    pub accept: Option<String>,
    /// Further request headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// A user (and groups, separated by spaces) to impersonate.
    #[serde(rename = "as")]
    pub user: Option<String>,
    /// Another bearer token than the administrator's; an empty one sends none.
    pub token: Option<String>,
    /// The certificate that the client shows.
    pub certificate: Option<ClientCertificate>,
    /// Values to keep for later steps: name → JSON pointer into the answer.
    #[serde(default)]
    pub save: BTreeMap<String, String>,
    /// Pointers to the parts of the answer that are compared. Default: all of it.
    #[serde(default)]
    pub keep: Vec<String>,
    /// Pointers to parts of this answer that differ from run to run.
    #[serde(default)]
    pub volatile: Vec<String>,
    /// Pointers to lists whose order has no meaning and differs from run to run.
    #[serde(default)]
    pub unordered: Vec<String>,
    /// Further response headers to compare.
    #[serde(default)]
    pub answer_headers: Vec<String>,
    /// How many events `EVENTS` reads; without it, all until the server ends the watch.
    pub count: Option<usize>,
    /// The name of a watch, where a case has several.
    pub stream: Option<String>,
    /// What `WAIT` waits for: JSON pointer → value; `code` → the answer's code.
    #[serde(default)]
    pub until: BTreeMap<String, Value>,
}

/// What differs from server to server and from run to run, and what takes its place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volatile {
    /// Values of fields with these names.
    pub fields: Vec<VolatileField>,
    /// Parts of any text.
    pub texts: Vec<VolatileText>,
}

/// Fields whose values are replaced, when they look as they should.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolatileField {
    /// The fields' names, wherever they stand.
    pub names: Vec<String>,
    /// A regular expression that the whole value matches.
    pub like: String,
    /// The replacement, without its `$`.
    #[serde(rename = "as")]
    pub class: String,
    /// Whether equal values get equal numbers, in order of appearance in the case.
    #[serde(default)]
    pub numbered: bool,
}

/// Parts of texts that are replaced.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolatileText {
    /// A regular expression; its first group is what is replaced.
    pub find: String,
    /// The replacement, without its `$`.
    #[serde(rename = "as")]
    pub class: String,
    /// Whether equal values get equal numbers, in order of appearance in the case.
    #[serde(default)]
    pub numbered: bool,
}

impl Suite {
    /// Reads `cases/*.yaml` and `volatile.yaml` in `folder`.
    ///
    /// # Errors
    /// When a file cannot be read or does not have the form.
    pub fn load(folder: &Path) -> Result<Self, CaseError> {
        let cases = folder.join("cases");
        let io = |path: &Path, source| CaseError::Io { path: path.to_owned(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&cases).map_err(|error| io(&cases, error))? {
            let path = entry.map_err(|error| io(&cases, error))?.path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                files.push(path);
            }
        }
        files.sort();
        let topics = files.iter().map(|path| Topic::load(path)).collect::<Result<_, _>>()?;
        Ok(Self { topics, volatile: read(&folder.join("volatile.yaml"))? })
    }

    /// The full names (`topic/case`) that contain `only`, with their cases.
    pub fn select<'a>(&'a self, only: &'a str) -> impl Iterator<Item = (String, &'a Case)> {
        self.topics
            .iter()
            .flat_map(|topic| {
                topic.cases.iter().map(move |case| (format!("{}/{}", topic.name, case.name), case))
            })
            .filter(move |(name, _)| name.contains(only))
    }
}

impl Topic {
    fn load(path: &Path) -> Result<Self, CaseError> {
        let file: TopicFile = read(path)?;
        let mut names: Vec<&str> = file.cases.iter().map(|case| case.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CaseError::Twice { path: path.to_owned(), name: pair[0].to_owned() });
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, cases: file.cases })
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, CaseError> {
    let text = fs::read_to_string(path).map_err(|source| CaseError::Io { path: path.to_owned(), source })?;
    // `y` and `no` are texts here, as in YAML 1.2.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(&text, options)
        .map_err(|error| CaseError::Format { path: path.to_owned(), message: error.to_string() })
}
