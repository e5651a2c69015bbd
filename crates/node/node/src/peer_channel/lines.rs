//! The connections of one shard to other nodes: which there are, when one is tried again, and how
//! much of each service waits for them.
//!
//! Decisions alone; the channel carries them out. There is one connection for each node that the
//! shard has something to say to, for all services together.

use std::collections::HashMap;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_transport::Address;
use samite_transport::host::is_same_host;
use samite_types::NodeId;

use super::output::PeerFrame;
use super::waiting::{BoundedService, WaitingBytes};

/// Pause after a failure; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long a connection may take to be made.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// The next step to reach a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerRoute<C> {
    /// Send by this connection.
    Open(C),
    /// Have a connection made, with this number.
    Dial(u64),
    /// Wait: one is being made, or it is too soon to try again.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState<C> {
    /// Not to be tried before.
    Down(Duration),
    Dialling(u64),
    Up(C),
}

#[derive(Debug)]
struct PeerLine<C, S> {
    state: LineState<C>,
    pause: Duration,
    /// Process to which the connection was asked for.
    incarnation: u64,
    /// Messages to be sent as soon as there is a connection.
    frames: Vec<PeerFrame>,
    /// Bytes of each service: of these messages, or in the queue of the connection.
    waiting: WaitingBytes<S>,
}

/// Lines to other nodes. `C` names a connection, `S` a service.
#[derive(Debug)]
pub(crate) struct PeerLines<C, S> {
    lines: HashMap<NodeId, PeerLine<C, S>>,
    next_ticket: u64,
}

impl<C, S> Default for PeerLines<C, S> {
    fn default() -> Self {
        Self { lines: HashMap::new(), next_ticket: 0 }
    }
}

impl<C: Copy + Eq, S: BoundedService> PeerLines<C, S> {
    /// How to reach `node`, whose process has this incarnation, at `now`.
    pub(crate) fn way(&mut self, node: NodeId, incarnation: u64, now: Duration) -> PeerRoute<C> {
        let line = self.lines.entry(node).or_insert_with(|| PeerLine {
            state: LineState::Down(now),
            pause: PAUSE_MIN,
            incarnation,
            frames: Vec::new(),
            waiting: WaitingBytes::default(),
        });
        if line.incarnation != incarnation {
            // Another process: earlier failures say nothing about it.
            line.incarnation = incarnation;
            line.pause = PAUSE_MIN;
            if let LineState::Down(_) = line.state {
                line.state = LineState::Down(now);
            }
        }
        match line.state {
            LineState::Up(conn) => PeerRoute::Open(conn),
            LineState::Down(at) if at <= now => {
                self.next_ticket += 1;
                line.state = LineState::Dialling(self.next_ticket);
                PeerRoute::Dial(self.next_ticket)
            }
            LineState::Down(_) | LineState::Dialling(_) => PeerRoute::Wait,
        }
    }

    /// The connection to `node`, if there is one.
    pub(crate) fn open(&self, node: NodeId) -> Option<C> {
        match self.lines.get(&node)?.state {
            LineState::Up(conn) => Some(conn),
            LineState::Down(_) | LineState::Dialling(_) => None,
        }
    }

    /// The node at the other end of `conn`.
    pub(crate) fn at(&self, conn: C) -> Option<NodeId> {
        let mut lines = self.lines.iter();
        lines.find(|(_, line)| line.state == LineState::Up(conn)).map(|(node, _)| *node)
    }

    /// Bytes of `service` that wait in the queue of the connection to `node`, in which `queue_len`
    /// bytes are left. Bytes that no service has added count for each.
    pub(crate) fn waiting_len(&mut self, node: NodeId, service: S, queue_len: usize) -> usize {
        let Some(line) = self.lines.get_mut(&node) else { return 0 };
        let others = line.waiting.shrink_to(queue_len);
        line.waiting.len(service) + others
    }

    /// Whether `len` more bytes of `service` may go to `node`, in the queue of whose connection
    /// `queue_len` bytes are left; they count as added then. Else they are to be dropped.
    pub(crate) fn admit(
        &mut self,
        (node, service): (NodeId, S),
        len: usize,
        queue_len: usize,
    ) -> bool {
        let is_admitted = self.waiting_len(node, service, queue_len) <= service.waiting_max();
        if is_admitted && let Some(line) = self.lines.get_mut(&node) {
            line.waiting.add(service, len);
        }
        is_admitted
    }

    /// Keeps a message of `service` to `node` until the connection that is being made is there. It
    /// is dropped when there is none, or too much of the service waits.
    pub(crate) fn keep(&mut self, node: NodeId, service: S, frame: PeerFrame) {
        let Some(line) = self.lines.get_mut(&node) else { return };
        let is_coming = matches!(line.state, LineState::Dialling(_));
        if is_coming && line.waiting.len(service) + frame.len() <= service.kept_max() {
            line.waiting.add(service, frame.len());
            line.frames.push(frame);
        }
    }

    /// The messages that waited for `node`.
    pub(crate) fn take_kept(&mut self, node: NodeId) -> Vec<PeerFrame> {
        let Some(line) = self.lines.get_mut(&node) else { return Vec::new() };
        line.waiting.clear();
        std::mem::take(&mut line.frames)
    }

    /// The result of a dial. Returns the node that can be reached now; `None`: the connection, if
    /// there is one, is to be closed.
    pub(crate) fn connected(
        &mut self,
        ticket: u64,
        made: Option<(C, NodeId)>,
        now: Duration,
    ) -> Option<NodeId> {
        let mut lines = self.lines.iter_mut();
        let (node, line) = lines.find(|(_, line)| line.state == LineState::Dialling(ticket))?;
        match made {
            Some((conn, met)) if met == *node => {
                line.state = LineState::Up(conn);
                line.pause = PAUSE_MIN;
                Some(met)
            }
            _ => {
                line.state = LineState::Down(now + line.pause);
                line.frames.clear();
                line.waiting.clear();
                line.pause = (line.pause * 2).min(PAUSE_MAX);
                None
            }
        }
    }

    /// A connection is gone. Returns the node that it led to.
    pub(crate) fn closed(&mut self, conn: C, now: Duration) -> Option<NodeId> {
        let mut lines = self.lines.iter_mut();
        let (node, line) = lines.find(|(_, line)| line.state == LineState::Up(conn))?;
        line.state = LineState::Down(now);
        line.waiting.clear();
        Some(*node)
    }

    /// Forgets nodes that `map` has no more. Their connections are to be closed.
    pub(crate) fn retain(&mut self, map: &ClusterMap) -> Vec<C> {
        let mut idle = Vec::new();
        self.lines.retain(|node, line| {
            let stays = map.node(*node).is_some();
            if let LineState::Up(conn) = line.state
                && !stays
            {
                idle.push(conn);
            }
            stays
        });
        idle
    }
}

/// Where `node` reaches `other`: by unix socket on the same host, else (or if that fails) by tcp.
pub(crate) fn addresses(map: &ClusterMap, node: NodeId, other: NodeId) -> Vec<Address> {
    let host = map.node(node).map(|info| info.host.as_str());
    let Some(info) = map.node(other) else { return Vec::new() };
    let same_host = host.is_some_and(|host| is_same_host(host, &info.host));
    let parsed = info.addresses.iter().filter_map(|address| address.parse().ok());
    parsed
        .filter(|address| match address {
            Address::Shm(_) => false,
            Address::Unix(_) => same_host,
            Address::Tcp(..) | Address::Tls(..) => true,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use samite_wire::peer::PeerService;

    use super::super::output::{PeerDestination, PeerMessageParts, PeerOutput};
    use super::*;
    use crate::test_map::three_nodes;

    const NODE: NodeId = NodeId(1);
    const MS: Duration = Duration::from_millis(1);
    const BACK: PeerDestination = PeerDestination::Node(NODE);

    /// Two services with small bounds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum TestService {
        Bulk,
        Short,
    }

    impl BoundedService for TestService {
        fn kept_max(self) -> usize {
            match self {
                Self::Bulk => 100,
                Self::Short => 30,
            }
        }

        fn waiting_max(self) -> usize {
            10 * self.kept_max()
        }
    }

    type Lines = PeerLines<char, TestService>;

    /// A frame of `len` bytes.
    fn frame(len: usize) -> PeerFrame {
        let mut output = PeerOutput::default();
        let body = vec![0; len - 1];
        let message = PeerMessageParts { head: &[], body: &body, payload: &[], payload_len: 0 };
        output.add(PeerService::Mirror, BACK, message);
        output.take().remove(0)
    }

    #[test]
    fn a_line_is_dialled_once_and_serves_until_it_closes() {
        let mut lines = Lines::default();
        assert_eq!(lines.open(NODE), None);
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Dial(1));
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Wait, "it is being made");
        assert_eq!(lines.connected(1, Some(('a', NODE)), MS), Some(NODE));
        assert_eq!((lines.way(NODE, 7, MS), lines.open(NODE)), (PeerRoute::Open('a'), Some('a')));
        assert_eq!((lines.at('a'), lines.at('b')), (Some(NODE), None));
        assert_eq!((lines.closed('b', MS), lines.closed('a', MS)), (None, Some(NODE)));
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Dial(2), "at once");
    }

    #[test]
    fn pauses_double_after_failures_and_another_process_is_tried_at_once() {
        let mut lines = Lines::default();
        let mut now = MS;
        let mut pause = PAUSE_MIN;
        for ticket in 1..8 {
            assert_eq!(lines.way(NODE, 7, now), PeerRoute::Dial(ticket));
            // None was made, or one to another node.
            let made = (ticket % 2 == 0).then_some(('a', NodeId(2)));
            assert_eq!(lines.connected(ticket, made, now), None);
            assert_eq!(lines.way(NODE, 7, now + pause - MS), PeerRoute::Wait);
            now += pause;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        assert_eq!(lines.way(NODE, 7, now - MS), PeerRoute::Wait);
        assert_eq!(lines.way(NODE, 8, now - MS), PeerRoute::Dial(8));
        assert_eq!(lines.connected(7, Some(('a', NODE)), now), None, "an older ticket");
    }

    #[test]
    fn lines_to_nodes_that_the_map_does_not_have_are_closed() {
        let (mut lines, map) = (Lines::default(), three_nodes());
        for (node, conn, ticket) in [(NODE, 'a', 1), (NodeId(9), 'b', 2)] {
            assert_eq!(lines.way(node, 1, MS), PeerRoute::Dial(ticket));
            assert_eq!(lines.connected(ticket, Some((conn, node)), MS), Some(node));
        }
        assert_eq!(lines.retain(&map), ['b']);
        assert_eq!((lines.open(NODE), lines.open(NodeId(9))), (Some('a'), None));
    }

    #[test]
    fn messages_kept_for_a_dial_are_bounded_for_each_service() {
        let mut lines = Lines::default();
        lines.keep(NODE, TestService::Bulk, frame(9));
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Dial(1));
        assert!(lines.take_kept(NODE).is_empty(), "nothing was under way");
        for _ in 0..20 {
            lines.keep(NODE, TestService::Bulk, frame(9));
        }
        for _ in 0..20 {
            lines.keep(NODE, TestService::Short, frame(7));
        }
        lines.keep(NODE, TestService::Bulk, frame(1));
        lines.keep(NODE, TestService::Bulk, frame(1));
        assert_eq!(lines.connected(1, Some(('a', NODE)), MS), Some(NODE));
        lines.keep(NODE, TestService::Short, frame(1));
        let lens: Vec<usize> = lines.take_kept(NODE).iter().map(PeerFrame::len).collect();
        let expected = [vec![9; 11], vec![7; 4], vec![1]].concat();
        assert_eq!(lens, expected, "in order, each service up to its own bound");
        assert_eq!(lines.waiting_len(NODE, TestService::Bulk, 0), 0, "counted anew when sent");
    }

    #[test]
    fn messages_are_gone_with_a_dial_that_fails() {
        let mut lines = Lines::default();
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Dial(1));
        lines.keep(NODE, TestService::Bulk, frame(100));
        assert_eq!(lines.connected(1, None, MS), None);
        assert!(lines.take_kept(NODE).is_empty());
        assert_eq!(lines.way(NODE, 7, MS + PAUSE_MIN), PeerRoute::Dial(2));
        lines.keep(NODE, TestService::Bulk, frame(100));
        assert_eq!(lines.take_kept(NODE).len(), 1, "the bound is there again");
    }

    #[test]
    fn a_service_that_waits_leaves_room_to_others() {
        let mut lines = Lines::default();
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Dial(1));
        assert_eq!(lines.connected(1, Some(('a', NODE)), MS), Some(NODE));
        let (bulk, short) = ((NODE, TestService::Bulk), (NODE, TestService::Short));
        // The node takes nothing: the queue grows by all that is admitted.
        let mut queue_len = 0;
        while lines.admit(bulk, 90, queue_len) {
            queue_len += 90;
        }
        assert_eq!(queue_len, 12 * 90, "the first that is over the bound is the last");
        let mut short_len = 0;
        while lines.admit(short, 40, queue_len) {
            (queue_len, short_len) = (queue_len + 40, short_len + 40);
        }
        assert_eq!(short_len, 8 * 40);
        assert!(!lines.admit(bulk, 1, queue_len) && !lines.admit(short, 1, queue_len));
        // The node takes some, from the front: it was bulk's, and only bulk may go on.
        queue_len -= 100;
        assert!(!lines.admit(short, 1, queue_len));
        assert!(lines.admit(bulk, 1, queue_len));
        assert_eq!(lines.waiting_len(NODE, TestService::Short, queue_len + 1), short_len);
        // A new connection has a queue of its own.
        assert_eq!(lines.closed('a', MS), Some(NODE));
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Dial(2));
        assert_eq!(lines.connected(2, Some(('b', NODE)), MS), Some(NODE));
        assert!(lines.admit(short, 1, 0) && lines.admit(bulk, 1, 1));
    }

    #[test]
    fn the_queue_of_the_only_service_counts_whole() {
        let mut lines = Lines::default();
        assert_eq!(lines.way(NODE, 7, MS), PeerRoute::Dial(1));
        assert_eq!(lines.connected(1, Some(('a', NODE)), MS), Some(NODE));
        let bulk = (NODE, TestService::Bulk);
        assert!(lines.admit(bulk, 500, 0));
        // TLS records make it longer.
        assert_eq!(lines.waiting_len(NODE, TestService::Bulk, 560), 560);
        assert!(!lines.admit(bulk, 1, 1001) && lines.admit(bulk, 1, 1000));
    }
}
