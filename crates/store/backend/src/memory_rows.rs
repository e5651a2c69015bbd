//! An ordered map in memory: for tests and simulations of targets that remember. It remembers for as
//! long as somebody has it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use samite_types::{ErrorKind, Result};

use crate::commit::{StoredPartition, WriteBatch};
use crate::ordered::{OrderedMap, RowBounds, RowVisit, changed_row};

type PartitionRows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The rows of all partitions of a target.
#[derive(Debug, Default)]
pub struct MemoryRows {
    partitions: Mutex<BTreeMap<StoredPartition, PartitionRows>>,
    is_full: AtomicBool,
}

impl MemoryRows {
    /// Whether its disk is full from now on: it takes nothing but what frees space.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    fn partitions(&self) -> MutexGuard<'_, BTreeMap<StoredPartition, PartitionRows>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows of a partition, as they are now: whoever reads them may read the map meanwhile.
    fn rows(&self, place: StoredPartition) -> PartitionRows {
        self.partitions().get(&place).cloned().unwrap_or_default()
    }
}

impl OrderedMap for MemoryRows {
    fn get(&self, place: StoredPartition, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let row = self.partitions().get(&place).and_then(|rows| rows.get(key)).cloned();
        row.iter().for_each(|row| see(row));
        Ok(row.is_some())
    }

    fn scan(
        &self,
        place: StoredPartition,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut RowVisit<'_>,
    ) -> Result<()> {
        let rows = self.rows(place);
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let mut range = rows.range((owned(bounds.0), owned(bounds.1)));
        while let Some((key, row)) = if reverse { range.next_back() } else { range.next() } {
            if visit(key, row).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, batches: &[WriteBatch]) -> Result<()> {
        let frees = |batch: &WriteBatch| batch.clears && batch.rows.is_empty();
        if self.is_full.load(Ordering::Relaxed) && !batches.iter().all(frees) {
            return Err(ErrorKind::NoSpace.into());
        }
        let mut partitions = self.partitions();
        for batch in batches {
            let rows = partitions.entry(batch.place).or_default();
            if batch.clears {
                rows.clear();
            }
            for (key, change) in batch.rows.iter() {
                match changed_row(key, change, || Ok(rows.get(key).cloned()))? {
                    Some(row) => drop(rows.insert(key.clone(), row.into_owned())),
                    None => drop(rows.remove(key)),
                }
            }
            if rows.is_empty() {
                partitions.remove(&batch.place);
            }
        }
        Ok(())
    }

    fn stored(&self) -> Result<Vec<StoredPartition>> {
        Ok(self.partitions().keys().copied().collect())
    }

    fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::Relaxed)
    }
}
