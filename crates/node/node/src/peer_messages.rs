//! Peer messages: what this shard and other nodes say to each other about the partitions of which
//! both are members.
//!
//! A shard makes a connection of its own to each node to which it has something to say. A message
//! there comes to whichever of the other node's shards took the connection, which passes on a
//! message about another shard's partitions; that shard's answer takes the same way back. So a
//! message is in order with others of its partition as long as nothing breaks. A message that does
//! not find its way at once is dropped: a sender that needs an answer says it again.

use std::sync::Arc;

use samite_placement::shard_of;
use samite_transport::server::{ConnId, ReplySink};
use samite_types::{Clock, Deadline, ErrorKind, NodeId, RequestId, Result, ShardId, SystemClock};
use samite_wire::frame::FrameKind;
use samite_wire::peer::PeerMessages;

use crate::inbox::{InboxCost, InboxMessage};
use crate::peer_output::{PeerDestination, PeerFrame};
use crate::peers::{DIAL_TIMEOUT, PeerRoute, addresses};
use crate::shard::{ShardService, count};

/// Bytes that may wait for a node, beyond which nothing more is said to it.
const WAITING_LEN_MAX: usize = 32 << 20;
/// Requests of clients are refused that would have to be passed on to a node for which so many bytes wait.
pub(crate) const FULL_LEN: usize = 8 << 20;

/// Messages about this shard's partitions that came to another shard.
pub(crate) struct PassedMessages {
    pub node: NodeId,
    /// Where answers go.
    pub back: PeerDestination,
    pub body: Arc<[u8]>,
    pub payload: Arc<[u8]>,
    pub cost: InboxCost,
}

/// A peer message that another shard has written, to go back by a connection of this one.
pub(crate) struct PassedFrame {
    pub conn: ConnId,
    pub letter: PeerFrame,
    /// Given back when it is sent.
    pub _cost: InboxCost,
}

impl ShardService {
    /// Takes the messages of a frame that came from `node`; answers go to `back`.
    pub(crate) fn take_frame(
        &mut self,
        (node, back): (NodeId, PeerDestination),
        conn: ConnId,
        (body, payload): (&[u8], &[u8]),
        out: &mut ReplySink,
    ) {
        count(&self.metrics().peer_frames, 1);
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
    pub(crate) fn take_passed(&mut self, passed: PassedMessages, out: &mut ReplySink) {
        let PassedMessages { node, back, body, payload, cost } = passed;
        // The other shard has decoded and encoded them: there are no errors.
        for (envelope, message) in PeerMessages::new(&body, &payload).flatten() {
            self.message((node, back), &envelope, message);
        }
        drop(cost);
        self.settle(out);
    }

    /// Sends the messages that were written.
    pub(crate) fn send_peer_messages(&mut self, out: &mut ReplySink) {
        if self.outbox.is_empty() {
            return;
        }
        let now = SystemClock.monotonic();
        let mut letters = self.outbox.take();
        for letter in &mut letters {
            match letter.to {
                PeerDestination::Node(node) => match self.way_to(node, now) {
                    Some(conn) if out.waiting_len(conn) <= WAITING_LEN_MAX => {
                        send(conn, FrameKind::Peer, letter, out);
                    }
                    Some(_) => {}
                    None => self.peers.keep(node, letter.take()),
                },
                PeerDestination::Back(shard, conn) if shard == self.id => {
                    send(conn, FrameKind::PeerReply, letter, out);
                }
                PeerDestination::Back(shard, conn) => {
                    let inbox = &self.shared.inboxes[usize::from(shard.get())];
                    let Some(cost) = inbox.reserve(letter.len()) else { continue };
                    let letter = letter.take();
                    inbox.send(InboxMessage::Posted(PassedFrame { conn, letter, _cost: cost }));
                }
            }
        }
        self.outbox.give_back(letters);
    }

    /// Sends a message that another shard has written.
    pub(crate) fn send_passed_frame(posted: &PassedFrame, out: &mut ReplySink) {
        send(posted.conn, FrameKind::PeerReply, &posted.letter, out);
    }

    /// The connection to `node`; when there is none, one is being made.
    pub(crate) fn way_to(&mut self, node: NodeId, now: std::time::Duration) -> Option<ConnId> {
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
    pub(crate) fn dialled(
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
                for letter in self.peers.take_kept(node) {
                    conn.into_iter().for_each(|conn| send(conn, FrameKind::Peer, &letter, out));
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

fn send(conn: ConnId, kind: FrameKind, letter: &PeerFrame, out: &mut ReplySink) {
    out.send(conn, kind, RequestId(0), &letter.body, letter.payload());
}
