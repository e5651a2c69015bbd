//! Where the data of files lie: for work that is done beside them.

use samite_client::Dataset;
use samite_types::PartitionId;

use crate::FileSystem;

impl FileSystem {
    /// The dataset that the files are records of.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.inner.store.dataset
    }

    /// Bytes of a chunk: data of one chunk lie in one partition.
    #[must_use]
    pub fn chunk_len(&self) -> u64 {
        self.inner.store.chunk_len()
    }

    /// The partition with the data at `offset` of the file `ino`, once it is larger than
    /// [`INLINE_LEN_MAX`](crate::INLINE_LEN_MAX).
    #[must_use]
    pub fn data_partition(&self, ino: u64, offset: u64) -> PartitionId {
        // The limit of a file's length keeps the number in 32 bits.
        let chunk_no = (offset / self.chunk_len()) as u32;
        self.inner.store.chunk(ino, chunk_no).partition
    }

    /// The partition with the entry `name` of the directory `ino`; the data of files of up to
    /// [`INLINE_LEN_MAX`](crate::INLINE_LEN_MAX) bytes lie there, unless they have several names.
    #[must_use]
    pub fn entry_partition(&self, ino: u64, name: &[u8]) -> PartitionId {
        self.inner.store.entry(ino, name).partition
    }
}
