//! `exec` and `attach`: a command in a container, or the container itself, and a client's terminal.

use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use futures::{FutureExt, StreamExt};
use http::Response;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::terminal::{Input, Output, Terminal};
use super::upgrade::{Connection, Protocols, handshake};
use super::{channels, failure, find, streams};
use crate::body::Body;
use crate::dispatch::Call;
use crate::kubelet::{ExecExit, ExecOptions, ExecSession, KubeletError};
use crate::status::{Result, Status};

const PROTOCOLS: Protocols = Protocols { web_socket: channels::PROTOCOLS, spdy: streams::PROTOCOLS };
const CHUNK: usize = 32 * 1024;
/// How long a client may take to close after the last message.
const FAREWELL: Duration = Duration::from_secs(5);

/// Starts a command and turns the connection into its terminal.
pub(crate) async fn exec(call: &mut Call<'_>) -> Result<Response<Body>> {
    let options = options(call);
    // Before the handshake: kubectl takes an error in the answer to a WebSocket for a server that has none, asks again over
    // SPDY and shows only what is said to that.
    let Some((kubelet, container)) = find(call)? else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", call.place.name)));
    };
    if options.command.is_empty() {
        return Err(Status::bad_request("you must specify at least 1 container command to execute"));
    }
    let accepted = handshake(&call.parts.headers, &PROTOCOLS)?;
    // For the same reason a command that cannot be started ends on the error channel.
    let session = kubelet.exec(container, options.clone()).await.unwrap_or_else(failed);
    accepted.switch(call, |connection| async move { run(connection, session, &options).await })
}

/// Which streams the client wants, and for what.
fn options(call: &Call<'_>) -> ExecOptions {
    let query = &call.query;
    ExecOptions {
        command: query.all("command").into_iter().map(str::to_owned).collect(),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr") && !query.flag("tty"),
        tty: query.flag("tty"),
    }
}

/// Connects the client to a container that runs.
pub(crate) async fn attach(call: &mut Call<'_>) -> Result<Response<Body>> {
    let Some((kubelet, container)) = find(call)? else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", call.place.name)));
    };
    let accepted = handshake(&call.parts.headers, &PROTOCOLS)?;
    let streams = options(call);
    let session = kubelet.attach(container, streams.clone()).await.unwrap_or_else(failed);
    accepted.switch(call, |connection| async move { run(connection, session, &streams).await })
}

/// Moves bytes between client and command until the command ends or the client goes.
async fn run(connection: Connection, session: ExecSession, options: &ExecOptions) {
    let terminal = match connection {
        Connection::WebSocket(socket) => Some(channels::terminal(socket)),
        spdy @ Connection::Spdy(_) => streams::terminal(spdy, options).await,
    };
    let Some(Terminal { mut input, output, writing }) = terminal else { return };
    let ExecSession { mut stdin, stdout, stderr, resize, exit } = session;
    let outputs = async move {
        let out = pump(stdout, Output::Stdout, &output);
        let err = pump(stderr, Output::Stderr, &output);
        futures::join!(out, err);
        let status = ending(exit.await, &options.command);
        // A closed channel means that the client is gone.
        let _ = output.send(Output::Ended(status)).await;
    };
    let inputs = async {
        while let Some(said) = input.next().await {
            give(said, &mut stdin, resize.as_ref()).await;
        }
    };
    let outputs = std::pin::pin!(outputs);
    let serving = std::pin::pin!(async {
        // A client that takes no more ends the session, even if the command has nothing to say and takes no input.
        if let Either::Left(((), writing)) = select(outputs, writing).await {
            writing.await;
        }
    });
    // The end of the command ends the session; so does a client that goes away.
    if let Either::Left(((), inputs)) = select(serving, std::pin::pin!(inputs)).await {
        // The client closes when it has read all. Without waiting for that, what it still types could cost it the end.
        let _ = timeout(FAREWELL, inputs).await;
    }
}

/// The session of a command that never ran.
fn failed(error: KubeletError) -> ExecSession {
    let exit = std::future::ready(Err(error)).boxed();
    ExecSession { stdin: None, stdout: None, stderr: None, resize: None, exit }
}

/// Sends what a stream of the command says.
async fn pump(
    stream: Option<Box<dyn AsyncRead + Send + Unpin>>,
    said: impl Fn(Bytes) -> Output,
    output: &mpsc::Sender<Output>,
) {
    let Some(mut stream) = stream else { return };
    let mut chunk = vec![0; CHUNK];
    while let Ok(read) = stream.read(&mut chunk).await {
        if read == 0 || output.send(said(Bytes::copy_from_slice(&chunk[..read]))).await.is_err() {
            return;
        }
    }
}

/// Gives the client's input to the command.
async fn give(
    said: Input,
    stdin: &mut Option<Box<dyn AsyncWrite + Send + Unpin>>,
    resize: Option<&mpsc::Sender<(u16, u16)>>,
) {
    match said {
        Input::Stdin(data) => {
            if let Some(input) = stdin
                && (input.write_all(&data).await.is_err() || input.flush().await.is_err())
            {
                *stdin = None;
            }
        }
        Input::StdinEnd => {
            if let Some(mut input) = stdin.take() {
                // The command sees the end of its input.
                let _ = input.shutdown().await;
            }
        }
        Input::Resize(columns, rows) => {
            if let Some(resize) = resize {
                // A command that is over has no size.
                let _ = resize.try_send((columns, rows));
            }
        }
    }
}

/// The last message: how the command ended, as a `Status`.
fn ending(exit: Result<ExecExit, KubeletError>, command: &[String]) -> Value {
    match exit {
        Ok(ExecExit { code: 0 }) => json!({"metadata": {}, "status": "Success"}),
        Ok(ExecExit { code }) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: error executing command {command:?}, exit code {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(error) => failure(error).to_value(),
    }
}
