//! Messages between nodes and coordinator instances about which nodes live and which member of a
//! group has missed something.

use samite_types::{Epoch, NodeId, PartitionId, Redundancy, TargetId, Term};
use serde::{Deserialize, Serialize};

/// Most reports in one message.
pub const REPORTS_MAX: usize = 4096;
/// Most messages to a voter in one request.
pub const VOTE_MESSAGES_MAX: usize = 64;

/// A node says that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The node.
    pub node: NodeId,
    /// The process, as in [`crate::control::NodeInfo`].
    pub incarnation: u64,
    /// Epoch by which all of its shards serve.
    pub serves: Epoch,
    /// A leader has answered one of its last heartbeats, whatever it said.
    pub is_led: bool,
}

/// The leader's answer to a [`Heartbeat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeLease {
    /// The node may serve mirrored groups for so long, counted from when it sent the heartbeat. 0: not at all, because of `standing`.
    pub term_us: u64,
    /// Newest epoch of the cluster map; 0 when there is none yet.
    pub epoch: Epoch,
    /// The node's membership in the cluster.
    pub standing: NodeStanding,
}

/// Membership of a node that sends a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeStanding {
    /// It belongs to it.
    Member,
    /// It belongs to it, but does not know a map that took something from it: it has to take up the newest one.
    Behind,
    /// It does not belong to it as this process: it has to join.
    Stranger,
}

/// The coordinator instance that decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaderAddress {
    /// Node in which it lives.
    pub node: NodeId,
    /// Where that can be reached, best first.
    pub addresses: Vec<String>,
}

/// State of a member of a mirror group, as its primary knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemberChanges {
    /// It has missed an operation, or cannot be asked whether.
    Missed,
    /// It has everything, and the primary waits for it from now on.
    Synced,
    /// It cannot be brought up to date.
    Broken,
}

/// A primary reports on one member of one of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberReport {
    /// Table of the group.
    pub redundancy: Redundancy,
    /// Partition of the group.
    pub partition: PartitionId,
    /// Term in which the reporter is primary; a report from an older one counts for nothing.
    pub term: Term,
    /// Epoch of the map by which the reporter decided so ([`ControlRequest::Report`](crate::control::ControlRequest::Report) may know a newer one by now): what
    /// has changed in the group since makes the report void.
    pub epoch: Epoch,
    /// The member.
    pub target: TargetId,
    /// Its new state.
    pub change: MemberChanges,
}

/// An operator's request about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Let it join, though the cluster was founded without it.
    Add,
    /// Move its partitions away.
    Drain,
    /// Use it again.
    Undrain,
    /// Forget it. It must hold nothing any more; or, when `force` is set, be dead and hold nothing
    /// that no other has.
    Remove {
        /// It will not come back.
        force: bool,
    },
    /// Let it join, and give it nothing before [`Self::Undrain`].
    Invite,
}
