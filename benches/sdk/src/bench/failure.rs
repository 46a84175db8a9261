use std::io;

/// What keeps a benchmark from having a result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error(transparent)]
    ControlPlane(#[from] crate::control_plane::ControlPlaneError),
    #[error(transparent)]
    Wait(#[from] crate::wait::WaitError),
}

impl Failure {
    /// For `map_err`: `what` was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
