//! The node's side: one [`EventLoop`] per shard, which calls the [`NodeService`].

mod accept;
mod connection;
mod dial;
mod ending;
mod event_loop;
mod injected_fault;
mod layer;
mod listener;
mod output;
mod ration;
mod replies;
mod rings;
mod source;
mod waker;
mod watch;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use samite_types::fault::FaultSwitch;
use samite_types::{ClientId, Epoch, NodeId, Result};
use samite_wire::frame::CheckedHeader;

use crate::{TlsFiles, TransportKind};

pub use dial::NodeDialler;
pub use event_loop::EventLoop;
pub use listener::Listener;
pub use replies::ReplySink;
pub use waker::LoopWaker;
pub(crate) use waker::ring as ring_bell;

/// A connection of one event loop. Never used again after the connection has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(u64);

impl ConnId {
    pub(crate) const fn new(serial: u32, index: usize) -> Self {
        Self((serial as u64) << 32 | index as u64)
    }

    const fn serial(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Place in the loop's tables.
    const fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

impl std::fmt::Display for ConnId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection {}", self.0 >> 32)
    }
}

/// The peer at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPeer {
    /// Session.
    pub client: ClientId,
    /// The node that it says it is, if it is one; it holds the cluster key, and runs as this node's user where the kernel tells.
    pub node: Option<NodeId>,
    /// User: as the kernel tells, or over tcp (with TLS or without) as the peer says, which holds the cluster key.
    pub uid: u32,
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

    /// The connection that was asked for with this ticket ([`NodeDialler::dial`]) has been made to that node, or why it has not.
    fn connected(&mut self, ticket: u64, made: Result<(ConnId, NodeId)>, out: &mut ReplySink) {
        let _ = (ticket, made, out);
    }

    /// A peer has proved the key: its requests come next.
    fn opened(&mut self, conn: ConnId, peer: &ConnectionPeer) {
        let _ = (conn, peer);
    }

    /// The connection is about to be gone, and its peer may be alive and not know of that yet: it
    /// was reset, or bytes of it are damaged. Within a host that happens on purpose only; a peer
    /// that dies there, at any time, has closed it.
    fn broken(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// The connection is gone; replies to it are dropped from now on.
    fn closed(&mut self, conn: ConnId);

    /// Whether a request is about the node's faults: it meets none, and neither does anything else
    /// on its connection from then on, so that a client that made them can always end them.
    fn is_about_faults(&self, header: &CheckedHeader, body: &[u8]) -> bool {
        let _ = (header, body);
        false
    }

    /// Called between looks at quiet rings and before the loop sleeps: carries out the entries that
    /// clients have left in submission queues.
    fn poll(&mut self) -> SharedMemoryWork {
        SharedMemoryWork::Nothing
    }

    /// A [`LoopWaker`] was used since the last call.
    fn wakeup(&mut self, out: &mut ReplySink);

    /// Called about every [`LoopOptions::tick`], also when nothing happens.
    fn tick(&mut self, out: &mut ReplySink) {
        let _ = out;
    }

    /// When [`NodeService::alarm`] is to be called, on the monotonic clock; asked before the loop sleeps.
    fn alarm_at(&self) -> Option<Duration> {
        None
    }

    /// Called when that time has come.
    fn alarm(&mut self, out: &mut ReplySink) {
        let _ = out;
    }

    /// Epoch of the cluster map, for the welcome of new clients.
    fn map_epoch(&self) -> Epoch;

    /// The arena, if there is one to share.
    fn arena(&self) -> Option<SharedArena<'_>>;
}

/// Memory that stays as it is until it has been sent.
pub type Pinned = Box<dyn AsRef<[u8]> + Send>;

/// A piece of a reply's payload.
pub enum OutPiece<'a> {
    /// Copied at once. For pieces below [`PIN_LEN_MIN`].
    Copy(&'a [u8]),
    /// Held, and sent from where it lies.
    Pinned(Pinned),
}

impl OutPiece<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Copy(bytes) => bytes,
            Self::Pinned(pinned) => (**pinned).as_ref(),
        }
    }
}

/// From this length on, in bytes, keeping a piece pinned costs less than copying it.
pub const PIN_LEN_MIN: usize = 8 << 10;

/// Limits of an event loop.
#[derive(Clone, Debug)]
pub struct LoopOptions {
    /// Most connections; further ones are refused.
    pub connections_max: usize,
    /// Most connections that have not proved the key yet; a further one replaces the oldest.
    pub handshakes_max: usize,
    /// Time a peer has to prove the key.
    pub handshake_timeout: Duration,
    /// Bytes of output queued for a peer before no more requests are taken from it.
    pub output_len_max: usize,
    /// Time after which a peer is dropped that takes no output, or stops in the middle of a frame.
    pub stall_timeout: Duration,
    /// Time after the last request over shared memory for which the loop polls before it sleeps, when that has paid lately.
    pub spin: Duration,
    /// Time between calls of [`NodeService::tick`]; `None` for none.
    pub tick: Option<Duration>,
    /// The certificate that `tls://` listeners show; `None`: the key pair that comes of the cluster key.
    pub tls: Option<Arc<TlsFiles>>,
    /// The node's faults; `None`: it never has any.
    pub faults: Option<Arc<FaultSwitch>>,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(5),
            output_len_max: 1 << 20,
            stall_timeout: Duration::from_secs(30),
            // Longer than a client takes to copy 1 MiB, so that it finds the loop awake when it asks for the next.
            spin: Duration::from_micros(200),
            tick: None,
            tls: None,
            faults: None,
        }
    }
}
