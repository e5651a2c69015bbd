//! The null backend.
use crate::{Arena, Backend, RecordStore, Usage};
use samite_types::{DatasetId, PartitionId, Result};
use std::sync::Arc;
/// A target that keeps lengths only.
#[derive(Clone, Debug)]
pub struct NullBackend;
impl NullBackend {
    /// A target whose keys may take `capacity_bytes`.
    #[must_use]
    pub fn new(_capacity_bytes: u64) -> Self {
        Self
    }
}
impl Backend for NullBackend {
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
        None
    }
}
