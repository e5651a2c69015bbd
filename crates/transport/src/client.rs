//! The client's side: one [`Link`] to one node.

use std::task::{Context, Poll};

use samite_types::{ClientId, Deadline, Epoch, NodeId, Result};
use samite_wire::frame::FrameKind;
use smallvec::SmallVec;

use crate::shm::{ArenaView, GrantPool};
use crate::{Address, ClusterKey, Transport};

/// One connection to a node: many requests in flight, replies in any order, any number of threads.
///
/// Nobody reads the connection but the threads that wait for replies; each, as it goes, files what is not its own. So a
/// thread alone pays one send and one receive for a call.
#[derive(Debug)]
pub struct Link {}

/// A request in flight. Dropping it gives up the reply, not the request.
#[derive(Debug)]
#[must_use = "a request's outcome is in its reply"]
pub struct Ticket {}

/// A request to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// [`FrameKind::Request`] or [`FrameKind::Control`].
    pub kind: FrameKind,
    /// Body, encoded.
    pub body: &'a [u8],
    /// Payload in pieces.
    pub payload: &'a [&'a [u8]],
}

/// A reply, seen where it lies: in ring memory, or in the link's receive buffer. Of a large reply on a socket the
/// payload is still in the kernel, and [`Reply::read_payload`] receives it straight into its destination.
#[derive(Debug)]
pub struct Reply<'a> {
    kind: FrameKind,
    body: &'a [u8],
}

impl<'a> Reply<'a> {
    /// What the body is.
    #[must_use]
    pub const fn kind(&self) -> FrameKind {
        self.kind
    }

    /// The body.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Bytes of payload that were not read yet.
    #[must_use]
    pub const fn payload_left(&self) -> usize {
        todo!()
    }

    /// The payload when it is all here already, as is any payload up to [`STREAM_LEN_MIN`] bytes.
    /// `None`: it is to be read with [`Reply::read_payload`].
    #[must_use]
    pub fn payload_in_place(&self) -> Option<&'a [u8]> {
        todo!()
    }

    /// Moves the next `dest.len()` bytes of the payload to `dest`.
    ///
    /// The checksum is compared after the whole payload has come: when it is wrong, the wait returns an error, and nothing
    /// that was read counts.
    ///
    /// # Errors
    /// [`samite_types::ErrorKind::Invalid`] when fewer are left; Timeout, Unavailable as for [`Link::wait`].
    pub fn read_payload(&mut self, dest: &mut [u8]) -> Result<()> {
        let _ = dest;
        todo!()
    }
}

/// Payloads longer than this, in bytes, may have to be read with [`Reply::read_payload`]; shorter ones are in place.
pub const STREAM_LEN_MIN: usize = 16 << 10;

impl Link {
    /// Connects and proves the cluster key, both ways.
    ///
    /// # Errors
    /// `Unavailable` (nobody there), `WrongKey`, `WrongVersion`, `Denied` (shared memory for another user), `Timeout`,
    /// `Corrupt`; each names the address.
    pub fn connect(
        address: &Address,
        key: &ClusterKey,
        client: ClientId,
        deadline: Deadline,
    ) -> Result<Self> {
        let _ = (address, key, client, deadline);
        todo!()
    }

    /// The node at the other end.
    #[must_use]
    pub fn node(&self) -> NodeId {
        todo!()
    }

    /// Address that the link was made to.
    #[must_use]
    pub fn address(&self) -> &Address {
        todo!()
    }

    /// How bytes travel.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.address().transport()
    }

    /// Epoch of the cluster map that the node had when the link was made.
    #[must_use]
    pub fn map_epoch_hint(&self) -> Epoch {
        todo!()
    }

    /// The link is of no use any more; make a new one.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        todo!()
    }

    /// Sends one request. Frames that wait together leave in one write. When the connection takes no more, or too many
    /// requests are in flight, this thread files replies until it does.
    ///
    /// # Errors
    /// `Timeout` (nothing was sent), `Unavailable`, `TooLarge`.
    pub fn submit(
        &self,
        kind: FrameKind,
        body: &[u8],
        payload: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Ticket> {
        let mut tickets = self.submit_many(&[Outgoing { kind, body, payload }], deadline)?;
        Ok(tickets.remove(0))
    }

    /// Sends several requests together.
    ///
    /// # Errors
    /// As [`Link::submit`]; then the replies of those that were sent are given up.
    pub fn submit_many(
        &self,
        requests: &[Outgoing<'_>],
        deadline: Deadline,
    ) -> Result<SmallVec<[Ticket; 4]>> {
        let _ = (requests, deadline);
        todo!()
    }

    /// Waits for the reply and lets `read` look at it where it lies. `read` should be brief: other threads' replies
    /// wait behind it.
    ///
    /// # Errors
    /// `Timeout`, `Unavailable` (names the address and the node), `Corrupt`; after an error nothing that `read` saw counts.
    pub fn wait<R>(
        &self,
        ticket: Ticket,
        deadline: Deadline,
        read: impl FnOnce(&mut Reply<'_>) -> R,
    ) -> Result<R> {
        let _ = (ticket, deadline, read);
        todo!()
    }

    /// Submit and wait in one.
    ///
    /// # Errors
    /// As [`Link::submit`] and [`Link::wait`].
    pub fn call<R>(
        &self,
        request: Outgoing<'_>,
        deadline: Deadline,
        read: impl FnOnce(&mut Reply<'_>) -> R,
    ) -> Result<R> {
        let ticket = self.submit(request.kind, request.body, request.payload, deadline)?;
        self.wait(ticket, deadline, read)
    }

    /// Whether the reply has come (or the link has died), for futures. `Ready`: [`Link::wait`] returns without waiting.
    /// The first call starts a thread that reads the connection while futures wait on it.
    pub fn poll(&self, ticket: &Ticket, context: &mut Context<'_>) -> Poll<()> {
        let _ = (ticket, context);
        todo!()
    }

    /// The node's arena, over shared memory.
    #[must_use]
    pub fn arena(&self) -> Option<&ArenaView> {
        todo!()
    }

    /// Arena blocks granted to this connection.
    #[must_use]
    pub fn grants(&self) -> &GrantPool {
        todo!()
    }

    /// In a forked child: closes what was inherited, without a word to the node, which goes on serving the parent.
    /// Takes no lock. The link is dead afterwards. Not for the process that made the link.
    pub fn abandon(&self) {
        todo!()
    }

    /// Descriptors that the link holds open (for a preloaded library, which must keep the program off them).
    pub fn descriptors(&self) -> SmallVec<[i32; 3]> {
        todo!()
    }
}
