//! Records that are damaged where they lie: found by reading them
//! ([`PartitionCursor::scrub_batch`](crate::PartitionCursor::scrub_batch)), and put right.

use samite_backend::{QuotaLimit, WriteSource};
use samite_wire::op::ValueData;
use samite_wire::peer::RecordCopy;

use crate::Partition;
use crate::copy::RecordKey;

impl Partition {
    /// Puts the bytes of a damaged record back, in place: `record` is that of another member at the
    /// same version. Whether it is right then.
    pub fn put_right(&mut self, record: &RecordCopy<'_>) -> bool {
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
            self.store.set_limit(QuotaLimit::Whole);
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
