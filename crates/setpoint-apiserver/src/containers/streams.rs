//! A terminal over SPDY/3.1, as client-go's `NewSPDYExecutor` speaks it: a stream for each of error, stdin, stdout, stderr and resize, which the
//! client opens (`k8s.io/kubelet/pkg/cri/streaming/remotecommand`, protocol v4).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::{Either, select};
use futures::stream::unfold;
use futures::{FutureExt, StreamExt};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::carrier::{Frames, Outgoing, carry};
use super::spdy::{Frame, Writer};
use super::terminal::{Input, Output, PENDING, Terminal, size};
use super::upgrade::{Connection, PING_EVERY};
use crate::kubelet::ExecOptions;

/// The protocol: v4 sends how the command ended as a `Status`. Every client since Kubernetes 1.4 offers it.
pub(super) const PROTOCOLS: &[&str] = &["v4.channel.k8s.io"];

/// How long a client may take to open its streams (`StreamCreationTimeout` of the kubelet).
const OPENING: Duration = Duration::from_secs(30);
/// The longest message about a terminal's size.
const LONGEST_SIZE: usize = 1024;

/// The numbers of the client's streams; 0 for one that isn't there.
#[derive(Clone, Copy, Default)]
struct Numbers {
    error: u32,
    stdin: u32,
    stdout: u32,
    stderr: u32,
    resize: u32,
}

/// Speaks with the client behind a connection, once it has opened the streams that its request announced.
pub(super) async fn terminal(connection: Connection, options: &ExecOptions) -> Option<Terminal> {
    let (mut frames, mut outgoing) = carry(connection);
    let opening = open(&mut frames, &mut outgoing, options);
    let numbers = timeout(OPENING, opening).await.ok()??;
    let (output, outputs) = mpsc::channel(PENDING);
    let (control, controls) = mpsc::channel(PENDING);
    let listener = Listener { frames, numbers, control, size: BytesMut::new(), ended: false };
    let input = unfold(listener, |mut listener| async move { Some((listener.next().await?, listener)) });
    let writing = write(outgoing, outputs, controls, numbers);
    Some(Terminal { input: input.boxed(), output, writing: writing.boxed() })
}

/// Accepts streams until all that the request announced are there. `None` when the client goes, or breaks the rules.
async fn open(frames: &mut Frames, outgoing: &mut Outgoing, options: &ExecOptions) -> Option<Numbers> {
    let mut writer = Writer::default();
    let mut numbers = Numbers::default();
    loop {
        let missing = numbers.error == 0
            || (options.stdin && numbers.stdin == 0)
            || (options.stdout && numbers.stdout == 0)
            || (options.stderr && numbers.stderr == 0)
            || (options.tty && numbers.resize == 0);
        if !missing {
            return Some(numbers);
        }
        let answer = match frames.next().await? {
            Frame::Open { stream, headers, .. } => {
                let kind = headers.iter().find(|(name, _)| name == "streamtype");
                let place = match kind.map_or("", |(_, value)| value.as_str()) {
                    "error" => &mut numbers.error,
                    "stdin" => &mut numbers.stdin,
                    "stdout" => &mut numbers.stdout,
                    "stderr" => &mut numbers.stderr,
                    "resize" => &mut numbers.resize,
                    other => {
                        tracing::debug!(stream = other, "a client opens a stream that nobody knows");
                        return None;
                    }
                };
                *place = stream;
                writer.reply(stream)
            }
            Frame::Ping { id } => Writer::ping(id),
            _ => continue,
        };
        if !outgoing.send(answer).await {
            return None;
        }
    }
}

/// The client's frames as what they mean to a command.
struct Listener {
    frames: Frames,
    numbers: Numbers,
    /// Where answers to pings go.
    control: mpsc::Sender<Bytes>,
    /// The part of a message about the size that is there.
    size: BytesMut,
    /// Whether the input has ended with what was given last.
    ended: bool,
}

impl Listener {
    async fn next(&mut self) -> Option<Input> {
        if std::mem::take(&mut self.ended) {
            return Some(Input::StdinEnd);
        }
        loop {
            match self.frames.next().await? {
                Frame::Data { stream, data, fin } if stream == self.numbers.stdin && stream != 0 => {
                    self.ended = fin && !data.is_empty();
                    match (data.is_empty(), fin) {
                        (true, true) => return Some(Input::StdinEnd),
                        (true, false) => {}
                        (false, _) => return Some(Input::Stdin(data)),
                    }
                }
                Frame::Data { stream, data, .. } if stream == self.numbers.resize && stream != 0 => {
                    self.size.extend_from_slice(&data);
                    if let Some(resized) = self.resized() {
                        return Some(resized);
                    }
                }
                Frame::Reset { stream } if stream == self.numbers.stdin && stream != 0 => {
                    return Some(Input::StdinEnd);
                }
                Frame::Ping { id } => self.control.send(Writer::ping(id)).await.ok()?,
                // Nobody expects another one.
                Frame::Open { stream, .. } => self.control.send(Writer::refuse(stream)).await.ok()?,
                _ => {}
            }
        }
    }

    /// The last whole message about the size.
    fn resized(&mut self) -> Option<Input> {
        let mut messages = serde_json::Deserializer::from_slice(&self.size).into_iter::<Value>();
        let mut last = None;
        while let Some(Ok(message)) = messages.next() {
            last = size(&message).or(last);
        }
        let read = messages.byte_offset();
        let _ = self.size.split_to(read.min(self.size.len()));
        if self.size.len() > LONGEST_SIZE {
            self.size.clear();
        }
        last
    }
}

/// Sends outputs on their streams, and answers to pings between them, until the last output.
async fn write(
    mut outgoing: Outgoing,
    mut outputs: mpsc::Receiver<Output>,
    mut controls: mpsc::Receiver<Bytes>,
    numbers: Numbers,
) {
    let mut answering = true;
    loop {
        let next = {
            let output = std::pin::pin!(outputs.recv());
            let control = std::pin::pin!(async {
                if answering { controls.recv().await } else { std::future::pending().await }
            });
            match timeout(PING_EVERY, select(output, control)).await {
                Ok(Either::Left((output, _))) => Some(Either::Left(output)),
                Ok(Either::Right((control, _))) => Some(Either::Right(control)),
                Err(_) => None,
            }
        };
        let Some(next) = next else {
            if !outgoing.ping().await {
                return;
            }
            continue;
        };
        let frame = match next {
            Either::Left(None) => break,
            Either::Left(Some(Output::Stdout(data))) => Writer::data(numbers.stdout, &data, false),
            Either::Left(Some(Output::Stderr(data))) => Writer::data(numbers.stderr, &data, false),
            Either::Left(Some(Output::Ended(status))) => {
                Writer::data(numbers.error, status.to_string().as_bytes(), true)
            }
            Either::Right(Some(frame)) => frame,
            Either::Right(None) => {
                answering = false;
                continue;
            }
        };
        if !outgoing.send(frame).await {
            return;
        }
    }
    for stream in [numbers.stdout, numbers.stderr] {
        if stream != 0 && !outgoing.send(Writer::data(stream, b"", true)).await {
            return;
        }
    }
    outgoing.close().await;
}
