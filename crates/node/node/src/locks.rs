//! The file locks of this node: one table for all shards, behind a lock, and the answers to requests
//! that waited. The rules are in [`samite_filelock`].

use samite_filelock::{AnsweringNode, WaitAnswer, answer_to_wait};
use samite_placement::ClusterMap;
use samite_transport::server::ConnId;
use samite_types::{Clock, ShardId, SystemClock};
use samite_wire::control::ControlReply;

use crate::control_reply::{ReplyTo, refused};
use crate::shared::NodeShared;

/// The locks of this node. A connection is told by the shard that serves it.
pub(crate) type SharedLocks = samite_filelock::NodeLocks<(ShardId, ConnId), ReplyTo>;

/// What this node goes by now when it is asked for a lock.
pub(crate) fn answering_node(shared: &NodeShared) -> AnsweringNode {
    let lease_until = shared.membership.lease_until();
    AnsweringNode { node: shared.node, now: SystemClock.monotonic(), lease_until }
}

/// What is sent to a client that waited, by `map`.
pub(crate) fn wait_reply(
    shared: &NodeShared,
    map: Option<&ClusterMap>,
    waited: &WaitAnswer<ReplyTo>,
) -> ControlReply {
    match answer_to_wait(&answering_node(shared), map, &waited.request, waited.answer) {
        Ok(answer) => ControlReply::Lock(answer),
        Err(error) => refused(&error),
    }
}
