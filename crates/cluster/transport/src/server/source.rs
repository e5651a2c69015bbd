//! Events that the loop asks the kernel to report.

use rustix::event::epoll;

/// Kind of an epoll event, and the index of the listener or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSource {
    Waker,
    Listener,
    Socket,
    Doorbell,
    /// A socket that the peer has yet to close.
    Lingering,
}

/// The data that the kernel gives back with the event; `serial` tells a connection from an earlier
/// one at the same index.
pub(super) fn token(source: EventSource, serial: u32, index: usize) -> epoll::EventData {
    let serial = u64::from(serial & 0xff_ffff);
    epoll::EventData::new_u64((source as u64) << 56 | serial << 32 | index as u64)
}
