//! How one probe is run: exec, TCP and HTTP. Whether the result counts is decided by
//! the kubelet.

use std::net::SocketAddr;
use std::pin::pin;

use bytes::Bytes;
use futures::future::{self, Either};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::runtime::{ContainerId, ExecRequest, Runtime, RuntimeError};

/// How much of a command's output or an answer's body is kept for the event (upstream: 10 KiB).
const OUTPUT_LIMIT: usize = 10 * 1024;

/// What a probe does, with everything worked out (named ports, the pod's address).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    /// Run a command in the container; exit code 0 is success.
    Exec {
        /// Program and arguments.
        command: Vec<String>,
    },
    /// Open a TCP connection.
    Tcp {
        /// Where.
        address: SocketAddr,
    },
    /// GET; a status from 200 to 399 is success.
    Http {
        /// Where to connect.
        address: SocketAddr,
        /// Path with query.
        path: String,
        /// Headers, `Host` among them when given.
        headers: Vec<(String, String)>,
    },
    /// A kind of probe that this kubelet does not have; it always fails with this message.
    Unsupported(String),
}

/// What one run of a probe gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// It passed.
    Success,
    /// It failed; the message is for the `Unhealthy` event.
    Failure(String),
    /// It could not be run, which says nothing about the container: not counted, as upstream.
    Error(String),
}

/// Runs a probe by a runtime's `exec` and `dial`.
pub async fn run<R: Runtime>(runtime: &R, container: &ContainerId, action: &ProbeAction) -> ProbeOutcome {
    match action {
        ProbeAction::Exec { command } => exec(runtime, container, command).await,
        ProbeAction::Tcp { address } => match runtime.dial(*address).await {
            Ok(_connection) => ProbeOutcome::Success,
            Err(error) => ProbeOutcome::Failure(format!("dial tcp {address}: {error}")),
        },
        ProbeAction::Http { address, path, headers } => match http(runtime, *address, path, headers).await {
            Ok(status) if (200..400).contains(&status) => ProbeOutcome::Success,
            Ok(status) => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
            Err(message) => ProbeOutcome::Failure(format!("Get \"http://{address}{path}\": {message}")),
        },
        ProbeAction::Unsupported(message) => ProbeOutcome::Failure(message.clone()),
    }
}

async fn exec<R: Runtime>(runtime: &R, container: &ContainerId, command: &[String]) -> ProbeOutcome {
    match command_output(runtime, container, command).await {
        Ok((0, _)) => ProbeOutcome::Success,
        Ok((_, output)) => ProbeOutcome::Failure(output),
        Err(RuntimeError::CannotStart { message, .. }) => ProbeOutcome::Failure(message),
        Err(error) => ProbeOutcome::Error(error.to_string()),
    }
}

/// Runs a command in a container to its end: exit code and the first 10 KiB of what it wrote.
pub async fn command_output<R: Runtime>(
    runtime: &R,
    container: &ContainerId,
    command: &[String],
) -> Result<(i32, String), RuntimeError> {
    let request = ExecRequest { command: command.to_vec(), tty: false, stdin: false };
    let session = runtime.exec(container, &request).await?;
    let stderr = async {
        match session.stderr {
            Some(stderr) => drain(stderr).await,
            None => Vec::new(),
        }
    };
    let (stdout, stderr, exit) = future::join3(drain(session.stdout), stderr, session.exit).await;
    let mut output = stdout;
    output.extend(stderr);
    output.truncate(OUTPUT_LIMIT);
    Ok((exit?, String::from_utf8_lossy(&output).into_owned()))
}

/// Reads to the end, so that the command never blocks on a full pipe, and keeps the beginning.
async fn drain(mut stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        let room = OUTPUT_LIMIT.saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(&buffer[..room]);
    }
    kept
}

async fn http<R: Runtime>(
    runtime: &R,
    address: SocketAddr,
    path: &str,
    headers: &[(String, String)],
) -> Result<u16, String> {
    let connection = runtime.dial(address).await.map_err(|error| format!("dial tcp {address}: {error}"))?;
    let mut request = http::Request::get(path).header(http::header::USER_AGENT, "kube-probe/1.37");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header(http::header::HOST, address.to_string());
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(connection))
        .await
        .map_err(|error| error.to_string())?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        // The body is read so that the server sees a client that listens; its content decides nothing.
        let _ = Limited::new(answer.into_body(), OUTPUT_LIMIT).collect().await;
        Ok(status)
    };
    match future::select(pin!(answer), pin!(driver)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, answer)) => answer.await,
    }
}
