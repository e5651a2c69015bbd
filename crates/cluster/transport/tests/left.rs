//! Entries that clients leave in shared memory while a node goes to sleep are found before it does.

#![allow(clippy::unwrap_used, reason = "a test may end with a panic")]

#[allow(dead_code)]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{client, key, soon};
use samite_transport::Address;
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::server::{
    ConnId, ConnectionPeer, EventLoop, Listener, LoopOptions, NodeService, OutPiece, ReplySink,
    SharedArena, SharedMemoryWork,
};
use samite_types::{Epoch, NodeId};
use samite_wire::frame::{CheckedHeader, FrameKind};

/// With each request something is left that is not asked for.
struct Tray {
    left: bool,
    done: Arc<AtomicUsize>,
}

impl NodeService for Tray {
    fn request(
        &mut self,
        conn: ConnId,
        _peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        _payload: &[u8],
        out: &mut ReplySink,
    ) {
        self.left = true;
        out.send(conn, FrameKind::Reply, header.request_id, body, [OutPiece::Copy(&[])]);
    }

    fn closed(&mut self, _conn: ConnId) {}

    fn poll(&mut self) -> SharedMemoryWork {
        if !std::mem::take(&mut self.left) {
            return SharedMemoryWork::Nothing;
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        SharedMemoryWork::Something
    }

    fn wakeup(&mut self, _out: &mut ReplySink) {}

    fn map_epoch(&self) -> Epoch {
        Epoch(5)
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        None
    }
}

#[test]
fn what_is_left_with_a_node_that_goes_to_sleep_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n.sock");
    // It sleeps as soon as there is nothing to do, between two polls.
    let options = LoopOptions { spin: Duration::ZERO, ..LoopOptions::default() };
    let listeners = vec![Listener::unix(&path).unwrap()];
    let event_loop = EventLoop::new(NodeId(3), key(), listeners, options).unwrap();
    let (waker, stop) = (event_loop.waker(), Arc::new(AtomicBool::new(false)));
    let done = Arc::new(AtomicUsize::new(0));
    let mut tray = Tray { left: false, done: Arc::clone(&done) };
    let stopped = Arc::clone(&stop);
    let node = std::thread::spawn(move || event_loop.run(&mut tray, &stopped).unwrap());
    let link = NodeLink::connect(&Address::Shm(path), key(), client(), soon()).unwrap();
    for count in 1..=16 {
        let request = OutgoingRequest { kind: FrameKind::Request, body: &[0], payload: &[] };
        link.call(request, soon(), |_| ()).unwrap();
        let since = Instant::now();
        while done.load(Ordering::SeqCst) < count {
            assert!(since.elapsed() < Duration::from_secs(10), "{count} is left for ever");
            std::thread::yield_now();
        }
    }
    drop(link);
    stop.store(true, Ordering::SeqCst);
    waker.wake();
    node.join().unwrap();
}
