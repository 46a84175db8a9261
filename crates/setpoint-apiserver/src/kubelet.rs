//! What the API server needs of the agent on a node: logs and exec of its containers, connections to its pods.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// An agent that runs pods on one node. Registered with [`crate::ApiServer::set_kubelet`] under the node's name;
/// requests for the logs of a pod, or to run a command in it, go to the agent of its node.
pub trait Kubelet: Send + Sync + 'static {
    /// The output of a container. With [`LogOptions::follow`] the stream ends with the container, otherwise at the
    /// end of what is there.
    ///
    /// # Errors
    /// When there is no such container, or it has no log.
    fn logs(
        &self,
        container: ContainerRef,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, KubeletError>>;

    /// Runs a command in a running container.
    ///
    /// # Errors
    /// When there is no such container, or the command cannot be started.
    fn exec(
        &self,
        container: ContainerRef,
        options: ExecOptions,
    ) -> BoxFuture<'_, Result<ExecSession, KubeletError>>;

    /// Connects to a running container: what it writes from now on, and its standard input if it has one and `options` want it.
    /// `options` name no command; whether the container has a terminal is its own matter. The session's `exit` resolves when the
    /// container ends, with 0: how it ended is in the pod's status.
    ///
    /// # Errors
    /// When there is no such container, or this agent cannot do that.
    fn attach(
        &self,
        container: ContainerRef,
        options: ExecOptions,
    ) -> BoxFuture<'_, Result<ExecSession, KubeletError>>;

    /// Opens a TCP connection to a port of a pod, from the node's side of the pod network: for port-forward and the subresource
    /// `proxy`. The provided implementation is for agents whose pods have no network.
    ///
    /// # Errors
    /// When nothing listens there, or the agent has no network.
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, Result<Box<dyn Connection>, KubeletError>> {
        let error =
            KubeletError::Unsupported(format!("{address} cannot be reached: this node has no network"));
        Box::pin(std::future::ready(Err(error)))
    }
}

/// A stream of bytes both ways; every such stream is one.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRef {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Uid of the pod.
    pub uid: String,
    /// Name of the container; the API server has filled in the default.
    pub container: String,
}

/// Which part of a log, as `v1.PodLogOptions` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on with what the container writes from now on.
    pub follow: bool,
    /// The instance before the last restart.
    pub previous: bool,
    /// Only lines of the last so many seconds.
    pub since_seconds: Option<i64>,
    /// Only lines after this RFC 3339 time.
    pub since_time: Option<String>,
    /// Put the RFC 3339 time of each line before it.
    pub timestamps: bool,
    /// Only so many lines from the end.
    pub tail_lines: Option<u64>,
    /// At most so many bytes.
    pub limit_bytes: Option<u64>,
}

/// What to run, and which streams are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Connect standard input.
    pub stdin: bool,
    /// Connect standard output.
    pub stdout: bool,
    /// Connect standard error (never with `tty`, which has one stream for both).
    pub stderr: bool,
    /// Give the command a terminal.
    pub tty: bool,
}

/// A running command, which ends when the session is dropped, or a container that somebody is attached to.
pub struct ExecSession {
    /// Where its input goes; dropped at the end of the input.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// What it writes.
    pub stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// What it writes as errors.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Columns and rows of the client's terminal, when it has one.
    pub resize: Option<mpsc::Sender<(u16, u16)>>,
    /// How it ended. Resolves when the command is over.
    pub exit: BoxFuture<'static, Result<ExecExit, KubeletError>>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecExit {
    /// Exit status; 128 and the signal's number if a signal ended it.
    pub code: i32,
}

/// Why an agent could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeletError {
    /// There is no such pod, container or log: the client sees 400 with this text.
    #[error("{0}")]
    NotFound(String),
    /// The container is in the wrong state, for example still waiting: the client sees 400 with this text.
    #[error("{0}")]
    Unready(String),
    /// The agent cannot do this at all: the client sees 501 with this text.
    #[error("{0}")]
    Unsupported(String),
    /// Anything else: the client sees 500.
    #[error("{0}")]
    Failed(String),
}

/// The agents by the names of their nodes.
pub(crate) type Kubelets = BTreeMap<String, std::sync::Arc<dyn Kubelet>>;
