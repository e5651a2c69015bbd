//! File locks: what a client asks of the node that keeps the locks of a file.
//!
//! A lock belongs to an *owner*, a token within a client, and lives as long as a connection of that
//! client does.
//!
//! The node of a partition's primary grants locks. Where others may take its place, the client has
//! each of them *note* the lock that it was given, over a connection of its own; and forget it
//! before it releases the lock. A node beside the group notes it, too: a node that joins the group
//! later and becomes the primary asks all others for the locks that they know before it grants any
//! (lock recovery). So the next primary knows the locks of all clients that live.

use samite_types::{ClientId, DatasetId, Epoch, PartitionId, Term};
use serde::{Deserialize, Serialize};

/// Last byte that a lock can cover: the end of the largest file that POSIX knows.
pub const LOCK_LAST: u64 = i64::MAX as u64;

/// Most locks in one answer of a node to another.
pub const KNOWN_LOCKS_MAX: usize = 4096;
/// Most clients in one question of a node to another.
pub const LOCK_CLIENTS_MAX: usize = 1024;

/// Locks of different spaces do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockSpace {
    /// Byte ranges: `fcntl`, `lockf` and locks of open file descriptions. Taking a range again changes its mode at once.
    Ranges,
    /// Whole files: `flock`. A change of mode lets the old lock go before it asks for the new one.
    Whole,
}

/// How a lock excludes others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Beside other shared ones.
    Shared,
    /// Alone.
    Exclusive,
}

/// Bytes from `start` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte, at most [`LOCK_LAST`].
    pub last: u64,
}

impl LockRange {
    /// Every byte.
    pub const WHOLE: Self = Self { start: 0, last: LOCK_LAST };

    /// Whether it is a range at all.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.start <= self.last && self.last <= LOCK_LAST
    }

    /// Whether both have a byte in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

/// Identifies the owner of a lock to a client that asks which lock is in its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockHolder {
    /// Identifies the host among others.
    pub host: u64,
    /// Process on that host; 0 for none in particular.
    pub pid: u32,
}

/// Within one client, who shares locks: a process, an open file description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockOwner {
    /// The client, whose connections keep the lock alive.
    pub client: ClientId,
    /// Chosen by the client.
    pub token: u64,
}

/// One request on the locks of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    /// Dataset of the object.
    pub dataset: DatasetId,
    /// Partition by which the node was chosen.
    pub partition: PartitionId,
    /// The object, an inode number for files.
    pub object: u64,
    /// Which of its locks.
    pub space: LockSpace,
    /// Owner within the asking client.
    pub token: u64,
    /// Term of the group as the asker knows it: a primary of another one has no say, and what that granted is noted by nobody who knows
    /// better.
    pub term: Term,
    /// Epoch of the asker's map: where there are mirrors it must be as new as the primary's, so that all members that there are by then note the lock.
    pub epoch: Epoch,
    /// To a node that is not the primary: note what the primary has granted, or forget it. For [`LockCall::Take`], which then does
    /// not wait, and [`LockCall::Release`].
    pub is_note: bool,
    /// The call to carry out.
    pub call: LockCall,
}

/// A call on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockCall {
    /// Lock it, or change the mode of what the owner holds of it.
    Take {
        /// Bytes.
        range: LockRange,
        /// Mode.
        mode: LockMode,
        /// Shown to others.
        holder: LockHolder,
        /// Wait until it can be had, under this number, which the client has not in use. `None`: answer at once.
        wait: Option<u64>,
        /// A wait that would be part of a circle of waits is refused.
        detects_deadlock: bool,
    },
    /// Release what the owner holds of it.
    Release {
        /// Bytes.
        range: LockRange,
    },
    /// Ask for the lock that would be in the way of such a lock.
    Test {
        /// Bytes.
        range: LockRange,
        /// Mode.
        mode: LockMode,
    },
}

impl LockCall {
    /// The bytes concerned.
    #[must_use]
    pub const fn range(&self) -> LockRange {
        match self {
            Self::Take { range, .. } | Self::Release { range } | Self::Test { range, .. } => *range,
        }
    }
}

/// A lock that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockFound {
    /// Bytes.
    pub range: LockRange,
    /// Mode.
    pub mode: LockMode,
    /// Owner.
    pub owner: LockOwner,
    /// As told when it was taken.
    pub holder: LockHolder,
}

/// A lock that a node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLock {
    /// Dataset of the object.
    pub dataset: DatasetId,
    /// Partition by which its primary was chosen.
    pub partition: PartitionId,
    /// The object.
    pub object: u64,
    /// Which of its locks.
    pub space: LockSpace,
    /// The lock.
    pub lock: LockFound,
    /// The holder has a connection to the node that tells of it.
    pub is_here: bool,
}

impl KnownLock {
    /// Tells locks of one node apart, and puts them in order.
    #[must_use]
    pub const fn place(&self) -> (DatasetId, PartitionId, u64, LockSpace, u64, LockOwner) {
        let Self { dataset, partition, object, space, lock, .. } = self;
        (*dataset, *partition, *object, *space, lock.range.start, lock.owner)
    }
}

/// Answer to a [`LockRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockAnswer {
    /// Taken, released; nothing in the way.
    Done,
    /// This one is in the way.
    Held(LockFound),
    /// The wait would never end.
    Deadlock,
    /// The wait was cancelled.
    Cancelled,
    /// The node keeps as many locks as it can.
    Full,
}
