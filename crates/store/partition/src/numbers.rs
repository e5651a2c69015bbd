//! Little-endian numbers in records.

use samite_backend::{ReadRecords, RecordMeta, ValueView};
use samite_types::ErrorKind;
use samite_wire::limits::ADVANCE_COUNT_MAX;

type Result<T> = std::result::Result<T, ErrorKind>;

/// Bytes of one.
pub(crate) const NUMBER_LEN: u32 = size_of::<u64>() as u32;

/// As many as one action changes, one after the other.
pub(crate) type Numbers = [u8; ADVANCE_COUNT_MAX as usize * NUMBER_LEN as usize];

/// Numbers of a record.
pub(crate) struct RecordNumbers {
    /// The record; `None`: there is none.
    pub(crate) meta: Option<RecordMeta>,
    /// Missing bytes count as zeros.
    pub(crate) numbers: Numbers,
    /// Bytes of them that are there.
    pub(crate) len: usize,
}

/// The first `count` numbers at `offset` of the record at `key`.
pub(crate) fn read(
    store: &dyn ReadRecords,
    key: &[u8],
    (offset, count): (u32, u8),
) -> Result<RecordNumbers> {
    let (mut numbers, mut at) = ([0; size_of::<Numbers>()], 0);
    let meta = store.look(key, offset, u32::from(count) * NUMBER_LEN, &mut |seen| match seen {
        ValueView::Bytes(bytes) => {
            numbers[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        ValueView::Zeros(len) => at += len as usize,
    })?;
    Ok(RecordNumbers { meta, numbers, len: at })
}

/// The same, moved forward to `to`, each unless it is a little later already, by `slack` at most.
pub(crate) fn advanced(
    store: &dyn ReadRecords,
    key: &[u8],
    (offset, count): (u32, u8),
    (to, slack): (i64, u64),
) -> Result<RecordNumbers> {
    let mut found = read(store, key, (offset, count))?;
    let there = found.len;
    let numbers = found.numbers.chunks_exact_mut(NUMBER_LEN as usize);
    for (at, number) in numbers.take(usize::from(count)).enumerate() {
        let now = number.first_chunk().map_or(0, |raw| i64::from_le_bytes(*raw));
        let is_there = there >= (at + 1) * NUMBER_LEN as usize;
        if !(is_there && now > to && now.abs_diff(to) <= slack) {
            number.copy_from_slice(&to.to_le_bytes());
        }
    }
    Ok(found)
}
