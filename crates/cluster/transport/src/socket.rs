//! Sockets, through raw system calls.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use samite_cpu::timespec;
use samite_types::{Deadline, Error, ErrorKind, Result};
use smallvec::SmallVec;

use crate::address::{Address, check_socket_path};

/// Most slices that one send gathers.
pub(crate) const SLICES_MAX: usize = 256;
/// Descriptors that come with a welcome: rings, doorbell, arena.
const DESCRIPTORS_MAX: usize = 3;
/// Longest time in the kernel before a waiting thread looks around.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(50);
/// Buffers for unix sockets. Tcp tunes its own.
const UNIX_BUFFER_LEN: usize = 2 << 20;
/// Client's descriptors are moved up to here, away from the small numbers that programs expect to be free.
const DESCRIPTOR_MIN: i32 = 900;

/// Descriptors received with a message.
pub(crate) type Descriptors = SmallVec<[OwnedFd; DESCRIPTORS_MAX]>;

/// Waits until `fd` is ready for any of `flags`, at most for `timeout`. Returns what it is ready for: nothing after the timeout
/// or a signal.
pub(crate) fn poll_for(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    timeout: Duration,
) -> Result<PollFlags, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    match rustix::event::poll(&mut fds, Some(&timespec(timeout))) {
        Ok(_) => Ok(fds[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(errno) => Err(errno),
    }
}

/// Sends without waiting. No signal when the peer is gone.
pub(crate) fn send_now(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let sent = match slices {
            [one] => rustix::net::send(fd, one, flags),
            many => rustix::net::sendmsg(fd, many, &mut SendAncillaryBuffer::default(), flags),
        };
        if sent != Err(Errno::INTR) {
            return sent;
        }
    }
}

/// Sends one short message with descriptors attached, without waiting.
pub(crate) fn send_with_descriptors(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Receives into `buffer`; with `wait`, for as long as the socket's receive timeout. 0: the peer has closed.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], wait: bool) -> Result<usize, Errno> {
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    loop {
        match rustix::net::recv(fd, &mut *buffer, flags) {
            Err(Errno::INTR) => {}
            result => return result.map(|(len, _)| len),
        }
    }
}

/// Receives at most `limit` bytes behind what `buffer` holds; with `wait`, for as long as the socket's receive timeout. 0: the peer has closed.
pub(crate) fn receive_append(
    fd: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
    limit: usize,
    wait: bool,
) -> Result<usize, Errno> {
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    buffer.reserve(limit);
    loop {
        let spare = &mut buffer.spare_capacity_mut()[..limit];
        let len = match rustix::net::recv(fd, spare, flags) {
            Ok(((filled, _), _)) => filled.len(),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        // SAFETY: the kernel has filled `len` bytes of the spare capacity, which follows the present length.
        unsafe { buffer.set_len(buffer.len() + len) };
        return Ok(len);
    }
}

/// Receives bytes and the descriptors that come with them, for as long as the socket's receive timeout.
pub(crate) fn receive_with_descriptors(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Descriptors), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        let mut slices = [IoSliceMut::new(&mut *buffer)];
        match rustix::net::recvmsg(fd, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            result => break result?.bytes,
        }
    };
    let mut descriptors = Descriptors::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((len, descriptors))
}

/// Error of a connection that broke, in words.
pub(crate) fn broken(what: &str, errno: Errno) -> Error {
    match errno {
        Errno::BADMSG => Error::new(ErrorKind::Corrupt, format!("{what}: TLS record is damaged")),
        Errno::CONNABORTED => {
            Error::new(ErrorKind::Corrupt, format!("{what}: peer ended it with a TLS alert"))
        }
        errno => Error::io(what, errno),
    }
}

/// Whether the other end of a connection is gone.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>) -> bool {
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
    poll_for(fd, PollFlags::RDHUP, Duration::ZERO).map_or(true, |flags| flags.intersects(gone))
}

/// Moves a descriptor up, out of the way of programs that count on small numbers being free.
pub(crate) fn move_up(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, DESCRIPTOR_MIN).unwrap_or(fd)
}

/// Connects to a node: a blocking socket whose receives return after [`WAIT_SLICE`].
pub(crate) fn connect(address: &Address, deadline: Deadline) -> Result<OwnedFd> {
    let failed = |errno| match errno {
        // Not there yet, or no more: to the caller both mean that this node cannot be reached now.
        Errno::NOENT | Errno::HOSTUNREACH | Errno::NETUNREACH => {
            Error::new(ErrorKind::Unavailable, format!("connect {address}: {errno}"))
        }
        _ => Error::io(format_args!("connect {address}"), errno),
    };
    let fd = match address {
        Address::Shm(path) | Address::Unix(path) => connect_unix(path, deadline),
        Address::Tcp(host, port) | Address::Tls(host, port) => {
            let mut result = Err(Errno::HOSTUNREACH);
            for target in resolve(host, *port)? {
                result = connect_tcp(target, deadline);
                if result.is_ok() {
                    break;
                }
            }
            result
        }
    };
    let fd = move_up(fd.map_err(failed)?);
    rustix::io::ioctl_fionbio(&fd, false).map_err(failed)?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(WAIT_SLICE)).map_err(failed)?;
    tune(fd.as_fd(), address.is_tcp()).map_err(failed)?;
    Ok(fd)
}

/// Options for a connected socket of either side.
pub(crate) fn tune(fd: BorrowedFd<'_>, tcp: bool) -> Result<(), Errno> {
    if tcp {
        sockopt::set_tcp_nodelay(fd, true)
    } else {
        // Only a hint: the system's limit may be lower.
        sockopt::set_socket_send_buffer_size(fd, UNIX_BUFFER_LEN)
    }
}

fn connect_unix(path: &Path, deadline: Deadline) -> Result<OwnedFd, Errno> {
    let target = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&fd, &target) {
            Ok(()) => return Ok(fd),
            // The listener's queue is full; it is working it off.
            Err(Errno::AGAIN) => {
                deadline.remaining().ok_or(Errno::TIMEDOUT)?;
                let _ = rustix::thread::nanosleep(&timespec(Duration::from_millis(1)));
            }
            Err(errno) => return Err(errno),
        }
    }
}

fn connect_tcp(target: SocketAddr, deadline: Deadline) -> Result<OwnedFd, Errno> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&fd, &target) {
        Ok(()) => return Ok(fd),
        Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno),
    }
    loop {
        let remaining = deadline.remaining().ok_or(Errno::TIMEDOUT)?;
        if !poll_for(fd.as_fd(), PollFlags::OUT, remaining)?.is_empty() {
            sockopt::socket_error(&fd)??;
            return Ok(fd);
        }
    }
}

/// The addresses of a host. Numbers and `localhost` ask nobody.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SmallVec<[SocketAddr; 2]>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok([SocketAddr::new(ip, port)].into_iter().collect());
    }
    if host == "localhost" {
        return Ok([SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)].into_iter().collect());
    }
    let found: SmallVec<[SocketAddr; 2]> = (host, port)
        .to_socket_addrs()
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("resolve {host}: {error}")))?
        .take(8)
        .collect();
    if found.is_empty() {
        return Err(Error::new(ErrorKind::Unavailable, format!("resolve {host}: no address")));
    }
    Ok(found)
}

/// Makes a socket that listens on a unix path.
pub(crate) fn listen_unix(path: &Path) -> Result<OwnedFd> {
    check_socket_path(path)?;
    let failed = |errno| Error::io(format_args!("listen on unix://{}", path.display()), errno);
    let target = SocketAddrUnix::new(path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let fd = socket().map_err(failed)?;
    match rustix::net::bind(&fd, &target) {
        Err(Errno::ADDRINUSE) => {
            // A node that was killed leaves its socket file; a living one takes the connection.
            let probe = socket().map_err(failed)?;
            if rustix::net::connect(&probe, &target) != Err(Errno::CONNREFUSED) {
                return Err(failed(Errno::EXIST));
            }
            rustix::fs::unlink(path).map_err(failed)?;
            rustix::net::bind(&fd, &target).map_err(failed)?;
        }
        result => result.map_err(failed)?,
    }
    rustix::net::listen(&fd, 1024).map_err(failed)?;
    Ok(fd)
}

/// Makes a socket that listens on tcp; returns the port too.
pub(crate) fn listen_tcp(host: &str, port: u16) -> Result<(OwnedFd, u16)> {
    let failed = |errno| Error::io(format_args!("listen on tcp://{host}:{port}"), errno);
    let target = resolve(host, port)?[0];
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
    sockopt::set_socket_reuseaddr(&fd, true).map_err(failed)?;
    rustix::net::bind(&fd, &target).map_err(failed)?;
    rustix::net::listen(&fd, 1024).map_err(failed)?;
    let local: SocketAddr =
        rustix::net::getsockname(&fd).and_then(SocketAddr::try_from).map_err(failed)?;
    Ok((fd, local.port()))
}
