//! What happened in a store, and what a node logs: answers of the control plane for administrators.

use samite_types::{Epoch, NodeId};
use serde::{Deserialize, Serialize};

/// Most events in one answer.
pub const EVENTS_MAX: usize = 512;
/// Most bytes of a log in one answer.
pub const LOG_PART_LEN_MAX: usize = 256 << 10;
/// Longest log filter, in bytes.
pub const LOG_FILTER_LEN_MAX: usize = 1024;

/// The kinds of events. All but the last five follow from the cluster map, which all nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A node has joined, for the first time or as a new process.
    NodeJoined,
    /// A node is counted on again.
    NodeOnline,
    /// A node does not answer.
    NodeAway,
    /// A node is given up until it comes back.
    NodeOffline,
    /// A node is to hold nothing any more.
    NodeDrains,
    /// A node was removed.
    NodeRemoved,
    /// Partitions are led by other nodes than before, because theirs is away or has ended.
    Failover,
    /// Members of mirror groups lack something.
    ResyncNeeded,
    /// Members of mirror groups have everything again.
    ResyncDone,
    /// Members of mirror groups cannot be brought up to date.
    MemberBad,
    /// Records are lost: no node has them any more.
    Loss,
    /// A target of a node is nearly full: at 95 % and more.
    TargetFull,
    /// A target of a node has room again: below 90 %.
    TargetFree,
    /// Changes were refused for want of space, for the first time in a minute.
    SpaceRefused,
    /// The clock of a node differs from that of a coordinator's node by more than a second.
    ClockSkew,
    /// It does not any more.
    ClockRight,
}

impl EventKind {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeJoined => "node-joined",
            Self::NodeOnline => "node-online",
            Self::NodeAway => "node-away",
            Self::NodeOffline => "node-offline",
            Self::NodeDrains => "node-drains",
            Self::NodeRemoved => "node-removed",
            Self::Failover => "failover",
            Self::ResyncNeeded => "resync-needed",
            Self::ResyncDone => "resync-done",
            Self::MemberBad => "member-bad",
            Self::Loss => "loss",
            Self::TargetFull => "target-full",
            Self::TargetFree => "target-free",
            Self::SpaceRefused => "space-refused",
            Self::ClockSkew => "clock-skew",
            Self::ClockRight => "clock-right",
        }
    }

    /// Only the node that it is about knows of it.
    #[must_use]
    pub const fn is_of_one_node(self) -> bool {
        matches!(
            self,
            Self::TargetFull
                | Self::TargetFree
                | Self::SpaceRefused
                | Self::ClockSkew
                | Self::ClockRight
        )
    }
}

/// An event, as one node has noticed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreEvent {
    /// Its number at that node, from 1.
    pub number: u64,
    /// When it was noticed: microseconds since 1970-01-01 UTC, by that node's clock.
    pub at_us: u64,
    /// Epoch of the cluster map that brought it, or by which the node served then.
    pub epoch: Epoch,
    /// Its kind.
    pub kind: EventKind,
    /// The node that it is about, if it is one.
    pub node: Option<NodeId>,
    /// What happened, for a person.
    pub words: String,
}

/// Events that a node has noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvents {
    /// The process that says so; another one counts anew.
    pub incarnation: u64,
    /// The oldest first; [`EVENTS_MAX`] at most.
    pub events: Vec<StoreEvent>,
}

/// A part of the log of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// Where it lies in the log, in bytes.
    pub at: u64,
    /// The bytes: whole lines, unless one is longer than all.
    pub bytes: Vec<u8>,
}
