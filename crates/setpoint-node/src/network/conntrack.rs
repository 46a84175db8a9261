//! Makes the kernel forget connections that it translates: those with a given mark.
//!
//! One netlink message: `IPCTNL_MSG_CT_DELETE` without an address deletes all entries that its filter names
//! (`linux/netfilter/nfnetlink_conntrack.h`).

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = (1 << 8) | 2;
/// Size of `nlmsghdr`, after which an answer has its error number.
const HEADER: usize = 16;
const MARK: u16 = 8;
const MARK_MASK: u16 = 21;

/// Deletes all entries with this mark.
pub(super) fn forget(mark: u32) -> io::Result<()> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?;
    sendto(socket.as_raw_fd(), &request(mark), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    // The kernel has answered when `sendto` returns.
    let mut answer = [0; 256];
    let size = recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
    let number = answer.get(HEADER..HEADER + 4).filter(|_| size >= HEADER + 4);
    let number = number.and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match number {
        Some(0) => Ok(()),
        Some(number) => Err(Errno::from_raw(-number).into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn request(mark: u32) -> Vec<u8> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    // `nfgenmsg`: any family, version 0.
    let mut body = vec![0; 4];
    for (kind, value) in [(MARK, mark), (MARK_MASK, u32::MAX)] {
        body.extend(8_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value.to_be_bytes());
    }
    let length = u32::try_from(HEADER + body.len()).unwrap_or_default();
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(DELETE.to_ne_bytes());
    message.extend(u16::try_from(flags).unwrap_or_default().to_ne_bytes());
    // Sequence and port number: one request, one answer.
    message.extend([0; 8]);
    message.extend(body);
    message
}
