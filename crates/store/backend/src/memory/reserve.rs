//! Setting space aside before anything changes.
//!
//! Mostly there is plenty: then the most that the changes could take is charged, without a look at the records, and what is left is given back
//! after. Only a target that is nearly full makes it worth finding out what they really take.

use samite_arena::node::BLOCK_CHARGE;
use samite_types::Result;

use super::space::{SpaceDemand, heap_charge};
use super::value::{HEAP_LEN_MAX, PART_LEN, RecordValue};
use super::{MemoryStore, adopts, on_grid, record_charge, spans, writes_whole};
use crate::quota::QuotaLimit;
use crate::record::PlannedChange;
use crate::value_piece::WriteSource;

impl PlannedChange<'_> {
    /// The most it can take, in bytes, whatever the record is like.
    fn charge_max(&self) -> u64 {
        let Some(key) = self.key() else { return 0 };
        let storage = match self {
            Self::Moves { .. } | Self::Wipes { .. } => 0,
            Self::Put { source, .. } => put_charge(source.len()),
            Self::Write { offset, source, .. } => {
                // Any part that it touches may be shared and have to move; at the heap's rate or the arena's.
                parts(*offset, source.len()).count() as u64
                    * (BLOCK_CHARGE + heap_charge(HEAP_LEN_MAX as usize))
            }
        };
        record_charge(key) + storage
    }

    /// The most it can take of a record that has `len` bytes, if there is one.
    fn charge_of(&self, len: Option<u32>) -> u64 {
        let Some(key) = self.key() else { return 0 };
        let storage = match self {
            Self::Moves { .. } | Self::Wipes { .. } => 0,
            Self::Put { source, .. } => put_charge(source.len()),
            Self::Write { offset, source, .. } => {
                let after = (u64::from(*offset) + source.len() as u64).max(len.unwrap_or(0).into());
                let of_part = |part: u64| match after - (part * u64::from(PART_LEN)).min(after) {
                    len if len <= u64::from(HEAP_LEN_MAX) => heap_charge(HEAP_LEN_MAX as usize),
                    _ => BLOCK_CHARGE,
                };
                parts(*offset, source.len()).map(of_part).sum()
            }
        };
        storage + if len.is_none() { record_charge(key) } else { 0 }
    }

    /// Whether it only overwrites bytes that `value` has, and so leaves it as long as it is.
    fn stays_within(&self, value: &RecordValue) -> bool {
        match self {
            Self::Put { .. } | Self::Moves { .. } | Self::Wipes { .. } => false,
            Self::Write { offset, source, .. } => {
                u64::from(*offset) + source.len() as u64 <= u64::from(value.len())
            }
        }
    }
}

impl MemoryStore {
    /// The most that `changes` take of any target that has the same records.
    pub(super) fn most(&self, changes: &[PlannedChange<'_>]) -> u64 {
        let charge = |(index, change): (usize, &PlannedChange<'_>)| {
            let Some(key) = change.key() else { return 0 };
            let mut earlier = changes[..index].iter();
            if earlier.any(|earlier| earlier.unsettles(key) || earlier.key() == Some(key)) {
                // The result of an earlier change is not known yet.
                return change.charge_max();
            }
            change.charge_of(self.records.get(key).map(|record| record.value.len()))
        };
        changes.iter().enumerate().map(charge).sum()
    }

    /// Charges what `changes` take, ahead.
    pub(super) fn set_aside(&mut self, changes: &[PlannedChange<'_>]) -> Result<()> {
        let most = changes.iter().map(PlannedChange::charge_max).sum();
        let (account, quota) = self.space.account();
        if account.set_aside(quota, most) {
            return Ok(());
        }
        let mut demand = SpaceDemand::default();
        for (index, change) in changes.iter().enumerate() {
            let Some(key) = change.key() else { continue };
            let none = RecordValue::default();
            let found = self.records.get(key);
            let value = found.map_or(&none, |record| &record.value);
            let mut earlier = changes[..index].iter();
            if earlier.any(|earlier| {
                earlier.unsettles(key) || earlier.key() == Some(key) && !earlier.stays_within(value)
            }) {
                // The result of an earlier change is not known yet.
                demand.add_heap(change.charge_max());
                continue;
            }
            if found.is_none() {
                demand.add_heap(record_charge(key));
            }
            match change {
                PlannedChange::Put { source, .. } => put_demand(&mut demand, value, source),
                PlannedChange::Write { offset, source, .. } => {
                    write_demand(&mut demand, value, *offset, source);
                }
                PlannedChange::Moves { .. } | PlannedChange::Wipes { .. } => {}
            }
        }
        let exact = self.space.charge_for(&demand);
        let (account, quota) = self.space.account();
        if account.set_aside(quota, exact) {
            return Ok(());
        }
        if account.limit() == QuotaLimit::Beyond && demand.is_of_heap() {
            account.charge_reserve(quota, exact);
            return Ok(());
        }
        Err(self.space.full())
    }
}

/// The most that a value of `len` bytes takes.
fn put_charge(len: usize) -> u64 {
    if len <= HEAP_LEN_MAX as usize {
        heap_charge(len)
    } else {
        (len as u64).div_ceil(u64::from(PART_LEN)) * BLOCK_CHARGE
    }
}

/// Numbers of the parts of a value that a write of `len` bytes at `offset` touches.
fn parts(offset: u32, len: usize) -> std::ops::Range<u64> {
    let end = u64::from(offset) + len as u64;
    u64::from(offset / PART_LEN)..end.div_ceil(u64::from(PART_LEN))
}

fn put_demand(demand: &mut SpaceDemand, value: &RecordValue, source: &WriteSource<'_>) {
    match source {
        WriteSource::Zeros(_) => {}
        WriteSource::Blocks(blocks) if on_grid(blocks) => {
            for (index, (extent, filled)) in blocks.iter().enumerate() {
                if !adopts(extent, *filled) {
                    demand.add_storage(value.replace_needs(index, *filled));
                }
            }
        }
        WriteSource::Bytes(_) | WriteSource::Blocks(_) => {
            for (index, _, span) in spans(0, source.len() as u32) {
                demand.add_storage(value.replace_needs(index, span.len() as u32));
            }
        }
    }
}

fn write_demand(
    demand: &mut SpaceDemand,
    value: &RecordValue,
    offset: u32,
    source: &WriteSource<'_>,
) {
    let mut add = |offset, len, zeros| {
        for (index, at, span) in spans(offset, len) {
            demand.add_storage(value.write_needs(index, at + span.len() as u32, zeros));
        }
    };
    match source {
        WriteSource::Bytes(bytes) => add(offset, bytes.len() as u32, false),
        WriteSource::Zeros(len) => add(offset, *len, true),
        WriteSource::Blocks(blocks) => {
            let mut at = offset;
            for (extent, filled) in blocks {
                if !writes_whole(value, at, extent, *filled) {
                    add(at, *filled, false);
                }
                at += *filled;
            }
        }
    }
}
