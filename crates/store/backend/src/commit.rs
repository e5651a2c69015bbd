//! Stores that remember: records that are there again when their target is opened the next time.
//!
//! Such a store takes changes at once, into memory, as every store does. Its driver takes them out
//! as [`WriteBatch`]es, each with all that the partition is beside its records, and has a thread of
//! the target [commit](CommitTarget::commit) them. What was changed and is not committed yet may be
//! read; a reply that tells of it waits. So no disk is waited for where requests are served, and
//! after a crash the records and the state beside them belong together.

use std::fmt;
use std::sync::Arc;

use samite_types::{DatasetId, PartitionId, Result};

/// The partition of a dataset.
pub type StoredPartition = (DatasetId, PartitionId);

/// What a row of a target becomes.
#[derive(Clone, PartialEq, Eq)]
pub enum RowChange {
    /// These bytes.
    Put(Vec<u8>),
    /// The first bytes of what it is, with other bytes in some places; zeros where there was
    /// nothing before. Made twice it is the same.
    Patch {
        /// So many of its bytes stay, if it has them.
        keep: u32,
        /// Offset and bytes of the pieces, in order and apart from each other.
        pieces: Vec<(u32, Vec<u8>)>,
    },
    /// Nothing.
    Delete,
}

impl fmt::Debug for RowChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(bytes) => write!(f, "Put({} B)", bytes.len()),
            Self::Patch { keep, pieces } => {
                write!(f, "Patch({} pieces over {keep} B)", pieces.len())
            }
            Self::Delete => f.write_str("Delete"),
        }
    }
}

/// Changes of one partition that take effect together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBatch {
    /// The partition.
    pub place: StoredPartition,
    /// All rows of the partition go first.
    pub clears: bool,
    /// Keys of rows and what they become, in the order of the keys.
    pub rows: Arc<[(Vec<u8>, RowChange)]>,
}

impl WriteBatch {
    /// Bytes of its rows, about.
    #[must_use]
    pub fn len(&self) -> usize {
        let of_change = |change: &RowChange| match change {
            RowChange::Put(bytes) => bytes.len(),
            RowChange::Patch { pieces, .. } => pieces.iter().map(|(_, bytes)| bytes.len()).sum(),
            RowChange::Delete => 0,
        };
        self.rows.iter().map(|(key, change)| key.len() + of_change(change)).sum()
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && !self.clears
    }
}

/// The part of a record store that remembers.
///
/// At most one batch of it is under way: after [`take_batch`](Self::take_batch) comes
/// [`committed`](Self::committed).
pub trait CommitRecords {
    /// The state that came with the last batch that was committed; to be asked for when the store is
    /// opened. `None`: there was none, or it was taken back; then there are no records.
    ///
    /// # Errors
    /// Errors of the target; `Corrupt`.
    fn state(&self) -> Result<Option<Vec<u8>>>;

    /// Bytes of changes that no batch has taken yet.
    fn pending_len(&self) -> u64;

    /// Whether a batch is under way.
    fn is_committing(&self) -> bool;

    /// Takes all changes since the last batch, and `state`, which is from now on that of the
    /// records. `None`: the records are of no use to anybody before another batch brings a state;
    /// a store that is opened before has none.
    fn take_batch(&mut self, state: Option<&[u8]>) -> WriteBatch;

    /// The batch under way is committed.
    fn committed(&mut self);
}

/// The target of stores that remember. What it does may wait for a disk or a network: it is called
/// on a thread of its own.
pub trait CommitTarget: Send + Sync {
    /// The partitions of which it has something.
    ///
    /// # Errors
    /// Errors of the target; `Corrupt`.
    fn stored(&self) -> Result<Vec<StoredPartition>>;

    /// Makes all these changes, or none. When it returns they survive a crash and a power cut.
    ///
    /// # Errors
    /// `NoSpace`: nothing has changed, and the same may be tried again. All others: nobody knows
    /// which of them are there before the target is opened anew.
    fn commit(&self, batches: &[WriteBatch]) -> Result<()>;
}
