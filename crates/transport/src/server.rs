//! The node's side: one [`EventLoop`] per shard, which calls the [`Service`].

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use samite_types::{ClientId, Epoch, ErrorKind, NodeId, RequestId, Result};
use samite_wire::frame::{FrameKind, Header};

use crate::{Address, ClusterKey, Transport};

/// A connection of one event loop. Never used again after the connection has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(u64);

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Session.
    pub client: ClientId,
    /// User, where the kernel tells (not over tcp).
    pub uid: Option<u32>,
    /// How bytes travel.
    pub transport: Transport,
}

/// The node's arena, to be shared with clients on the same host.
#[derive(Clone, Copy, Debug)]
pub struct SharedArena<'a> {
    /// The memfd.
    pub fd: BorrowedFd<'a>,
    /// Its length, in bytes.
    pub len: u64,
}

/// What a node does with requests.
pub trait Service {
    /// A request ([`FrameKind::Request`] or [`FrameKind::Control`]). `body` and `payload` are seen where they were received and
    /// are gone when this returns. The reply goes to `out`, now or later.
    fn request(
        &mut self,
        conn: ConnId,
        peer: &Peer,
        header: &Header,
        body: &[u8],
        payload: &[u8],
        out: &mut Replies,
    );

    /// The connection is gone; replies to it are dropped from now on.
    fn closed(&mut self, conn: ConnId);

    /// A [`Waker`] was used since the last call.
    fn wakeup(&mut self, out: &mut Replies);

    /// Called about every [`Options::tick`], also when nothing happens.
    fn tick(&mut self, out: &mut Replies) {
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
    /// Kept, and sent from where it lies.
    Pinned(Pinned),
}

/// From this length on, in bytes, keeping a piece pinned costs less than copying it.
pub const PIN_LEN_MIN: usize = 8 << 10;

/// Where replies go.
#[derive(Debug)]
pub struct Replies {}

impl Replies {
    /// Sends a reply; nothing happens if the connection is gone. What the peer does not take at once is kept, up to
    /// [`Options::output_len_max`]; then the peer is not read from, and after [`Options::stall_timeout`] it is dropped.
    pub fn send<'a>(
        &mut self,
        conn: ConnId,
        kind: FrameKind,
        request_id: RequestId,
        body: &[u8],
        payload: impl IntoIterator<Item = OutPiece<'a>>,
    ) {
        let _ = (conn, kind, request_id, body, payload.into_iter());
        todo!()
    }

    /// Ends a connection, telling the peer why.
    pub fn close(&mut self, conn: ConnId, kind: ErrorKind, reason: &str) {
        let _ = (conn, kind, reason);
        todo!()
    }

    /// Whether the connection is over shared memory, so that its peer can follow references into the arena.
    #[must_use]
    pub fn shares_arena(&self, conn: ConnId) -> bool {
        let _ = conn;
        todo!()
    }

    /// Connections that have proved the key.
    #[must_use]
    pub fn connections(&self) -> usize {
        todo!()
    }
}

/// A socket that accepts connections. A unix one removes its path when the last clone is dropped.
#[derive(Debug)]
pub struct Listener {}

impl Listener {
    /// Listens on a unix socket, for `unix://` and `shm://` alike. A socket file that nobody listens on is replaced.
    ///
    /// # Errors
    /// `Exists` when somebody listens there; `Invalid` for a path that is too long; what the system says.
    pub fn unix(path: &Path) -> Result<Self> {
        let _ = path;
        todo!()
    }

    /// Listens on tcp; port 0 takes a free one.
    ///
    /// # Errors
    /// `NotFound` for a host that does not resolve; what the system says.
    pub fn tcp(host: &str, port: u16) -> Result<Self> {
        let _ = (host, port);
        todo!()
    }

    /// Where it listens: `unix://…`, or `tcp://…` with the real port.
    #[must_use]
    pub fn address(&self) -> &Address {
        todo!()
    }

    /// The same socket for another event loop; each connection goes to one of them.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_clone(&self) -> Result<Self> {
        todo!()
    }
}

/// Limits of an event loop.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most connections; further ones are refused.
    pub connections_max: usize,
    /// Most connections that have not proved the key yet; a further one replaces the oldest.
    pub handshakes_max: usize,
    /// Time a peer has to prove the key.
    pub handshake_timeout: Duration,
    /// Bytes of output kept for a peer before no more requests are taken from it.
    pub output_len_max: usize,
    /// Time after which a peer that takes no output is dropped.
    pub stall_timeout: Duration,
    /// Time after the last request for which the loop polls before it sleeps, when that has paid lately.
    pub spin: Duration,
    /// Time between calls of [`Service::tick`]; `None` for none.
    pub tick: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(5),
            output_len_max: 1 << 20,
            stall_timeout: Duration::from_secs(30),
            spin: Duration::from_micros(50),
            tick: None,
        }
    }
}

/// Wakes an [`EventLoop`] from another thread; see [`Service::wakeup`].
#[derive(Clone, Debug)]
pub struct Waker {}

impl Waker {
    /// Makes the loop call [`Service::wakeup`] soon. Cheap when the loop is awake.
    pub fn wake(&self) {
        todo!()
    }
}

/// Receives requests and sends replies, on the thread that runs it.
#[derive(Debug)]
pub struct EventLoop {}

impl EventLoop {
    /// A loop that serves connections to `listeners`.
    ///
    /// # Errors
    /// What the system says (no descriptors left).
    pub fn new(
        node: NodeId,
        key: ClusterKey,
        listeners: Vec<Listener>,
        options: Options,
    ) -> Result<Self> {
        let _ = (node, key, listeners, options);
        todo!()
    }

    /// A handle to wake this loop.
    #[must_use]
    pub fn waker(&self) -> Waker {
        todo!()
    }

    /// Serves until `stop` is set (and the waker used, to have it seen at once). Then sends what is left, for at most a second.
    ///
    /// # Errors
    /// Only when the loop itself cannot go on; a peer's errors end that peer's connection.
    pub fn run(self, service: &mut dyn Service, stop: &AtomicBool) -> Result<()> {
        let _ = (service, stop);
        todo!()
    }
}
