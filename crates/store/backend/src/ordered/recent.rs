//! Which rows were touched not long ago.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of the table of rows that were touched.
const RECENT_MAX: usize = 1 << 16;

/// Rows that were touched not long ago, as hashes: a bounded table, in which a later one takes the
/// place of an earlier one. What it has is most likely in the page cache.
pub(super) struct RecentRows(Box<[AtomicU64]>);

impl Default for RecentRows {
    fn default() -> Self {
        Self((0..RECENT_MAX).map(|_| AtomicU64::new(0)).collect())
    }
}

impl fmt::Debug for RecentRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecentRows({RECENT_MAX})")
    }
}

impl RecentRows {
    fn slot(&self, hash: u64) -> &AtomicU64 {
        &self.0[hash as usize % RECENT_MAX]
    }

    pub(super) fn has(&self, hash: u64) -> bool {
        self.slot(hash).load(Ordering::Relaxed) == hash
    }

    pub(super) fn add(&self, hash: u64) {
        // A line that many cores read is not written for nothing.
        if !self.has(hash) {
            self.slot(hash).store(hash, Ordering::Relaxed);
        }
    }
}
