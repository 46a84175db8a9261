//! A node as the API server sees it: the way to logs, exec and ports.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use setpoint_apiserver::{
    Connection, ContainerRef, ExecExit, ExecOptions, ExecSession, Kubelet, KubeletError,
    LogOptions as WantedLog,
};
use tokio::sync::mpsc;

use super::node::{Node, NotThere};
use super::runtime::{ContainerId, ExecRequest, LogOptions, Runtime, RuntimeError, TerminalSize};

/// Serves a node's logs and exec to the API server, as long as the node is there. Weak, because the node holds
/// a client of that API server.
pub struct Agent<R>(Weak<Node<R>>);

impl<R> Agent<R> {
    /// The way to a node.
    pub fn new(node: &Arc<Node<R>>) -> Self {
        Self(Arc::downgrade(node))
    }

    fn node(&self) -> Result<Arc<Node<R>>, KubeletError> {
        self.0.upgrade().ok_or_else(|| KubeletError::Failed("the node is gone".into()))
    }
}

impl<R: Runtime> Agent<R> {
    /// The node, and the run of a container that somebody can get into.
    fn running(&self, container: &ContainerRef) -> Result<(Arc<Node<R>>, ContainerId), KubeletError> {
        let ContainerRef { namespace, pod, container, .. } = container;
        let node = self.node()?;
        let run = node.container_for_exec(namespace, pod, container)?;
        Ok((node, run))
    }
}

impl<R: Runtime> Kubelet for Agent<R> {
    fn logs(
        &self,
        container: ContainerRef,
        options: WantedLog,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, KubeletError>> {
        async move {
            let ContainerRef { namespace, pod, container, .. } = &container;
            let node = self.node()?;
            let run = node.container_for_logs(namespace, pod, container, options.previous)?;
            let options = log_options(&options, node.clock().now())?;
            let log = node.runtime().logs(&run, &options).await.map_err(|error| refused(&error))?;
            // A log that breaks off ends; the client sees what there was.
            let pieces = log.take_while(|piece| futures::future::ready(piece.is_ok()));
            Ok(pieces.filter_map(|piece| futures::future::ready(piece.ok())).boxed())
        }
        .boxed()
    }

    fn exec(
        &self,
        container: ContainerRef,
        options: ExecOptions,
    ) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        async move {
            let (node, run) = self.running(&container)?;
            let request =
                ExecRequest { command: options.command.clone(), tty: options.tty, stdin: options.stdin };
            let session = node.runtime().exec(&run, &request).await.map_err(|error| refused(&error))?;
            Ok(served(session))
        }
        .boxed()
    }

    fn attach(
        &self,
        container: ContainerRef,
        options: ExecOptions,
    ) -> BoxFuture<'_, Result<ExecSession, KubeletError>> {
        async move {
            let (node, run) = self.running(&container)?;
            let session = node.runtime().attach(&run, options.stdin).await;
            session.map(served).map_err(|error| refused(&error))
        }
        .boxed()
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, Result<Box<dyn Connection>, KubeletError>> {
        async move {
            let connection = self.node()?.runtime().dial(address).await;
            let connection = connection.map_err(|error| KubeletError::Failed(error.to_string()))?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        }
        .boxed()
    }
}

/// A session as the API server takes it.
fn served(session: super::runtime::ExecSession) -> ExecSession {
    let resize = session.resize.map(|sizes| {
        let (sender, mut receiver) = mpsc::channel::<(u16, u16)>(4);
        tokio::spawn(async move {
            while let Some((width, height)) = receiver.recv().await {
                if sizes.send(TerminalSize { width, height }).await.is_err() {
                    return;
                }
            }
        });
        sender
    });
    ExecSession {
        stdin: session.stdin.map(|stdin| Box::new(stdin) as _),
        stdout: Some(Box::new(session.stdout)),
        stderr: session.stderr.map(|stderr| Box::new(stderr) as _),
        resize,
        exit: session
            .exit
            .map(|exit| exit.map(|code| ExecExit { code }).map_err(|error| refused(&error)))
            .boxed(),
    }
}

fn log_options(wanted: &WantedLog, now: Timestamp) -> Result<LogOptions, KubeletError> {
    let since = match (&wanted.since_time, wanted.since_seconds) {
        (Some(time), _) => Some(time.parse().map_err(|error| {
            KubeletError::Unsupported(format!("sinceTime {time:?} is not a time: {error}"))
        })?),
        (None, Some(seconds)) => {
            Some(Timestamp::from_second(now.as_second().saturating_sub(seconds)).unwrap_or(Timestamp::MIN))
        }
        (None, None) => None,
    };
    Ok(LogOptions {
        follow: wanted.follow,
        tail_lines: wanted.tail_lines.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX)),
        since,
        timestamps: wanted.timestamps,
        limit_bytes: wanted.limit_bytes,
    })
}

impl From<NotThere> for KubeletError {
    fn from(error: NotThere) -> Self {
        match error {
            NotThere::Waiting { .. } | NotThere::NotRunning { .. } => Self::Unready(error.to_string()),
            _ => Self::NotFound(error.to_string()),
        }
    }
}

fn refused(error: &RuntimeError) -> KubeletError {
    match error {
        RuntimeError::NoContainer(_) | RuntimeError::NoSandbox(_) => {
            KubeletError::NotFound(error.to_string())
        }
        RuntimeError::NotRunning(_) => KubeletError::Unready(error.to_string()),
        RuntimeError::Unsupported(_) => KubeletError::Unsupported(error.to_string()),
        RuntimeError::CannotStart { .. } | RuntimeError::Io { .. } => KubeletError::Failed(error.to_string()),
    }
}
