//! Makes a copy of a partition while it goes on changing.
//!
//! A walk through the keys in order, and a queue of the keys behind it whose records changed since
//! they were visited. When the walk has come to its end and the queue is short, its rest and the
//! partition's state, taken at the same time, make the copy whole. A queue that overflows makes the
//! walk begin again.
//!
//! The same for a member that is brought up to date, which is asked first for its records, and for
//! a checkpoint, which takes all.

use std::collections::{BTreeSet, VecDeque};

use samite_backend::ValuePiece;
use samite_partition::{
    CursorBatch, CursorFlow, Partition, PartitionCursor, RecordKey, ValuePieces,
};
use samite_types::{Result, Version};
use samite_wire::limits::RESYNC_RECORDS_MAX;
use samite_wire::op::ValueData;
use samite_wire::peer::RecordCopy;

/// Most keys in the queue, and most bytes of them.
const QUEUE_MAX: usize = 1 << 16;
const QUEUE_LEN_MAX: usize = 16 << 20;
/// A queue with no more keys than this is short.
const SHORT: usize = 64;
/// Most bytes of keys and versions in one comparison.
const COMPARE_LEN_MAX: usize = 64 << 10;
/// Bytes that a record counts for beside its key and value.
const RECORD_LEN: usize = 24;

/// A record, copied.
#[derive(Clone, Debug)]
pub struct CopiedRecord {
    /// Key.
    pub key: RecordKey,
    /// Version.
    pub version: Version,
    /// Its value; `None`: the record is no more.
    pub value: Option<ValuePieces>,
}

impl CopiedRecord {
    /// The record as it travels.
    pub(crate) fn as_copy(&self) -> RecordCopy<'_> {
        let value = self.value.as_ref().map(|pieces| {
            let data = pieces.iter().map(|piece| match piece.as_bytes() {
                Some(bytes) => ValueData::Inline(bytes),
                // A record has at most 1 MiB.
                None => ValueData::Zeros(piece.len() as u32),
            });
            data.collect()
        });
        RecordCopy { key: &self.key, version: self.version, value }
    }
}

/// The pieces of records that are no holes.
pub(crate) fn pieces_of(copied: &[CopiedRecord]) -> Vec<ValuePiece> {
    let pieces = copied.iter().filter_map(|record| record.value.as_ref()).flatten();
    pieces.filter(|piece| !matches!(piece, ValuePiece::Zeros(_))).cloned().collect()
}

/// The next step of a copy.
#[derive(Clone, Debug)]
pub enum CopyBatch {
    /// All records of a range, without their values: which are wanted ([`CopySource::want`])?
    Compare {
        /// The range begins behind this key; empty: at the first.
        after: RecordKey,
        /// The range ends with this key; empty: with the last.
        upto: RecordKey,
        /// Keys and versions.
        records: Vec<(RecordKey, Version)>,
    },
    /// Some records.
    Records(Vec<CopiedRecord>),
    /// The last records. With the partition's state as it is now the copy is whole.
    Last(Vec<CopiedRecord>),
}

/// A copy under way.
#[derive(Debug, Default)]
pub struct CopySource {
    /// Ask first.
    compares: bool,
    cursor: PartitionCursor,
    /// Keys of the last comparison, then those of them that are wanted.
    compared: Vec<RecordKey>,
    wanted: VecDeque<RecordKey>,
    queue: BTreeSet<RecordKey>,
    queue_len: usize,
    /// How often the walk began again.
    restarts: u64,
}

impl CopySource {
    /// A copy of all records.
    #[must_use]
    pub fn copying() -> Self {
        Self::default()
    }

    /// A copy of the records that are wanted.
    #[must_use]
    pub fn comparing() -> Self {
        Self { compares: true, ..Self::default() }
    }

    /// How often the walk began again, because too much changed behind it.
    #[must_use]
    pub const fn restarts(&self) -> u64 {
        self.restarts
    }

    /// The walk has visited all keys up to this one; `None`: all.
    #[must_use]
    pub fn cursor(&self) -> Option<&[u8]> {
        self.cursor.position()
    }

    /// The record with this key has changed.
    pub fn note(&mut self, key: &[u8]) {
        if !self.cursor.has_passed(key) || self.queue.contains(key) {
            return;
        }
        if self.queue.len() >= QUEUE_MAX || self.queue_len + key.len() > QUEUE_LEN_MAX {
            let restarts = self.restarts + 1;
            *self = Self { compares: self.compares, restarts, ..Self::default() };
            return;
        }
        self.queue_len += key.len();
        self.queue.insert(key.into());
    }

    /// Of the last comparison, the records whose bit is set are wanted.
    pub fn want(&mut self, bits: &[u8]) {
        let compared = std::mem::take(&mut self.compared).into_iter().enumerate();
        let is_set =
            |index: usize| bits.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1);
        self.wanted.extend(compared.filter(|(index, _)| is_set(*index)).map(|(_, key)| key));
    }

    /// The next step, of about `len_max` bytes. The step before must have been done.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn next(&mut self, partition: &Partition, len_max: usize) -> Result<CopyBatch> {
        if !self.wanted.is_empty() {
            let records = copy_some(partition, len_max, || self.wanted.pop_front())?;
            return Ok(CopyBatch::Records(records));
        }
        let is_walked = self.cursor.position().is_none();
        let is_long = self.queue.len() > QUEUE_MAX / 2 || self.queue_len > QUEUE_LEN_MAX / 2;
        if !is_walked && !is_long {
            return if self.compares {
                self.compare(partition)
            } else {
                self.walk(partition, len_max)
            };
        }
        let records = copy_some(partition, len_max, || {
            let key = self.queue.pop_first()?;
            self.queue_len -= key.len();
            Some(key)
        })?;
        if is_walked && self.queue.is_empty() && records.len() <= SHORT {
            return Ok(CopyBatch::Last(records));
        }
        Ok(CopyBatch::Records(records))
    }

    fn compare(&mut self, partition: &Partition) -> Result<CopyBatch> {
        let place = |cursor: &PartitionCursor| cursor.position().unwrap_or_default().into();
        let after = place(&self.cursor);
        let (mut count, mut len) = (0, 0);
        let batch = self.cursor.next_batch(partition, &mut |key, _| {
            if count == RESYNC_RECORDS_MAX || len >= COMPARE_LEN_MAX {
                return CursorFlow::Leave;
            }
            count += 1;
            len += key.len() + 10;
            CursorFlow::Take
        })?;
        self.compared = batch.iter().map(|(key, _)| key.clone()).collect();
        let records = batch.into_iter().map(|(key, meta)| (key, meta.version)).collect();
        Ok(CopyBatch::Compare { after, upto: place(&self.cursor), records })
    }

    fn walk(&mut self, partition: &Partition, len_max: usize) -> Result<CopyBatch> {
        let (mut count, mut len) = (0, 0);
        let batch = self.cursor.next_batch(partition, &mut |key, meta| {
            if len >= len_max || count == RESYNC_RECORDS_MAX {
                return CursorFlow::Leave;
            }
            count += 1;
            len += key.len() + meta.len as usize + RECORD_LEN;
            CursorFlow::Take
        })?;
        Ok(CopyBatch::Records(copy_all(partition, batch)?))
    }
}

/// Copies the records of a batch.
pub(crate) fn copy_all(partition: &Partition, batch: CursorBatch) -> Result<Vec<CopiedRecord>> {
    let mut keys = batch.into_iter().map(|(key, _)| key);
    copy_some(partition, usize::MAX, || keys.next())
}

/// Copies the records whose keys `next` gives, until they have `len_max` bytes: at least one.
fn copy_some(
    partition: &Partition,
    len_max: usize,
    mut next: impl FnMut() -> Option<RecordKey>,
) -> Result<Vec<CopiedRecord>> {
    let (mut records, mut len) = (Vec::new(), 0);
    while len < len_max && records.len() < RESYNC_RECORDS_MAX {
        let Some(key) = next() else { break };
        let record = partition.read_record(&key)?;
        let version = record.as_ref().map_or(Version(0), |(meta, _)| meta.version);
        len += key.len() + RECORD_LEN + record.as_ref().map_or(0, |(meta, _)| meta.len as usize);
        records.push(CopiedRecord { key, version, value: record.map(|(_, pieces)| pieces) });
    }
    Ok(records)
}
