//! Targets: places that hold the records of many partitions.

use std::sync::Arc;

use samite_arena::Arena;
use samite_types::{DatasetId, PartitionId, Result};

use crate::commit::CommitTarget;
use crate::store::RecordStore;

/// How full a target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetUsage {
    /// Bytes it can hold.
    pub capacity: u64,
    /// Bytes in use: values as stored, keys, and what each record costs beside them.
    pub used: u64,
    /// Bytes of the arena whose pages are in place.
    pub populated: u64,
}

/// One target, as one shard sees it: each shard has its own handle.
pub trait Backend: Send {
    /// Opens the records of one partition: those that were committed, if the target remembers; else
    /// it is empty, and dropping it frees its space.
    fn open(&mut self, dataset: DatasetId, partition: PartitionId) -> Result<Box<dyn RecordStore>>;

    /// How full the target is.
    fn usage(&self) -> TargetUsage;

    /// The arena that clients on this host can map, if there is one.
    fn arena(&self) -> Option<Arc<Arena>>;

    /// Whether a value reads back as it was written; a backend that answers `false` gives zeros instead.
    fn keeps_values(&self) -> bool {
        true
    }

    /// The target of its stores, if they remember.
    fn commit_target(&self) -> Option<Arc<dyn CommitTarget>> {
        None
    }
}
