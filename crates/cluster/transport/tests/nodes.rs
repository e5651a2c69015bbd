//! Nodes that connect to nodes.
#![allow(clippy::unwrap_used, reason = "a test or a measurement may end with a panic")]

#[allow(dead_code)]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Node, client, key, soon};
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::server::{
    ConnId, ConnectionPeer, EventLoop, LoopOptions, LoopWaker, NodeDialler, NodeService, OutPiece,
    Pinned, ReplySink, SharedArena,
};
use samite_transport::{Address, ClusterKey};
use samite_types::{Epoch, ErrorKind, NodeId, RequestId, Result};
use samite_wire::frame::{CheckedHeader, FrameKind};

const WAIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
enum Seen {
    Connected(u64, Result<NodeId>),
    Reply(RequestId, usize, Vec<u8>),
    Closed,
}

/// Sends `payloads` to a node as soon as there is a connection.
struct Caller {
    payloads: Vec<Vec<u8>>,
    seen: Sender<Seen>,
}

impl NodeService for Caller {
    fn request(
        &mut self,
        _: ConnId,
        _: &ConnectionPeer,
        _: &CheckedHeader,
        _: &[u8],
        _: &[u8],
        _: &mut ReplySink,
    ) {
        panic!("nobody connects here");
    }

    fn connected(&mut self, ticket: u64, made: Result<(ConnId, NodeId)>, out: &mut ReplySink) {
        if let Ok((conn, _)) = &made {
            for (payload, id) in self.payloads.iter().zip(1..) {
                let pinned: Pinned = Box::new(payload.clone());
                let payload = [OutPiece::Pinned(pinned)];
                out.send(*conn, FrameKind::Peer, RequestId(id), b"\0body", payload);
            }
        }
        self.seen.send(Seen::Connected(ticket, made.map(|(_, node)| node))).unwrap();
    }

    fn reply(
        &mut self,
        _: ConnId,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        _: &mut ReplySink,
    ) {
        assert_eq!((header.kind, body), (FrameKind::PeerReply, &b"\0body"[..]));
        let start = payload[..payload.len().min(8)].to_vec();
        self.seen.send(Seen::Reply(header.request_id, payload.len(), start)).unwrap();
    }

    fn closed(&mut self, _: ConnId) {
        self.seen.send(Seen::Closed).unwrap();
    }

    fn wakeup(&mut self, _: &mut ReplySink) {}

    fn map_epoch(&self) -> Epoch {
        Epoch(1)
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        None
    }
}

struct Running {
    dialler: NodeDialler,
    seen: Receiver<Seen>,
    stop: Arc<AtomicBool>,
    waker: LoopWaker,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(key: ClusterKey, payloads: Vec<Vec<u8>>) -> Self {
        let events = EventLoop::new(NodeId(8), key, Vec::new(), LoopOptions::default()).unwrap();
        let (dialler, waker) = (events.dialler(), events.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, seen) = channel();
        let mut caller = Caller { payloads, seen: sender };
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || events.run(&mut caller, &stopped).unwrap());
        Self { dialler, seen, stop, waker, thread: Some(thread) }
    }

    fn next(&self) -> Seen {
        self.seen.recv_timeout(WAIT).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_loop_talks_to_a_node_and_sees_it_go() {
    let mut node = Node::start(LoopOptions::default());
    // More than the sockets hold, both ways: neither side may wait for the other to read first.
    let payloads: Vec<Vec<u8>> = (0..24).map(|i| vec![i as u8; 1 << 20]).collect();
    let caller = Running::start(key(), payloads);
    for address in [node.unix.clone(), node.tcp.clone(), node.tls.clone()] {
        let nobody: Address = "unix:///nowhere/at/all".parse().unwrap();
        caller.dialler.dial(5, vec![nobody, address], soon());
        assert!(matches!(caller.next(), Seen::Connected(5, Ok(NodeId(3)))));
        for at in 0..24u64 {
            let Seen::Reply(id, len, start) = caller.next() else { panic!("no reply {at}") };
            assert_eq!((id, len), (RequestId(at + 1), 1 << 20));
            assert_eq!(start, [at as u8; 8]);
        }
    }
    node.stop();
    assert!(matches!(caller.next(), Seen::Closed));
    assert!(matches!(caller.next(), Seen::Closed));
    assert!(matches!(caller.next(), Seen::Closed));
}

#[test]
fn what_stands_in_the_way_is_told() {
    let node = Node::start(LoopOptions::default());
    let stranger = Running::start(ClusterKey::new([9; 32]), Vec::new());
    for address in [&node.tcp, &node.tls] {
        stranger.dialler.dial(1, vec![address.clone()], soon());
        let Seen::Connected(1, Err(error)) = stranger.next() else { panic!("connected") };
        assert_eq!(error.kind(), ErrorKind::WrongKey);
    }
    stranger.dialler.dial(2, Vec::new(), soon());
    let Seen::Connected(2, Err(error)) = stranger.next() else { panic!("connected") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn a_client_is_not_heard_as_a_node() {
    let node = Node::start(LoopOptions::default());
    for address in node.addresses() {
        let link = NodeLink::connect(address, key(), client(), soon()).unwrap();
        let request = OutgoingRequest { kind: FrameKind::Peer, body: &[0; 8], payload: &[] };
        assert!(link.call(request, soon(), |_| ()).is_err());
    }
    assert_eq!(node.requests.load(Ordering::SeqCst), 0);
}
