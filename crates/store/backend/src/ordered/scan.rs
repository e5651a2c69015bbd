//! Walks over the records of a partition.

use std::ops::{Bound, ControlFlow};

use samite_types::{Error, ErrorKind, Result};
use samite_wire::checksum;

use super::row::{RECORD_TAG, RecordRow, ValueLayout, part_key, record_key};
use super::{OrderedStore, RowBounds};
use crate::range::{scan_range, successor};
use crate::record::{RecordMeta, ScannedRecord, ScrubbedRecord};
use crate::store::ScrubRecords;
use crate::value_piece::ValueView;

/// Bounds of record keys as bounds of their rows' keys.
#[derive(Debug)]
pub(super) struct RecordBounds {
    first: Bound<Vec<u8>>,
    last: Bound<Vec<u8>>,
}

impl RecordBounds {
    pub(super) fn new((first, last): (Bound<&[u8]>, Bound<&[u8]>)) -> Self {
        let first = match first {
            Bound::Unbounded => Bound::Included(vec![RECORD_TAG]),
            bound => bound.map(record_key),
        };
        let last = match last {
            Bound::Unbounded => Bound::Excluded(vec![RECORD_TAG + 1]),
            bound => bound.map(record_key),
        };
        Self { first, last }
    }

    /// Those of a scan; `None`: there can be no such record. Forwards they end at the last key with
    /// the prefix.
    pub(super) fn of_scan(prefix: &[u8], after: &[u8], reverse: bool) -> Option<Self> {
        let beyond = successor(prefix);
        let (first, last) = scan_range(prefix, after, reverse, beyond.as_deref())?;
        let last = match (&last, &beyond) {
            (Bound::Unbounded, Some(beyond)) => Bound::Excluded(&**beyond),
            _ => last,
        };
        Some(Self::new((first, last)))
    }

    /// `None`: there is nothing between them.
    pub(super) fn get(&self) -> Option<RowBounds<'_>> {
        let (first, last) =
            (self.first.as_ref().map(|key| &**key), self.last.as_ref().map(|key| &**key));
        let is_empty = match (first, last) {
            (Bound::Included(first), Bound::Included(last)) => first > last,
            (
                Bound::Included(first) | Bound::Excluded(first),
                Bound::Included(last) | Bound::Excluded(last),
            ) => first >= last,
            _ => false,
        };
        (!is_empty).then_some((first, last))
    }
}

impl OrderedStore {
    /// Visits record rows until `visit` breaks or fails; one that is damaged is an error to it.
    fn visit_rows(
        &self,
        bounds: Option<RecordBounds>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], Result<RecordRow<'_>>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let Some(bounds) = bounds else { return Ok(()) };
        let Some(bounds) = bounds.get() else { return Ok(()) };
        let mut failure = None;
        self.layers.scan(bounds, reverse, &mut |row_key, row| {
            let key = &row_key[1..];
            match visit(key, RecordRow::decode(row_key, row)) {
                Ok(flow) => flow,
                Err(error) => {
                    failure = Some(self.noted(key, error));
                    ControlFlow::Break(())
                }
            }
        })?;
        failure.map_or(Ok(()), Err)
    }

    pub(super) fn scan_records(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let bounds = RecordBounds::of_scan(prefix, after, reverse);
        let mut gathered = Vec::new();
        self.visit_rows(bounds, reverse, &mut |key, row| {
            let row = row?;
            gathered.clear();
            if value_len > 0 {
                let mut gather = |view: ValueView<'_>| view.append_to(&mut gathered);
                self.see_value(&row, 0, value_len, &mut gather)?;
            }
            Ok(visit(&ScannedRecord { key, meta: row.meta, value: &gathered }))
        })
    }

    /// Digest of a value, and bytes that were looked at: of the same value it is the same, however
    /// it is stored.
    fn digest(&self, row: &RecordRow<'_>) -> Result<(u64, u64)> {
        let mut digest = u64::from(row.meta.len);
        let mut read = 0;
        let mut add = |part: usize, bytes: &[u8]| {
            read += bytes.len() as u64;
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if end > 0 {
                let about = (part as u64) << 32 | u64::from(checksum::of(&bytes[..end]));
                digest = (digest.rotate_left(29) ^ about).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
        };
        match &row.layout {
            ValueLayout::Inline(bytes, _) if row.layout.is_right() => add(0, bytes),
            ValueLayout::Inline(..) => return Err(ErrorKind::Corrupt.into()),
            ValueLayout::Parts(table) => {
                for (part, _) in table.lens.iter().enumerate().filter(|(_, len)| **len > 0) {
                    self.layers.with_part(&part_key(table.id, part), &mut |bytes| {
                        add(part, bytes);
                    })?;
                }
            }
        }
        Ok((digest, read))
    }

    /// Lets a bit of a value be wrong, whose checksum stays.
    fn rot_value(&mut self, key: &[u8], random: u64) -> Result<bool> {
        let Some(mut row) = self.record(key)? else { return Ok(false) };
        let stored = row.layout.stored_len();
        if stored == 0 {
            return Ok(false);
        }
        let bit = random % (stored * 8);
        let mut at = (bit / 8) as usize;
        let table = match &mut row.layout {
            ValueLayout::Inline(bytes, _) => {
                bytes.to_mut()[at] ^= 1 << (bit % 8);
                let row_key = record_key(key);
                self.layers.pending.put(&row_key, row.encode(&row_key));
                return Ok(true);
            }
            ValueLayout::Parts(table) => table,
        };
        for (part, len) in table.lens.iter().enumerate() {
            if at >= *len as usize {
                at -= *len as usize;
                continue;
            }
            let row_key = part_key(table.id, part);
            let Some(mut row) = self.layers.part_row(&row_key)? else { return Ok(false) };
            // Zeros at the end are not stored.
            let at = super::row::SUM_LEN + at % (row.len() - super::row::SUM_LEN);
            row[at] ^= 1 << (bit % 8);
            self.layers.pending.put(&row_key, row);
            return Ok(true);
        }
        Ok(false)
    }
}

impl ScrubRecords for OrderedStore {
    fn scrub(
        &mut self,
        after: &[u8],
        upto: &[u8],
        visit: &mut dyn FnMut(&ScrubbedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let first = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(after) };
        let last = if upto.is_empty() { Bound::Unbounded } else { Bound::Included(upto) };
        let bounds = Some(RecordBounds::new((first, last)));
        self.visit_rows(bounds, false, &mut |key, row| {
            let is_damage = |error: &Error| error.kind() == ErrorKind::Corrupt;
            let (meta, looked) = match row {
                Ok(row) => (row.meta, self.digest(&row)),
                Err(error) => (RecordMeta { version: 0.into(), len: 0 }, Err(error)),
            };
            let (content, len) = match looked {
                Ok((digest, len)) => (Some(digest), len),
                Err(error) if is_damage(&error) => (None, u64::from(meta.len)),
                Err(error) => return Err(error),
            };
            Ok(visit(&ScrubbedRecord { key, meta, len, content }))
        })
    }

    fn take_damaged(&mut self) -> Vec<Box<[u8]>> {
        std::mem::take(self.damaged.get_mut())
    }

    fn rot(&mut self, key: &[u8], random: u64) -> bool {
        self.rot_value(key, random).unwrap_or(false)
    }
}
