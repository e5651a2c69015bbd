//! How far a dump or a load is, for those who watch it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that grow while a dump or a load runs.
#[derive(Debug, Default)]
pub struct TransferProgress {
    records: AtomicU64,
    bytes: AtomicU64,
}

impl TransferProgress {
    /// One more record was dealt with, of so many bytes.
    pub(crate) fn add(&self, records: u64, bytes: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes of their values so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
