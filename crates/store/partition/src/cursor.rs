//! A walk over the records of a partition in the order of their keys, a batch at a time, while the
//! partition goes on changing between the batches.
//!
//! Scrubbing, checkpoints and resync walk so, and the comparison of ranges. A record that changes
//! behind the walk is its user's business ([`PartitionCursor::has_passed`]).

use std::ops::ControlFlow;

use samite_backend::RecordMeta;
use samite_placement::hash;
use samite_types::Result;

use crate::Partition;
use crate::copy::RecordKey;
use crate::digest::StateDigest;

/// A place in the order of keys, and where the walk ends.
#[derive(Clone, Debug, Default)]
pub struct PartitionCursor {
    /// All up to this key was visited; empty: nothing.
    at: RecordKey,
    /// The walk ends with this key; empty: with the last record.
    end: RecordKey,
    is_done: bool,
}

/// What becomes of the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorFlow {
    /// It belongs to the batch.
    Take,
    /// It is the last of the batch.
    TakeLast,
    /// The batch has ended before it.
    Leave,
}

/// Keys of a batch, with version and length of their records.
pub type CursorBatch = Vec<(RecordKey, RecordMeta)>;

/// Findings in a batch of records.
#[derive(Clone, Debug)]
pub struct ScrubbedBatch {
    /// Records that were looked at.
    pub records: u64,
    /// Bytes of their values.
    pub len: u64,
    /// The records that are damaged.
    pub damaged: Vec<RecordKey>,
    /// Digest of keys, versions and values: equal in members that have the same records. Of no
    /// meaning when something is damaged.
    pub digest: u64,
}

impl PartitionCursor {
    /// A walk over the records behind `after` up to and with `upto`; each empty: no bound. The
    /// default walks over all.
    #[must_use]
    pub fn range(after: &[u8], upto: &[u8]) -> Self {
        Self { at: after.into(), end: upto.into(), is_done: false }
    }

    /// The walk has visited all up to this key (empty: nothing yet); `None`: all there is.
    #[must_use]
    pub fn position(&self) -> Option<&[u8]> {
        (!self.is_done).then_some(&*self.at)
    }

    /// Whether the walk has visited the place of `key`.
    #[must_use]
    pub fn has_passed(&self, key: &[u8]) -> bool {
        self.is_done || !self.at.is_empty() && key <= &*self.at
    }

    /// Visits key, version and length of the records that remain, until `visit` breaks. The cursor
    /// stays where it is.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn visit(
        &self,
        partition: &Partition,
        visit: &mut dyn FnMut(&[u8], RecordMeta) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.is_done {
            return Ok(());
        }
        partition.visit_records(&self.at, &mut |key, meta| match self.is_behind(key) {
            true => ControlFlow::Break(()),
            false => visit(key, meta),
        })
    }

    /// The next batch; `flow` says of each record whether it belongs to it. The walk is done when
    /// no record is left that `flow` was not asked about.
    ///
    /// # Errors
    /// Errors of the store; the cursor stays where it is.
    pub fn next_batch(
        &mut self,
        partition: &Partition,
        flow: &mut dyn FnMut(&[u8], RecordMeta) -> CursorFlow,
    ) -> Result<CursorBatch> {
        let (mut batch, mut is_done) = (CursorBatch::new(), true);
        self.visit(partition, &mut |key, meta| {
            let flow = flow(key, meta);
            if flow != CursorFlow::Leave {
                batch.push((key.into(), meta));
            }
            is_done = flow == CursorFlow::Take;
            if is_done { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        match batch.last() {
            Some((last, _)) if !is_done => self.at.clone_from(last),
            _ => {}
        }
        self.is_done |= is_done;
        Ok(batch)
    }

    /// Reads the records of the next batch for damage: at least one, until there were `count_max`
    /// records or `len_max` bytes. A record in memory without a checksum has one from then on.
    ///
    /// # Errors
    /// Errors of the store; the cursor stays where it is.
    pub fn scrub_batch(
        &mut self,
        partition: &mut Partition,
        (count_max, len_max): (u64, u64),
    ) -> Result<ScrubbedBatch> {
        let mut digest = StateDigest::new();
        let (mut records, mut len, mut damaged) = (0, 0, Vec::new());
        let mut last: Option<RecordKey> = None;
        partition.store.scrub(&self.at, &self.end, &mut |record| {
            records += 1;
            len += record.len;
            match record.content {
                Some(content) => {
                    let meta = record.meta;
                    let about =
                        [hash(record.key), meta.version.get(), u64::from(meta.len), content];
                    about.into_iter().for_each(|number| digest.add(number));
                }
                None => damaged.push(record.key.into()),
            }
            if records >= count_max || len >= len_max {
                last = Some(record.key.into());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        match last {
            Some(last) => self.at = last,
            None => self.is_done = true,
        }
        Ok(ScrubbedBatch { records, len, damaged, digest: digest.get() })
    }

    /// Whether the walk ends before `key`.
    fn is_behind(&self, key: &[u8]) -> bool {
        !self.end.is_empty() && key > &*self.end
    }
}

#[cfg(test)]
mod tests {
    use samite_backend::memory::MemoryBackend;
    use samite_backend::{Backend as _, QuotaLimit};
    use samite_types::{DatasetId, PartitionId, Version};
    use samite_wire::peer::RecordCopy;

    use super::*;

    /// A partition with the records `a` to `f`, of one byte each.
    fn partition() -> Partition {
        let mut backend = MemoryBackend::new(1 << 20, 1).unwrap();
        let mut partition = Partition::new(backend.open(DatasetId(1), PartitionId(0)).unwrap());
        for key in b'a'..=b'f' {
            let value = [samite_wire::op::ValueData::Inline(b"v")].into_iter().collect();
            let record = RecordCopy { key: &[key], version: Version(1), value: Some(value) };
            partition.install(&record, QuotaLimit::Open).unwrap();
        }
        partition
    }

    /// The keys of the next batch, which ends where `flow` says.
    fn batch(
        cursor: &mut PartitionCursor,
        partition: &Partition,
        mut flow: impl FnMut(&[u8]) -> CursorFlow,
    ) -> Vec<u8> {
        let batch = cursor.next_batch(partition, &mut |key, _| flow(key)).unwrap();
        batch.iter().map(|(key, _)| key[0]).collect()
    }

    #[test]
    fn a_walk_goes_on_where_a_batch_has_ended() {
        let (partition, mut cursor) = (partition(), PartitionCursor::default());
        assert!(!cursor.has_passed(b"a") && cursor.position() == Some(b""));
        let before_c = |key: &[u8]| if key < b"c" { CursorFlow::Take } else { CursorFlow::Leave };
        assert_eq!(batch(&mut cursor, &partition, before_c), b"ab");
        assert!(cursor.has_passed(b"b") && !cursor.has_passed(b"c"));
        let to_d = |key: &[u8]| if key < b"d" { CursorFlow::Take } else { CursorFlow::TakeLast };
        assert_eq!(batch(&mut cursor, &partition, to_d), b"cd");
        assert_eq!(cursor.position(), Some(&b"d"[..]));
        assert_eq!(batch(&mut cursor, &partition, |_| CursorFlow::Take), b"ef");
        assert!(cursor.position().is_none() && cursor.has_passed(b"z"));
        assert_eq!(batch(&mut cursor, &partition, |_| CursorFlow::Take), b"");
    }

    #[test]
    fn a_range_ends_with_its_last_key() {
        let (mut partition, mut cursor) = (partition(), PartitionCursor::range(b"b", b"d"));
        let found = cursor.clone().scrub_batch(&mut partition, (9, 9)).unwrap();
        assert_eq!((found.records, found.len, found.damaged.len()), (2, 2, 0));
        assert_eq!(batch(&mut cursor, &partition, |_| CursorFlow::Take), b"cd");
        assert!(cursor.position().is_none());
    }

    #[test]
    fn a_scrub_ends_its_batch_at_either_limit() {
        let (mut partition, mut cursor) = (partition(), PartitionCursor::default());
        assert_eq!(cursor.scrub_batch(&mut partition, (2, 9)).unwrap().records, 2);
        assert_eq!(cursor.scrub_batch(&mut partition, (9, 3)).unwrap().len, 3);
        assert_eq!(cursor.position(), Some(&b"e"[..]));
        assert_eq!(cursor.scrub_batch(&mut partition, (9, 9)).unwrap().records, 1);
        assert!(cursor.position().is_none());
    }
}
