//! Record stores over an ordered map on disk.
//!
//! A backend that remembers gives an [`OrderedMap`]: rows of bytes in the order of their keys, which
//! a thread of the target changes by whole [`WriteBatch`]es. All else is here: rows of records and
//! values (`row.rs`), changes that are not in the map yet (`overlay.rs`), reads through them
//! (`layers.rs`, `read.rs`, `scan.rs`), changes (`write.rs`), and the quota (`space.rs`).
//!
//! A read sees the changes that no batch has taken, over those of the batch under way, over the
//! map. It is right at any moment: the batch under way covers what it is about to put into the map,
//! and made twice it is the same. Changes read record rows only, never bytes of large values: a
//! write into a part of a value is a patch, which the committing thread carries out.

mod commit;
mod layers;
mod overlay;
mod read;
mod read_ahead;
mod row;
mod scan;
mod space;
mod target;
mod write;

use std::cell::RefCell;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use samite_types::{Error, ErrorKind, Result};

use crate::commit::{StoredPartition, WriteBatch};
use crate::quota::QuotaAccount;
use crate::store::{PublishRecords, RecordStore};
use layers::RowLayers;
pub use row::{PART_LEN, changed_row, is_part_key, part_key_bounds, patched_row};
pub use target::{OFFERS, OrderedBackend, OrderedTarget};

/// Bounds of row keys.
pub type RowBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Rows of a target, each a key and its bytes, which outlive the process.
///
/// Each partition has rows of its own. Keys have up to
/// [`KEY_LEN_MAX`](samite_wire::limits::KEY_LEN_MAX) + 1 bytes, rows up to [`PART_LEN`] + 4. Reads
/// come from any thread, and see the map as a commit left it; commits come from one at a time.
pub trait OrderedMap: fmt::Debug + Send + Sync {
    /// Hands the row at `key` to `see`. Returns whether there is one.
    ///
    /// # Errors
    /// Errors of the target; `Corrupt`.
    fn get(&self, place: StoredPartition, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Visits the rows of a partition within `bounds`, in the order of their keys, or backwards,
    /// until `visit` breaks. `visit` may read the map.
    ///
    /// # Errors
    /// Errors of the target; `Corrupt`.
    fn scan(
        &self,
        place: StoredPartition,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Makes all changes, or none; [`changed_row`] tells what a row becomes. When it returns they
    /// survive a crash and a power cut.
    ///
    /// # Errors
    /// As [`CommitTarget::commit`](crate::CommitTarget::commit).
    fn commit(&self, batches: &[WriteBatch]) -> Result<()>;

    /// The partitions that have rows.
    ///
    /// # Errors
    /// Errors of the target; `Corrupt`.
    fn stored(&self) -> Result<Vec<StoredPartition>>;

    /// Whether there is room on the disk for more than changes that free some.
    fn has_room(&self) -> bool;
}

/// The row at `key`, copied.
///
/// # Errors
/// As [`OrderedMap::get`].
pub fn row_of(map: &dyn OrderedMap, place: StoredPartition, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut row = None;
    map.get(place, key, &mut |bytes| row = Some(bytes.to_vec()))?;
    Ok(row)
}

/// Most keys of damaged records that are remembered until somebody asks for them.
const DAMAGED_MAX: usize = 1024;

/// The records of one partition.
#[derive(Debug)]
struct OrderedStore {
    target: Arc<OrderedTarget>,
    place: StoredPartition,
    layers: RowLayers,
    /// Records, bytes charged for them, and the id of the next value.
    counts: row::StateCounts,
    /// Value ids below are known to the layers below the pending changes.
    known_ids: u64,
    account: QuotaAccount,
    /// Between `reserve` and `settle`.
    is_reserved: bool,
    /// Keys of records that were found damaged and not told of yet.
    damaged: RefCell<Vec<Box<[u8]>>>,
}

impl OrderedStore {
    /// Notes a damaged record.
    #[cold]
    fn damage(&self, key: &[u8]) -> Error {
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() < DAMAGED_MAX && damaged.iter().all(|known| **known != *key) {
            damaged.push(key.into());
        }
        Error::new(ErrorKind::Corrupt, "the stored bytes are not what was written")
    }

    /// The error of a read of the record at `key`, which is noted if that is damaged.
    fn noted(&self, key: &[u8], error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt { self.damage(key) } else { error }
    }
}

impl PublishRecords for OrderedStore {}

impl RecordStore for OrderedStore {
    fn commits(&mut self) -> Option<&mut dyn crate::commit::CommitRecords> {
        Some(self)
    }
}

impl Drop for OrderedStore {
    fn drop(&mut self) {
        self.account.close(self.target.quota());
        self.target.close(self.place, self.counts.charged);
    }
}
