//! Scrubbing of all records of a partition, for damage.

use std::ops::ControlFlow;

use samite_placement::hash;
use samite_types::Result;

use crate::Partition;
use crate::copy::RecordKey;
use crate::digest::StateDigest;

/// Findings in a range of records.
#[derive(Clone, Debug)]
pub struct ScrubbedRange {
    /// The last record that was looked at; `None`: there are no more.
    pub upto: Option<RecordKey>,
    /// Records, and bytes of their values.
    pub records: u64,
    /// Bytes of their values.
    pub len: u64,
    /// The records that are damaged.
    pub damaged: Vec<RecordKey>,
    /// Digest of keys, versions and values: equal in members that have the same records. Of no
    /// meaning when something is damaged.
    pub digest: u64,
}

impl Partition {
    /// Looks at the records behind `after` up to and with `upto` (each empty: no bound), at least
    /// one of them, until there were `len_max` bytes or `count_max` records. A record in memory
    /// without a checksum has one from then on.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn scrub(
        &mut self,
        (after, upto): (&[u8], &[u8]),
        (count_max, len_max): (u64, u64),
    ) -> Result<ScrubbedRange> {
        let mut digest = StateDigest::new();
        let (mut records, mut len, mut damaged) = (0, 0, Vec::new());
        let mut last: Option<RecordKey> = None;
        self.store.scrub(after, upto, &mut |record| {
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
        Ok(ScrubbedRange { upto: last, records, len, damaged, digest: digest.get() })
    }

    /// Puts the bytes of a damaged record back: `pieces` are those of other members at its version.
    /// Whether it is right then.
    pub fn put_right(&mut self, record: &samite_wire::peer::RecordCopy<'_>) -> bool {
        use samite_backend::WriteSource;
        use samite_wire::op::ValueData;
        let (Some(pieces), Ok(Some(meta))) = (&record.value, self.store.meta(record.key)) else {
            return false;
        };
        let len: usize = pieces.iter().map(ValueData::len).sum();
        if meta.version != record.version || meta.len as usize != len {
            return false;
        }
        // In place: the record must not be lost for want of room.
        let mut at = 0;
        for piece in pieces {
            self.store.set_limit(samite_backend::QuotaLimit::Whole);
            if let ValueData::Inline(bytes) = piece
                && self
                    .store
                    .write(record.key, at, WriteSource::Bytes(bytes), meta.version)
                    .is_err()
            {
                return false;
            }
            at += piece.len() as u32;
        }
        self.is_right(record.key)
    }

    /// Whether a record is undamaged, or not there.
    pub fn is_right(&mut self, key: &[u8]) -> bool {
        let is_right = self.read_record(key).is_ok();
        if !is_right {
            self.store.take_damaged();
        }
        is_right
    }

    /// Records that were found damaged since the last call.
    pub fn take_damaged(&mut self) -> Vec<RecordKey> {
        self.store.take_damaged()
    }

    /// Lets one bit of a stored value be wrong from now on. For tests, and for faults that are
    /// injected.
    pub fn rot(&mut self, key: &[u8], random: u64) -> bool {
        self.store.rot(key, random)
    }
}
