//! The trait of what is below: rows on disk, in order.

use std::fmt;
use std::ops::{Bound, ControlFlow};

use samite_types::Result;

use crate::commit::{StoredPartition, WriteBatch};

/// Bounds of row keys.
pub type RowBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// What a scan hands keys and rows to, until it breaks.
pub type RowVisit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Rows of a target, each a key and its bytes, which outlive the process.
///
/// Each partition has rows of its own. Keys have up to
/// [`KEY_LEN_MAX`](samite_wire::limits::KEY_LEN_MAX) + 1 bytes, rows up to
/// [`PART_LEN`](super::PART_LEN) + 4. Reads
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
        visit: &mut RowVisit<'_>,
    ) -> Result<()>;

    /// Makes all changes, or none; [`changed_row`](super::changed_row) tells what a row becomes. When it returns they
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
