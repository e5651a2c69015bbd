//! A node that echoes, for the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use samite_transport::server::{
    ConnId, ConnectionPeer, EventLoop, Listener, LoopOptions, LoopWaker, NodeService, OutPiece,
    ReplySink, SharedArena,
};
use samite_transport::{Address, ClusterKey};
use samite_types::{ClientId, Deadline, Epoch, NodeId, RequestId};
use samite_wire::frame::{CheckedHeader, FrameKind};

/// Commands of a request to an [`Echo`]: the first byte of the body.
pub mod command {
    /// Answer with the same body and payload.
    pub const ECHO: u8 = 0;
    /// Keep the request and answer it later, in reverse order with the others.
    pub const LATER: u8 = 1;
    /// Answer with as many bytes as the u32 behind the command says, pinned.
    pub const BYTES: u8 = 2;
    /// Never answer.
    pub const NEVER: u8 = 3;
}

struct Kept {
    conn: ConnId,
    id: RequestId,
    body: Vec<u8>,
    payload: Vec<u8>,
}

/// Service of the test node.
pub struct Echo {
    kept: Vec<Kept>,
    pub closed: Arc<AtomicUsize>,
    pub released: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
    zeros: Arc<Vec<u8>>,
}

struct Slice(Arc<Vec<u8>>, usize);

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

impl NodeService for Echo {
    fn request(
        &mut self,
        conn: ConnId,
        _peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let id = header.request_id;
        match body.first() {
            Some(&command::LATER) => {
                let (body, payload) = (body.to_vec(), payload.to_vec());
                self.kept.push(Kept { conn, id, body, payload });
                if self.kept.len() == 8 {
                    self.tick(out);
                }
            }
            Some(&command::BYTES) => {
                let len = u32::from_le_bytes(body[1..5].try_into().unwrap()) as usize;
                let slice = Box::new(Slice(self.zeros.clone(), len));
                out.send(conn, FrameKind::Reply, id, body, [OutPiece::Pinned(slice)]);
            }
            Some(&command::NEVER) => {}
            _ => {
                let is_peer = header.kind == FrameKind::Peer;
                let kind = if is_peer { FrameKind::PeerReply } else { FrameKind::Reply };
                out.send(conn, kind, id, body, [OutPiece::Copy(payload)]);
            }
        }
    }

    fn closed(&mut self, _conn: ConnId) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    fn released(&mut self, _conn: ConnId) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    fn wakeup(&mut self, _out: &mut ReplySink) {}

    fn tick(&mut self, out: &mut ReplySink) {
        for kept in std::mem::take(&mut self.kept).iter().rev() {
            let payload = [OutPiece::Copy(&kept.payload)];
            out.send(kept.conn, FrameKind::Reply, kept.id, &kept.body, payload);
        }
    }

    fn map_epoch(&self) -> Epoch {
        Epoch(5)
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        None
    }
}

/// A running node.
pub struct Node {
    pub unix: Address,
    pub shm: Address,
    pub tcp: Address,
    pub tls: Address,
    pub closed: Arc<AtomicUsize>,
    pub released: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    waker: LoopWaker,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

pub fn key() -> ClusterKey {
    ClusterKey::new([7; 32])
}

pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

pub fn client() -> ClientId {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    ClientId(NEXT.fetch_add(1, Ordering::Relaxed) as u64)
}

impl Node {
    /// A node that answers the requests that it kept every few milliseconds.
    pub fn start(options: LoopOptions) -> Self {
        Self::start_with(LoopOptions { tick: Some(Duration::from_millis(5)), ..options })
    }

    /// A node with just these options.
    pub fn start_with(options: LoopOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.sock");
        let unix = Listener::unix(&path).unwrap();
        let tcp = Listener::tcp("127.0.0.1", 0).unwrap();
        let tcp_address = tcp.address().clone();
        let tls = Listener::tls("127.0.0.1", 0).unwrap();
        let tls_address = tls.address().clone();
        let event_loop = EventLoop::new(NodeId(3), key(), vec![unix, tcp, tls], options).unwrap();
        let waker = event_loop.waker();
        let stop = Arc::new(AtomicBool::new(false));
        let closed = Arc::new(AtomicUsize::new(0));
        let released = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(AtomicUsize::new(0));
        let mut echo = Echo {
            kept: Vec::new(),
            closed: closed.clone(),
            released: released.clone(),
            requests: requests.clone(),
            zeros: Arc::new((0..8 << 20).map(|at: u32| (at >> 8) as u8).collect()),
        };
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || event_loop.run(&mut echo, &stopped).unwrap());
        Self {
            unix: Address::Unix(path.clone()),
            shm: Address::Shm(path),
            tcp: tcp_address,
            tls: tls_address,
            closed,
            released,
            requests,
            stop,
            waker,
            thread: Some(thread),
            _dir: dir,
        }
    }

    pub fn addresses(&self) -> [&Address; 4] {
        [&self.shm, &self.unix, &self.tcp, &self.tls]
    }

    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}
