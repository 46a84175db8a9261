//! Messages with file descriptors over Unix sockets that keep message boundaries: how the main process
//! talks to the sandbox's first process, and to the first process of each pod.
//!
//! One message is one JSON value. Its size is limited by the socket's send buffer (about 200 KiB).

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv, recvmsg, sendmsg,
    socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;

/// Most descriptors that one message carries.
const MOST_DESCRIPTORS: usize = 8;

/// Two connected ends, both closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends one message. The descriptors are duplicated into the receiver; the sender keeps its own.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one message, or none when the other end is closed.
pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let size = recv(socket.as_raw_fd(), &mut [], MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)?;
    let mut bytes = vec![0; size];
    let mut control = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received =
        recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has just installed these descriptors for this message; nothing else knows
            // their numbers, so each gets exactly one owner here.
            descriptors.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    if size == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes)?, descriptors)))
}

/// The main process's end, driven by tokio.
pub(crate) struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// Takes over one end; call it inside a tokio runtime.
    pub(crate) fn new(end: OwnedFd) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // SAFETY: the result owns the descriptor and nothing closes it before.
        Ok(Self(unsafe { AsyncFd::register(end) }?))
    }

    /// Sends one message once there is room for it.
    pub(crate) async fn send(
        &self,
        message: &(impl Serialize + Sync),
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        loop {
            let mut ready = self.0.writable().await?;
            if let Ok(done) = ready.try_io(|socket| send(socket.get_ref().as_fd(), message, descriptors)) {
                return done;
            }
        }
    }

    /// Receives the next message, or none when the other end is closed.
    pub(crate) async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(done) = ready.try_io(|socket| receive(socket.get_ref().as_fd())) {
                return match done {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
                    other => other,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[tokio::test]
    async fn descriptors_travel_with_their_message() {
        let (ours, theirs) = pair().unwrap();
        let ours = Channel::new(ours).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        ours.send(&"hello", &[writer.as_fd()]).await.unwrap();
        drop(writer);

        let (message, mut descriptors): (String, _) = receive(theirs.as_fd()).unwrap().unwrap();
        assert_eq!((message.as_str(), descriptors.len()), ("hello", 1));
        std::fs::File::from(descriptors.remove(0)).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");

        drop(theirs);
        assert!(ours.receive::<String>().await.unwrap().is_none());
    }
}
