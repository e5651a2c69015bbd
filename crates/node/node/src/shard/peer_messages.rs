//! Peer messages: what this shard and other nodes say to each other about the partitions of which
//! both are members.
//!
//! A shard makes a connection of its own to each node to which it has something to say. A message
//! there comes to whichever of the other node's shards took the connection, which passes on a
//! message about another shard's partitions; that shard's answer takes the same way back. So a
//! message is in order with others of its partition as long as nothing breaks. A message that does
//! not find its way at once is dropped: a sender that needs an answer says it again.

use samite_metrics::registry;
use samite_placement::shard_of;
use samite_transport::server::{ConnId, ReplySink};
use samite_types::{Clock, Deadline, ErrorKind, NodeId, RequestId, Result, ShardId, SystemClock};
use samite_wire::frame::FrameKind;
use samite_wire::peer::PeerMessages;

use super::ShardService;
use crate::inbox::{InboxMessage, PassedFrame, PassedMessages};
use crate::peer_output::{PeerDestination, PeerFrame};
use crate::peers::{DIAL_TIMEOUT, PeerRoute, addresses};

/// Bytes that may wait for a node, beyond which nothing more is said to it.
const WAITING_LEN_MAX: usize = 32 << 20;

impl ShardService {
    /// Takes the messages of a frame that came from `node`; answers go to `back`.
    pub(super) fn take_frame(
        &mut self,
        (node, back): (NodeId, PeerDestination),
        conn: ConnId,
        (body, payload): (&[u8], &[u8]),
        out: &mut ReplySink,
    ) {
        self.metrics().add(registry::PEER_FRAMES, 1);
        let shards = self.shared.shards();
        let mut others: Vec<(ShardId, Vec<u8>, Vec<u8>)> = Vec::new();
        for message in PeerMessages::new(body, payload) {
            let (envelope, message) = match message {
                Ok(message) => message,
                Err(error) => {
                    return out.close(conn, ErrorKind::Corrupt, &format!("message: {error}"));
                }
            };
            let shard = shard_of(envelope.partition, shards);
            if shard == self.id {
                self.message((node, back), &envelope, message);
                continue;
            }
            let index = others.iter().position(|(other, ..)| *other == shard);
            let index = index.unwrap_or_else(|| {
                others.push((shard, Vec::new(), Vec::new()));
                others.len() - 1
            });
            let (_, body, payload) = &mut others[index];
            message.append(&envelope, body, payload);
        }
        for (shard, body, payload) in others {
            let inbox = &self.shared.inboxes[usize::from(shard.get())];
            let Some(cost) = inbox.reserve(body.len() + payload.len()) else { continue };
            let (body, payload) = (body.into(), payload.into());
            inbox.send(InboxMessage::Passed(PassedMessages { node, back, body, payload, cost }));
        }
    }

    /// Takes messages that came to another shard.
    pub(super) fn take_passed(&mut self, passed: PassedMessages, out: &mut ReplySink) {
        let PassedMessages { node, back, body, payload, cost } = passed;
        // The other shard has decoded and encoded them: there are no errors.
        for (envelope, message) in PeerMessages::new(&body, &payload).flatten() {
            self.message((node, back), &envelope, message);
        }
        drop(cost);
        self.settle(out);
    }

    /// Sends the messages that were written.
    pub(super) fn send_peer_messages(&mut self, out: &mut ReplySink) {
        if self.peer_output.is_empty() {
            return;
        }
        let now = SystemClock.monotonic();
        let mut frames = self.peer_output.take();
        for frame in &mut frames {
            match frame.to {
                PeerDestination::Node(node) => match self.way_to(node, now) {
                    Some(conn) if out.waiting_len(conn) <= WAITING_LEN_MAX => {
                        send(conn, FrameKind::Peer, frame, out);
                    }
                    Some(_) => {}
                    None => self.peers.keep(node, frame.take()),
                },
                PeerDestination::Back(shard, conn) if shard == self.id => {
                    send(conn, FrameKind::PeerReply, frame, out);
                }
                PeerDestination::Back(shard, conn) => {
                    let inbox = &self.shared.inboxes[usize::from(shard.get())];
                    let Some(cost) = inbox.reserve(frame.len()) else { continue };
                    let frame = frame.take();
                    inbox.send(InboxMessage::Frame(PassedFrame { conn, frame, _cost: cost }));
                }
            }
        }
        self.peer_output.give_back(frames);
    }

    /// Sends a message that another shard has written.
    pub(super) fn send_passed_frame(passed: &PassedFrame, out: &mut ReplySink) {
        send(passed.conn, FrameKind::PeerReply, &passed.frame, out);
    }

    /// The connection to `node`; when there is none, one is being made.
    pub(super) fn way_to(&mut self, node: NodeId, now: std::time::Duration) -> Option<ConnId> {
        if let Some(conn) = self.peers.open(node) {
            return Some(conn);
        }
        let map = self.map.as_ref()?;
        let incarnation = map.node(node)?.incarnation;
        match self.peers.way(node, incarnation, now) {
            PeerRoute::Open(conn) => return Some(conn),
            PeerRoute::Dial(ticket) => {
                let to = addresses(map, self.shared.node, node);
                self.dialler.dial(ticket, to, Deadline::after(DIAL_TIMEOUT));
            }
            PeerRoute::Wait => {}
        }
        None
    }

    /// A connection to another node was made, or not.
    pub(super) fn dialled(
        &mut self,
        ticket: u64,
        made: Result<(ConnId, NodeId)>,
        out: &mut ReplySink,
    ) {
        let now = SystemClock.monotonic();
        let conn = made.as_ref().ok().map(|(conn, _)| *conn);
        if let Err(error) = &made {
            tracing::debug!(%error, "reach another node");
        }
        match self.peers.connected(ticket, made.ok(), now) {
            Some(node) => {
                for frame in self.peers.take_kept(node) {
                    conn.into_iter().for_each(|conn| send(conn, FrameKind::Peer, &frame, out));
                }
            }
            None => {
                if let Some(conn) = conn {
                    out.close(conn, ErrorKind::Unavailable, "another node than expected");
                }
            }
        }
    }
}

fn send(conn: ConnId, kind: FrameKind, frame: &PeerFrame, out: &mut ReplySink) {
    out.send(conn, kind, RequestId(0), &frame.body, frame.payload());
}
