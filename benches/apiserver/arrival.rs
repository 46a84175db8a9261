//! When bytes arrived at a socket: the kernel notes the time, so that nobody has to be awake for it. A thousand watchers that wake up on the cores on
//! which the server works would measure one another.

use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use tokio::net::TcpStream;

use crate::failure::Failure;

/// The time of the clock by which the kernel stamps.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// From now on the kernel notes when something arrives.
pub(crate) fn note(socket: &TcpStream) -> Result<(), Failure> {
    setsockopt(socket, sockopt::ReceiveTimestampns, &true).map_err(failed)
}

/// When the last of the bytes arrived that wait in the socket; `None` if none do. They stay there.
pub(crate) fn last(socket: &TcpStream, buffer: &mut [u8]) -> Result<Option<Duration>, Failure> {
    let mut space = cmsg_space!(TimeSpec);
    let mut slices = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let message = match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags) {
        Err(Errno::EAGAIN) => return Ok(None),
        message => message.map_err(failed)?,
    };
    if message.bytes == 0 {
        return Err(Failure::Refused("the server closed the connection".into()));
    }
    let mut messages = message.cmsgs().map_err(failed)?;
    messages
        .find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
            _ => None,
        })
        .map_or_else(
            || Err(Failure::Refused("the kernel notes no times of arrival".into())),
            |time| Ok(Some(time)),
        )
}

fn failed(errno: Errno) -> Failure {
    Failure::Io { what: "ask when an event arrived".into(), source: errno.into() }
}
