//! Rows of a partition in an ordered map, and their bytes.
//!
//! ```text
//!  0                           state row    crc │ records u64 │ charged u64 │ next value id u64 │ state
//!  1 record key                record row   crc │ version u64 │ length u32 │ 0 │ value crc │ value
//!                                           crc │ version u64 │ length u32 │ 1 │ value id u64 │ parts u32 │ u32 each
//!  2 value id u64 │ part u8    part row     crc │ bytes
//! ```
//!
//! Numbers in keys are big-endian, others little-endian. A checksum (CRC-32C) covers the row's key
//! and what follows it in the row; that of a record row ends before the value, which has its own, so
//! that a record with a damaged value is still known by version and length. Zeros at the end of a
//! value, or of a part, are not stored.

use std::borrow::Cow;

use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::checksum;

use crate::commit::RowChange;
use crate::record::RecordMeta;

/// Bytes of a value that one part row holds.
pub const PART_LEN: u32 = 64 << 10;
/// Parts of a value: of the longest one, and one more.
pub(super) const PARTS_MAX: usize = samite_wire::limits::RECORD_LEN_MAX / PART_LEN as usize + 1;
/// The longest value that lies in its record row.
pub(super) const INLINE_LEN_MAX: usize = 1024;
/// Bytes of a checksum.
pub(super) const SUM_LEN: usize = 4;

/// Key of the state row.
pub(super) const STATE_KEY: [u8; 1] = [0];
/// First byte of a record row's key.
pub(super) const RECORD_TAG: u8 = 1;
/// First byte of a part row's key.
const PART_TAG: u8 = 2;

/// Whether the row at `key` is a part of a value: its bytes may be many.
#[must_use]
pub fn is_part_key(key: &[u8]) -> bool {
    key.first() == Some(&PART_TAG)
}

/// Bounds of the keys of all part rows: from the first, to before the second.
#[must_use]
pub const fn part_key_bounds() -> ([u8; 1], [u8; 1]) {
    ([PART_TAG], [PART_TAG + 1])
}

pub(super) fn record_key(key: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(1 + key.len());
    row.push(RECORD_TAG);
    row.extend_from_slice(key);
    row
}

pub(super) fn part_key(id: u64, part: usize) -> [u8; 10] {
    let mut key = [PART_TAG; 10];
    key[1..9].copy_from_slice(&id.to_be_bytes());
    key[9] = part as u8;
    key
}

fn damaged(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what} on disk is not what was written"))
}

fn number<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (number, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*number)
}

/// The checksum of a row: of its key and its bytes.
fn sum_of(key: &[u8], bytes: &[u8]) -> u32 {
    checksum::append(checksum::of(key), bytes)
}

/// Splits a row with one checksum; `None`: it is damaged.
pub(super) fn verified<'a>(key: &[u8], row: &'a [u8]) -> Option<&'a [u8]> {
    let (sum, bytes) = row.split_first_chunk::<SUM_LEN>()?;
    (u32::from_le_bytes(*sum) == sum_of(key, bytes)).then_some(bytes)
}

/// Writes the checksum of a row into its first bytes; a wrong one, if its bytes are damaged.
pub(super) fn seal(key: &[u8], row: &mut [u8], is_damaged: bool) {
    let sum = sum_of(key, &row[SUM_LEN..]);
    let sum = if is_damaged { !sum } else { sum };
    row[..SUM_LEN].copy_from_slice(&sum.to_le_bytes());
}

/// What the row at `key` becomes by a [`RowChange::Patch`]; `old` is what it is. A row that was
/// damaged, and keeps some of its bytes, stays damaged.
#[must_use]
pub fn patched_row(
    key: &[u8],
    old: Option<&[u8]>,
    keep: u32,
    pieces: &[(u32, Vec<u8>)],
) -> Vec<u8> {
    let kept = old.map(|row| verified(key, row).ok_or(row));
    let (kept, is_damaged) = match kept {
        None => (&[][..], false),
        Some(Ok(bytes)) => (bytes, false),
        Some(Err(row)) => (row.get(SUM_LEN..).unwrap_or(&[]), true),
    };
    let kept = &kept[..kept.len().min(keep as usize)];
    let end = pieces.last().map_or(0, |(at, bytes)| *at as usize + bytes.len());
    let mut row = Vec::with_capacity(SUM_LEN + kept.len().max(end));
    row.extend_from_slice(&[0; SUM_LEN]);
    row.extend_from_slice(kept);
    row.resize(SUM_LEN + kept.len().max(end), 0);
    for (at, bytes) in pieces {
        row[SUM_LEN + *at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    seal(key, &mut row, is_damaged);
    row
}

/// What the row at `key` becomes by `change`; `old` gives what it is, if that matters. `None`: it
/// goes.
///
/// # Errors
/// Errors of `old`.
pub fn changed_row<'c>(
    key: &[u8],
    change: &'c RowChange,
    old: impl FnOnce() -> Result<Option<Vec<u8>>>,
) -> Result<Option<Cow<'c, [u8]>>> {
    Ok(match change {
        RowChange::Put(bytes) => Some(Cow::Borrowed(bytes)),
        RowChange::Patch { keep, pieces } => {
            Some(Cow::Owned(patched_row(key, old()?.as_deref(), *keep, pieces)))
        }
        RowChange::Delete => None,
    })
}

/// The state row: what a partition is beside its records, and what to count on with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StateCounts {
    pub(super) records: u64,
    pub(super) charged: u64,
    pub(super) next_id: u64,
}

impl StateCounts {
    pub(super) fn encode(&self, state: &[u8]) -> Vec<u8> {
        let mut row = vec![0; SUM_LEN];
        for count in [self.records, self.charged, self.next_id] {
            row.extend_from_slice(&count.to_le_bytes());
        }
        row.extend_from_slice(state);
        seal(&STATE_KEY, &mut row, false);
        row
    }

    /// The counts and the state.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn decode(row: &[u8]) -> Result<(Self, &[u8])> {
        let what = || damaged("the state of a partition");
        let mut rest = verified(&STATE_KEY, row).ok_or_else(what)?;
        let mut next = || number(&mut rest).map(u64::from_le_bytes).ok_or_else(what);
        let counts = Self { records: next()?, charged: next()?, next_id: next()? };
        Ok((counts, rest))
    }
}

/// Where the bytes of a value are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueLayout<'a> {
    /// In the record row; what is beyond is zeros. The second is their checksum, as stored.
    Inline(Cow<'a, [u8]>, u32),
    /// In part rows.
    Parts(PartTable),
}

/// Which part rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartTable {
    /// Id of the value, of which no other of the partition has or had the same.
    pub(super) id: u64,
    /// The most bytes that each has; 0: there is no such row, and its bytes are zeros.
    pub(super) lens: [u32; PARTS_MAX],
}

impl ValueLayout<'_> {
    pub(super) fn inline(bytes: Vec<u8>) -> Self {
        let sum = checksum::of(&bytes);
        Self::Inline(Cow::Owned(bytes), sum)
    }

    /// That of a record whose row is damaged: no read finds it right, until it is put anew.
    pub(super) fn lost() -> Self {
        Self::Inline(Cow::Borrowed(&[]), !checksum::of(&[]))
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Inline(bytes, _) if bytes.is_empty()) && !self.is_right()
    }

    /// Bytes that it takes.
    pub(super) fn stored_len(&self) -> u64 {
        match self {
            Self::Inline(bytes, _) => bytes.len() as u64,
            Self::Parts(table) => table.lens.iter().map(|len| u64::from(*len)).sum(),
        }
    }

    /// Whether the bytes that it has itself are what was written.
    pub(super) fn is_right(&self) -> bool {
        match self {
            Self::Inline(bytes, sum) => checksum::of(bytes) == *sum,
            Self::Parts(_) => true,
        }
    }
}

/// A record row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordRow<'a> {
    pub(super) meta: RecordMeta,
    pub(super) layout: ValueLayout<'a>,
}

impl RecordRow<'_> {
    /// The bytes of the row whose key is `row_key`.
    pub(super) fn encode(&self, row_key: &[u8]) -> Vec<u8> {
        let mut row = vec![0; SUM_LEN];
        row.extend_from_slice(&self.meta.version.get().to_le_bytes());
        row.extend_from_slice(&self.meta.len.to_le_bytes());
        match &self.layout {
            ValueLayout::Inline(bytes, sum) => {
                row.push(0);
                row.extend_from_slice(&sum.to_le_bytes());
                seal(row_key, &mut row, false);
                row.extend_from_slice(bytes);
            }
            ValueLayout::Parts(table) => {
                row.push(1);
                row.extend_from_slice(&table.id.to_le_bytes());
                let has = |part: usize| u32::from(table.lens[part] > 0) << part;
                let parts = (0..PARTS_MAX).map(has).fold(0, |all, one| all | one);
                row.extend_from_slice(&parts.to_le_bytes());
                for len in table.lens.iter().filter(|len| **len > 0) {
                    row.extend_from_slice(&len.to_le_bytes());
                }
                seal(row_key, &mut row, false);
            }
        }
        row
    }

    pub(super) fn into_owned(self) -> RecordRow<'static> {
        let layout = match self.layout {
            ValueLayout::Inline(bytes, sum) => {
                ValueLayout::Inline(Cow::Owned(bytes.into_owned()), sum)
            }
            ValueLayout::Parts(table) => ValueLayout::Parts(table),
        };
        RecordRow { meta: self.meta, layout }
    }

    /// The row that has these bytes at `row_key`.
    ///
    /// # Errors
    /// `Corrupt`: it is damaged, apart from its value.
    pub(super) fn decode<'a>(row_key: &[u8], row: &'a [u8]) -> Result<RecordRow<'a>> {
        Self::parse(row_key, row).ok_or_else(|| damaged("a record"))
    }

    fn parse<'a>(row_key: &[u8], row: &'a [u8]) -> Option<RecordRow<'a>> {
        const HEAD_LEN: usize = SUM_LEN + 8 + 4 + 1;
        let mut rest = row.get(SUM_LEN..)?;
        let version = Version(u64::from_le_bytes(number(&mut rest)?));
        let len = u32::from_le_bytes(number(&mut rest)?);
        let meta = RecordMeta { version, len };
        let [kind] = number(&mut rest)?;
        if kind == 0 {
            verified(row_key, row.get(..HEAD_LEN + SUM_LEN)?)?;
            let sum = u32::from_le_bytes(number(&mut rest)?);
            let layout = ValueLayout::Inline(Cow::Borrowed(rest), sum);
            return (rest.len() <= len as usize).then_some(RecordRow { meta, layout });
        }
        verified(row_key, row)?;
        let id = u64::from_le_bytes(number(&mut rest)?);
        let parts = u32::from_le_bytes(number(&mut rest)?);
        let mut lens = [0; PARTS_MAX];
        for (part, len) in lens.iter_mut().enumerate() {
            if parts >> part & 1 == 1 {
                *len = u32::from_le_bytes(number(&mut rest)?).min(PART_LEN);
            }
        }
        Some(RecordRow { meta, layout: ValueLayout::Parts(PartTable { id, lens }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<RecordRow<'static>> {
        let meta = RecordMeta { version: Version(7), len: 200_000 };
        let mut lens = [0; PARTS_MAX];
        (lens[0], lens[3]) = (PART_LEN, 5);
        vec![
            RecordRow { meta, layout: ValueLayout::inline(b"value".to_vec()) },
            RecordRow { meta, layout: ValueLayout::inline(Vec::new()) },
            RecordRow { meta, layout: ValueLayout::Parts(PartTable { id: 9, lens }) },
        ]
    }

    #[test]
    fn rows_read_back_and_know_their_key() {
        for row in rows() {
            let bytes = row.encode(b"\x01key");
            assert_eq!(RecordRow::decode(b"\x01key", &bytes).unwrap(), row);
            assert!(RecordRow::decode(b"\x01other", &bytes).is_err());
        }
        let counts = StateCounts { records: 1, charged: 2, next_id: 3 };
        let row = counts.encode(b"state");
        assert_eq!(StateCounts::decode(&row).unwrap(), (counts, &b"state"[..]));
    }

    #[test]
    fn every_wrong_bit_and_every_cut_is_found() {
        for row in rows() {
            let bytes = row.encode(b"\x01key");
            for bit in 0..bytes.len() * 8 {
                let mut wrong = bytes.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                let found = RecordRow::decode(b"\x01key", &wrong);
                assert!(found.is_err() || !found.unwrap().layout.is_right(), "bit {bit}");
            }
            for len in 0..bytes.len() {
                let found = RecordRow::decode(b"\x01key", &bytes[..len]);
                assert!(found.is_err() || !found.unwrap().layout.is_right(), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_patch_made_twice_is_the_same() {
        let key = part_key(1, 0);
        let mut old = vec![0; SUM_LEN];
        old.extend_from_slice(&[9; 100]);
        seal(&key, &mut old, false);
        let pieces = [(10, vec![1; 5]), (60, vec![2; 7])];
        for keep in [0, 12, 40, 64, 100, 500] {
            let once = patched_row(&key, Some(&old), keep, &pieces);
            assert!(verified(&key, &once).is_some());
            assert_eq!(patched_row(&key, Some(&once), keep, &pieces), once, "keeping {keep}");
        }
        old[20] ^= 1;
        let still = patched_row(&key, Some(&old), 100, &pieces);
        assert!(verified(&key, &still).is_none(), "damage is vouched for");
    }
}
