//! Peer messages as the shard takes them: each frame goes to the handler of its service.
//!
//! The [channel](crate::peer_channel) knows connections, not what is said on them; a service knows
//! messages, not connections. A service has a handler for frames that come here
//! ([`ShardService::take_frame`]) and, if it passes messages on to other shards, one for those
//! ([`ShardService::take_passed`]).

use std::time::Duration;

use samite_metrics::registry;
use samite_placement::shard_of;
use samite_transport::server::{ConnId, ReplySink};
use samite_types::{ErrorKind, NodeId, ShardId};
use samite_wire::peer::{PeerMessages, PeerService};

use super::ShardService;
use crate::inbox::{InboxMessage, PassedMessages};
use crate::peer_channel::{ChannelOwner, PeerDestination};

impl ShardService {
    /// Takes a frame that came from `node`; answers go to `back`.
    pub(super) fn take_frame(
        &mut self,
        from: (NodeId, PeerDestination),
        conn: ConnId,
        (body, payload): (&[u8], &[u8]),
        out: &mut ReplySink,
    ) {
        self.metrics().add(registry::PEER_FRAMES, 1);
        match PeerService::split(body) {
            Ok((PeerService::Mirror, body)) => {
                self.take_mirror_frame(from, conn, (body, payload), out);
            }
            Err(error) => out.close(conn, ErrorKind::Corrupt, &format!("peer frame: {error}")),
        }
    }

    /// Takes messages that came to another shard.
    pub(super) fn take_passed(&mut self, passed: PassedMessages, out: &mut ReplySink) {
        let PassedMessages { service, node, back, body, payload, cost } = passed;
        match service {
            // The other shard has decoded and encoded them: there are no errors.
            PeerService::Mirror => {
                for (envelope, message) in PeerMessages::new(&body, &payload).flatten() {
                    self.message((node, back), &envelope, message);
                }
            }
        }
        drop(cost);
        self.settle(out);
    }

    /// Takes messages between members of mirror groups. A shard makes a connection of its own to a
    /// node, which comes to whichever of the other node's shards took it; that one passes on
    /// messages about another shard's partitions, and that shard's answer takes the same way back.
    /// So a message is in order with others of its partition as long as nothing breaks.
    fn take_mirror_frame(
        &mut self,
        (node, back): (NodeId, PeerDestination),
        conn: ConnId,
        (body, payload): (&[u8], &[u8]),
        out: &mut ReplySink,
    ) {
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
            let (service, body, payload) = (PeerService::Mirror, body.into(), payload.into());
            let passed = PassedMessages { service, node, back, body, payload, cost };
            inbox.send(InboxMessage::Passed(passed));
        }
    }

    /// Sends the messages that were written.
    pub(super) fn send_peer_messages(&mut self, out: &mut ReplySink) {
        let owner = ChannelOwner { shard: self.id, shared: &self.shared, map: self.map.as_deref() };
        self.channel.send(owner, out);
    }

    /// Whether there is a connection to `node`; when there is none, one is being made.
    pub(super) fn reaches(&mut self, node: NodeId, now: Duration) -> bool {
        let owner = ChannelOwner { shard: self.id, shared: &self.shared, map: self.map.as_deref() };
        self.channel.way_to(node, owner, now).is_some()
    }
}
