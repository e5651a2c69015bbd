//! The service behind an event loop, and what it is told of peers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use samite_types::{ClientId, Epoch, NodeId, Result};
use samite_wire::frame::CheckedHeader;

use super::conn_id::ConnId;
use super::replies::ReplySink;
use crate::{PeerIdentity, TransportKind};

/// The peer at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionPeer {
    /// Session.
    pub client: ClientId,
    /// The node that it says it is, if it is one; it holds the cluster key, and runs as this node's user where the kernel tells.
    pub node: Option<NodeId>,
    /// Who it is.
    pub identity: PeerIdentity,
    /// How bytes travel.
    pub transport: TransportKind,
}

/// The node's arena, to be shared with clients on the same host.
#[derive(Clone, Copy, Debug)]
pub struct SharedArena<'a> {
    /// The memfd.
    pub fd: BorrowedFd<'a>,
    /// Its length, in bytes.
    pub len: u64,
}

/// Work that clients have left in shared memory without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMemoryWork {
    /// Nothing.
    Nothing,
    /// Something, which was done.
    Something,
    /// A client on this thread's core was woken to go on: it is to have the core.
    ByNear {
        /// Clients on other cores have left something lately, too.
        are_others: bool,
    },
}

/// Handlers of a node for requests.
pub trait NodeService {
    /// A request ([`FrameKind::Request`](samite_wire::frame::FrameKind::Request),
    /// [`FrameKind::Control`](samite_wire::frame::FrameKind::Control), or from a node
    /// [`FrameKind::Peer`](samite_wire::frame::FrameKind::Peer)). `body` and `payload` are seen where they were
    /// received and are gone when this returns. The reply goes to `out`, now or later.
    fn request(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    );

    /// A reply that came by a connection that this loop has made
    /// ([`FrameKind::PeerReply`](samite_wire::frame::FrameKind::PeerReply)).
    fn reply(
        &mut self,
        conn: ConnId,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        let _ = (conn, header, body, payload, out);
    }

    /// The connection that was asked for with this ticket ([`NodeDialler::dial`](super::NodeDialler::dial)) has been made to that node, or why it has not.
    fn connected(&mut self, ticket: u64, made: Result<(ConnId, NodeId)>, out: &mut ReplySink) {
        let _ = (ticket, made, out);
    }

    /// A peer has proved who it is: its requests come next.
    fn opened(&mut self, conn: ConnId, peer: &ConnectionPeer) {
        let _ = (conn, peer);
    }

    /// The connection is about to be gone, and its peer may be alive and not know of that yet: it
    /// was reset, or bytes of it are damaged. Within a host that happens on purpose only; a peer
    /// that dies there, at any time, has closed it.
    fn broken(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// The connection is gone; replies to it are dropped from now on. Its peer may be alive, and
    /// write to memory that it was given.
    fn closed(&mut self, conn: ConnId);

    /// A peer that shares memory is about to be welcomed: gives it one of the arena's [submission
    /// queues](samite_arena::submission), if there is one left.
    fn give_queue(&mut self, conn: ConnId, peer: &ConnectionPeer) -> Option<u16> {
        let _ = (conn, peer);
        None
    }

    /// The peer of a connection that shared memory has closed it, or died: it can write to nothing
    /// any more. After [`NodeService::closed`], if that was opened.
    fn released(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// Whether a request is about the node's faults: it meets none, and neither does anything else
    /// on its connection from then on, so that a client that made them can always end them.
    fn is_about_faults(&self, header: &CheckedHeader, body: &[u8]) -> bool {
        let _ = (header, body);
        false
    }

    /// Called between looks at quiet rings and before the loop sleeps: carries out what clients
    /// have left in the arena.
    fn poll(&mut self) -> SharedMemoryWork {
        SharedMemoryWork::Nothing
    }

    /// A [`LoopWaker`](super::LoopWaker) was used since the last call.
    fn wakeup(&mut self, out: &mut ReplySink);

    /// Called about every [`LoopOptions::tick`](super::LoopOptions::tick), also when nothing happens.
    fn tick(&mut self, out: &mut ReplySink) {
        let _ = out;
    }

    /// When [`NodeService::timer_due`] is to be called, on the monotonic clock; asked before the
    /// loop sleeps.
    fn timer_at(&self) -> Option<Duration> {
        None
    }

    /// Called when that time has come.
    fn timer_due(&mut self, out: &mut ReplySink) {
        let _ = out;
    }

    /// Epoch of the cluster map, for the welcome of new clients.
    fn map_epoch(&self) -> Epoch;

    /// The arena, if there is one to share.
    fn arena(&self) -> Option<SharedArena<'_>>;
}
