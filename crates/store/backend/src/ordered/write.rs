//! Changes of records.
//!
//! Each reads the record rows that it needs first, then charges, and then changes rows: an error
//! leaves all as it was.

use std::borrow::Cow;
use std::ops::Range;

use samite_types::{ErrorKind, Result, Version};

use super::OrderedStore;
use super::row::{
    INLINE_LEN_MAX, PART_LEN, PARTS_MAX, PartTable, RecordRow, ValueLayout, part_key, record_key,
};
use super::space::{charge_of, record_charge};
use crate::quota::QuotaLimit;
use crate::record::{PlannedChange, RecordChange, RecordMeta};
use crate::store::WriteRecords;
use crate::value_piece::WriteSource;

/// Bytes within one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartSpan {
    pub(super) part: usize,
    /// The first one's offset in the part.
    pub(super) at: u32,
    /// Where they are among all the bytes.
    pub(super) bytes: Range<usize>,
    pub(super) len: usize,
}

/// Cuts `len` bytes at `offset` at the bounds of parts.
pub(super) fn spans(offset: u32, len: usize) -> impl Iterator<Item = PartSpan> {
    let (offset, mut done) = (u64::from(offset), 0);
    std::iter::from_fn(move || {
        let place = offset + done as u64;
        let at = (place % u64::from(PART_LEN)) as u32;
        let span = ((PART_LEN - at) as usize).min(len - done);
        done += span;
        let part = (place / u64::from(PART_LEN)) as usize;
        (span > 0).then_some(PartSpan { part, at, bytes: done - span..done, len: span })
    })
}

/// The bytes of each part that a value takes.
pub(super) fn stored_lens(layout: &ValueLayout<'_>) -> [u32; PARTS_MAX] {
    match layout {
        ValueLayout::Inline(bytes, _) => {
            let mut lens = [0; PARTS_MAX];
            lens[0] = bytes.len() as u32;
            lens
        }
        ValueLayout::Parts(table) => table.lens,
    }
}

/// Bytes up to the last that is not zero.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// Bytes to write; `None`: zeros.
fn bytes_of<'a>(source: &'a WriteSource<'a>) -> Option<Cow<'a, [u8]>> {
    match source {
        WriteSource::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
        WriteSource::Zeros(_) => None,
        WriteSource::Blocks(blocks) => {
            let filled = blocks.iter().map(|(extent, len)| &extent.as_slice()[..*len as usize]);
            Some(Cow::Owned(filled.collect::<Vec<_>>().concat()))
        }
    }
}

/// The bytes of an inline value after a write; `None`: it is not inline any more.
fn inline_after(old: &[u8], offset: u32, len: usize, bytes: Option<&[u8]>) -> Option<Vec<u8>> {
    let mut value = old.to_vec();
    match bytes {
        Some(bytes) => {
            let bytes = trimmed_write(old.len(), offset as usize, bytes);
            let end = offset as usize + bytes.len();
            if !bytes.is_empty() && end > INLINE_LEN_MAX {
                return None;
            }
            if !bytes.is_empty() {
                value.resize(value.len().max(end), 0);
                value[offset as usize..end].copy_from_slice(bytes);
            }
        }
        None => {
            let start = value.len().min(offset as usize);
            let end = value.len().min(offset as usize + len);
            value[start..end].fill(0);
        }
    }
    value.truncate(trimmed(&value).len());
    Some(value)
}

/// Those of the bytes of a write that change anything: not the zeros behind what is stored.
fn trimmed_write(stored: usize, at: usize, bytes: &[u8]) -> &[u8] {
    let within = stored.saturating_sub(at).min(bytes.len());
    &bytes[..trimmed(bytes).len().max(within)]
}

impl OrderedStore {
    /// The record that is about to change. One whose row is damaged is there, and stays
    /// [damaged](ValueLayout::lost) until it is put or deleted; what it had charged stays charged.
    pub(super) fn record_to_change(&self, key: &[u8]) -> Result<Option<RecordRow<'static>>> {
        match self.record(key) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let meta = RecordMeta { version: Version(0), len: 0 };
                Ok(Some(RecordRow { meta, layout: ValueLayout::lost() }))
            }
            found => found,
        }
    }

    fn set_record(&mut self, key: &[u8], row: &RecordRow<'_>) {
        let row_key = record_key(key);
        self.layers.pending.put(&row_key, row.encode(&row_key));
    }

    fn delete_part(&mut self, id: u64, part: usize) {
        self.layers.pending.delete(&part_key(id, part), id >= self.known_ids);
    }

    fn delete_parts(&mut self, layout: &ValueLayout<'_>) {
        if let ValueLayout::Parts(table) = layout {
            for part in (0..PARTS_MAX).filter(|part| table.lens[*part] > 0) {
                self.delete_part(table.id, part);
            }
        }
    }

    const fn new_id(&mut self) -> u64 {
        let id = self.counts.next_id;
        self.counts.next_id += 1;
        id
    }

    /// The charge of a record, with its key's if it is there.
    fn charged(key: &[u8], old: Option<&RecordRow<'_>>) -> u64 {
        old.map_or(0, |row| charge_of(key, row))
    }

    fn put_value(
        &mut self,
        key: &[u8],
        source: &WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        check_len(0, source)?;
        let old = self.record_to_change(key)?;
        let bytes = bytes_of(source);
        let bytes = bytes.as_deref().map_or(&[][..], trimmed);
        let mut lens = [0; PARTS_MAX];
        for span in spans(0, bytes.len()) {
            lens[span.part] = trimmed(&bytes[span.bytes]).len() as u32;
        }
        let is_inline = bytes.len() <= INLINE_LEN_MAX;
        let stored = match is_inline {
            true => bytes.len() as u64,
            false => lens.iter().map(|len| u64::from(*len)).sum(),
        };
        self.charge(Self::charged(key, old.as_ref()), record_charge(key) + stored)?;
        let layout = if is_inline {
            old.iter().for_each(|row| self.delete_parts(&row.layout));
            ValueLayout::inline(bytes.to_vec())
        } else {
            let had = match old.as_ref().map(|row| &row.layout) {
                Some(ValueLayout::Parts(table)) => *table,
                _ => PartTable { id: self.new_id(), lens: [0; PARTS_MAX] },
            };
            for part in 0..PARTS_MAX {
                if lens[part] > 0 {
                    let from = part * PART_LEN as usize;
                    let bytes = &bytes[from..from + lens[part] as usize];
                    self.layers.pending.put_part(&part_key(had.id, part), 0, bytes);
                } else if had.lens[part] > 0 {
                    self.delete_part(had.id, part);
                }
            }
            ValueLayout::Parts(PartTable { id: had.id, lens })
        };
        let len = source.len() as u32;
        self.set_record(key, &RecordRow { meta: RecordMeta { version, len }, layout });
        self.counts.records += u64::from(old.is_none());
        Ok(RecordChange { len, created: old.is_none() })
    }

    fn write_value(
        &mut self,
        key: &[u8],
        offset: u32,
        source: &WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        check_len(offset, source)?;
        let old = self.record_to_change(key)?;
        let (count, bytes) = (source.len(), bytes_of(source));
        let bytes = bytes.as_deref();
        let charged = Self::charged(key, old.as_ref());
        let created = old.is_none();
        let RecordRow { mut meta, layout } = old.unwrap_or_else(|| RecordRow {
            meta: RecordMeta { version, len: 0 },
            layout: ValueLayout::inline(Vec::new()),
        });
        meta = RecordMeta { version, len: meta.len.max(offset + count as u32) };
        if layout.is_lost() {
            self.set_record(key, &RecordRow { meta, layout });
            return Ok(RecordChange { len: meta.len, created });
        }
        let inline = match &layout {
            ValueLayout::Inline(old, _) => inline_after(old, offset, count, bytes),
            ValueLayout::Parts(_) => None,
        };
        if let Some(value) = inline {
            self.charge(charged, record_charge(key) + value.len() as u64)?;
            // What stays of a damaged value is damaged.
            let is_replaced = offset == 0 && count >= stored_lens(&layout)[0] as usize;
            let layout = match (ValueLayout::inline(value), layout.is_right() || is_replaced) {
                (ValueLayout::Inline(value, sum), false) => ValueLayout::Inline(value, !sum),
                (layout, _) => layout,
            };
            self.set_record(key, &RecordRow { meta, layout });
        } else {
            let lens = lens_after(&stored_lens(&layout), offset, count, bytes);
            let stored: u64 = lens.iter().map(|len| u64::from(*len)).sum();
            self.charge(charged, record_charge(key) + stored)?;
            let table = self.part_table(&layout);
            self.write_parts(&table, offset, count, bytes);
            let layout = ValueLayout::Parts(PartTable { id: table.id, lens });
            self.set_record(key, &RecordRow { meta, layout });
        }
        self.counts.records += u64::from(created);
        Ok(RecordChange { len: meta.len, created })
    }

    /// The parts of a value; an inline one is moved into the first.
    fn part_table(&mut self, layout: &ValueLayout<'_>) -> PartTable {
        match layout {
            ValueLayout::Parts(table) => *table,
            ValueLayout::Inline(bytes, _) => {
                let table = PartTable { id: self.new_id(), lens: stored_lens(layout) };
                let key = part_key(table.id, 0);
                if !bytes.is_empty() && layout.is_right() {
                    self.layers.pending.put_part(&key, 0, bytes);
                } else if !bytes.is_empty() {
                    let mut row = vec![0; super::row::SUM_LEN];
                    row.extend_from_slice(bytes);
                    super::row::seal(&key, &mut row, true);
                    self.layers.pending.put(&key, row);
                }
                table
            }
        }
    }

    /// Writes into the parts of a value that are as `table` says.
    fn write_parts(&mut self, table: &PartTable, offset: u32, count: usize, bytes: Option<&[u8]>) {
        for span in spans(offset, count) {
            let (key, stored) = (part_key(table.id, span.part), table.lens[span.part]);
            let end = span.at + span.len as u32;
            match bytes.map(|bytes| &bytes[span.bytes.clone()]) {
                Some(bytes) => {
                    let bytes = trimmed_write(stored as usize, span.at as usize, bytes);
                    let is_whole = span.at == 0 && bytes.len() >= stored as usize;
                    if bytes.is_empty() {
                    } else if stored == 0 || is_whole {
                        self.layers.pending.put_part(&key, span.at, bytes);
                    } else {
                        self.layers.pending.write_part(&key, span.at, bytes);
                    }
                }
                None if span.at >= stored => {}
                None if end < stored => {
                    self.layers.pending.write_part(&key, span.at, &vec![0; span.len]);
                }
                None if span.at == 0 => self.delete_part(table.id, span.part),
                None => self.layers.pending.cut_part(&key, span.at),
            }
        }
    }

    fn cut_value(&mut self, layout: ValueLayout<'static>, len: u32) -> ValueLayout<'static> {
        match layout {
            ValueLayout::Inline(bytes, sum) if bytes.len() <= len as usize => {
                ValueLayout::Inline(bytes, sum)
            }
            ValueLayout::Inline(bytes, sum) => {
                let is_right = samite_wire::checksum::of(&bytes) == sum || len == 0;
                match ValueLayout::inline(trimmed(&bytes[..len as usize]).to_vec()) {
                    ValueLayout::Inline(bytes, sum) if !is_right => {
                        ValueLayout::Inline(bytes, !sum)
                    }
                    cut => cut,
                }
            }
            ValueLayout::Parts(mut table) => {
                for part in 0..PARTS_MAX {
                    let start = part as u32 * PART_LEN;
                    let stays = len.saturating_sub(start);
                    if table.lens[part] <= stays {
                        continue;
                    }
                    match stays {
                        0 => self.delete_part(table.id, part),
                        _ => self.layers.pending.cut_part(&part_key(table.id, part), stays),
                    }
                    table.lens[part] = stays;
                }
                match table.lens.iter().all(|len| *len == 0) {
                    true => ValueLayout::inline(Vec::new()),
                    false => ValueLayout::Parts(table),
                }
            }
        }
    }
}

/// Refuses what no value has room for.
fn check_len(offset: u32, source: &WriteSource<'_>) -> Result<()> {
    match offset as usize + source.len() <= PARTS_MAX * PART_LEN as usize {
        true => Ok(()),
        false => Err(ErrorKind::TooLarge.into()),
    }
}

/// The bytes of each part after a write.
fn lens_after(
    old: &[u32; PARTS_MAX],
    offset: u32,
    count: usize,
    bytes: Option<&[u8]>,
) -> [u32; PARTS_MAX] {
    let mut lens = *old;
    for span in spans(offset, count) {
        let (len, end) = (&mut lens[span.part], span.at + span.len as u32);
        match bytes {
            Some(bytes) => {
                let bytes = trimmed_write(*len as usize, span.at as usize, &bytes[span.bytes]);
                if !bytes.is_empty() {
                    *len = (*len).max(span.at + bytes.len() as u32);
                }
            }
            None if end >= *len => *len = (*len).min(span.at),
            None => {}
        }
    }
    lens
}

impl WriteRecords for OrderedStore {
    fn reserve(&mut self, changes: &[PlannedChange<'_>]) -> Result<()> {
        self.set_aside(changes)?;
        self.is_reserved = true;
        Ok(())
    }

    fn settle(&mut self) {
        self.account.settle(self.target.quota());
        self.is_reserved = false;
    }

    fn set_limit(&mut self, limit: QuotaLimit) {
        self.account.set_limit(limit);
    }

    fn charge_max(&self, changes: &[PlannedChange<'_>]) -> u64 {
        self.most(changes)
    }

    fn keep(&mut self, least: u64, wanted: u64) -> u64 {
        self.account.keep(self.target.quota(), least, wanted)
    }

    fn has_reserve(&self) -> bool {
        self.target.quota().has_reserve()
    }

    fn draw(&mut self, bytes: u64) {
        self.account.draw(bytes);
    }

    fn put(
        &mut self,
        key: &[u8],
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        self.put_value(key, &source, version)
    }

    fn write(
        &mut self,
        key: &[u8],
        offset: u32,
        source: WriteSource<'_>,
        version: Version,
    ) -> Result<RecordChange> {
        self.write_value(key, offset, &source, version)
    }

    fn truncate(&mut self, key: &[u8], len: u32, version: Version) -> Result<Option<RecordChange>> {
        let Some(old) = self.record_to_change(key)? else { return Ok(None) };
        let before = charge_of(key, &old);
        let layout = self.cut_value(old.layout, len);
        let row = RecordRow { meta: RecordMeta { version, len }, layout };
        self.uncharge(before - charge_of(key, &row));
        self.set_record(key, &row);
        Ok(Some(RecordChange { len, created: false }))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let Some(old) = self.record_to_change(key)? else { return Ok(false) };
        self.delete_parts(&old.layout);
        self.layers.pending.delete(&record_key(key), false);
        self.uncharge(charge_of(key, &old));
        self.counts.records -= 1;
        Ok(true)
    }

    fn rename(&mut self, key: &[u8], to: &[u8], version: Version) -> Result<bool> {
        debug_assert!(to.len() <= key.len(), "a longer key takes space");
        let Some(mut row) = self.record_to_change(key)? else { return Ok(false) };
        if key != to {
            self.delete(to)?;
            self.layers.pending.delete(&record_key(key), false);
            self.uncharge(record_charge(key) - record_charge(to));
        }
        row.meta.version = version;
        self.set_record(to, &row);
        Ok(true)
    }
}
