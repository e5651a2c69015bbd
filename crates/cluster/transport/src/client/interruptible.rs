//! Interruptible waits: for requests whose answers may take as long as they like, like those for
//! locks.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use samite_cpu::timespec;
use samite_types::{Error, Result};

use super::link::NodeLink;

/// Silence after which a peer over tcp is asked whether it is there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Something has come in, or the connection has ended: [`NodeLink::wait`] does not wait long.
    Arrived,
    /// The other descriptor has something.
    Interrupted,
    /// Neither, in the time given; or a signal has been handled.
    TimedOut,
}

impl NodeLink {
    /// Waits until something comes in, or there is something to read from `other`, or `timeout` is over. Only for a link over a socket that
    /// one thread uses alone, with one request in flight.
    ///
    /// # Errors
    /// The link is dead.
    pub fn wait_beside(&self, other: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<WaitEnd> {
        let failed = |errno| Error::io("wait for a reply", errno);
        let fd = self.borrowed_socket()?;
        if self.address().is_tcp() {
            // A node whose host is gone says nothing more.
            sockopt::set_socket_keepalive(fd, true).map_err(failed)?;
            sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE).map_err(failed)?;
        }
        let second = other.unwrap_or(fd);
        let mut fds = [fd, second].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match rustix::event::poll(&mut fds, Some(&timespec(timeout))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(match fds.map(|fd| fd.revents()) {
            [flags, _] if !flags.is_empty() => WaitEnd::Arrived,
            [_, flags] if !flags.is_empty() => WaitEnd::Interrupted,
            _ => WaitEnd::TimedOut,
        })
    }
}
