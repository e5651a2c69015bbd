//! Keep-alive sockets: the locks of an open file description, and the file itself, live for as long
//! as any process has the description.
//!
//! At the nodes, locks live as long as a connection on which they were asked for. So that
//! connection must stay open until the last process that has the description closes it or ends,
//! however it ends: also when it was a child that took the lock, and its parent, which made the
//! description, goes on (`exec 9>f; flock 9`). The kernel counts that for us: a *keep-alive socket*
//! is a datagram socket that is connected to itself. It is made before the description first gets
//! into a second process, is inherited together with it, and a process that takes a lock sends the
//! connection into it. A descriptor in a socket's queue is open until the socket is closed
//! everywhere.
//!
//! A file without a name lives as long as a node knows the client that opened it, which it does
//! while that has a connection. So that of the process that opened the file is the first thing in
//! the keep-alive socket: a child that inherits the file and touches it long after that process has
//! ended still finds it.

use std::ffi::c_int;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::{descriptor_range, raw};

/// Most connections that are sent in one message: a process has one for each node on which it locks.
const CONNECTIONS_MAX: usize = 128;

/// Makes a keep-alive socket, which stays open over `exec`.
pub fn create() -> Result<c_int, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    // The kernel finds a name that is free.
    rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
    let own = SocketAddrUnix::try_from(rustix::net::getsockname(&socket)?)?;
    rustix::net::connect(&socket, &own)?;
    let fd = descriptor_range::keep(socket)?;
    set_survives(fd, true);
    Ok(fd)
}

/// Takes over the one that was inherited under this number, if it is one.
pub fn adopt(fd: c_int) -> Option<c_int> {
    let socket = raw::borrowed_fd(fd).ok()?;
    let kind = rustix::net::sockopt::socket_type(socket).ok()?;
    (kind == SocketType::DGRAM).then(|| {
        descriptor_range::adopt(fd);
        fd
    })
}

/// Whether it stays open over `exec`.
pub fn set_survives(fd: c_int, survives: bool) {
    let flags = if survives { FdFlags::empty() } else { FdFlags::CLOEXEC };
    if let Ok(fd) = raw::borrowed_fd(fd) {
        // Without it a lock ends too early or too late, which nobody can do anything about here.
        let _ = rustix::io::fcntl_setfd(fd, flags);
    }
}

/// A number that tells it from others, in all processes.
pub fn number(fd: c_int) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(raw::borrowed_fd(fd)?)?.st_ino)
}

/// Lets it keep `connections` open.
pub fn fill(fd: c_int, connections: &[c_int]) -> Result<(), Errno> {
    let fd = raw::borrowed_fd(fd)?;
    if connections.is_empty() {
        return Ok(());
    }
    let connections = &connections[..connections.len().min(CONNECTIONS_MAX)];
    let borrowed: Result<Vec<BorrowedFd<'_>>, Errno> =
        connections.iter().map(|fd| raw::borrowed_fd(*fd)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CONNECTIONS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed = borrowed?;
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(fd, &[IoSlice::new(b"l")], &mut control, flags) {
        // It keeps several sets of connections already, and takes no more.
        Err(Errno::AGAIN) => Ok(()),
        sent => sent.map(drop),
    }
}
