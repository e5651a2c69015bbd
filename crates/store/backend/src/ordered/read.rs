//! Reads of single records.

use std::ops::ControlFlow;

use samite_types::Result;

use super::parts::spans;
use super::row::{RecordRow, ValueLayout, part_key, record_key};
use super::store::OrderedStore;
use crate::record::{PlannedRead, ReadAhead, RecordMeta, ScannedRecord};
use crate::store::ReadRecords;
use crate::value_piece::{ValuePiece, ValueView};

impl OrderedStore {
    /// The record at `key`.
    ///
    /// # Errors
    /// Errors of the target; `Corrupt`: it is damaged, apart from its value.
    pub(super) fn record(&self, key: &[u8]) -> Result<Option<RecordRow<'static>>> {
        let row_key = record_key(key);
        let mut found = None;
        let mut see = |row: &[u8]| {
            found = Some(RecordRow::decode(&row_key, row).map(RecordRow::into_owned));
        };
        self.layers.with_row(&row_key, &mut see)?;
        found.transpose().map_err(|error| self.noted(key, error))
    }

    /// Shows `len` bytes of a value from `offset`; fewer at its end.
    pub(super) fn see_value(
        &self,
        row: &RecordRow<'_>,
        offset: u32,
        len: u32,
        see: &mut dyn FnMut(ValueView<'_>),
    ) -> Result<()> {
        let len = row.meta.len.saturating_sub(offset).min(len);
        let table = match &row.layout {
            ValueLayout::Inline(bytes, _) => {
                if !row.layout.is_right() {
                    return Err(samite_types::ErrorKind::Corrupt.into());
                }
                see_stretch(bytes, offset, len, see);
                return Ok(());
            }
            ValueLayout::Parts(table) => table,
        };
        for span in spans(offset, len as usize) {
            let len = span.len as u32;
            // A value has no parts beyond those that its table has room for: the rest is zeros.
            if table.lens.get(span.part).is_none_or(|stored| *stored <= span.at) {
                see(ValueView::Zeros(len));
                continue;
            }
            let key = part_key(table.id, span.part);
            self.layers.with_part(&key, &mut |bytes| see_stretch(bytes, span.at, len, see))?;
        }
        Ok(())
    }

    fn see(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        see: &mut dyn FnMut(ValueView<'_>),
    ) -> Result<Option<RecordMeta>> {
        let Some(row) = self.record(key)? else { return Ok(None) };
        if len > 0 {
            self.see_value(&row, offset, len, see).map_err(|error| self.noted(key, error))?;
        }
        self.touch(key, offset, len);
        Ok(Some(row.meta))
    }
}

/// Shows `len` bytes from `offset`, of which those behind `stored` are zeros.
fn see_stretch(stored: &[u8], offset: u32, len: u32, see: &mut dyn FnMut(ValueView<'_>)) {
    let start = stored.len().min(offset as usize);
    let end = stored.len().min(offset as usize + len as usize);
    if start < end {
        see(ValueView::Bytes(&stored[start..end]));
    }
    let zeros = len - (end - start) as u32;
    if zeros > 0 {
        see(ValueView::Zeros(zeros));
    }
}

impl ReadRecords for OrderedStore {
    fn meta(&self, key: &[u8]) -> Result<Option<RecordMeta>> {
        self.see(key, 0, 0, &mut |_| {})
    }

    fn verifies_meta(&self) -> bool {
        true
    }

    fn read(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        out: &mut dyn FnMut(ValuePiece),
    ) -> Result<Option<RecordMeta>> {
        self.see(key, offset, len, &mut |view| {
            out(match view {
                ValueView::Bytes(bytes) => ValuePiece::Bytes(bytes.into()),
                ValueView::Zeros(len) => ValuePiece::Zeros(len),
            });
        })
    }

    fn look(
        &self,
        key: &[u8],
        offset: u32,
        len: u32,
        see: &mut dyn FnMut(ValueView<'_>),
    ) -> Result<Option<RecordMeta>> {
        self.see(key, offset, len, see)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        reverse: bool,
        value_len: u32,
        visit: &mut dyn FnMut(&ScannedRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_records(prefix, after, reverse, value_len, visit)
    }

    fn record_count(&self) -> u64 {
        self.counts.records
    }

    fn read_ahead(&self, reads: &[PlannedRead<'_>]) -> Option<ReadAhead> {
        self.plan_reads(reads)
    }
}
