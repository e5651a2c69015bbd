//! Where a view keeps a record, told by the record's key: for what moves whole datasets to clusters
//! with other partitions.

use samite_placement::{Distribution, hash};
use samite_types::PartitionId;

/// How the partition of a record follows from its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordPlacement<'k> {
    /// By the hash of these bytes.
    Hashed(&'k [u8]),
    /// By the dataset's distribution, as chunk `number` of the object that these bytes name.
    Chunk {
        /// Name of the object, whose hash counts.
        object: &'k [u8],
        /// Number of the chunk.
        number: u64,
    },
    /// There is one in each partition that has something of what it is about; all of them together
    /// tell what is so.
    PerPartition,
    /// In whichever partition it was made; nobody computes it.
    Anywhere,
    /// Beside the destination of the move that it decides.
    Verdict,
    /// Chunks under way, or to be removed: this record and the chunks go when no client has them.
    Draft {
        /// What the keys of its chunks begin with: first byte and id.
        chunks: ([u8; 1], &'k [u8]),
    },
    /// Of an operation under way, which needs it no more when its client is gone.
    Transient,
}

impl RecordPlacement<'_> {
    /// The partition of the record in a dataset of so many partitions (at least 1) with this
    /// distribution; `None`: the key alone does not tell.
    #[must_use]
    pub fn partition(&self, partitions: u32, distribution: &Distribution) -> Option<PartitionId> {
        match self {
            // The remainder is below the partition count, which fits.
            Self::Hashed(bytes) => Some(PartitionId((hash(bytes) % u64::from(partitions)) as u32)),
            Self::Chunk { object, number } => {
                Some(distribution.chunk_partition(hash(object), *number))
            }
            Self::PerPartition
            | Self::Anywhere
            | Self::Verdict
            | Self::Draft { .. }
            | Self::Transient => None,
        }
    }
}
