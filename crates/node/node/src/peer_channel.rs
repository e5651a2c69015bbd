//! The channel of one shard to other nodes: messages of [services](PeerService), which share one
//! connection to each node.
//!
//! The channel makes the connections, brings messages to them in frames of one service each, and
//! knows the way back for answers. What the messages mean is a matter of the services. For each of
//! them it is true that:
//!
//! - Messages that a shard sends to a node by its own connection arrive in order as long as the
//!   connection lasts; those of different services in any order.
//! - A message for which there is no way at once, or for which too much of the *same* service waits
//!   ([`BoundedService`]), is dropped: a sender that needs an answer says it again.
//! - An answer goes back by the connection by which the other node spoke, which may be one of
//!   another shard: the answer goes through that shard's inbox. The connection is not read from
//!   while too many answers wait there.

mod lines;
mod output;
mod waiting;

use std::time::Duration;

use samite_placement::ClusterMap;
use samite_transport::server::{ConnId, NodeDialler, ReplySink};
use samite_types::{Clock, Deadline, ErrorKind, NodeId, RequestId, Result, ShardId, SystemClock};
use samite_wire::frame::FrameKind;
use samite_wire::peer::PeerService;

use self::lines::{DIAL_TIMEOUT, PeerLines, PeerRoute};
use self::output::PeerOutput;
use crate::inbox::{InboxMessage, PassedFrame};
use crate::shared::NodeShared;

pub(crate) use self::lines::addresses;
pub(crate) use self::output::{PeerDestination, PeerFrame, PeerMessageParts};

/// The shard that uses a channel, and the map by which it serves.
#[derive(Clone, Copy)]
pub(crate) struct ChannelOwner<'a> {
    pub(crate) shard: ShardId,
    pub(crate) shared: &'a NodeShared,
    pub(crate) map: Option<&'a ClusterMap>,
}

/// See the module.
pub(crate) struct PeerChannel {
    lines: PeerLines<ConnId, PeerService>,
    output: PeerOutput,
    dialler: NodeDialler,
}

impl PeerChannel {
    pub(crate) fn new(dialler: NodeDialler) -> Self {
        Self { lines: PeerLines::default(), output: PeerOutput::default(), dialler }
    }

    /// No message waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.output.is_empty()
    }

    /// The node at the other end of `conn`, if the channel has made that connection.
    pub(crate) fn node_at(&self, conn: ConnId) -> Option<NodeId> {
        self.lines.at(conn)
    }

    /// A message of `service` has come from `node`, and answers in this request batch go `back`.
    pub(crate) fn heard(&mut self, service: PeerService, node: NodeId, back: PeerDestination) {
        self.output.heard(service, node, back);
    }

    /// Where an answer to `node` goes, if something of `service` has come from there in this
    /// request batch.
    pub(crate) fn way_back(&self, service: PeerService, node: NodeId) -> Option<PeerDestination> {
        self.output.way_back(service, node)
    }

    /// Writes a message of `service`, to leave at the end of the request batch.
    pub(crate) fn add(
        &mut self,
        service: PeerService,
        to: PeerDestination,
        message: PeerMessageParts<'_>,
    ) {
        self.output.add(service, to, message);
    }

    /// Bytes of `service` that wait for `node` to take them; 0 without a connection.
    pub(crate) fn waiting_len(
        &mut self,
        service: PeerService,
        node: NodeId,
        out: &ReplySink,
    ) -> usize {
        let Some(conn) = self.lines.open(node) else { return 0 };
        self.lines.waiting_len(node, service, out.waiting_len(conn))
    }

    /// Ends the request batch: sends the messages that were written.
    pub(crate) fn send(&mut self, owner: ChannelOwner<'_>, out: &mut ReplySink) {
        self.output.end_batch();
        if self.output.is_empty() {
            return;
        }
        let now = SystemClock.monotonic();
        let mut frames = self.output.take();
        for frame in &mut frames {
            match frame.to {
                PeerDestination::Node(node) => match self.way_to(node, owner, now) {
                    Some(conn) => self.send_by_line(node, conn, frame, out),
                    None => self.lines.keep(node, frame.service, frame.take()),
                },
                PeerDestination::Back(shard, conn) if shard == owner.shard => {
                    put(conn, FrameKind::PeerReply, frame, out);
                }
                PeerDestination::Back(shard, conn) => {
                    let inbox = &owner.shared.inboxes[usize::from(shard.get())];
                    let Some(cost) = inbox.reserve(frame.len()) else { continue };
                    let frame = frame.take();
                    inbox.send(InboxMessage::Frame(PassedFrame { conn, frame, _cost: cost }));
                }
            }
        }
        self.output.give_back(frames);
    }

    /// Sends a frame that another shard has written, back by a connection of this one.
    pub(crate) fn send_passed(passed: &PassedFrame, out: &mut ReplySink) {
        put(passed.conn, FrameKind::PeerReply, &passed.frame, out);
    }

    fn send_by_line(&mut self, node: NodeId, conn: ConnId, frame: &PeerFrame, out: &mut ReplySink) {
        let queue_len = out.waiting_len(conn);
        if self.lines.admit((node, frame.service), frame.sent_len(), queue_len) {
            put(conn, FrameKind::Peer, frame, out);
        }
    }

    /// The connection to `node`; when there is none, one is being made.
    pub(crate) fn way_to(
        &mut self,
        node: NodeId,
        owner: ChannelOwner<'_>,
        now: Duration,
    ) -> Option<ConnId> {
        if let Some(conn) = self.lines.open(node) {
            return Some(conn);
        }
        let map = owner.map?;
        let incarnation = map.node(node)?.incarnation;
        match self.lines.way(node, incarnation, now) {
            PeerRoute::Open(conn) => return Some(conn),
            PeerRoute::Dial(ticket) => {
                let to = addresses(map, owner.shared.node, node);
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
        match (self.lines.connected(ticket, made.ok(), now), conn) {
            (Some(node), Some(conn)) => {
                for frame in self.lines.take_kept(node) {
                    self.send_by_line(node, conn, &frame, out);
                }
            }
            (None, Some(conn)) => {
                out.close(conn, ErrorKind::Unavailable, "another node than expected");
            }
            (_, None) => {}
        }
    }

    /// A connection is gone. Returns the node that it led to, if the channel had made it.
    pub(crate) fn closed(&mut self, conn: ConnId, now: Duration) -> Option<NodeId> {
        self.lines.closed(conn, now)
    }

    /// Closes the connections to nodes that `map` has no more.
    pub(crate) fn retain(&mut self, map: &ClusterMap, out: &mut ReplySink) {
        for conn in self.lines.retain(map) {
            out.close(conn, ErrorKind::Unavailable, "not a node of the cluster");
        }
    }
}

fn put(conn: ConnId, kind: FrameKind, frame: &PeerFrame, out: &mut ReplySink) {
    out.send(conn, kind, RequestId(0), &frame.body, frame.payload());
}
