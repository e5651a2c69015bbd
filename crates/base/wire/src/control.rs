//! The control plane: the cluster map, datasets, status. `postcard` inside a frame body.

mod backend_spec;
mod dataset_data;
mod node_info;
mod since;

use samite_types::{
    ClientId, DatasetId, Epoch, Error, ErrorKind, NodeId, PartitionId, Redundancy, Result,
    TargetId, Term, Version,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::WireError;
use crate::access::DatasetAccess;
use crate::delta::MapDelta;
use crate::events::{LogPart, NodeEvents};
use crate::freeze::FreezeRequest;
use crate::limits::BODY_LEN_MAX;
use crate::lock::{KnownLock, LockAnswer, LockOwner, LockRequest};
use crate::membership::{AdminRequest, Heartbeat, LeaderAddress, MemberReport, NodeLease};
use crate::status::{ClockDifference, NodeMetrics, NodeStatus};
use crate::ticket::{IssuedTicket, KeyNumbers, KeyStep};
use crate::worker::{WorkerKind, WorkerStatus};
pub use backend_spec::{BackendSpec, MEMORY_BACKEND, NULL_BACKEND};
pub use dataset_data::DatasetData;
pub use node_info::{NodeInfo, TargetInfo, incarnation_at};

/// Bytes of a chunk unless said otherwise.
pub const CHUNK_LEN_DEFAULT: u32 = 1 << 20;

/// Asks a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// The cluster map, if it is newer than `known`.
    Map {
        /// Epoch that the caller has.
        known: Epoch,
    },
    /// A node joins (answered by the coordinator's node).
    Join {
        /// The node.
        info: NodeInfo,
        /// By which [`TargetInfo::storage`] it joined last, as the directory with its durable data knows; 0: it never did, or keeps nothing.
        before: u64,
    },
    /// Make a dataset. Reply: [`ControlReply::Map`]. Exists already with another policy: [`ErrorKind::Exists`].
    CreateDataset(DatasetSpec),
    /// Remove a dataset and all of its records.
    DropDataset {
        /// Name.
        name: String,
    },
    /// How the node is. Reply: [`ControlReply::Status`].
    Status,
    /// Ask for arena blocks for later writes (shared memory only). Reply: [`ControlReply::Granted`].
    Grant {
        /// How many blocks.
        count: u16,
    },
    /// Stop the node after what it has accepted is done.
    Shutdown,
    /// A node asks the coordinator's node for the next map. The reply ([`ControlReply::Map`]) comes when there is one newer than
    /// `known`; asking also says that `node` serves by `known`. A second question on the same connection ends the first.
    Watch {
        /// The node that asks.
        node: NodeId,
        /// Epoch by which it serves.
        known: Epoch,
    },
    /// Which delegations ([`crate::op::Action::Lease`]) are recalled? The reply
    /// ([`ControlReply::Revoked`]) comes when there are some. While a client asks, it may have
    /// delegations with longer terms. A second question ends the first.
    Revocations {
        /// The delegations that answers up to this number named are given back. 0 at first.
        done: u64,
    },
    /// Take, release or test a file lock. Reply: [`ControlReply::Lock`], for a waiting one when it has been taken.
    Lock(LockRequest),
    /// Ends a wait for a lock that was asked for on this connection; then *its* answer comes. Reply: [`ControlReply::Ok`].
    CancelLock {
        /// Number of the wait.
        wait: u64,
    },
    /// The owners for which this owner waits at this node. Reply: [`ControlReply::LockOwners`].
    LockWaits(LockOwner),
    /// Give a dataset another owner or mode: for its owner, and for root. Reply: [`ControlReply::Map`].
    SetAccess {
        /// Name of the dataset.
        name: String,
        /// User that it is to belong to; only root may say so.
        owner: Option<u32>,
        /// Mode that it is to have.
        mode: Option<u16>,
    },
    /// Set, clear or show this node's faults (`samite_types::fault`). No fault is injected into the
    /// question or its answer. Reply: [`ControlReply::Faults`].
    Faults(FaultRequest),
    /// Digest of the node's copy of a partition. Reply: [`ControlReply::Copy`].
    Copy {
        /// Dataset.
        dataset: DatasetId,
        /// Partition.
        partition: PartitionId,
    },
    /// Read all that the node holds, at once. Reply: [`ControlReply::Scrubbing`];
    /// [`NodeStatus::scrub`] says how far it is.
    Scrub {
        /// Only of this dataset.
        dataset: Option<DatasetId>,
    },
    /// A node lives. Reply: [`ControlReply::Lease`] from the leader, [`ControlReply::NotLeader`] from any other coordinator instance.
    Heartbeat(Heartbeat),
    /// Reports of the primaries on a node; at most [`REPORTS_MAX`](crate::membership::REPORTS_MAX).
    /// Reply: [`ControlReply::Map`], with a map whenever there is one newer than `known`.
    ///
    /// A report that does not fit the map any more (a newer term, another primary, a group that
    /// changed after the report's epoch), or that has to wait until the member knows that it was
    /// deposed, has no effect: compare it with the map in the answer, and report again what is
    /// still true. A primary goes on without a member when it has the map of the *answer*, or a
    /// newer one, and that map says so; any other may be older than a report of its own that is
    /// still under way. A `Missed` about a member that is not good, by a primary that has the
    /// newest map, makes a new epoch in which the group counts as changed: so a `Synced` from
    /// before has no effect any more, whenever it comes.
    Report {
        /// The node of the primaries.
        node: NodeId,
        /// Newest epoch that the node has.
        known: Epoch,
        /// In the order in which they were noticed.
        reports: Vec<MemberReport>,
    },
    /// An operator's request about a node. Reply: [`ControlReply::Map`].
    Wish {
        /// The node.
        node: NodeId,
        /// The change that the operator wants.
        request: AdminRequest,
    },
    /// A node asks that by the map of `epoch` is a primary or a good member where it was none before: which locks are known of partitions of which it is a
    /// member? Reply: [`ControlReply::KnownLocks`]; [`ErrorKind::Busy`] while the one that is asked does not serve by that map yet.
    KnownLocks {
        /// The node that asks.
        node: NodeId,
        /// Epoch of its map.
        epoch: Epoch,
        /// The last one of the answer before, if there was one.
        after: Option<KnownLock>,
    },
    /// A node asks which of these clients ([`LOCK_CLIENTS_MAX`](crate::lock::LOCK_CLIENTS_MAX) at most) have connections there on which locks were asked for. Reply:
    /// [`ControlReply::LockClients`].
    LockClients(Vec<ClientId>),
    /// An operator has taken note of what is lost. Other losses stay, and so do those of the same partitions after the map that the operator saw. Reply:
    /// [`ControlReply::Map`].
    AcknowledgeLoss {
        /// Epoch of that map.
        by: Epoch,
        /// The losses that are acknowledged.
        seen: Vec<LostRecords>,
    },
    /// Messages to the voter in the node that is asked ([`VOTE_MESSAGES_MAX`](crate::membership::VOTE_MESSAGES_MAX) at most), in their order. Reply: [`ControlReply::Ok`].
    Vote {
        /// The node whose voter sends them.
        from: NodeId,
        /// The messages.
        messages: Vec<Vec<u8>>,
    },
    /// All metrics of the node. Reply: [`ControlReply::Metrics`].
    Metrics,
    /// The events that the node has noticed. Reply: [`ControlReply::Events`].
    Events {
        /// Only those of a higher number.
        after: u64,
    },
    /// A part of the node's log. Reply: [`ControlReply::Log`]; [`ErrorKind::Unsupported`]: it has
    /// no file.
    ReadLog {
        /// From where on, in bytes; from the start when the log is shorter. `None`: its end.
        from: Option<u64>,
    },
    /// Log from now on what this filter names
    /// ([`LOG_FILTER_LEN_MAX`](crate::events::LOG_FILTER_LEN_MAX) bytes at most). Reply:
    /// [`ControlReply::Ok`].
    SetLogFilter {
        /// A level, or levels of modules: `debug`, `info,samite_node=trace`.
        filter: String,
    },
    /// How the cluster was set up, as the node was told at its start. Reply: [`ControlReply::Setup`].
    Setup,
    /// The clients that are connected, the one that asks included. Reply: [`ControlReply::Clients`].
    Clients,
    /// A ticket for the user that the kernel names, where the node gives out tickets
    /// ([`crate::ticket`]). Reply: [`ControlReply::Ticket`].
    IssueTicket {
        /// Public key of its holder.
        public_key: [u8; 32],
    },
    /// The ticket by which the connection was made, for a later time; the connection counts for as
    /// long, too. Reply: [`ControlReply::Ticket`].
    RenewTicket,
    /// A step of a change of the cluster key, for the owner of the store. Reply:
    /// [`ControlReply::Keys`].
    ChangeKey(KeyStep),
    /// The node's memory target is to hold so many bytes, from now on. Reply:
    /// [`ControlReply::Ok`].
    Resize {
        /// Bytes.
        memory_bytes: u64,
    },
    /// The node's wall clock. Reply: [`ControlReply::Clock`].
    Clock,
    /// By how much that differs from those of coordinators' nodes at most. Reply:
    /// [`ControlReply::ClockDifference`].
    ClockDifference,
    /// Freeze a dataset, for its owner. Reply: [`ControlReply::Map`], [`ControlReply::Ok`].
    Freeze(FreezeRequest),
    /// A message ([`crate::worker`]) to the worker of this kind and the caller's user, which is
    /// started if there is none. Reply: [`ControlReply::Worker`], the worker's answer.
    Worker(WorkerKind, Vec<u8>),
    /// The worker processes of the node. Reply: [`ControlReply::Workers`].
    Workers,
}

/// Answers a [`ControlRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReply {
    /// The cluster map; `None` when the caller's is current.
    Map(Option<ClusterMapData>),
    /// How the node is.
    Status(NodeStatus),
    /// Blocks granted: (arena offset, generation) each; fewer than asked for when the target is nearly full.
    Granted(Vec<(u64, u32)>),
    /// Done.
    Ok,
    /// Delegations that are recalled; the next question gives them back.
    Revoked {
        /// Number of this answer.
        number: u64,
        /// The records; none when a second question has ended this one.
        records: Vec<RevokedRecord>,
    },
    /// Result of a [`ControlRequest::Lock`].
    Lock(LockAnswer),
    /// Owners of locks.
    LockOwners(Vec<LockOwner>),
    /// The node's faults.
    Faults(FaultStatus),
    /// The node has begun.
    Scrubbing {
        /// When [`ScrubStatus::done`](crate::status::ScrubStatus::done) has come to this number, everything was looked at.
        number: u64,
    },
    /// The node's copy of a partition; `None`: it has none, the partition was never touched here.
    Copy(Option<PartitionCopy>),
    /// The node may go on.
    Lease(NodeLease),
    /// Another coordinator instance leads, or none does yet.
    NotLeader {
        /// The one that leads, as far as this one knows.
        leader: Option<LeaderAddress>,
    },
    /// Refused.
    Failed {
        /// Code of an [`ErrorKind`].
        kind: u8,
        /// Words for the person.
        message: String,
    },
    /// In place of [`ControlReply::Map`] for a caller that has named the epoch that it knows: the
    /// changes since. A caller whose map it does not fit asks for everything newer than epoch 0.
    MapDelta(MapDelta),
    /// Locks that the node knows, in order of [`KnownLock::place`].
    KnownLocks {
        /// Some of them.
        locks: Vec<KnownLock>,
        /// There are more.
        has_more: bool,
    },
    /// Clients that have connections for locks.
    LockClients {
        /// The process that says so.
        incarnation: u64,
        /// Clients of those that are asked about.
        clients: Vec<ClientId>,
    },
    /// The metrics.
    Metrics(NodeMetrics),
    /// What the node has noticed.
    Events(NodeEvents),
    /// A part of the log.
    Log(LogPart),
    /// The cluster's setup, which nodes do not look into; at most
    /// [`SETUP_LEN_MAX`](crate::limits::SETUP_LEN_MAX) bytes, none when the node was told nothing.
    Setup(Vec<u8>),
    /// Clients that are connected: all, or [`CLIENTS_TOLD_MAX`](crate::limits::CLIENTS_TOLD_MAX) of
    /// them.
    Clients(Vec<ClientId>),
    /// A ticket.
    Ticket(IssuedTicket),
    /// The keys that count, after the step.
    Keys(KeyNumbers),
    /// The node's wall clock.
    Clock {
        /// Microseconds since 1970-01-01 UTC.
        wall_us: u64,
    },
    /// By how much it differs from others; `None`: it was not compared yet.
    ClockDifference(Option<ClockDifference>),
    /// What the worker answers.
    Worker(Vec<u8>),
    /// Its worker processes.
    Workers(Vec<WorkerStatus>),
}

impl ControlReply {
    /// A refusal.
    #[must_use]
    pub fn failed(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed { kind: kind.code(), message: message.into() }
    }

    /// The answer, or the failure that it is.
    ///
    /// # Errors
    /// Those of [`Self::Failed`].
    pub fn checked(self) -> Result<Self> {
        match self {
            Self::Failed { kind, message } => {
                let kind = ErrorKind::from_code(kind).unwrap_or(ErrorKind::Internal);
                Err(Error::new(kind, message))
            }
            reply => Ok(reply),
        }
    }
}

/// A change of a node's faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultRequest {
    /// Go by this table, as text, instead of the present one.
    Set(String),
    /// Go by none.
    Clear,
    /// Nothing: only tell.
    List,
}

/// A node's faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultStatus {
    /// Table, as text; `None`: there is none.
    pub table: Option<String>,
    /// Frames that were harmed since it was set.
    pub frames: u64,
    /// Writes to the log that were.
    pub writes: u64,
}

/// A member's copy of a partition. Members of a group that agree are equal in all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PartitionCopy {
    /// Version of the partition.
    pub version: Version,
    /// Records.
    pub records: u64,
    /// Digest of all keys, versions and values.
    pub digest: u64,
}

/// A record on which a delegation is recalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedRecord {
    /// Dataset.
    pub dataset: DatasetId,
    /// Partition.
    pub partition: PartitionId,
    /// Key.
    pub key: Vec<u8>,
}

/// Whether a node can be reached, as the coordinator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeReachability {
    /// Its lease runs.
    Online,
    /// It is late.
    ProbablyOffline,
    /// Its lease has ended: it serves nothing that has another member.
    Offline,
}

/// Whether a member of a mirror group has what the group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemberConsistency {
    /// It has applied every acknowledged operation.
    Good,
    /// Its node was started again: what outlives that is complete, what was in memory is gone.
    Restarted,
    /// It has missed operations; the primary is to bring it up to date.
    NeedsResync,
    /// It cannot be brought up to date (its target is full or broken).
    Bad,
}

/// One target in a mirror group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupMember {
    /// The target.
    pub target: TargetId,
    /// How much of the partition it has.
    pub consistency: MemberConsistency,
}

/// The targets that hold a partition. The first is the primary. There may be more than the redundancy asks for while a partition moves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MirrorGroup {
    /// Grows with each new primary; part of the versions that it makes.
    pub term: Term,
    /// At least one, none twice.
    pub members: Vec<GroupMember>,
}

/// The mirror groups of all datasets of one redundancy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionTable {
    /// Targets that hold each partition.
    pub redundancy: Redundancy,
    /// The index is the partition.
    pub groups: Vec<MirrorGroup>,
}

/// State of a node, as the coordinator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeState {
    /// Whether it can be reached.
    pub reachability: NodeReachability,
    /// Its partitions are moving away.
    pub is_draining: bool,
}

/// How the chunks of one object or file spread over the partitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DistributionKind {
    /// Chunk `i` goes to partition `start + i`, where `start` is the hash of the object.
    RoundRobin,
    /// All chunks of an object in one partition.
    Single,
    /// Partitions take chunks in proportion to the weights of the targets that hold them.
    Weighted(Vec<(TargetId, u32)>),
}

/// The guarantees of a dataset (DESIGN.md, 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SemanticsKind {
    /// Every later call sees it.
    Posix,
    /// Settles on close.
    Session,
    /// Batched; a crash loses what was not flushed. Not offered yet: no dataset can have it.
    Checkpoint,
    /// Batched; a crash may lose all.
    Temporary,
}

/// A dataset as asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// Name: 1 to 255 bytes of letters, digits, `-`, `_` and `.`, not starting with a dot.
    pub name: String,
    /// Backend.
    pub backend: BackendSpec,
    /// Distribution of chunks.
    pub distribution: DistributionKind,
    /// What the root of a file system in it promises, and all below unless told otherwise; records
    /// of a dataset that is `Temporary` are no loss when they are gone.
    pub semantics: SemanticsKind,
    /// Bytes of a chunk; a power of two from 64 KiB to 1 MiB.
    pub chunk_len: u32,
    /// Targets that hold each record.
    pub redundancy: Redundancy,
    /// State that a restart of all its nodes leaves.
    pub durability: DurabilityKind,
    /// Members that answer reads.
    pub reads: ReadsKind,
    /// Users that may read and change it.
    pub access: DatasetAccess,
}

impl DatasetSpec {
    /// A dataset in memory, unmirrored, with chunks of 1 MiB spread round-robin and `posix` semantics.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            backend: BackendSpec::default(),
            distribution: DistributionKind::RoundRobin,
            semantics: SemanticsKind::Posix,
            chunk_len: CHUNK_LEN_DEFAULT,
            redundancy: Redundancy(1),
            durability: DurabilityKind::Memory,
            reads: ReadsKind::Primary,
            access: DatasetAccess::default(),
        }
    }

    /// Whether the two differ in nothing but who may use them.
    #[must_use]
    pub fn is_same_policy(&self, other: &Self) -> bool {
        *self == Self { access: self.access, ..other.clone() }
    }
}

/// Data of a dataset that outlives its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DurabilityKind {
    /// Nothing: records are in memory.
    Memory,
    /// Every acknowledged operation: it is in a log on each member's flash before.
    Logged,
}

/// Members that answer reads. The data is the same either way: every acknowledged change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadsKind {
    /// The primary of the partition.
    #[default]
    Primary,
    /// Any member that has everything, if the primary has granted it a delegation of that.
    Any,
}

/// The cluster map as it travels; `samite-placement` gives it its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMapData {
    /// Name of the cluster.
    pub cluster: String,
    /// Version of this map.
    pub epoch: Epoch,
    /// Nodes, ordered by id.
    pub nodes: Vec<NodeInfo>,
    /// State of each of `nodes`, in the same order.
    pub states: Vec<NodeState>,
    /// Ordered by redundancy, all of the same length; the first is for redundancy 1.
    pub tables: Vec<PartitionTable>,
    /// Datasets, ordered by id.
    pub datasets: Vec<DatasetData>,
    /// Losses: records that no node has any more, until they are acknowledged; each dataset once.
    pub losses: Vec<LostRecords>,
}

/// Records that nobody has any more: those of these partitions of each of these datasets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LostRecords {
    /// Ordered.
    pub datasets: Vec<DatasetId>,
    /// Ordered, and apart from one another.
    pub partitions: Vec<PartitionRange>,
}

/// Partitions one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PartitionRange {
    /// The first.
    pub first: PartitionId,
    /// How many.
    pub count: u32,
}

/// Encodes a handshake or control message.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("serializing to memory cannot fail for these types")
}

/// Decodes a handshake or control message of at most [`BODY_LEN_MAX`] bytes.
///
/// # Errors
/// [`WireError`]: too long, malformed, or bytes left over.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, WireError> {
    if bytes.len() > BODY_LEN_MAX {
        return Err(WireError::OverLimit("control message"));
    }
    let (message, rest) =
        postcard::take_from_bytes(bytes).map_err(|_| WireError::Unknown("control message"))?;
    if rest.is_empty() { Ok(message) } else { Err(WireError::Trailing("control message")) }
}
