//! The connections of one shard to other nodes: which there are, and when one is tried again.
//!
//! Decisions alone; the shard carries them out. There is one connection for each node that the
//! shard has something to say to. Answers on it are a matter of the sender.

use std::collections::HashMap;
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_transport::Address;
use samite_types::NodeId;

use crate::peer_output::PeerFrame;

/// Pause after a failure; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Most bytes of messages that wait for a connection to one node.
const FRAMES_LEN_MAX: usize = 4 << 20;
/// How long a connection may take to be made.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

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
struct PeerLine<C> {
    state: LineState<C>,
    pause: Duration,
    /// Process to which the connection was asked for.
    incarnation: u64,
    /// Messages to be sent as soon as there is a connection.
    frames: Vec<PeerFrame>,
    frames_len: usize,
}

/// Lines to other nodes. `C` names a connection.
#[derive(Debug)]
pub(crate) struct PeerLines<C> {
    lines: HashMap<NodeId, PeerLine<C>>,
    next_ticket: u64,
}

impl<C> Default for PeerLines<C> {
    fn default() -> Self {
        Self { lines: HashMap::new(), next_ticket: 0 }
    }
}

impl<C: Copy + Eq> PeerLines<C> {
    /// How to reach `node`, whose process has this incarnation, at `now`.
    pub(crate) fn way(&mut self, node: NodeId, incarnation: u64, now: Duration) -> PeerRoute<C> {
        let line = self.lines.entry(node).or_insert_with(|| PeerLine {
            state: LineState::Down(now),
            pause: PAUSE_MIN,
            incarnation,
            frames: Vec::new(),
            frames_len: 0,
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

    /// Keeps a message to `node` until the connection that is being made is there. It is dropped
    /// when there is none, or too much waits.
    pub(crate) fn keep(&mut self, node: NodeId, frame: PeerFrame) {
        let Some(line) = self.lines.get_mut(&node) else { return };
        let is_coming = matches!(line.state, LineState::Dialling(_));
        if is_coming && line.frames_len + frame.len() <= FRAMES_LEN_MAX {
            line.frames_len += frame.len();
            line.frames.push(frame);
        }
    }

    /// The messages that waited for `node`.
    pub(crate) fn take_kept(&mut self, node: NodeId) -> Vec<PeerFrame> {
        let Some(line) = self.lines.get_mut(&node) else { return Vec::new() };
        line.frames_len = 0;
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
                line.frames_len = 0;
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
    let same_host = host == Some(info.host.as_str());
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
    use super::*;
    use crate::test_map::three_nodes;

    const NODE: NodeId = NodeId(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_line_is_dialled_once_and_serves_until_it_closes() {
        let mut lines = PeerLines::default();
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
        let mut lines = PeerLines::default();
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
        let (mut lines, map) = (PeerLines::default(), three_nodes());
        for (node, conn, ticket) in [(NODE, 'a', 1), (NodeId(9), 'b', 2)] {
            assert_eq!(lines.way(node, 1, MS), PeerRoute::Dial(ticket));
            assert_eq!(lines.connected(ticket, Some((conn, node)), MS), Some(node));
        }
        assert_eq!(lines.retain(&map), ['b']);
        assert_eq!((lines.open(NODE), lines.open(NodeId(9))), (Some('a'), None));
    }
}
