//! What this shard and other nodes say to each other about the partitions that they hold together.
//!
//! A shard makes a connection of its own to each node to which it has something to say. What it says there comes to whichever of the other
//! node's shards took the connection, which passes on what is about another shard's partitions; what that one answers takes the same way
//! back. So a message is in order with others of its partition as long as nothing breaks. Whatever does not find its way at once is dropped: who
//! needs an answer says it again.

use std::sync::Arc;

use samite_placement::shard_of;
use samite_transport::server::{ConnId, Replies};
use samite_types::{Clock, Deadline, ErrorKind, NodeId, RequestId, Result, ShardId, SystemClock};
use samite_wire::frame::FrameKind;
use samite_wire::peer::Messages;

use crate::inbox::{Cost, Message};
use crate::outbox::{Letter, To};
use crate::peers::{DIAL_TIMEOUT, Way, addresses};
use crate::shard::{Shard, count};

/// Bytes that may wait for a node, beyond which nothing more is said to it.
const WAITING_LEN_MAX: usize = 32 << 20;
/// Requests of clients are refused that would have to be passed on to a node for which so many bytes wait.
pub(crate) const FULL_LEN: usize = 8 << 20;

/// Messages about this shard's partitions that came to another shard.
pub(crate) struct Passed {
    pub node: NodeId,
    /// Where answers go.
    pub back: To,
    pub body: Arc<[u8]>,
    pub payload: Arc<[u8]>,
    pub cost: Cost,
}

/// A letter that another shard has written, to go back by a connection of this one.
pub(crate) struct Posted {
    pub conn: ConnId,
    pub letter: Letter,
    /// Given back when it is sent.
    pub _cost: Cost,
}

impl Shard {
    /// Takes the messages of a frame that came from `node`; answers go to `back`.
    pub(crate) fn take_frame(
        &mut self,
        (node, back): (NodeId, To),
        conn: ConnId,
        (body, payload): (&[u8], &[u8]),
        out: &mut Replies,
    ) {
        count(&self.figures().peer_frames, 1);
        let shards = self.shared.shards();
        let mut others: Vec<(ShardId, Vec<u8>, Vec<u8>)> = Vec::new();
        for message in Messages::new(body, payload) {
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
            inbox.send(Message::Passed(Passed { node, back, body, payload, cost }));
        }
    }

    /// Takes messages that came to another shard.
    pub(crate) fn take_passed(&mut self, passed: Passed, out: &mut Replies) {
        let Passed { node, back, body, payload, cost } = passed;
        // The other shard has decoded and encoded them: there are no errors.
        for (envelope, message) in Messages::new(&body, &payload).flatten() {
            self.message((node, back), &envelope, message);
        }
        drop(cost);
        self.settle(out);
    }

    /// Sends what was written.
    pub(crate) fn post(&mut self, out: &mut Replies) {
        if self.outbox.is_empty() {
            return;
        }
        let now = SystemClock.monotonic();
        let mut letters = self.outbox.take();
        for letter in &mut letters {
            match letter.to {
                To::Node(node) => match self.way_to(node, now) {
                    Some(conn) if out.waiting_len(conn) <= WAITING_LEN_MAX => {
                        send(conn, FrameKind::Peer, letter, out);
                    }
                    Some(_) => {}
                    None => self.peers.keep(node, letter.take()),
                },
                To::Back(shard, conn) if shard == self.id => {
                    send(conn, FrameKind::PeerReply, letter, out);
                }
                To::Back(shard, conn) => {
                    let inbox = &self.shared.inboxes[usize::from(shard.get())];
                    let Some(cost) = inbox.reserve(letter.len()) else { continue };
                    let letter = letter.take();
                    inbox.send(Message::Posted(Posted { conn, letter, _cost: cost }));
                }
            }
        }
        self.outbox.give_back(letters);
    }

    /// Sends what another shard has written.
    pub(crate) fn send_posted(posted: &Posted, out: &mut Replies) {
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
            Way::Open(conn) => return Some(conn),
            Way::Dial(ticket) => {
                let to = addresses(map, self.shared.node, node);
                self.dialler.dial(ticket, to, Deadline::after(DIAL_TIMEOUT));
            }
            Way::Wait => {}
        }
        None
    }

    /// A connection to another node was made, or not.
    pub(crate) fn dialled(
        &mut self,
        ticket: u64,
        made: Result<(ConnId, NodeId)>,
        out: &mut Replies,
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

fn send(conn: ConnId, kind: FrameKind, letter: &Letter, out: &mut Replies) {
    out.send(conn, kind, RequestId(0), &letter.body, letter.payload());
}
