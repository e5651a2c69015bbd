//! Partitions that are not this node's any more and are still in a target that remembers.

use std::collections::BTreeMap;
use std::sync::Arc;

use samite_backend::WriteBatch;
use samite_mirror::MirroredPartition;
use samite_mirror::durable::PlaceId;

use crate::commit_thread::TargetThreads;

/// A batch that takes all rows of a partition, and the target.
pub(crate) type ClearBatch = (WriteBatch, Arc<TargetThreads>);

/// The partitions that are being cleared, until that is committed: none of them may be opened
/// before.
#[derive(Debug, Default)]
pub(crate) struct PartitionClearings {
    /// How many batches of each are under way.
    under_way: BTreeMap<PlaceId, u32>,
}

impl PartitionClearings {
    /// Whether it is being cleared.
    pub(crate) fn has(&self, id: PlaceId) -> bool {
        self.under_way.contains_key(&id)
    }

    /// A partition is let go of.
    pub(crate) fn begin(
        &mut self,
        id: PlaceId,
        mut gone: MirroredPartition,
        threads: &Arc<TargetThreads>,
    ) -> ClearBatch {
        let records = gone.partition_mut().commits();
        let is_committing = records.is_some_and(|records| records.is_committing());
        self.begin_unopened(id, u32::from(is_committing), threads)
    }

    /// A partition goes of which `before` batches are under way.
    pub(crate) fn begin_unopened(
        &mut self,
        id: PlaceId,
        before: u32,
        threads: &Arc<TargetThreads>,
    ) -> ClearBatch {
        self.under_way.insert(id, before + 1);
        let batch = WriteBatch { place: id, clears: true, rows: [].into() };
        (batch, Arc::clone(threads))
    }

    /// A batch of a partition is committed; whether that is being cleared, or was until now.
    pub(crate) fn note_committed(&mut self, id: PlaceId) -> bool {
        let Some(under_way) = self.under_way.get_mut(&id) else { return false };
        *under_way -= 1;
        if *under_way == 0 {
            self.under_way.remove(&id);
        }
        true
    }
}
