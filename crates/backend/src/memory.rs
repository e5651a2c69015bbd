//! The memory backend.
use crate::{Arena, Backend, RecordStore, Usage};
use samite_types::{DatasetId, PartitionId, Result};
use std::sync::Arc;
/// A target in memory; a clone is another shard's handle to the same target.
#[derive(Clone, Debug)]
pub struct MemoryBackend {
    arena: Arc<Arena>,
}
impl MemoryBackend {
    /// A target of `capacity_bytes` for `shards` shards.
    pub fn new(_capacity_bytes: u64, _shards: usize) -> Result<Self> {
        todo!()
    }
}
impl Backend for MemoryBackend {
    fn open(
        &mut self,
        _dataset: DatasetId,
        _partition: PartitionId,
    ) -> Result<Box<dyn RecordStore>> {
        todo!()
    }
    fn usage(&self) -> Usage {
        todo!()
    }
    fn arena(&self) -> Option<Arc<Arena>> {
        Some(Arc::clone(&self.arena))
    }
}
