//! Commands inside a running container: probes, hooks and `kubectl exec`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;

use setpoint_cluster::kubelet::{ContainerId, ExecRequest, ExecSession, RuntimeError};
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

use super::container::Container;
use super::terminal::{self, Terminal, resizing};
use crate::protocol::CommandSetup;
use crate::spawner::Process;

/// Starts the command.
pub(super) async fn exec(
    container: &Container,
    id: &ContainerId,
    request: &ExecRequest,
) -> Result<ExecSession, RuntimeError> {
    if container.process.has_ended() {
        return Err(RuntimeError::NotRunning(id.clone()));
    }
    let mut command = container.command.clone();
    command.arguments.clone_from(&request.command);
    command.terminal = request.tty;
    let session = if request.tty {
        on_terminal(container, command, request).await
    } else {
        on_pipes(container, command, request).await
    };
    // The container may have ended in between.
    session.map_err(
        |error| if container.process.has_ended() { RuntimeError::NotRunning(id.clone()) } else { error },
    )
}

fn failed(source: io::Error) -> RuntimeError {
    RuntimeError::Io { what: "standard streams".to_owned(), source }
}

async fn on_pipes(
    container: &Container,
    command: CommandSetup,
    request: &ExecRequest,
) -> Result<ExecSession, RuntimeError> {
    let (input, stdin): (OwnedFd, Option<OwnedFd>) = if request.stdin {
        let (theirs, ours) = io::pipe().map_err(failed)?;
        (theirs.into(), Some(ours.into()))
    } else {
        (fs::File::open("/dev/null").map_err(failed)?.into(), None)
    };
    let (stdout, their_stdout) = io::pipe().map_err(failed)?;
    let (stderr, their_stderr) = io::pipe().map_err(failed)?;
    let theirs = [input.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
    let process = container.pod.process.exec(container.process.id, command, &theirs).await?;
    let receiver = |reader: io::PipeReader| pipe::Receiver::from_owned_fd(reader.into()).map_err(failed);
    let stdin = match stdin {
        Some(stdin) => {
            let sender = pipe::Sender::from_owned_fd(stdin).map_err(failed)?;
            Some(Box::pin(sender) as Pin<Box<dyn AsyncWrite + Send>>)
        }
        None => None,
    };
    Ok(ExecSession {
        stdin,
        stdout: Box::pin(receiver(stdout)?),
        stderr: Some(Box::pin(receiver(stderr)?)),
        resize: None,
        exit: exit(process),
    })
}

async fn on_terminal(
    container: &Container,
    mut command: CommandSetup,
    request: &ExecRequest,
) -> Result<ExecSession, RuntimeError> {
    if !command.environment.iter().any(|(name, _)| name == "TERM") {
        command.environment.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let (socket, theirs) = terminal::offer().map_err(failed)?;
    let process = container.pod.process.exec(container.process.id, command, &[theirs.as_fd()]).await?;
    drop(theirs);
    let terminal = Terminal::accept(&socket).map_err(failed)?;
    let resize = resizing(terminal.clone());
    let stdin = request.stdin.then(|| Box::pin(terminal.clone()) as Pin<Box<dyn AsyncWrite + Send>>);
    Ok(ExecSession {
        stdin,
        stdout: Box::pin(terminal),
        stderr: None,
        resize: Some(resize),
        exit: exit(process),
    })
}

/// Waits for the end of the command; kills it when dropped before.
fn exit(process: Process) -> futures::future::BoxFuture<'static, Result<i32, RuntimeError>> {
    let guard = KillOnDrop(process);
    Box::pin(async move { Ok(guard.0.wait().await.code) })
}

struct KillOnDrop(Process);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.0.has_ended() {
            return;
        }
        let process = self.0.clone();
        // Without a runtime the whole machine is shutting down.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { process.signal(libc::SIGKILL, false).await });
        }
    }
}
