//! Reads ahead: bringing rows from the disk into the page cache, on a thread of the target.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use samite_wire::checksum;

use super::row::{PARTS_MAX, RecordRow, ValueLayout, part_key, record_key};
use super::scan::RecordBounds;
use super::write::spans;
use super::{OrderedMap, OrderedStore};
use crate::commit::StoredPartition;
use crate::record::{PlannedRead, ReadAhead};

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

    fn has(&self, hash: u64) -> bool {
        self.slot(hash).load(Ordering::Relaxed) == hash
    }

    fn add(&self, hash: u64) {
        // A line that many cores read is not written for nothing.
        if !self.has(hash) {
            self.slot(hash).store(hash, Ordering::Relaxed);
        }
    }
}

/// A hash of what is read, never 0.
fn hash_of((dataset, partition): StoredPartition, key: &[u8], what: u64) -> u64 {
    let place = u64::from(dataset.get()) << 32 | u64::from(partition.get());
    let sum = u64::from(checksum::of(key)) << 32 | key.len() as u64;
    let mixed = (sum ^ place.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29 ^ what).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31) | 1 << 63
}

/// The parts of a record whose bytes are read; none when `len` is 0.
fn parts(offset: u32, len: u32) -> impl Iterator<Item = usize> {
    let len = (len as usize).min(samite_wire::limits::RECORD_LEN_MAX);
    spans(offset, len).map(|span| span.part).take_while(|part| *part < PARTS_MAX)
}

fn part_hash(record: u64, part: usize) -> u64 {
    record.rotate_left(7).wrapping_add(part as u64 + 1).wrapping_mul(0x94d0_49bb_1331_11eb)
        | 1 << 63
}

/// A read to do ahead.
#[derive(Debug)]
enum RowRead {
    Record { key: Box<[u8]>, offset: u32, len: u32 },
    Scan { bounds: RecordBounds, reverse: bool, limit: u32, value_len: u32, hash: u64 },
}

/// What reads ahead.
struct RowReader {
    map: Arc<dyn OrderedMap>,
    place: StoredPartition,
    recent: Arc<RecentRows>,
}

impl RowReader {
    /// Brings bytes of a value in; errors are told to who reads it then.
    fn read_parts(&self, hash: u64, row: &RecordRow<'_>, offset: u32, len: u32) {
        let ValueLayout::Parts(table) = &row.layout else {
            parts(offset, len).for_each(|part| self.recent.add(part_hash(hash, part)));
            return;
        };
        for part in parts(offset, len) {
            if table.lens[part] > 0 {
                let mut see = |bytes: &[u8]| {
                    std::hint::black_box(checksum::of(bytes));
                };
                let _ = self.map.get(self.place, &part_key(table.id, part), &mut see);
            }
            self.recent.add(part_hash(hash, part));
        }
    }

    fn read(&self, read: &RowRead) {
        match read {
            RowRead::Record { key, offset, len } => {
                let (row_key, hash) = (record_key(key), hash_of(self.place, key, 0));
                let mut found = None;
                let mut see = |row: &[u8]| {
                    found = RecordRow::decode(&row_key, row).ok().map(RecordRow::into_owned);
                };
                let _ = self.map.get(self.place, &row_key, &mut see);
                self.recent.add(hash);
                match found {
                    Some(row) => self.read_parts(hash, &row, *offset, *len),
                    None => {
                        parts(*offset, *len).for_each(|part| self.recent.add(part_hash(hash, part)))
                    }
                }
            }
            RowRead::Scan { bounds, reverse, limit, value_len, hash } => {
                let Some(bounds) = bounds.get() else { return };
                let mut left = *limit;
                let _ = self.map.scan(self.place, bounds, *reverse, &mut |row_key, row| {
                    let hash = hash_of(self.place, &row_key[1..], 0);
                    self.recent.add(hash);
                    if *value_len > 0
                        && let Ok(row) = RecordRow::decode(row_key, row)
                    {
                        self.read_parts(hash, &row, 0, row.meta.len.min(*value_len));
                    }
                    left = left.saturating_sub(1);
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                self.recent.add(*hash);
            }
        }
    }
}

impl OrderedStore {
    /// Notes that a record was read.
    pub(super) fn touch(&self, key: &[u8], offset: u32, len: u32) {
        let (recent, hash) = (self.target.recent(), hash_of(self.place, key, 0));
        recent.add(hash);
        if len > 0 {
            // What is read is no longer than a record; hashes of parts that it does not have hurt
            // nobody.
            parts(offset, len).for_each(|part| recent.add(part_hash(hash, part)));
        }
    }

    /// Whether a read needs nothing of the disk, as far as known.
    fn is_near(&self, key: &[u8], offset: u32, len: u32) -> bool {
        let (recent, hash) = (self.target.recent(), hash_of(self.place, key, 0));
        if !recent.has(hash) && !self.layers.covers(&record_key(key)) {
            return false;
        }
        let mut parts = parts(offset, len).peekable();
        if parts.peek().is_none() {
            return true;
        }
        // The record row is at hand, and tells which parts there are.
        let Ok(Some(row)) = self.record(key) else { return true };
        let ValueLayout::Parts(table) = &row.layout else { return true };
        parts.all(|part| {
            table.lens[part] == 0
                || recent.has(part_hash(hash, part))
                || self.layers.covers(&part_key(table.id, part))
        })
    }

    pub(super) fn plan_reads(&self, reads: &[PlannedRead<'_>]) -> Option<ReadAhead> {
        if self.layers.hides_map {
            return None;
        }
        let plan = |read: &PlannedRead<'_>| match *read {
            PlannedRead::Record { key, offset, len } => (!self.is_near(key, offset, len))
                .then(|| RowRead::Record { key: key.into(), offset, len }),
            PlannedRead::Scan { prefix, after, reverse, limit, value_len } => {
                let bounds = RecordBounds::of_scan(prefix, after, reverse)?;
                let what = u64::from(value_len) << 1 | u64::from(reverse);
                let hash = hash_of(self.place, prefix, 1)
                    ^ hash_of(self.place, after, what << 32 | u64::from(limit));
                let hash = hash | 1 << 63;
                (!self.target.recent().has(hash)).then_some(RowRead::Scan {
                    bounds,
                    reverse,
                    limit,
                    value_len,
                    hash,
                })
            }
        };
        let planned: Vec<_> = reads.iter().filter_map(plan).collect();
        if planned.is_empty() {
            return None;
        }
        let (map, recent) = (Arc::clone(self.target.map()), Arc::clone(self.target.recent()));
        let reader = RowReader { map, place: self.place, recent };
        Some(Box::new(move || planned.iter().for_each(|read| reader.read(read))))
    }
}
