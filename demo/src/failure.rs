//! Why a step of the demo failed.

use std::path::{Path, PathBuf};

use setpoint_test::WaitError;

/// Why a step of the demo failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The cluster didn't reach the state that the step is about.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The API server refused or didn't answer.
    #[error("the API server answered: {0}")]
    Api(#[from] kube::Error),
    /// A Redis server refused or didn't answer.
    #[error("{server}: {source}")]
    Redis {
        /// Its pod.
        server: String,
        /// What the client saw.
        source: redis::RedisError,
    },
    /// Something is not as promised.
    #[error("{0}")]
    Broken(String),
    /// What the demo needs of this machine is not there. The message is a whole sentence.
    #[error("{0}")]
    Machine(String),
    /// A file that an option names can't be written.
    #[error("cannot write {}: {source}; choose another file with {option}", path.display())]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// The option.
        option: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the demo can't be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Figures that can't be written as JSON.
    #[error("the report: {0}")]
    Report(#[from] serde_json::Error),
    /// The operator could not be installed.
    #[error(transparent)]
    Install(#[from] setpoint_test::EnvError),
    /// The embedded cluster didn't start.
    #[error("the embedded cluster: {0}")]
    Cluster(String),
}

impl Failure {
    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}
